package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
)

// written is the writes for a shape.
type written struct {
	Occurrences int     `json:"occurrences"`
	Writes      int     `json:"writes"`
	Seconds     float64 `json:"seconds"`
}

// each calls f with each event of a file, in order.
func each(path string, f func(*corev1.Event) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e corev1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if err := f(&e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// pace limits events to a rate.
type pace struct {
	begin    time.Time
	interval time.Duration
	passed   int
}

func newPace(rate float64) *pace {
	return &pace{begin: time.Now(), interval: time.Duration(float64(time.Second) / rate)}
}

func (p *pace) wait() {
	time.Sleep(time.Until(p.begin.Add(time.Duration(p.passed) * p.interval)))
	p.passed++
}

// simulated is the writes of client-go's correlators for a shape, and the sum of their records' counts.
type simulated struct {
	Occurrences int `json:"occurrences"`
	Writes      int `json:"writes"`
	Shown       int `json:"shown"`
}

// simulate runs a shape through client-go's correlators, one per source, in simulated time and with immediate answers.
func simulate(arguments []string) error {
	var path string
	if err := parse(arguments, func(f *flag.FlagSet) { f.StringVar(&path, "file", "", "file with a shape") }); err != nil {
		return err
	}
	clock := clocktesting.NewFakePassiveClock(begin)
	correlators := map[corev1.EventSource]*record.EventCorrelator{}
	var sum simulated
	counts := map[string]int{}
	err := each(path, func(e *corev1.Event) error {
		clock.SetTime(e.LastTimestamp.Time)
		correlator, ok := correlators[e.Source]
		if !ok {
			correlator = record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{Clock: clock})
			correlators[e.Source] = correlator
		}
		sum.Occurrences++
		result, err := correlator.EventCorrelate(e)
		if err != nil || result.Skip {
			return err
		}
		sum.Writes++
		counts[result.Event.Namespace+"/"+result.Event.Name] = int(result.Event.Count)
		correlator.UpdateState(result.Event)
		return nil
	})
	if err != nil {
		return err
	}
	for _, count := range counts {
		sum.Shown += count
	}
	return report(sum)
}

// sink counts the writes of a broadcaster, and closes `fence` after the last event.
type sink struct {
	record.EventSink
	writes *atomic.Int64
	fence  chan struct{}
	once   *sync.Once
}

const fenceReason = "AllSent"

func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	if e.Reason == fenceReason {
		s.once.Do(func() { close(s.fence) })
		return e, nil
	}
	s.writes.Add(1)
	return s.EventSink.Create(e)
}

func (s sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	if e.Reason == fenceReason {
		return e, nil
	}
	s.writes.Add(1)
	return s.EventSink.Patch(e, patch)
}

func config(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	// The client's own limit of 5 requests per second would hide the recorder's writes.
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	return config, nil
}

// broadcast reports a shape to an apiserver through client-go's broadcasters, one per source.
func broadcast(arguments []string) error {
	var kubeconfig, path string
	rate := 1000.0
	err := parse(arguments, func(f *flag.FlagSet) {
		f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the apiserver")
		f.StringVar(&path, "file", "", "file with a shape")
		f.Float64Var(&rate, "rate", rate, "events per second")
	})
	if err != nil {
		return err
	}
	config, err := config(kubeconfig)
	if err != nil {
		return err
	}
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return err
	}
	type reporter struct {
		record.EventRecorder
		record.EventBroadcaster
		sink sink
	}
	reporters := map[corev1.EventSource]reporter{}
	var writes atomic.Int64
	occurrences := 0
	pace := newPace(rate)
	err = each(path, func(e *corev1.Event) error {
		r, ok := reporters[e.Source]
		if !ok {
			broadcaster := record.NewBroadcaster()
			to := sink{&typedcorev1.EventSinkImpl{Interface: client.Events("")}, &writes, make(chan struct{}), new(sync.Once)}
			broadcaster.StartRecordingToSink(to)
			r = reporter{broadcaster.NewRecorder(scheme.Scheme, e.Source), broadcaster, to}
			reporters[e.Source] = r
		}
		pace.wait()
		occurrences++
		r.Event(&e.InvolvedObject, e.Type, e.Reason, e.Message)
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range reporters {
		// Retried, because a full queue drops this event too.
		for sent := false; !sent; {
			r.Event(&corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "fence"}, corev1.EventTypeNormal, fenceReason, fenceReason)
			select {
			case <-r.sink.fence:
				sent = true
			case <-time.After(time.Second):
			}
		}
	}
	return report(written{occurrences, int(writes.Load()), time.Since(pace.begin).Seconds()})
}

// post sends each occurrence of a shape to eventweir, in order per source.
func post(arguments []string) error {
	var to, path string
	rate := 1000.0
	err := parse(arguments, func(f *flag.FlagSet) {
		f.StringVar(&to, "to", "", "URL of eventweir")
		f.StringVar(&path, "file", "", "file with a shape")
		f.Float64Var(&rate, "rate", rate, "events per second")
	})
	if err != nil {
		return err
	}
	const workers = 32
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	var queues [workers]chan []byte
	var failed atomic.Pointer[error]
	var group sync.WaitGroup
	for n := range queues {
		queues[n] = make(chan []byte, 1000)
		group.Go(func() {
			for body := range queues[n] {
				if err := postOne(client, to, body); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	occurrences := 0
	pace := newPace(rate)
	err = each(path, func(e *corev1.Event) error {
		body, err := json.Marshal(e)
		if err != nil {
			return err
		}
		hash := fnv.New32()
		_, _ = io.WriteString(hash, e.Source.Component+e.Source.Host)
		pace.wait()
		occurrences++
		queues[hash.Sum32()%workers] <- body
		return nil
	})
	for _, queue := range queues {
		close(queue)
	}
	group.Wait()
	if failed := failed.Load(); failed != nil {
		return *failed
	}
	if err != nil {
		return err
	}
	return report(written{Occurrences: occurrences, Seconds: time.Since(pace.begin).Seconds()})
}

func postOne(client *http.Client, to string, body []byte) error {
	response, err := client.Post(to+"/api/v1/namespaces/shop/events", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return err
}
