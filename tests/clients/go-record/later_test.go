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

// TestLater tests the recorders' heartbeats and series. The client's clock is synctest's, which advances to the next
// timer as soon as all goroutines are blocked on it. The server's clock is the real one.
func TestLater(t *testing.T) {
	e := check.FromEnvironment()
	if e.Server == "" {
		t.Skip("needs a server, see tests/clients/run")
	}
	for _, with := range encodings {
		for _, s := range []check.Scenario{
			{Name: "heartbeats" + with.suffix, Send: inBubble(t, sendHeartbeats(with)), Occurrences: 100, Records: 1},
			{Name: "heartbeats-resumed" + with.suffix, Send: inBubble(t, sendResumed(with)), Occurrences: 12, Records: 1},
			{Name: "token-later" + with.suffix, Send: inBubble(t, sendWithTokenLater(with)), Occurrences: 31, Records: 1},
		} {
			// The output format of tests/clients/run, not of go test.
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

// sendHeartbeats records 100 times: a create, a patch to 2, and a last patch to 100 six minutes after the last
// occurrence.
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

// sendResumed records every five minutes for half an hour, twice. Heartbeats report the series.
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
			// The series ends. The next event is a create with a new name, and counts on the same record.
			time.Sleep(time.Hour)
		}
		return nil
	}
}

// sendWithTokenLater records 30 times at once, and five occurrences get no token. It records once more when a token is
// back: the patch then has the total of all.
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

// bubbleConfig returns a configuration without keep-alive and without a deadline: a goroutine that reads an idle
// connection would stop the bubble's clock.
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
