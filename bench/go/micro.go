package main

import (
	"flag"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// cost of one call of the correlator and of the update after the write.
type cost struct {
	Name        string  `json:"name"`
	CPUMicros   float64 `json:"cpuMicros"`
	Allocations float64 `json:"allocations"`
	Bytes       float64 `json:"bytes"`
}

// wide disables client-go's own budget: dropped events cost less, and would distort the comparison.
var wide = record.CorrelatorOptions{BurstSize: 1_000_000_000, QPS: 1_000_000}

func event(object, message int) *corev1.Event {
	name := fmt.Sprintf("checkout-7d9c5b6f4d-%08x", object)
	now := metav1.NewTime(time.Now())
	uid := types.UID(fmt.Sprintf("0d2c5f6e-7a8b-4c9d-8e1f-2a3b%08x", object))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%016x", name, now.UnixNano()), Namespace: "shop"},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", Namespace: "shop", Name: name, UID: uid, APIVersion: "v1",
			ResourceVersion: "48213377", FieldPath: "spec.containers{checkout}",
		},
		Reason:         "BackOff",
		Message:        fmt.Sprintf("Back-off %d restarting failed container checkout in pod %s_shop(%s)", message, name, uid),
		Source:         corev1.EventSource{Component: "kubelet", Host: "node-17.example.internal"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: corev1.EventTypeWarning,
		ReportingController: "kubelet", ReportingInstance: "node-17.example.internal",
	}
}

// micro prints the cost of client-go's EventCorrelator: correlate, make the patch, UpdateState.
func micro(arguments []string) error {
	seconds := 2.0
	declare := func(f *flag.FlagSet) { f.Float64Var(&seconds, "seconds", seconds, "seconds per figure") }
	if err := parse(arguments, declare); err != nil {
		return err
	}
	const tracked = 4000
	cases := []struct {
		name string
		// warm is the number of events before the measurement.
		warm int
		make func(n int) *corev1.Event
	}{
		{"repeat", tracked, func(n int) *corev1.Event { return event(n%tracked, 0) }},
		{"combining", 100, func(n int) *corev1.Event { return event(0, n) }},
		// All caches are full, so each object evicts one.
		{"new object", 8192, func(n int) *corev1.Event { return event(n, 0) }},
	}
	for _, c := range cases {
		correlator := record.NewEventCorrelatorWithOptions(wide)
		step := func(e *corev1.Event) error {
			result, err := correlator.EventCorrelate(e)
			if err == nil && !result.Skip {
				correlator.UpdateState(result.Event)
			}
			return err
		}
		n := 0
		for ; n < c.warm; n++ {
			if err := step(c.make(n)); err != nil {
				return err
			}
		}
		var cpu float64
		var before, after runtime.MemStats
		var allocations, bytes uint64
		steps := 0
		for deadline := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(deadline); {
			// Events are made outside of the measured time.
			batch := make([]*corev1.Event, 2000)
			for i := range batch {
				batch[i] = c.make(n)
				n++
			}
			runtime.ReadMemStats(&before)
			begin := cpuSeconds()
			for _, e := range batch {
				if err := step(e); err != nil {
					return err
				}
			}
			cpu += cpuSeconds() - begin
			runtime.ReadMemStats(&after)
			allocations += after.Mallocs - before.Mallocs
			bytes += after.TotalAlloc - before.TotalAlloc
			steps += len(batch)
		}
		each := float64(steps)
		if err := report(cost{c.name, cpu / each * 1e6, float64(allocations) / each, float64(bytes) / each}); err != nil {
			return err
		}
	}
	return nil
}
