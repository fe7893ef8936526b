package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
)

// recorder is the older recorder with the usual configuration.
func (e env) recorder(host string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "pass", Host: host}), broadcaster.Shutdown
}

// oldRecorder: three replicas report one event 20 times each, and five events once. Each recorder counts its own.
func oldRecorder(ctx context.Context, e env) (string, error) {
	const replicas, repeats, reasons = 3, 20, 5
	return fmt.Sprintf("%d occurrences are %d records", replicas*(repeats+reasons), replicas+replicas*reasons),
		e.accounts(ctx, replicas*(repeats+reasons), func() error {
			for replica := range replicas {
				recorder, stop := e.recorder(fmt.Sprintf("node-%d", replica))
				defer stop()
				for range repeats {
					recorder.Event(e.pod("old"), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
				}
				for n := range reasons {
					recorder.Event(e.pod("old-reasons"), corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "a unique reason")
				}
			}
			// The sources differ in their hosts, so each has its own record.
			if err := e.exactly(ctx, "old", replicas, replicas*repeats); err != nil {
				return err
			}
			return e.exactly(ctx, "old-reasons", replicas*reasons, replicas*reasons)
		})
}

// newRecorder: a second occurrence begins a series at once. The newer recorder reports later ones in a heartbeat only.
func newRecorder(ctx context.Context, e env) (string, error) {
	const reasons = 10
	return fmt.Sprintf("%d occurrences are %d records", reasons+2, reasons+1), e.accounts(ctx, reasons+2, func() error {
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: e.client.EventsV1()})
		defer broadcaster.Shutdown()
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return err
		}
		recorder := broadcaster.NewRecorder(scheme.Scheme, "eventweir.dev/pass")
		recorder.Eventf(e.pod("new"), nil, corev1.EventTypeWarning, "BackOff", "Restart", "Back-off restarting failed container")
		if err := e.exactly(ctx, "new", 1, 1); err != nil {
			return err
		}
		recorder.Eventf(e.pod("new"), nil, corev1.EventTypeWarning, "BackOff", "Restart", "Back-off restarting failed container")
		for n := range reasons {
			recorder.Eventf(e.pod("new-reasons"), nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "Try", "a unique reason")
		}
		if err := e.exactly(ctx, "new-reasons", reasons, reasons); err != nil {
			return err
		}
		return e.exactly(ctx, "new", 1, 2)
	})
}

// event returns an event as a program without a recorder posts it.
func (e env) event(object, reason string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: object + "-"}, InvolvedObject: *e.pod(object),
		Reason: reason, Message: "it happened", Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: "pass"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// posts: 100 events without a recorder are one record at the apiserver, which would store 100 without eventweir. The
// names in the answers to the client are aliases of the record.
func posts(ctx context.Context, e env) (string, error) {
	const number = 100
	var name string
	err := e.accounts(ctx, number, func() error {
		for range number {
			made, err := e.client.CoreV1().Events(e.namespace).Create(ctx, e.event("posts", "Posted"), metav1.CreateOptions{})
			if err != nil {
				return err
			}
			name = made.Name
		}
		return e.exactly(ctx, "posts", 1, number)
	})
	if err != nil {
		return "", err
	}
	read, err := e.client.CoreV1().Events(e.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("the name in the last answer: %w", err)
	}
	listed, err := e.client.CoreV1().Events(e.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=posts"})
	if err != nil || len(listed.Items) != 1 || listed.Items[0].Count != number {
		return "", fmt.Errorf("the list through eventweir has %d records: %v", len(listed.Items), err)
	}
	return fmt.Sprintf("%d occurrences are one record of count %d, read as %s", number, listed.Items[0].Count, read.Name), nil
}

// limited: eventweir has room for one record, and writes one per five seconds. The apiserver stores the other events at
// once with the client's own token. Nothing is lost, and the recorder logs nothing.
func limited(ctx context.Context, e env) (string, error) {
	const reasons = 20
	recorder, stop := e.recorder("node-1")
	defer stop()
	began := time.Now()
	for n := range reasons {
		recorder.Event(e.pod("limited"), corev1.EventTypeWarning, fmt.Sprintf("Reason%d", n), "a unique reason")
	}
	// The second occurrence of each event finds its record, in eventweir or at the apiserver.
	for n := range reasons {
		recorder.Event(e.pod("limited"), corev1.EventTypeWarning, fmt.Sprintf("Reason%d", n), "a unique reason")
	}
	if err := e.exactly(ctx, "limited", reasons, reasons+5); err != nil {
		return "", err
	}
	passed, err := e.metric(ctx, "eventweir_passthrough_requests_total", `kind="fallback"`)
	if err == nil && passed < reasons/2 {
		err = fmt.Errorf("%d event requests were passed through, expected at least half of %d", passed, reasons)
	}
	return fmt.Sprintf("%d records after %.1f s, %d requests were passed through", reasons, time.Since(began).Seconds(), passed), err
}

// unknown: eventweir can neither review its callers nor write. The apiserver stores the events of both recorders with
// the client's own token, with the counts that they have without eventweir.
func unknown(ctx context.Context, e env) (string, error) {
	recorder, stop := e.recorder("node-1")
	defer stop()
	for range 10 {
		recorder.Event(e.pod("unknown"), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: e.client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return "", err
	}
	newer := broadcaster.NewRecorder(scheme.Scheme, "eventweir.dev/pass")
	for n := range 5 {
		newer.Eventf(e.pod("unknown-new"), nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "Try", "a unique reason")
	}
	if err := e.exactly(ctx, "unknown", 1, 10); err != nil {
		return "", err
	}
	if err := e.exactly(ctx, "unknown-new", 5, 5); err != nil {
		return "", err
	}
	passed, err := e.metric(ctx, "eventweir_passthrough_requests_total", `kind="fallback"`)
	if err == nil && passed != 10+5 {
		err = fmt.Errorf("%d event requests were passed through, expected all 15", passed)
	}
	return fmt.Sprintf("15 occurrences, and %d requests were passed through", passed), err
}
