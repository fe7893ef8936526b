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

// recorder is the older recorder as everybody makes it.
func (e env) recorder(host string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "pass", Host: host}), broadcaster.Shutdown
}

// oldRecorder: three replicas tell one thing 20 times each, and five things once. The recorder of each counts its own.
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
					recorder.Event(e.pod("old-reasons"), corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "a reason of its own")
				}
			}
			// Sources differ in their hosts, and so in their records.
			if err := e.exactly(ctx, "old", replicas, replicas*repeats); err != nil {
				return err
			}
			return e.exactly(ctx, "old-reasons", replicas*reasons, replicas*reasons)
		})
}

// newRecorder: a second occurrence begins a series at once; the newer recorder tells of more in a heartbeat only.
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
			recorder.Eventf(e.pod("new-reasons"), nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "Try", "a reason of its own")
		}
		if err := e.exactly(ctx, "new-reasons", reasons, reasons); err != nil {
			return err
		}
		return e.exactly(ctx, "new", 1, 2)
	})
}

// event is what a program without a recorder posts.
func (e env) event(object, reason string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: object + "-"}, InvolvedObject: *e.pod(object),
		Reason: reason, Message: "it happened", Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: "pass"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// posts: 100 events without a recorder are one record at the apiserver, where they would have been 100. The names that their
// clients were answered stand for it, and what is not there is not there.
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
		return "", fmt.Errorf("the last name that was answered: %w", err)
	}
	listed, err := e.client.CoreV1().Events(e.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=posts"})
	if err != nil || len(listed.Items) != 1 || listed.Items[0].Count != number {
		return "", fmt.Errorf("listed through eventweir: %d records, %w", len(listed.Items), err)
	}
	return fmt.Sprintf("%d occurrences are one record of count %d, read as %s", number, listed.Items[0].Count, read.Name), nil
}

// limited: eventweir has room for one record only, and writes one in five seconds. What it cannot take is stored by the
// apiserver with the client's own token, at once; nothing is lost, and the recorder is quiet about it.
func limited(ctx context.Context, e env) (string, error) {
	const reasons = 20
	recorder, stop := e.recorder("node-1")
	defer stop()
	began := time.Now()
	for n := range reasons {
		recorder.Event(e.pod("limited"), corev1.EventTypeWarning, fmt.Sprintf("Reason%d", n), "a reason of its own")
	}
	// The second of each finds its record, whoever has it.
	for n := range reasons {
		recorder.Event(e.pod("limited"), corev1.EventTypeWarning, fmt.Sprintf("Reason%d", n), "a reason of its own")
	}
	if err := e.exactly(ctx, "limited", reasons, reasons+5); err != nil {
		return "", err
	}
	passed, err := e.metric(ctx, "eventweir_passthrough_requests_total", `kind="fallback"`)
	if err == nil && passed < reasons/2 {
		err = fmt.Errorf("%d requests of events went on, expected half of %d and more", passed, reasons)
	}
	return fmt.Sprintf("%d records after %.1f s, %d requests went on", reasons, time.Since(began).Seconds(), passed), err
}

// unknown: eventweir can neither have its callers reviewed nor write. Events of both recorders are stored by the apiserver
// with the client's own token, and count what they count without eventweir.
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
		newer.Eventf(e.pod("unknown-new"), nil, corev1.EventTypeNormal, fmt.Sprintf("Reason%d", n), "Try", "a reason of its own")
	}
	if err := e.exactly(ctx, "unknown", 1, 10); err != nil {
		return "", err
	}
	if err := e.exactly(ctx, "unknown-new", 5, 5); err != nil {
		return "", err
	}
	passed, err := e.metric(ctx, "eventweir_passthrough_requests_total", `kind="fallback"`)
	if err == nil && passed != 10+5 {
		err = fmt.Errorf("%d requests of events went on, expected all 15", passed)
	}
	return fmt.Sprintf("15 occurrences, and %d requests went on", passed), err
}
