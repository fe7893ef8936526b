// Command go-record sends Kubernetes Events to a server with client-go's own recorder, as a controller does, and checks
// what the server lists afterwards. Each scenario uses an object of its own, so they can share a server.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

const namespace = "default"

// wide lets the client's own spam filter pass everything, so that the server sees each occurrence.
var wide = record.CorrelatorOptions{BurstSize: 1_000_000, QPS: 1_000_000}

// scenario sends events about one object, then states what must be listed about it.
type scenario struct {
	name string
	send func(env, string) error
	// occurrences is the sum of the counts of all records about the object.
	occurrences int64
	// records is how many records there must be; 0 means any number.
	records int
}

var scenarios = []scenario{
	{name: "repeats", send: sendRepeats(wide), occurrences: 100, records: 1},
	{name: "messages", send: sendMessages, occurrences: 60},
	// client-go's default budget lets 25 of them out; the count of the last one is 25.
	{name: "default-options", send: sendRepeats(record.CorrelatorOptions{}), occurrences: 25, records: 1},
	{name: "two-writers", send: sendFromTwo, occurrences: 100},
	{name: "raw", send: sendRaw, occurrences: 100, records: 1},
	{name: "series", send: sendSeries, occurrences: 2, records: 1},
}

func sendRepeats(options record.CorrelatorOptions) func(env, string) error {
	return func(e env, object string) error {
		w := e.newWriter(options)
		for range 100 {
			w.Event(pod(object), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
		}
		return w.finish(e, object)
	}
}

func sendMessages(e env, object string) error {
	w := e.newWriter(wide)
	for i := range 60 {
		w.Eventf(pod(object), corev1.EventTypeWarning, "FailedMount", "MountVolume.SetUp failed for volume %d", i)
	}
	return w.finish(e, object)
}

func sendFromTwo(e env, object string) error {
	var group sync.WaitGroup
	errs := make([]error, 2)
	for n := range errs {
		w := e.newWriter(wide)
		group.Go(func() {
			for range 50 {
				w.Event(pod(object), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
			}
			errs[n] = w.finish(e, fmt.Sprintf("%s-%d", object, n))
		})
	}
	group.Wait()
	return firstOf(errs)
}

// sendRaw posts as kopf does: no kind, a generated name, eventTime beside the old timestamps, never a PATCH.
func sendRaw(e env, object string) error {
	for range 100 {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		body, err := json.Marshal(map[string]any{
			"metadata":           map[string]any{"namespace": namespace, "generateName": "kopf-event-"},
			"action":             "Action?",
			"type":               "Normal",
			"reason":             "Logging",
			"message":            "Handler 'create_fn' succeeded.",
			"reportingComponent": "kopf",
			"reportingInstance":  "dev",
			"source":             map[string]any{"component": "kopf"},
			"involvedObject": map[string]any{
				"apiVersion": "v1", "kind": "Pod", "name": object, "namespace": namespace, "uid": "uid-" + object,
			},
			"firstTimestamp": now,
			"lastTimestamp":  now,
			"eventTime":      now,
		})
		if err != nil {
			return err
		}
		if err := e.post(body); err != nil {
			return err
		}
	}
	return nil
}

// env is what every scenario needs to know about the server.
type env struct {
	server   string
	metrics  string
	deadline time.Duration
	client   *typedcorev1.CoreV1Client
}

// writer is one broadcaster with its own correlator and its own queue, like one process.
type writer struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
	answered    chan answered
}

// answered is one call of the sink that came back.
type answered struct {
	object string
	err    error
}

func (e env) newWriter(options record.CorrelatorOptions) writer {
	broadcaster := record.NewBroadcasterWithCorrelatorOptions(options)
	sink := &typedcorev1.EventSinkImpl{Interface: e.client.Events("")}
	// Room for every call of a scenario: the sink never waits for the reader.
	answers := make(chan answered, 1000)
	broadcaster.StartRecordingToSink(watchedSink{sink, answers})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "go-record", Host: "node-1"})
	return writer{recorder, broadcaster, answers}
}

