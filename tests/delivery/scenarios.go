package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"sigs.k8s.io/yaml"
)

const settleLimit = 3 * time.Minute

// large budgets suppress nothing, because these scenarios test delivery.
const large = "correlation: {burstSize: 100000, qps: 1000000, groupBurstSize: 0}\n"

// config returns a configuration with short timeouts, so that runs are short. `more` and then --extra-config override
// it.
func (r *run) config(kubeconfig, more string) string {
	base := fmt.Sprintf(`listen: 127.0.0.1:0
adminListen: 127.0.0.1:0
upstream:
  kind: apiserver
  kubeconfig: %s
  timeout: 1s
  burst: 0
  qps: 0
  backoff: {initial: 10ms, max: 300ms}
outbox: {coalesceInterval: 200ms}
correlation: {groupBurstSize: 0}
shutdown: {drainTimeout: 60s}
`, kubeconfig)
	config := map[string]any{}
	for _, layer := range []string{base, more, r.extra} {
		var keys map[string]any
		must(yaml.Unmarshal([]byte(layer), &keys))
		overlay(config, keys)
	}
	text, err := yaml.Marshal(config)
	must(err)
	return string(text)
}

// overlay overrides keys of a configuration, section by section.
func overlay(config, keys map[string]any) {
	for key, value := range keys {
		below, isSection := config[key].(map[string]any)
		above, wantsSection := value.(map[string]any)
		if isSection && wantsSection {
			overlay(below, above)
		} else {
			config[key] = value
		}
	}
}

// stage starts a proxy, and returns it with a kubeconfig of the administrator.
func (r *run) stage(s *apiserver, http2 bool, p *plan) (*proxy, string, error) {
	x, err := startProxy(s, r.dir, http2, p)
	if err != nil {
		return nil, "", err
	}
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	return x, kubeconfig, x.kubeconfig(kubeconfig, adminToken)
}

// begin starts an eventweir whose requests pass a proxy with this plan. The returned function stops both.
func (r *run) begin(s *apiserver, http2 bool, p *plan, more string) (*weir, *proxy, func(), error) {
	x, kubeconfig, err := r.stage(s, http2, p)
	if err != nil {
		return nil, nil, nil, err
	}
	w, err := r.weir(kubeconfig, more, "eventweir")
	if err != nil {
		x.close()
		return nil, nil, nil, err
	}
	return w, x, func() { w.kill(); x.close() }, nil
}

// weir starts an eventweir with a configuration that `more` overrides.
func (r *run) weir(kubeconfig, more, name string, flags ...string) (*weir, error) {
	return startWeir(r.eventweir, r.config(kubeconfig, more), filepath.Join(r.dir, name+".log"), flags...)
}

func to(w *weir) func(*rand.Rand) *weir { return func(*rand.Rand) *weir { return w } }

// finish waits until w has nothing to write and the proxy has no late request left.
func finish(w *weir, x *proxy) (samples, error) {
	end, err := w.settled(settleLimit)
	if err != nil {
		return end, err
	}
	return end, x.rest()
}

// result waits as finish does, and returns the ledger and the records of the apiserver.
func (r *run) result(w *weir, x *proxy, s *apiserver) (samples, []record, error) {
	end, err := finish(w, x)
	if err != nil {
		return end, nil, err
	}
	records, err := r.records(x, s)
	return end, records, err
}

// records returns and logs the records of the apiserver.
func (r *run) records(x *proxy, s *apiserver) ([]record, error) {
	records, err := r.upstream(s)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	r.logf("%d records for %d occurrences; %d requests upstream, faults %v, answers %v", len(records), sums(records).total(),
		len(x.arrivals), x.faults, x.answers)
	return records, nil
}

// faults: all kinds of faults between eventweir and the apiserver. Each occurrence counts exactly once.
func faults(r *run) error {
	w, x, quit, err := r.begin(r.long, r.seed%2 == 1, newPlan(r.seed, wild), large)
	if err != nil {
		return err
	}
	defer quit()
	account := newAccount()
	load := load{to: to(w), workers: 8}
	load.send(r.ctx, r.seed, newAuthor(r.seed, r.namespace(), r.name, true).scripts(r.occurrences), account)
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	return first(
		x.harmed(),
		account.sent(r.occurrences),
		exact("eventweir", end, r.occurrences),
		between(records, account.acked, account.acked),
		accounted(records, end.written()),
	)
}

// budgets: the default budgets, which fold many events into digests. The drain writes the rest.
func budgets(r *run) error {
	w, x, quit, err := r.begin(r.long, true, newPlan(r.seed, wild), "")
	if err != nil {
		return err
	}
	defer quit()
	account, number := newAccount(), r.occurrences/2
	load := load{to: to(w), workers: 8}
	author := newAuthor(r.seed, r.namespace(), r.name, true)
	scripts := author.scripts(number, author.flood, author.repeated, author.differing, author.series, author.counted)
	load.send(r.ctx, r.seed, scripts, account)
	before, err := w.until("waits for budgets only", settleLimit, func(s samples) bool {
		return s.waiting() == s.sum("eventweir_ledger_waiting", `why="budget"`)
	})
	if err != nil {
		return err
	}
	end, err := w.stop(90 * time.Second)
	if err != nil {
		return err
	}
	if err := x.rest(); err != nil {
		return err
	}
	records, err := r.records(x, r.long)
	if err != nil {
		return err
	}
	digests := 0
	for _, record := range records {
		if record.Reason == "EventsFolded" {
			digests++
		}
	}
	r.logf("%d digests; waiting when the drain began: %s", digests, before.nonzero("eventweir_ledger_waiting"))
	if before.waiting() == 0 || digests == 0 {
		return fmt.Errorf("%d occurrences waited for their budgets, and %d digests were written", before.waiting(), digests)
	}
	if end.Written != number || end.Lost != 0 {
		return fmt.Errorf("the final balance is %+v", end)
	}
	return first(account.sent(number), between(records, account.acked, account.acked), accounted(records, end.Written))
}

