package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Parameters of the scenario storm.
const (
	stormObjects = 500
	stormRounds  = 6
	// Length of a round. A phase of six rounds takes a minute.
	stormRound = 10 * time.Second
	// stormVisible is the limit for each Warning group to appear.
	stormVisible = 15 * time.Second
)

// storm: pods that cannot be scheduled and whose volumes cannot be mounted. Two components report them as client-go
// does, with a POST and then a PATCH per repeat. They report to an apiserver, and then to eventweir with its default
// budgets. Compares the apiserver's cost of both.
func storm(r *run) error {
	s, err := startAPIServer(r.ctx, r.apiserver, filepath.Join(r.dir, "apiserver"), "--namespaces", r.namespace())
	if err != nil {
		return err
	}
	defer s.stop()
	idle, err := r.measured(s, "idle", func() error { return sleep(r.ctx, stormRound) })
	if err != nil {
		return err
	}
	direct, err := r.measured(s, "client-go", func() error {
		return r.sendStorm(s.client, s.server, r.namespace(), nil)
	})
	if err != nil {
		return err
	}
	// The records of the first phase stay, in a namespace that is not read again.
	namespace := r.namespace() + "-through"
	if err := s.createNamespace(namespace); err != nil {
		return err
	}
	defaults := "upstream: {qps: 40, burst: 400, timeout: 10s}\ncorrelation: {groupBurstSize: 30, groupQps: 1}\noutbox: {coalesceInterval: 1s}\n"
	w, x, quit, err := r.begin(s, true, newPlan(r.seed, nil), defaults)
	if err != nil {
		return err
	}
	defer quit()
	var storms []record
	var end samples
	through, err := r.measured(s, "eventweir", func() error {
		seen := func() error { return r.visible(s, namespace) }
		if err := r.sendStorm(http.DefaultClient, w.listen, namespace, seen); err != nil {
			return err
		}
		end, err = finish(w, x)
		return err
	})
	if err != nil {
		return err
	}
	records, err := s.list(namespace)
	if err != nil {
		return err
	}
	for _, record := range records {
		if record.Metadata.Annotations["eventweir.io/storm"] != "" {
			storms = append(storms, record)
			r.logf("%s %s: count %d, %.160s", record.Type, record.Reason, record.Count, record.Message)
		}
	}
	sent := 2 * stormObjects * stormRounds
	r.logf("%d occurrences; %d writes without, %d with eventweir in %d records; CPU %.1f s and %.1f s "+
		"(idle: %.2f s per second); etcd grew by %d and %d KiB", sent, direct.writes, through.writes, len(records), direct.cpu, through.cpu, idle.cpu/stormRound.Seconds(), direct.bytes>>10, through.bytes>>10)
	if len(storms) != 2 {
		return fmt.Errorf("%d storm records, expected 2", len(storms))
	}
	if direct.writes < sent {
		return fmt.Errorf("%d writes were measured without eventweir, expected at least %d", direct.writes, sent)
	}
	if through.writes*10 > direct.writes {
		return fmt.Errorf("%d writes are more than a tenth of %d", through.writes, direct.writes)
	}
	return first(exact("eventweir", end, sent), accounted(records, end.written()))
}

