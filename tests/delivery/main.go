// delivery sends events to eventweir in front of a real kube-apiserver and injects faults. At the end it compares the
// occurrences that were sent with the counts that the apiserver holds.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

type options struct {
	eventweir, apiserver, role string
	recipes                    string
	seeds                      []uint64
	occurrences, parallel      int
	kills                      int
	outage, limit              time.Duration
	keep                       string
	extra                      string
}

// scenario is one check. A scenario with seeds runs once per seed.
type scenario struct {
	name   string
	seeded bool
	run    func(*run) error
	// measures marks a scenario that checks durations. It runs only if it is named.
	measures bool
}

// The slowest come first.
var scenarios = []scenario{
	{name: "recovery", run: recovery},
	{name: "kill9", run: kill9},
	{name: "faults", seeded: true, run: faults},
	{name: "storm", run: storm},
	{name: "expiry", run: expiry},
	{name: "neighbour", run: neighbour},
	{name: "budgets", run: budgets},
	{name: "replicas-2", run: func(r *run) error { return replicas(r, 2) }},
	{name: "replicas-3", run: func(r *run) error { return replicas(r, 3) }},
	{name: "replicas-named", run: replicasNamed},
	{name: "deadline", run: deadline},
	{name: "mutated", run: func(r *run) error { return admitted(r, changesMessages, true) }},
	{name: "stripped", run: func(r *run) error { return admitted(r, stripsAnnotations, false) }},
	{name: "denied", run: denied},
	{name: "varied", run: varied},
	{name: "recorder", run: recorder},
	{name: "restart", run: restart},
	{name: "rbac", run: rbac},
	{name: "verbs", run: verbs},
	{name: "token", run: token},
	{name: "renewal", run: renewal},
	{name: "access", run: access},
	{name: "impersonate", run: impersonate},
	{name: "certificate", run: certificate},
	{name: "admission", run: admission},
	{name: "admission-replicas", run: admissionReplicas},
	{name: "observe", run: observed},
	{name: "nobody", run: nobody},
	{name: "admission-storm", run: admissionStorm, measures: true},
}

func main() {
	var o options
	var seeds, names string
	var list bool
	var client string
	flag.StringVar(&o.eventweir, "eventweir", "", "path of the eventweir binary (required)")
	flag.StringVar(&o.apiserver, "apiserver", "", "path of the harness built from tests/apiserver (required)")
	flag.StringVar(&o.role, "manifest", "deploy/eventweir.yaml", "manifest with the role for the scenario rbac")
	flag.StringVar(&o.recipes, "recipes", "docs/clients.md", "document with the recipe for the scenarios of admission")
	flag.StringVar(&names, "scenarios", "", "scenarios to run, separated by commas (default: all)")
	flag.StringVar(&seeds, "seeds", "1,2", "seeds for fault injection, separated by commas")
	flag.IntVar(&o.occurrences, "occurrences", 10_000, "number of occurrences per scenario")
	flag.IntVar(&o.parallel, "parallel", 2, "number of scenarios that run at once")
	flag.IntVar(&o.kills, "kills", 20, "number of crashes in the scenario kill9")
	flag.DurationVar(&o.outage, "outage", time.Minute, "length of the apiserver outage in the scenario recovery")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "time limit for sending, per scenario")
	flag.StringVar(&o.keep, "keep", "", "folder for logs and configurations of the scenarios that fail (default: a temporary one)")
	flag.StringVar(&o.extra, "extra-config", "", "file with configuration keys that override those of each scenario")
	flag.BoolVar(&list, "list", false, "list the scenarios and exit")
	flag.StringVar(&client, "record", "", "run as the client of the scenario recorder: ADDRESS,NAMESPACE,PREFIX")
	flag.Parse()
	if client != "" {
		recordAsClient(client)
	}
	if list {
		for _, s := range scenarios {
			fmt.Println(s.name)
		}
		return
	}
	if o.eventweir == "" || o.apiserver == "" {
		flag.Usage()
		os.Exit(64)
	}
	for _, text := range strings.Split(seeds, ",") {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, "--seeds:", err)
			os.Exit(64)
		}
		o.seeds = append(o.seeds, seed)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	failed, err := runAll(ctx, o, names)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// bench holds the parts that all scenarios share.
type bench struct {
	options
	dir   string
	extra string
	// long is an apiserver that keeps events for an hour. The scenario expiry starts its own, which keeps them for
	// seconds.
	long *apiserver
}

// run is one run of a scenario.
type run struct {
	*bench
	name string
	seed uint64
	dir  string
	out  io.Writer
	ctx  context.Context
}

func (r *run) logf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, "  "+format+"\n", args...) }

func runAll(ctx context.Context, o options, names string) (failed int, err error) {
	b := &bench{options: o, dir: o.keep}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "eventweir-delivery"); err != nil {
			return 0, err
		}
		defer func() { _ = os.RemoveAll(b.dir) }()
	}
	if o.extra != "" {
		raw, err := os.ReadFile(o.extra)
		if err != nil {
			return 0, err
		}
		if err := yaml.Unmarshal(raw, &map[string]any{}); err != nil {
			return 0, fmt.Errorf("%s: %w", o.extra, err)
		}
		b.extra = string(raw)
	}
	var runs []*run
	var what []scenario
	for _, s := range scenarios {
		isNamed := slices.Contains(strings.Split(names, ","), s.name)
		if !isNamed && (names != "" || s.measures) {
			continue
		}
		seeds := o.seeds
		if !s.seeded {
			seeds = seeds[:1]
		}
		for _, seed := range seeds {
			name := s.name
			if s.seeded {
				name = fmt.Sprintf("%s-%d", s.name, seed)
			}
			runs = append(runs, &run{bench: b, name: name, seed: seed, dir: filepath.Join(b.dir, name), ctx: ctx})
			what = append(what, s)
		}
	}
	if len(runs) == 0 {
		return 0, fmt.Errorf("no scenario is called %s; -list prints them", names)
	}
	began := time.Now()
	if b.long, err = startAPIServer(ctx, o.apiserver, filepath.Join(b.dir, "apiserver")); err != nil {
		return 0, err
	}
	defer b.long.stop()
	fmt.Printf("apiserver ready after %.1f s\n", time.Since(began).Seconds())

	places := make(chan struct{}, max(o.parallel, 1))
	var all sync.WaitGroup
	var printing sync.Mutex
	for i, r := range runs {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			var out bytes.Buffer
			r.out = &out
			begin := time.Now()
			err := r.start(what[i])
			printing.Lock()
			defer printing.Unlock()
			result := "passed"
			if err != nil {
				result = "FAILED: " + err.Error()
				failed++
				var wrong *miscounted
				if errors.As(err, &wrong) {
					r.evidence(wrong.object)
				}
			} else if err := os.RemoveAll(r.dir); err != nil {
				// An apiserver of a scenario's own has reserved more than 100 MiB.
				r.logf("cannot delete its folder: %v", err)
			}
			fmt.Printf("%s (%.0f s): %s\n%s", r.name, time.Since(begin).Seconds(), result, out.String())
		})
	}
	all.Wait()
	fmt.Printf("%d of %d failed, after %.0f s\n", failed, len(runs), time.Since(began).Seconds())
	return failed, nil
}

func (r *run) start(s scenario) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.limit)
	defer cancel()
	r.ctx = ctx
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	if err := r.long.createNamespace(r.namespace()); err != nil {
		return err
	}
	return s.run(r)
}

func (r *run) namespace() string { return "ns-" + r.name }
