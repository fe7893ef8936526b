package main

import (
	"fmt"
	"sync"
	"time"

	"eventweir.dev/tests/clients/check"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// wide disables the client's own spam filter, so that the server receives each occurrence.
var wide = record.CorrelatorOptions{BurstSize: 1_000_000, QPS: 1_000_000}

const backOff = "Back-off restarting failed container"

type send = func(check.Env, string) error

func sendRepeats(with encoding, options record.CorrelatorOptions, times int) send {
	return func(e check.Env, object string) error {
		w, err := newWriter(e.Config(with.contentType), options)
		if err != nil {
			return err
		}
		for range times {
			w.Event(check.Pod(object), corev1.EventTypeWarning, "BackOff", backOff)
		}
		return w.finish(e, object)
	}
}

func sendMessages(with encoding) send {
	return func(e check.Env, object string) error {
		w, err := newWriter(e.Config(with.contentType), wide)
		if err != nil {
			return err
		}
		for i := range 60 {
			w.Eventf(check.Pod(object), corev1.EventTypeWarning, "FailedMount", "MountVolume.SetUp failed for volume %d", i)
		}
		return w.finish(e, object)
	}
}

func sendReasons(with encoding, reasons int) send {
	return func(e check.Env, object string) error {
		w, err := newWriter(e.Config(with.contentType), wide)
		if err != nil {
			return err
		}
		for i := range reasons {
			w.Event(check.Pod(object), corev1.EventTypeNormal, fmt.Sprintf("Reason%d", i), "a unique reason")
		}
		return w.finish(e, object)
	}
}

func sendFromTwo(e check.Env, object string) error {
	var group sync.WaitGroup
	errs := make([]error, 2)
	for n := range errs {
		w, err := newWriter(e.Config(""), wide)
		if err != nil {
			return err
		}
		group.Go(func() {
			for range 50 {
				w.Event(check.Pod(object), corev1.EventTypeWarning, "BackOff", backOff)
			}
			errs[n] = w.finish(e, fmt.Sprintf("%s-%d", object, n))
		})
	}
	group.Wait()
	return firstOf(errs)
}

// writer is a broadcaster with its own correlator and queue, like one process.
type writer struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
	answered    chan answered
}

// answered is the result of one call of the sink.
type answered struct {
	object string
	err    error
}

func newWriter(config *rest.Config, options record.CorrelatorOptions) (writer, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return writer{}, err
	}
	broadcaster := record.NewBroadcasterWithCorrelatorOptions(options)
	sink := &typedcorev1.EventSinkImpl{Interface: client.Events("")}
	// The channel has room for all calls of a scenario, so the sink never blocks.
	answers := make(chan answered, 1000)
	broadcaster.StartRecordingToSink(watchedSink{sink, answers})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "go-record", Host: "node-1"})
	return writer{recorder, broadcaster, answers}, nil
}

// finish waits until the server has answered all events. A recorder has one worker and sends in order. So the answer to
// an event about another object, which has its own budget, follows the answers to all earlier ones.
func (w writer) finish(e check.Env, object string) error {
	defer w.broadcaster.Shutdown()
	return w.fence(e, object)
}

func (w writer) fence(e check.Env, object string) error {
	fence := "fence-" + object
	w.Event(check.Pod(fence), corev1.EventTypeNormal, "Done", "everything before this has been sent")
	timeout := time.After(e.Deadline)
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
			return fmt.Errorf("the recorder has not sent everything after %s", e.Deadline)
		}
	}
}

// watchedSink reports each answer, except a 404 after which the recorder creates.
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
