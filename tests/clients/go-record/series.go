package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

// sendSeries records the same event twice with the events.k8s.io recorder, as controllers do since controller-runtime
// 0.23: a create, in protobuf by default, and a patch of its series. Further ones would be told only half an hour later.
func sendSeries(e env, object string) error {
	client, err := typedeventsv1.NewForConfig(&rest.Config{Host: e.server, Timeout: e.deadline})
	if err != nil {
		return err
	}
	answers := make(chan answered, 10)
	broadcaster := events.NewBroadcaster(watchedSeriesSink{&events.EventSinkImpl{Interface: client}, answers})
	defer broadcaster.Shutdown()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "eventweir.dev/go-record")
	for range 2 {
		recorder.Eventf(pod(object), nil, corev1.EventTypeWarning, "BackOff", "Restart", "Back-off restarting failed container")
		select {
		case a := <-answers:
			if a.err != nil {
				return fmt.Errorf("the server refused an event about %s: %w", a.object, a.err)
			}
		case <-time.After(e.deadline):
			return fmt.Errorf("the recorder has not sent its event after %s", e.deadline)
		}
	}
	return nil
}

// watchedSeriesSink reports each answer, but for the 404 that makes a recorder create.
type watchedSeriesSink struct {
	events.EventSink
	answers chan<- answered
}

func (s watchedSeriesSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Create(ctx, event)
	s.answers <- answered{event.Regarding.Name, err}
	return stored, err
}

func (s watchedSeriesSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Patch(ctx, event, data)
	if !apierrors.IsNotFound(err) {
		s.answers <- answered{event.Regarding.Name, err}
	}
	return stored, err
}