// restart: SIGTERM under load, and a second process that continues. No request meets a closing connection, and each
// acknowledged occurrence counts exactly once.
func restart(r *run) error {
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, wild))
	if err != nil {
		return err
	}
	defer x.close()
	one, err := r.weir(kubeconfig, large, "eventweir-1")
	if err != nil {
		return err
	}
	defer one.kill()
	var current atomic.Pointer[weir]
	current.Store(one)
	account := newAccount()
	number := r.occurrences / 2
	account.mark = number / 2
	// Slow enough to leave work for the second process: the first accepts requests for a second after SIGTERM.
	load := load{to: func(*rand.Rand) *weir { return current.Load() }, workers: 8, every: 5 * time.Millisecond}
	done := make(chan struct{})
	go func() {
		load.send(r.ctx, r.seed, newAuthor(r.seed, r.namespace(), r.name, false).scripts(number), account)
		close(done)
	}()
	select {
	case <-account.reached:
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
	drained, err := one.stop(90 * time.Second)
	if err != nil {
		return err
	}
	two, err := r.weir(kubeconfig, large, "eventweir-2")
	if err != nil {
		return err
	}
	defer two.kill()
	current.Store(two)
	<-done
	end, records, err := r.result(two, x, r.long)
	if err != nil {
		return err
	}
	r.logf("the first wrote %d, the second %d; %d requests had no answer %.150q", drained.Written, end.written(),
		account.unknown.total(), account.why)
	if account.unknown.total() != 0 {
		return fmt.Errorf("%d requests had no answer: %v", account.unknown.total(), account.why)
	}
	if end.written() == 0 {
		return errors.New("the second process wrote nothing")
	}
	if drained.Lost != 0 || end.lost() != 0 {
		return fmt.Errorf("lost: %+v and %s", drained, end.nonzero("eventweir_ledger_lost_total"))
	}
	written := drained.Written + end.written()
	return first(account.sent(number), between(records, account.acked, account.high()), accounted(records, written))
}

// recovery: an apiserver outage of a minute under load. The requests after it stay within the limits.
func recovery(r *run) error {
	const qps, burst, inFlight, perSecond = 200, 50, 16, 500
	// The list and watch of history are not writes, so the limits do not apply to them.
	const following = 2
	limits := fmt.Sprintf("upstream: {qps: %d, burst: %d, maxInFlight: %d}\n", qps, burst, inFlight)
	w, x, quit, err := r.begin(r.long, true, newPlan(r.seed, nil), large+limits)
	if err != nil {
		return err
	}
	defer quit()
	account := newAccount()
	load := load{to: to(w), workers: 10, every: 10 * time.Second / perSecond}
	author := newAuthor(r.seed, r.namespace(), r.name, false)
	x.down.Store(true)
	down := time.Now()
	total := perSecond * int(r.outage.Seconds())
	load.send(r.ctx, r.seed, author.scripts(total, author.repeated), account)
	probes := len(x.since(down))
	x.down.Store(false)
	up := time.Now()
	end, err := finish(w, x)
	if err != nil {
		return err
	}
	took := time.Since(up)
	arrivals := x.since(up)
	most, peak := busiest(arrivals, time.Second), x.peak.Load()
	records, err := r.records(x, r.long)
	if err != nil {
		return err
	}
	r.logf("%d occurrences in %.0f s of outage; %d requests during it, then %d in %.1f s, at most %d in a second and %d at once",
		total, up.Sub(down).Seconds(), probes, len(arrivals), took.Seconds(), most, peak)
	// Probes are sent one at a time, each with a timeout of a second. Add the requests in flight when the outage began,
	// and those that the window admitted before the first of them failed.
	if limit := 2*inFlight + int(up.Sub(down).Seconds()) + 1 + 10*following; probes > limit {
		return fmt.Errorf("%d requests during the outage, expected at most %d", probes, limit)
	}
	// The intervals between arrivals vary more than those between sends.
	if most > (qps+burst)*11/10 || peak > inFlight+following {
		return fmt.Errorf("%d requests in a second, %d in flight", most, peak)
	}
	return first(
		account.sent(total), exact("eventweir", end, total), between(records, account.acked, account.acked),
		accounted(records, end.written()),
	)
}

// busiest returns the largest number of arrivals in any interval of this length.
func busiest(arrivals []time.Time, span time.Duration) int {
	most, begin := 0, 0
	for i, at := range arrivals {
		for at.Sub(arrivals[begin]) >= span {
			begin++
		}
		most = max(most, i-begin+1)
	}
	return most
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