// finish returns when the server has answered everything sent so far. A recorder has one worker and sends in order, so
// the answer to an event about another object, which has a budget of its own, says that all before it are through.
func (w writer) finish(e env, object string) error {
	defer w.broadcaster.Shutdown()
	fence := "fence-" + object
	w.Event(pod(fence), corev1.EventTypeNormal, "Done", "everything before this has been sent")
	timeout := time.After(e.deadline)
	for {
		select {
		case a := <-w.answered:
			if a.err != nil {
				return fmt.Errorf("the server refused an event about %s: %w", a.object, a.err)
			}
			if a.object == fence {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("the recorder has not sent everything after %s", e.deadline)
		}
	}
}

// watchedSink reports each answer. A refused create or patch is an error, but for the 404 that makes a recorder create.
type watchedSink struct {
	record.EventSink
	answers chan<- answered
}

func (s watchedSink) Create(event *corev1.Event) (*corev1.Event, error) {
	stored, err := s.EventSink.Create(event)
	s.answers <- answered{event.InvolvedObject.Name, err}
	return stored, err
}

func (s watchedSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	stored, err := s.EventSink.Patch(event, data)
	if !apierrors.IsNotFound(err) {
		s.answers <- answered{event.InvolvedObject.Name, err}
	}
	return stored, err
}

func pod(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID("uid-" + name),
	}
}

func (e env) post(body []byte) error {
	url := e.server + "/api/v1/namespaces/" + namespace + "/events"
	ctx, cancel := context.WithTimeout(context.Background(), e.deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("POST %s: %s: %s", url, response.Status, answer)
	}
	return nil
}

func (e env) run(s scenario) error {
	object := "pod-" + s.name
	if err := s.send(e, object); err != nil {
		return err
	}
	until := time.Now().Add(e.deadline)
	for {
		wrong := e.check(s, object)
		if wrong == nil {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("after %s: %w", e.deadline, wrong)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check says what is not yet as it must be: nothing may wait any more, the ledger balances, the listing is complete.
// The ledger comes first, so that the listing is of a time at which no more is to come.
func (e env) check(s scenario, object string) error {
	if e.metrics != "" {
		if err := checkLedger(e.metrics, e.deadline); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.deadline)
	defer cancel()
	list, err := e.client.Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	total := int64(0)
	for i := range list.Items {
		total += occurrences(&list.Items[i])
	}
	if total != s.occurrences || (s.records != 0 && len(list.Items) != s.records) {
		records := "any number of"
		if s.records != 0 {
			records = fmt.Sprint(s.records)
		}
		return fmt.Errorf("want %d occurrences in %s records, listed are %d in %d:\n%s",
			s.occurrences, records, total, len(list.Items), listing(list.Items))
	}
	return nil
}

// occurrences is what a record stands for: its series' count or its own, and one if it has neither.
func occurrences(event *corev1.Event) int64 {
	count := max(int64(event.Count), 1)
	if event.Series != nil {
		count = max(count, int64(event.Series.Count))
	}
	return count
}

func listing(events []corev1.Event) string {
	var lines []string
	for i := range events {
		e := &events[i]
		lines = append(lines, fmt.Sprintf("  %s count=%d series=%v %s: %s", e.Name, e.Count, e.Series, e.Reason, e.Message))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func main() {
	server := flag.String("server", "", "base `URL` of the server under test, such as http://127.0.0.1:8080")
	metrics := flag.String("metrics", "", "`URL` of its metrics; if given, the ledger must balance with nothing waiting")
	which := flag.String("scenario", "all", "comma-separated `names`, or all")
	list := flag.Bool("list", false, "print the names of the scenarios")
	deadline := flag.Duration("deadline", 30*time.Second, "how long each step of a scenario may take")
	flag.Parse()
	if *list {
		for _, s := range scenarios {
			fmt.Println(s.name)
		}
		return
	}
	chosen, err := choose(*which)
	if err == nil && *server == "" {
		err = fmt.Errorf("--server is missing")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-record:", err)
		os.Exit(64)
	}
	// The client's own request limit (5 a second by default) is for the apiserver's sake; here it would only slow the test.
	client, err := typedcorev1.NewForConfig(&rest.Config{Host: *server, QPS: -1})
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-record:", err)
		os.Exit(1)
	}
	e := env{server: *server, metrics: *metrics, deadline: *deadline, client: client}
	passed, failed := 0, 0
	for _, s := range chosen {
		start := time.Now()
		err := e.run(s)
		took := time.Since(start).Round(time.Millisecond)
		if err != nil {
			failed++
			fmt.Printf("FAILED %s (%s): %v\n", s.name, took, err)
			continue
		}
		passed++
		fmt.Printf("ok %s (%s): %d occurrences\n", s.name, took, s.occurrences)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func choose(names string) ([]scenario, error) {
	if names == "all" {
		return scenarios, nil
	}
	var chosen []scenario
	for _, name := range strings.Split(names, ",") {
		found := false
		for _, s := range scenarios {
			if s.name == name {
				chosen, found = append(chosen, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no scenario is called %q", name)
		}
	}
	return chosen, nil
}
