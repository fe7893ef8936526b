package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"eventweir.dev/tests/clients/check"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

// sendSeries records the same event twice with the events.k8s.io recorder, the default of controllers since
// controller-runtime 0.23. It sends a create and, after the answer, a patch of its series. A heartbeat reports later
// occurrences.
func sendSeries(with encoding) send {
	return func(e check.Env, object string) error {
		w, err := newSeriesWriter(e.Config(with.contentType))
		if err != nil {
			return err
		}
		defer w.stop()
		for range 2 {
			w.Eventf(check.Pod(object), nil, corev1.EventTypeWarning, "BackOff", "Restart", backOff)
			if err := w.await(e, 1); err != nil {
				return err
			}
		}
		return nil
	}
}

// sendSeriesAtOnce does the same for several objects without a pause. Patches arrive before their creates, are answered
// 404, and become creates of the same name.
func sendSeriesAtOnce(with encoding, objects int) send {
	return func(e check.Env, object string) error {
		w, err := newSeriesWriter(e.Config(with.contentType))
		if err != nil {
			return err
		}
		defer w.stop()
		for i := range objects {
			for range 2 {
				regarding := check.Pod(fmt.Sprintf("%s.%d", object, i))
				w.Eventf(regarding, nil, corev1.EventTypeWarning, "BackOff", "Restart", backOff)
			}
		}
		return w.await(e, 2*objects)
	}
}

func sendSeriesReasons(with encoding, reasons int) send {
	return func(e check.Env, object string) error {
		w, err := newSeriesWriter(e.Config(with.contentType))
		if err != nil {
			return err
		}
		defer w.stop()
		for i := range reasons {
			w.Eventf(check.Pod(object), nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%d", i), "Try", "message %d", i)
		}
		return w.await(e, reasons)
	}
}

// seriesWriter is a broadcaster of the newer recorder. It sends each event in a separate goroutine, in no order.
type seriesWriter struct {
	events.EventRecorder
	stop     func()
	answered chan answered
}

func newSeriesWriter(config *rest.Config) (seriesWriter, error) {
	client, err := typedeventsv1.NewForConfig(config)
	if err != nil {
		return seriesWriter{}, err
	}
	answers := make(chan answered, 1000)
	broadcaster := events.NewBroadcaster(&watchedSeriesSink{EventSink: &events.EventSinkImpl{Interface: client}, answers: answers})
	ctx, cancel := context.WithCancel(context.Background())
	stop := func() {
		broadcaster.Shutdown()
		cancel()
	}
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		stop()
		return seriesWriter{}, err
	}
	return seriesWriter{broadcaster.NewRecorder(scheme.Scheme, "eventweir.dev/go-record"), stop, answers}, nil
}

// await waits for the answers to this many states of events.
func (w seriesWriter) await(e check.Env, requests int) error {
	timeout := time.After(e.Deadline)
	for range requests {
		select {
		case a := <-w.answered:
			if a.err != nil {
				return fmt.Errorf("the server refused an event about %s: %w", a.object, a.err)
			}
		case <-timeout:
			return fmt.Errorf("the recorder has not sent its events after %s", e.Deadline)
		}
	}
	return nil
}

// watchedSeriesSink reports the first answer about each state of an event, except a 404 after which the recorder
// creates. A broadcaster resends all its series every half hour, and once at its start, possibly after the first
// events.
type watchedSeriesSink struct {
	events.EventSink
	answers  chan<- answered
	reported sync.Map
}

func (s *watchedSeriesSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Create(ctx, event)
	s.report(event, err)
	return stored, err
}

func (s *watchedSeriesSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Patch(ctx, event, data)
	if !apierrors.IsNotFound(err) {
		s.report(event, err)
	}
	return stored, err
}

func (s *watchedSeriesSink) report(event *eventsv1.Event, err error) {
	type state struct {
		name, reason string
		count        int32
	}
	sent := state{name: event.Name, reason: event.Reason}
	if event.Series != nil {
		sent.count = event.Series.Count
	}
	if _, again := s.reported.LoadOrStore(sent, true); !again || err != nil {
		s.answers <- answered{event.Regarding.Name, err}
	}
}
