// Package check runs the scenarios of all Go clients against a server, and checks the stored events.
package check

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// Namespace is the namespace of all events.
const Namespace = "default"

// Protobuf is the content type of a client that prefers protobuf.
const Protobuf = "application/vnd.kubernetes.protobuf"

// Scenario sends events about one object, or about several named OBJECT.SOMETHING, and states the expected records.
type Scenario struct {
	Name string
	Send func(Env, string) error
	// Occurrences is the sum of the counts of all records about the objects.
	Occurrences int64
	// Records is the number of records; 0 means any number.
	Records int
	// Waiting is the number of occurrences that wait for a budget at the end.
	Waiting int64
}

// Test is a named check.
type Test struct {
	Name string
	Run  func(Env) error
}

// Tests returns the scenarios as tests.
func Tests(scenarios []Scenario) []Test {
	tests := make([]Test, len(scenarios))
	for i, s := range scenarios {
		tests[i] = Test{s.Name, func(e Env) error { return e.Run(s) }}
	}
	return tests
}

// Env is the server under test.
type Env struct {
	Server   string
	Metrics  string
	Deadline time.Duration
}

// FromEnvironment reads the variables that tests/clients/run sets.
func FromEnvironment() Env {
	return Env{Server: os.Getenv("SERVER"), Metrics: os.Getenv("METRICS"), Deadline: 30 * time.Second}
}

// Config returns a client's configuration. client-go's own rate limit (5 requests per second) protects an apiserver,
// and would only slow down the test. With an empty content type client-go uses its default.
func (e Env) Config(contentType string) *rest.Config {
	return &rest.Config{Host: e.Server, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}}
}

// Main runs the tests that the command line names, or all, and does not return.
func Main(tests []Test) {
	e := FromEnvironment()
	if e.Server == "" || e.Metrics == "" {
		fmt.Fprintln(os.Stderr, "SERVER and METRICS must be set, see tests/clients/run")
		os.Exit(64)
	}
	names := os.Args[1:]
	for _, name := range names {
		if !slices.ContainsFunc(tests, func(t Test) bool { return t.Name == name }) {
			fmt.Fprintf(os.Stderr, "there is no scenario %q\n", name)
			os.Exit(64)
		}
	}
	code := 0
	for _, t := range tests {
		if len(names) > 0 && !slices.Contains(names, t.Name) {
			continue
		}
		if err := t.Run(e); err != nil {
			fmt.Printf("FAILED %s: %v\n", t.Name, err)
			code = 1
			continue
		}
		fmt.Printf("ok %s\n", t.Name)
	}
	os.Exit(code)
}

// Run sends the events, and waits until the ledger and the records are as expected.
func (e Env) Run(s Scenario) error {
	before, err := readLedger(e.Metrics, e.Deadline)
	if err != nil {
		return err
	}
	object := "pod-" + s.Name
	if err := s.Send(e, object); err != nil {
		return err
	}
	return e.Await(func() error { return e.check(s, object, before) })
}

// Await repeats a check until it passes. After the deadline it returns the check's last error.
func (e Env) Await(check func() error) error {
	until := time.Now().Add(e.Deadline)
	for {
		wrong := check()
		if wrong == nil {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("after %s: %w", e.Deadline, wrong)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check returns the first difference: the ledger must balance with all writes done, and the list must be complete. It
// reads the ledger first, so that no write follows the list.
func (e Env) check(s Scenario, object string, before ledger) error {
	after, err := readLedger(e.Metrics, e.Deadline)
	switch {
	case err != nil:
		return err
	case !after.balances():
		return fmt.Errorf("the ledger does not balance: %s", after)
	case after.received-before.received < s.Occurrences+s.Waiting:
		return fmt.Errorf("the ledger has not received all: %s; before: %s", after, before)
	case after.waiting-before.waiting != s.Waiting:
		return fmt.Errorf("want %d occurrences waiting: %s; before: %s", s.Waiting, after, before)
	case after.rejected != before.rejected || after.lost != before.lost:
		return fmt.Errorf("occurrences were rejected or lost: %s; before: %s", after, before)
	}
	records, err := e.About(object)
	if err != nil {
		return err
	}
	total := int64(0)
	for i := range records {
		total += Occurrences(&records[i])
	}
	if total != s.Occurrences || (s.Records != 0 && len(records) != s.Records) {
		want := "any number of"
		if s.Records != 0 {
			want = fmt.Sprint(s.Records)
		}
		return fmt.Errorf("want %d occurrences in %s records, the list has %d in %d:\n%s",
			s.Occurrences, want, total, len(records), listing(records))
	}
	return nil
}

// About lists the records about the object and about those named OBJECT.SOMETHING.
func (e Env) About(object string) ([]corev1.Event, error) {
	client, err := typedcorev1.NewForConfig(e.Config(""))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.Deadline)
	defer cancel()
	list, err := client.Events(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(record corev1.Event) bool {
		name := record.InvolvedObject.Name
		return name != object && !strings.HasPrefix(name, object+".")
	}), nil
}

// Occurrences returns a record's count: that of its series or its own, and 1 without either.
func Occurrences(event *corev1.Event) int64 {
	count := max(int64(event.Count), 1)
	if event.Series != nil {
		count = max(count, int64(event.Series.Count))
	}
	return count
}

// Pod returns a reference to a pod, which need not exist.
func Pod(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: Namespace, Name: name, UID: types.UID("uid-" + name),
	}
}

func listing(events []corev1.Event) string {
	var lines []string
	for i := range events {
		e := &events[i]
		lines = append(lines, fmt.Sprintf("  %s count=%d series=%v %s: %s", e.Name, e.Count, e.Series, e.Reason, e.Message))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
