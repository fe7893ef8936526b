package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"eventweir.dev/tests/clients/check"
	corev1 "k8s.io/api/core/v1"
)

// sendFromProcesses starts this program twice. Both processes record the same event of the same source concurrently.
func sendFromProcesses(verb string, with encoding, times int) send {
	return func(e check.Env, object string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		var group sync.WaitGroup
		errs := make([]error, 2)
		for n := range errs {
			group.Go(func() {
				output, err := exec.Command(self, verb, with.contentType, object, strconv.Itoa(times)).CombinedOutput()
				if err != nil {
					errs[n] = fmt.Errorf("%s %d: %w: %s", verb, n, err, output)
				}
			})
		}
		group.Wait()
		return firstOf(errs)
	}
}

// writeAsProcess is the main function of these processes.
func writeAsProcess(verb, contentType, object, number string) error {
	times, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	e := check.FromEnvironment()
	if verb == "write-series" {
		w, err := newSeriesWriter(e.Config(contentType))
		if err != nil {
			return err
		}
		defer w.stop()
		for range times {
			w.Eventf(check.Pod(object), nil, corev1.EventTypeWarning, "BackOff", "Restart", backOff)
			if err := w.await(e, 1); err != nil {
				return err
			}
		}
		return nil
	}
	w, err := newWriter(e.Config(contentType), wide)
	if err != nil {
		return err
	}
	for range times {
		w.Event(check.Pod(object), corev1.EventTypeWarning, "BackOff", backOff)
	}
	return w.finish(e, fmt.Sprintf("%s-%d", object, os.Getpid()))
}
