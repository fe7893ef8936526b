package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// auditPolicy makes an apiserver log each request for an event of one namespace with its body. In others it has events of
// its own.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Request
    namespaces: [%s]
    resources: [{group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
  - level: None
`

// observed: `observe` predicts the writes that eventweir would make for a storm at the apiserver. The prediction must
// match the writes that eventweir makes for the same storm. `replay` must read the apiserver's event list and its audit
// log.
func observed(r *run) error {
	const every, tolerance = 10 * time.Millisecond, 0.02
	policy, audit := filepath.Join(r.dir, "policy.yaml"), filepath.Join(r.dir, "audit.log")
	seen := r.namespace() + "-seen"
	if err := os.WriteFile(policy, fmt.Appendf(nil, auditPolicy, seen), 0o600); err != nil {
		return err
	}
	s, err := startAPIServer(r.ctx, r.apiserver, filepath.Join(r.dir, "apiserver"), "--namespaces", r.namespace()+","+seen, "--",
		"--audit-policy-file="+policy, "--audit-log-path="+audit, "--audit-log-mode=blocking")
	if err != nil {
		return err
	}
	defer s.stop()
	x, kubeconfig, err := r.stage(s, true, newPlan(r.seed, nil))
	if err != nil {
		return err
	}
	defer x.close()
	const budgets = "correlation: {burstSize: 5, qps: 0.5}\noutbox: {coalesceInterval: 1s}\n"
	config := filepath.Join(r.dir, "observe.yaml")
	if err := os.WriteFile(config, []byte(r.config(kubeconfig, budgets)), 0o600); err != nil {
		return err
	}
	number := r.occurrences / 5
	storm := func(namespace, prefix string) []step {
		author := newAuthor(r.seed, namespace, prefix, true)
		return mixed(author, author.scripts(number, author.once, author.repeated, author.newStyle, author.series, author.counted))
	}

	var document, stderr bytes.Buffer
	watching := exec.Command(r.eventweir, "observe", "--kubeconfig", kubeconfig, "--config", config, "-n", seen, "-o", "json", "-q")
	watching.Stdout, watching.Stderr = &document, &stderr
	if err := watching.Start(); err != nil {
		return err
	}
	defer func() { _ = watching.Process.Kill() }()
	time.Sleep(3 * time.Second)
	began := time.Now()
	for i, step := range storm(seen, "seen") {
		time.Sleep(time.Until(began.Add(time.Duration(i) * every)))
		if err := s.do(step.method, step.path, json.RawMessage(step.body), nil); err != nil {
			return err
		}
	}
	took := time.Since(began)
	time.Sleep(time.Second)
	if err := watching.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	if err := watching.Wait(); err != nil {
		return fmt.Errorf("observe: %w: %s", err, stderr.String())
	}
	predicted, err := prediction(document.Bytes())
	if err != nil {
		return err
	}
	var list json.RawMessage
	if err := s.do(http.MethodGet, "/api/v1/namespaces/"+seen+"/events", nil, &list); err != nil {
		return err
	}
	listed := filepath.Join(r.dir, "list.json")
	if err := os.WriteFile(listed, list, 0o600); err != nil {
		return err
	}
	for _, file := range []string{listed, audit} {
		document, err := exec.Command(r.eventweir, "replay", file, "-o", "json", "-q").Output()
		if err != nil {
			return fmt.Errorf("replay %s: %w", file, err)
		}
		replayed, err := prediction(document)
		if err != nil {
			return err
		}
		if replayed["sent"] != number {
			return fmt.Errorf("replay %s has %d occurrences, expected %d", file, replayed["sent"], number)
		}
		r.logf("replay of %s: %d writes, client-go %d", filepath.Base(file), replayed["eventweir"], replayed["client-go"])
	}

	w, err := r.weir(kubeconfig, budgets, "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	account := newAccount()
	load, client := load{to: to(w)}, &http.Client{Timeout: time.Minute}
	began = time.Now()
	for i, s := range storm(r.namespace(), r.name) {
		time.Sleep(time.Until(began.Add(time.Duration(i) * every)))
		load.report(r.ctx, nil, client, s, account)
	}
	if again := time.Since(began); again > took+took/20 || took > again+again/20 {
		return fmt.Errorf("the storm took %s the first and %s the second time: this machine is too busy to compare them",
			took, again)
	}
	if err := account.sent(number); err != nil {
		return err
	}
	end, records, err := r.result(w, x, s)
	if err != nil {
		return err
	}
	err = first(exact("eventweir", end, number), between(records, account.acked, account.acked), accounted(records, end.written()))
	if err != nil {
		return err
	}
	written := end.sum("eventweir_upstream_requests_total", `answer="stored"`)
	r.logf("%d occurrences: %d writes predicted, %d made; client-go would make %d",
		number, predicted["eventweir"], written, predicted["client-go"])
	if off := math.Abs(float64(predicted["eventweir"])/float64(written) - 1); off > tolerance {
		return fmt.Errorf("%d writes were predicted, which is off by %.1f %% from %d",
			predicted["eventweir"], 100*off, written)
	}
	return nil
}

// mixed returns the steps of all scripts in random order; the steps of one script stay in their order.
func mixed(a *author, scripts []script) []step {
	var steps []step
	for len(scripts) > 0 {
		i := a.rng.IntN(min(len(scripts), 20))
		steps = append(steps, scripts[i][0])
		if scripts[i] = scripts[i][1:]; len(scripts[i]) == 0 {
			scripts[i] = scripts[0]
			scripts = scripts[1:]
		}
	}
	return steps
}

// prediction returns the writes in each column of an `observe` or `replay` document, and the number of occurrences as
// `sent`.
func prediction(document []byte) (map[string]int, error) {
	var read struct {
		Input   struct{ Events int }
		Columns []struct {
			Name                                   string
			Writes, Shown, Waiting, Lost, Rejected int
		}
	}
	if err := json.Unmarshal(document, &read); err != nil {
		return nil, fmt.Errorf("%w: %.300s", err, document)
	}
	writes := map[string]int{}
	for _, column := range read.Columns {
		writes[column.Name] = column.Writes
		writes["sent"] = column.Shown + column.Waiting + column.Lost + column.Rejected
	}
	if writes["eventweir"] == 0 || read.Input.Events == 0 {
		return nil, errors.New("the document has no events")
	}
	return writes, nil
}
