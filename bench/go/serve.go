package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// correlators has one of client-go's correlators per source, as if each source were a process.
type correlators struct {
	mu sync.Mutex
	of map[corev1.EventSource]*record.EventCorrelator
}

func (c *correlators) get(source corev1.EventSource) *record.EventCorrelator {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.of[source]
	if !ok {
		found = record.NewEventCorrelatorWithOptions(wide)
		c.of[source] = found
	}
	return found
}

// serve decodes with apimachinery's decoder, correlates with client-go, and answers like the bare server.
func serve([]string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("LISTEN", listener.Addr())
	decoder := scheme.Codecs.UniversalDeserializer()
	all := &correlators{of: map[corev1.EventSource]*record.EventCorrelator{}}
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object, _, err := decoder.Decode(body, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		event, source, err := asCore(object)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		correlator := all.get(source)
		result, err := correlator.EventCorrelate(event)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if !result.Skip {
			correlator.UpdateState(result.Event)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"Status"}`)
	}))
}

// asCore returns the event as client-go's correlator needs it, and its source.
func asCore(object runtime.Object) (*corev1.Event, corev1.EventSource, error) {
	switch e := object.(type) {
	case *corev1.Event:
		return e, e.Source, nil
	case *eventsv1.Event:
		source := corev1.EventSource{Component: e.ReportingController, Host: e.ReportingInstance}
		return &corev1.Event{
			ObjectMeta: e.ObjectMeta, InvolvedObject: e.Regarding, Reason: e.Reason, Message: e.Note, Type: e.Type,
			EventTime: e.EventTime, Action: e.Action, Count: 1,
			ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		}, source, nil
	}
	return nil, corev1.EventSource{}, fmt.Errorf("%T is not an event", object)
}
