package main

import (
	"fmt"
	"path/filepath"
	"time"
)

// deadline: drains that miss their deadline under faults, with a spool. Each process writes the occurrences that the
// one before it left. Nothing is lost or counted twice, although requests are in flight at each exit.
func deadline(r *run) error {
	const rounds = 4
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, wild))
	if err != nil {
		return err
	}
	defer x.close()
	// The rate is low, so that each drain leaves occurrences.
	more := large + "upstream: {qps: 100, burst: 20}\ningest: {ack: durable}\nshutdown: {drainTimeout: 300ms}\n"
	account, number, written, left := newAccount(), 0, 0, []int{}
	author := newAuthor(r.seed, r.namespace(), r.name, false)
	for round := range rounds {
		w, err := r.weir(kubeconfig, more, fmt.Sprintf("eventweir-%d", round), "--spool-dir", filepath.Join(r.dir, "spool"))
		if err != nil {
			return err
		}
		defer w.kill()
		some := r.occurrences / 40
		number += some
		load := load{to: to(w), workers: 16}
		load.send(r.ctx, r.seed, author.scripts(some), account)
		if round == rounds-1 {
			end, err := finish(w, x)
			if err != nil {
				return err
			}
			if end.lost() != 0 {
				return fmt.Errorf("lost: %s", end.nonzero("eventweir_ledger_lost_total"))
			}
			written += end.written()
			break
		}
		end, err := w.stop(30 * time.Second)
		if err != nil {
			return err
		}
		if end.Lost != 0 {
			return fmt.Errorf("the final balance is %+v", end)
		}
		written += end.Written
		left = append(left, end.Received-end.Rejected-end.Written)
	}
	records, err := r.records(x, r.long)
	if err != nil {
		return err
	}
	r.logf("the drains left %v", left)
	for _, left := range left {
		if left == 0 {
			return fmt.Errorf("a drain met its deadline: the drains left %v", left)
		}
	}
	return first(account.sent(number), between(records, account.acked, account.acked), accounted(records, written))
}
