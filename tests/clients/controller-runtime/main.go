// Command controller-runtime records with the recorders of a controller-runtime manager: the older one of
// GetEventRecorderFor (core/v1) and the newer one of GetEventRecorder (events.k8s.io/v1).
package main

import (
	"context"
	"fmt"

	"eventweir.dev/tests/clients/check"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// component is the controller's name. The newer recorder requires a qualified one.
const component = "eventweir.dev/controller"

const backOff = "Back-off restarting failed container"

type encoding struct {
	suffix      string
	contentType string
}

func main() {
	ctrl.SetLogger(logr.Discard())
	var scenarios []check.Scenario
	for _, with := range []encoding{{"", ""}, {"-json", "application/json"}, {"-protobuf", check.Protobuf}} {
		named := func(name string) string { return name + with.suffix }
		scenarios = append(scenarios,
			// A manager's recorder has client-go's budget: 25 at once; the recorder drops the rest.
			check.Scenario{Name: named("old-repeats"), Send: with.old(nil, 40, same), Occurrences: 25, Records: 1},
			check.Scenario{Name: named("old-messages"), Send: with.old(nil, 20, messages), Occurrences: 20, Records: 10},
			check.Scenario{Name: named("old-burst"), Send: with.old(nil, 40, reasons), Occurrences: 25, Records: 25},
			// With its own broadcaster the recorder sends all 40. The server's budget is 25 writes, so 15 wait.
			check.Scenario{Name: named("old-wide-repeats"), Send: with.old(wide, 40, same), Occurrences: 40, Records: 1},
			check.Scenario{Name: named("old-wide-burst"), Send: with.old(wide, 40, reasons), Occurrences: 25, Records: 25, Waiting: 15},
			// The newer recorder has no budget. It reports the second event of a series at once and later ones in a
			// heartbeat. Events that differ in their message only are one series.
			check.Scenario{Name: named("new-repeats"), Send: with.new(2, same), Occurrences: 2, Records: 1},
			check.Scenario{Name: named("new-messages"), Send: with.new(20, messages), Occurrences: 2, Records: 1},
			check.Scenario{Name: named("new-reasons"), Send: with.new(20, reasons), Occurrences: 20, Records: 20},
			check.Scenario{Name: named("new-burst"), Send: with.new(40, reasons), Occurrences: 25, Records: 25, Waiting: 15},
		)
	}
	check.Main(check.Tests(scenarios))
}

// kind returns the reason and the message of the nth event.
type kind func(n int) (string, string)

func same(int) (string, string)       { return "BackOff", backOff }
func messages(n int) (string, string) { return "FailedMount", fmt.Sprintf("volume %d", n) }
func reasons(n int) (string, string)  { return fmt.Sprintf("Reason%d", n), "a unique reason" }

// wide disables the recorder's own spam filter.
func wide() record.EventBroadcaster {
	return record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 1_000_000, QPS: 1_000_000})
}

func (with encoding) old(broadcaster func() record.EventBroadcaster, times int, kind kind) func(check.Env, string) error {
	return func(e check.Env, object string) error {
		options := manager.Options{}
		if broadcaster != nil {
			//nolint:staticcheck // Deprecated, but the only way to give the older recorder other options.
			options.EventBroadcaster = broadcaster()
		}
		m, err := with.start(e, options)
		if err != nil {
			return err
		}
		//nolint:staticcheck // Deprecated, but used by most controllers.
		recorder := m.GetEventRecorderFor(component)
		for n := range times {
			reason, message := kind(n)
			recorder.Event(check.Pod(object), corev1.EventTypeWarning, reason, message)
		}
		// The recorder has one worker, so an event about another object arrives after all earlier ones.
		recorder.Event(check.Pod("fence-"+object), corev1.EventTypeNormal, "Done", "everything before this has been sent")
		return stored(e, "fence-"+object)
	}
}

func (with encoding) new(times int, kind kind) func(check.Env, string) error {
	return func(e check.Env, object string) error {
		m, err := with.start(e, manager.Options{})
		if err != nil {
			return err
		}
		recorder := m.GetEventRecorder(component)
		for n := range times {
			reason, message := kind(n)
			recorder.Eventf(check.Pod(object), nil, corev1.EventTypeWarning, reason, "Try", "%s", message)
			// The patch of the series must find a record.
			if n == 0 {
				if err := stored(e, object); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// stored waits for a record about the object.
func stored(e check.Env, object string) error {
	return e.Await(func() error {
		records, err := e.About(object)
		if err == nil && len(records) == 0 {
			err = fmt.Errorf("no record about %s is stored", object)
		}
		return err
	})
}

// start starts a manager that runs until the program ends, because a stopped one drops the unsent events of its newer
// recorder.
func (with encoding) start(e check.Env, options manager.Options) (manager.Manager, error) {
	// The configuration has no rate limit, like that of controller-runtime's GetConfig.
	options.Metrics = server.Options{BindAddress: "0"}
	m, err := ctrl.NewManager(e.Config(with.contentType), options)
	if err != nil {
		return nil, err
	}
	go func() {
		if err := m.Start(context.Background()); err != nil {
			fmt.Println("the manager ended:", err)
		}
	}()
	<-m.Elected()
	return m, nil
}
