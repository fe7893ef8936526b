package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// neighbour: while eventweir writes under faults, another writer counts on the same records. It follows eventweir's
// protocol: it patches the resourceVersion that it read, and keeps a tally. Both writers' occurrences stay.
func neighbour(r *run) error {
	w, x, quit, err := r.begin(r.long, r.seed%2 == 0, newPlan(r.seed, wild), large)
	if err != nil {
		return err
	}
	defer quit()
	account, others := newAccount(), counts{}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- r.countToo(stop, others) }()
	number := r.occurrences / 4
	author := newAuthor(r.seed, r.namespace(), r.name, true)
	scripts := author.scripts(number, author.repeated, author.differing, author.series)
	// Slow enough that the neighbour finds records that eventweir will patch again.
	load := load{to: to(w), workers: 8, every: 20 * time.Millisecond}
	load.send(r.ctx, r.seed, scripts, account)
	_, err = finish(w, x)
	close(stop)
	if err := errors.Join(err, <-stopped); err != nil {
		return err
	}
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	r.logf("the neighbour counted %d occurrences", others.total())
	all := counts{}
	for _, known := range []counts{account.acked, others} {
		for object, n := range known {
			all[object] += n
		}
	}
	if others.total() < number/20 {
		return fmt.Errorf("the neighbour counted only %d occurrences", others.total())
	}
	return first(account.sent(number), exact("eventweir", end, number), between(records, all, all),
		accounted(records, end.written()+others.total()))
}

// countToo counts on records that it finds, and notes the occurrences per object in `counted`.
func (r *run) countToo(stop <-chan struct{}, counted counts) error {
	const tally = "tally.eventweir/neighbour"
	rng := rand.New(rand.NewPCG(r.seed, 5))
	path := "/api/v1/namespaces/" + r.namespace() + "/events"
	for {
		var page struct{ Items []record }
		if err := r.long.do(http.MethodGet, path, nil, &page); err != nil {
			return err
		}
		for range 20 {
			select {
			case <-stop:
				return nil
			case <-time.After(5 * time.Millisecond):
			}
			if len(page.Items) == 0 {
				break
			}
			var found record
			name := page.Items[rng.IntN(len(page.Items))].Metadata.Name
			if err := r.long.do(http.MethodGet, path+"/"+name, nil, &found); err != nil {
				return err
			}
			more := 1 + rng.IntN(3)
			patch := map[string]any{
				"metadata": map[string]any{
					"resourceVersion": found.Metadata.ResourceVersion,
					"annotations":     map[string]any{tally: strconv.Itoa(found.tallies()["neighbour"] + more)},
				},
			}
			// Count where the record counts: an events.k8s.io/v1 record in its series.
			if count := found.occurrences() + more; found.Count > 0 {
				patch["count"] = count
			} else {
				now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
				patch["series"] = map[string]any{"count": count, "lastObservedTime": now}
			}
			var no *refused
			if err := r.long.do(http.MethodPatch, path+"/"+name, patch, nil); err == nil {
				counted[found.InvolvedObject.Name] += more
			} else if !errors.As(err, &no) || no.code != http.StatusConflict {
				return err
			}
		}
	}
}
