package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"eventweir.dev/tests/clients/check"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// What recorders do after minutes: here the client's clock is synctest's, which leaps to the next timer as soon as every
// goroutine waits for one. The server's clock runs as ever.
func TestLater(t *testing.T) {
	e := check.FromEnvironment()
	if e.Server == "" {
		t.Skip("it needs a server, see tests/clients/run")
	}
	for _, with := range encodings {
		for _, s := range []check.Scenario{
			{Name: "heartbeats" + with.suffix, Send: inBubble(t, sendHeartbeats(with)), Occurrences: 100, Records: 1},
			{Name: "heartbeats-resumed" + with.suffix, Send: inBubble(t, sendResumed(with)), Occurrences: 12, Records: 1},
			{Name: "token-later" + with.suffix, Send: inBubble(t, sendWithTokenLater(with)), Occurrences: 31, Records: 1},
		} {
			// The protocol of tests/clients/run, and not that of go test.
			if err := e.Run(s); err != nil {
				fmt.Printf("FAILED %s: %v\n", s.Name, err)
				t.Fail()
				continue
			}
			fmt.Printf("ok %s\n", s.Name)
		}
	}
}

func inBubble(t *testing.T, send func(check.Env, string) error) send {
	return func(e check.Env, object string) error {
		var err error
		synctest.Test(t, func(*testing.T) { err = send(e, object) })
		return err
	}
}

// sendHeartbeats records 100 times: a create, a patch to 2, and when the series has paused for six minutes a last patch to 100.
func sendHeartbeats(with encoding) send {
	return func(e check.Env, object string) error {
		w, err := newSeriesWriter(bubbleConfig(e, with))
		if err != nil {
			return err
		}
		defer w.stop()
		for i := range 100 {
			w.Eventf(check.Pod(object), nil, corev1.EventTypeWarning, "BackOff", "Restart", backOff)
			if i < 2 {
				if err := w.await(e, 1); err != nil {
					return err
				}
			}
		}
		time.Sleep(20 * time.Minute)
		return w.await(e, 1)
	}
}

// sendResumed records for an hour, a repeat every six minutes: the series lives on, and heartbeats tell of it. Twice.
func sendResumed(with encoding) send {
	return func(e check.Env, object string) error {
		w, err := newSeriesWriter(bubbleConfig(e, with))
		if err != nil {
			return err
		}
		defer w.stop()
		for range 2 {
			for range 6 {
				w.Eventf(check.Pod(object), nil, corev1.EventTypeWarning, "BackOff", "Restart", backOff)
				time.Sleep(5 * time.Minute)
			}
			// The series ends; the next event is a create of a new name, and the same record here.
			time.Sleep(time.Hour)
		}
		return nil
	}
}

// sendWithTokenLater records 30 times at once, of which five find no token, and once more when there is one again: its
// patch tells of all.
func sendWithTokenLater(with encoding) send {
	return func(e check.Env, object string) error {
		w, err := newWriter(bubbleConfig(e, with), record.CorrelatorOptions{})
		if err != nil {
			return err
		}
		defer w.broadcaster.Shutdown()
		for range 30 {
			w.Event(check.Pod(object), corev1.EventTypeWarning, "BackOff", backOff)
		}
		if err := w.fence(e, object); err != nil {
			return err
		}
		time.Sleep(301 * time.Second)
		w.Event(check.Pod(object), corev1.EventTypeWarning, "BackOff", backOff)
		return w.fence(e, object+"-later")
	}
}

// bubbleConfig is a configuration whose connections do not outlive a request: a goroutine that reads a network
// connection would hold the bubble's clock for ever. For the same reason it sets no deadline.
func bubbleConfig(e check.Env, with encoding) *rest.Config {
	config := e.Config(with.contentType)
	config.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(context.Background(), network, address)
		},
	}
	return config
}
