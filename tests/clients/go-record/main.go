// Command go-record sends Kubernetes Events to a server with client-go's recorders, as controllers do, and checks the
// stored records.
package main

import (
	"fmt"
	"os"
	"slices"

	"eventweir.dev/tests/clients/check"
	"k8s.io/client-go/tools/record"
)

// encoding is the content type of a client, with the suffix of its scenarios' names.
type encoding struct {
	suffix      string
	contentType string
}

var encodings = []encoding{{"", "application/json"}, {"-protobuf", check.Protobuf}}

func scenarios() []check.Scenario {
	all := []check.Scenario{
		{Name: "raw", Send: sendRaw, Occurrences: 100, Records: 1},
		// The events of two recorders have different names, and are one record.
		{Name: "two-writers", Send: sendFromTwo, Occurrences: 100, Records: 1},
	}
	for _, with := range encodings {
		named := func(name string) string { return name + with.suffix }
		all = append(all,
			check.Scenario{Name: named("repeats"), Send: sendRepeats(with, wide, 100), Occurrences: 100, Records: 1},
			// The client combines events from the tenth message on.
			check.Scenario{Name: named("messages"), Send: sendMessages(with), Occurrences: 60, Records: 10},
			// client-go's default budget passes 25 of them, so the last count is 25.
			check.Scenario{Name: named("default-options"), Send: sendRepeats(with, record.CorrelatorOptions{}, 40), Occurrences: 25, Records: 1},
			// The server's budget of an object is 25 writes too, but it keeps the rest waiting.
			check.Scenario{Name: named("burst"), Send: sendReasons(with, 40), Occurrences: 25, Records: 25, Waiting: 15},
			check.Scenario{Name: named("two-processes"), Send: sendFromProcesses("write", with, 200), Occurrences: 400, Records: 1},

			check.Scenario{Name: named("series"), Send: sendSeries(with), Occurrences: 2, Records: 1},
			check.Scenario{Name: named("series-at-once"), Send: sendSeriesAtOnce(with, 20), Occurrences: 40, Records: 20},
			check.Scenario{Name: named("series-reasons"), Send: sendSeriesReasons(with, 20), Occurrences: 20, Records: 20},
			check.Scenario{Name: named("series-burst"), Send: sendSeriesReasons(with, 40), Occurrences: 25, Records: 25, Waiting: 15},
			check.Scenario{Name: named("series-two-processes"), Send: sendFromProcesses("write-series", with, 2), Occurrences: 4, Records: 1},
		)
	}
	return all
}

func main() {
	if len(os.Args) == 5 && (os.Args[1] == "write" || os.Args[1] == "write-series") {
		if err := writeAsProcess(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	check.Main(check.Tests(scenarios()))
}

func firstOf(errs []error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}
