package main

import (
	"fmt"
	"strings"
)

// replicasNamed: two eventweir processes without history, with each source's events spread over them at random. With
// `naming: deterministic` both count on one record for the same event. With `naming: client` each has its own record.
// The totals are exact in either case.
func replicasNamed(r *run) error {
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, wild))
	if err != nil {
		return err
	}
	defer x.close()
	var found [2]int
	for i, naming := range []string{"client", "deterministic"} {
		account, number := newAccount(), r.occurrences/8
		prefix := r.name + "-" + naming
		var group replicaGroup
		for n := range 2 {
			// Without history they share a record only if they derive the same name.
			more := "upstream: {history: 'off'}\ncorrelation: {burstSize: 100000, qps: 1000000, groupBurstSize: 0, naming: " + naming + "}\n"
			w, err := r.weir(kubeconfig, more, fmt.Sprintf("eventweir-%s-%d", naming, n))
			if err != nil {
				return err
			}
			defer w.kill()
			group.live = append(group.live, w)
		}
		load := load{to: group.any, workers: 16}
		load.send(r.ctx, r.seed, newAuthor(r.seed, r.namespace(), prefix, false).scripts(number), account)
		written := 0
		for _, w := range group.live {
			end, err := finish(w, x)
			if err != nil {
				return err
			}
			if err := exact("a replica", end, end.received()-end.rejected()); err != nil {
				return err
			}
			written += end.written()
		}
		all, err := r.records(x, r.long)
		if err != nil {
			return err
		}
		var records []record
		for _, record := range all {
			if strings.HasPrefix(record.InvolvedObject.Name, prefix+"-") {
				records = append(records, record)
			}
		}
		found[i] = len(records)
		r.logf("naming %s: %d records for %d occurrences", naming, len(records), sums(records).total())
		if written != number {
			return fmt.Errorf("naming %s: %d of %d occurrences were written", naming, written, number)
		}
		if naming == "deterministic" {
			if err := single(records); err != nil {
				return err
			}
		}
		err = first(account.sent(number), between(records, account.acked, account.acked), accounted(records, written))
		if err != nil {
			return fmt.Errorf("naming %s: %w", naming, err)
		}
	}
	if found[1] >= found[0] {
		return fmt.Errorf("%d records with deterministic names, expected fewer than the %d without", found[1], found[0])
	}
	return nil
}

// single checks that no two records are about the same event.
func single(records []record) error {
	known := map[string]string{}
	for _, record := range records {
		message := record.Message
		if strings.HasPrefix(message, "(combined") {
			message = "combined"
		}
		thing := fmt.Sprint(record.InvolvedObject, record.Reason, record.Type, record.Source,
			record.ReportingComponent, message)
		if other, ok := known[thing]; ok {
			return fmt.Errorf("%s and %s are about the same event: %s", other, record.Metadata.Name, thing)
		}
		known[thing] = record.Metadata.Name
	}
	return nil
}
