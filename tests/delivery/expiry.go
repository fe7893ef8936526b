package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// expiry: under load, the apiserver expires events after seconds and another client deletes some. Each missing record
// costs one or two requests, and is created again with its whole count.
func expiry(r *run) error {
	const ttl, cold, hot, rounds = 8 * time.Second, 100, 100, 3
	short, err := startAPIServer(r.ctx, r.apiserver, filepath.Join(r.dir, "apiserver"), "--event-ttl", ttl.String(),
		"--namespaces", r.namespace())
	if err != nil {
		return err
	}
	defer short.stop()
	w, x, quit, err := r.begin(short, true, newPlan(r.seed, wild), large)
	if err != nil {
		return err
	}
	defer quit()

	// Each object has one record, so its count is the number of all occurrences sent about it.
	author := newAuthor(r.seed, r.namespace(), r.name, false)
	repeat := func(shape string, objects int) []script {
		scripts := make([]script, objects)
		for i := range scripts {
			scripts[i] = script{author.core(author.object(shape), author.source(), "BackOff", "Warning", "again")}
		}
		return scripts
	}
	colds, hots := repeat("cold", cold), repeat("hot", hot)
	account, number := newAccount(), 0
	busy, calm := load{to: to(w), workers: 4, every: 20 * time.Millisecond}, load{to: to(w), workers: 4}
	var deleted, expired atomic.Int64
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- r.deleteSome(short, stop, &deleted) }()
	for range rounds {
		calm.send(r.ctx, r.seed, colds, account)
		number += cold
		// A cold record expires in this time, even with the slack of etcd's leases.
		for round := time.Now(); time.Since(round) < ttl+2*time.Second && r.ctx.Err() == nil; number += hot {
			busy.send(r.ctx, r.seed, hots, account)
		}
		expired.Add(cold)
	}
	close(stop)
	if err := <-stopped; err != nil {
		return err
	}
	if _, err := finish(w, x); err != nil {
		return err
	}
	all := append(append([]script(nil), colds...), hots...)
	x.plan.Store(newPlan(r.seed, nil))
	calm.send(r.ctx, r.seed, all, account)
	number += len(all)
	end, records, err := r.result(w, x, short)
	if err != nil {
		return err
	}
	missing := end.sum("eventweir_upstream_requests_total", `answer="missing"`)
	refusals := end.sum("eventweir_upstream_requests_total", `answer="refused"`)
	gone := int(deleted.Load() + expired.Load())
	r.logf("%d records deleted, %d expired; %d answers were 404", deleted.Load(), expired.Load(), missing)
	if missing < cold || missing > 2*gone || refusals != 0 {
		return fmt.Errorf("%d answers were 404 and %d were refusals after %d records were deleted or expired",
			missing, refusals, gone)
	}
	return first(account.sent(number), exact("eventweir", end, number), between(records, account.acked, account.acked),
		accounted(records, end.written()))
}

// deleteSome deletes a tenth of the hot records twice a second.
func (r *run) deleteSome(s *apiserver, stop <-chan struct{}, deleted *atomic.Int64) error {
	rng := rand.New(rand.NewPCG(r.seed, 4))
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(500 * time.Millisecond):
		}
		records, err := r.upstream(s)
		if err != nil {
			return err
		}
		for _, record := range records {
			if !strings.Contains(record.InvolvedObject.Name, "-hot-") || rng.IntN(10) != 0 {
				continue
			}
			path := "/api/v1/namespaces/" + r.namespace() + "/events/" + record.Metadata.Name
			var no *refused
			if err := s.do(http.MethodDelete, path, nil, nil); err == nil {
				deleted.Add(1)
			} else if !errors.As(err, &no) || no.code != http.StatusNotFound {
				return err
			}
		}
	}
}