// sendStorm sends the storm to a server, and calls `seen` concurrently.
func (r *run) sendStorm(client *http.Client, server, namespace string, seen func() error) error {
	author := newAuthor(r.seed, namespace, r.name, true)
	type line struct {
		posted step
		path   string
	}
	var lines []line
	for n := range stormObjects {
		pod := author.object("pod")
		kubelet := map[string]any{"component": "kubelet", "host": fmt.Sprintf("node-%d", n%50)}
		for _, posted := range []step{
			author.core(pod, map[string]any{"component": "default-scheduler"}, "FailedScheduling", "Warning", "0/99 nodes are available: 99 Insufficient cpu."),
			author.core(pod, kubelet, "FailedMount", "Warning", "MountVolume.SetUp failed for volume \"data\""),
		} {
			var named struct{ Metadata struct{ Name string } }
			must(json.Unmarshal(posted.body, &named))
			lines = append(lines, line{posted, posted.path + "/" + named.Metadata.Name})
		}
	}
	watched := make(chan error, 1)
	if seen != nil {
		go func() { watched <- seen() }()
	} else {
		watched <- nil
	}
	const workers = 8
	for round := range stormRounds {
		began := time.Now()
		var all sync.WaitGroup
		errs := make(chan error, workers)
		for worker := range workers {
			all.Go(func() {
				for i := worker; i < len(lines); i += workers {
					at := began.Add(stormRound * time.Duration(i) / time.Duration(len(lines)))
					if err := sleep(r.ctx, time.Until(at)); err != nil {
						errs <- err
						return
					}
					next := lines[i].posted
					if round > 0 {
						body := encode(map[string]any{"count": round + 1, "lastTimestamp": time.Now().UTC().Format(time.RFC3339)})
						next = step{method: http.MethodPatch, path: lines[i].path, contentType: "application/strategic-merge-patch+json", body: body}
					}
					if err := next.send(r.ctx, client, server); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		all.Wait()
		select {
		case err := <-errs:
			return err
		default:
		}
		if err := sleep(r.ctx, time.Until(began.Add(stormRound))); err != nil {
			return err
		}
	}
	return <-watched
}

// send sends one request, which must be answered with 2xx.
func (s step) send(ctx context.Context, client *http.Client, server string) error {
	req, err := http.NewRequestWithContext(ctx, s.method, server+s.path, bytes.NewReader(s.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", s.contentType)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %d %s", s.method, s.path, res.StatusCode, text)
	}
	return err
}

// visible waits until both Warning groups appear.
func (r *run) visible(s *apiserver, namespace string) error {
	began := time.Now()
	for {
		records, err := s.list(namespace)
		if err != nil {
			return err
		}
		groups := map[string]bool{}
		for _, record := range records {
			groups[record.Reason] = true
		}
		if len(groups) >= 2 {
			r.logf("both groups appear after %.1f s", time.Since(began).Seconds())
			return nil
		}
		if time.Since(began) > stormVisible {
			return fmt.Errorf("after %s only %v appear", stormVisible, groups)
		}
		if err := sleep(r.ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(d, 0)):
		return nil
	}
}

// cost is the resource use of the apiserver and its etcd, which are one process in the harness.
type cost struct {
	writes, stored int // requests to write events, and those answered with 2xx
	cpu, seconds   float64
	bytes          int
	reviews, quick int // webhook calls, and those that took at most 5 ms
}

// measured returns the cost of `act`.
func (r *run) measured(s *apiserver, name string, act func() error) (cost, error) {
	before, err := s.cost()
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	if err := act(); err != nil {
		return cost{}, fmt.Errorf("%s: %w", name, err)
	}
	after, err := s.cost()
	took := cost{
		after.writes - before.writes, after.stored - before.stored, after.cpu - before.cpu, time.Since(began).Seconds(), after.bytes - before.bytes,
		after.reviews - before.reviews, after.quick - before.quick,
	}
	r.logf("%s: %d writes, %d stored, %.1f s of CPU, %d KiB in %.0f s", name, took.writes, took.stored, took.cpu, took.bytes>>10, took.seconds)
	return took, err
}

// cost reads the apiserver's own metrics.
func (s *apiserver) cost() (cost, error) {
	req, err := http.NewRequest(http.MethodGet, s.server+"/metrics", nil)
	if err != nil {
		return cost{}, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	res, err := s.client.Do(req)
	if err != nil {
		return cost{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return cost{}, err
	}
	var c cost
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		name := line[:at]
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		switch {
		case err != nil:
			return c, fmt.Errorf("metric %q: %w", line, err)
		case name == "process_cpu_seconds_total":
			c.cpu = value
		case strings.HasPrefix(name, "apiserver_storage_size_bytes"):
			c.bytes += int(value)
		case strings.HasPrefix(name, "apiserver_admission_webhook_admission_duration_seconds_count"):
			c.reviews += int(value)
		case strings.HasPrefix(name, "apiserver_admission_webhook_admission_duration_seconds_bucket") && strings.Contains(name, `le="0.005"`):
			c.quick += int(value)
		case strings.HasPrefix(name, "apiserver_request_total{") && strings.Contains(name, `resource="events"`) &&
			(strings.Contains(name, `verb="POST"`) || strings.Contains(name, `verb="PATCH"`)):
			c.writes += int(value)
			if strings.Contains(name, `code="2`) {
				c.stored += int(value)
			}
		}
	}
	return c, nil
}
