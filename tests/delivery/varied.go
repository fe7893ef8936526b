package main

import (
	"fmt"
	"time"
)

// smallCaches evict records and sources that still repeat. A budget is per object, container, reason and instance.
const smallCaches = `correlation:
  {burstSize: 3, qps: 0.01, groupBurstSize: 0, lruCacheSize: 3, maxSources: 12, maxTrackedKeys: 60, maxEvents: 4,
   spamKey: [involvedObject.name, involvedObject.fieldPath, reason, reportingInstance]}
`

// varied: faults, with several containers per object and instances per reporter. Caches are too small, and the spam key
// has members that the default lacks. Then a drain writes the occurrences that budgets held back.
func varied(r *run) error {
	w, x, quit, err := r.begin(r.long, true, newPlan(r.seed, wild), smallCaches)
	if err != nil {
		return err
	}
	defer quit()
	account, number := newAccount(), r.occurrences/8
	author := newAuthor(r.seed, r.namespace(), r.name, true)
	author.varied = true
	load := load{to: to(w), workers: 8}
	load.send(r.ctx, r.seed, author.scripts(number), account)
	before, err := w.until("waits for budgets only", settleLimit, func(s samples) bool {
		return s.waiting() == s.sum("eventweir_ledger_waiting", `why="budget"`)
	})
	if err != nil {
		return err
	}
	end, err := w.stop(90 * time.Second)
	if err := first(err, x.rest()); err != nil {
		return err
	}
	records, err := r.records(x, r.long)
	if err != nil {
		return err
	}
	r.logf("waiting when the drain began: %s", before.nonzero("eventweir_ledger_waiting"))
	if before.waiting() == 0 || end.Written != number || end.Lost != 0 {
		return fmt.Errorf("%d occurrences waited for their budgets, and the final balance is %+v", before.waiting(), end)
	}
	return first(account.sent(number), between(records, account.acked, account.acked), accounted(records, end.Written))
}
