package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// replicas: several eventweir processes with one apiserver, and requests spread over them at random. Midway the first
// is killed and, with three, the second is drained.
//
// The processes that live or were drained wrote exactly the occurrences that they acknowledged. The killed one wrote at
// least those that it acknowledged with `Eventweir-Ack: written`; it loses those in memory, and its tallies show the
// rest.
func replicas(r *run, size int) error {
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, wild))
	if err != nil {
		return err
	}
	defer x.close()
	var group replicaGroup
	for n := range size {
		w, err := r.weir(kubeconfig, large, fmt.Sprintf("eventweir-%d", n))
		if err != nil {
			return err
		}
		defer w.kill()
		group.live = append(group.live, w)
	}
	killed, drained := group.live[0], group.live[1]
	account, number := newAccount(), r.occurrences/4
	account.mark = number / 2
	load := load{
		to: group.any, workers: 32,
		// Clients of the process to be killed wait until their events are written: only these survive a crash.
		ack: func(w *weir) string {
			if w == killed {
				return "written"
			}
			return ""
		},
	}
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
	group.leave(killed)
	killed.kill()
	var writtenBy []int
	if size > 2 {
		group.leave(drained)
		end, err := drained.stop(90 * time.Second)
		if err != nil {
			return err
		}
		if end.Lost != 0 {
			return fmt.Errorf("the drained replica lost %d", end.Lost)
		}
		writtenBy = append(writtenBy, end.Written)
	}
	<-done
	for _, w := range group.live {
		end, err := finish(w, x)
		if err != nil {
			return err
		}
		if err := exact("a surviving replica", end, end.received()-end.rejected()); err != nil {
			return err
		}
		writtenBy = append(writtenBy, end.written())
	}
	records, err := r.records(x, r.long)
	if err != nil {
		return err
	}
	tallies := sumTallies(records)
	r.logf("the others wrote %v; tallies %v; the killed replica had acknowledged %d; %d requests had no answer", writtenBy, tallies,
		account.by[killed].total(), account.unknown.total())
	return first(
		account.sent(number),
		between(records, account.acked, account.high()),
		tallied(records),
		attributed(tallies, writtenBy, account.by[killed].total()),
	)
}

// attributed checks that each ledger equals one writer's tallies. The rest must be of one writer, the killed process,
// and no less than it acknowledged.
func attributed(tallies counts, writtenBy []int, acknowledged int) error {
	left := counts{}
	for writer, n := range tallies {
		left[writer] = n
	}
	for _, written := range writtenBy {
		found := false
		for writer, n := range left {
			if n == written {
				delete(left, writer)
				found = true
				break
			}
		}
		if !found {
			return fmt.Errorf("a replica wrote %d, but no writer has this total in its tallies: %v", written, tallies)
		}
	}
	if len(left) != 1 || left.total() < acknowledged {
		return fmt.Errorf("the killed replica acknowledged %d, and these tallies are left: %v", acknowledged, left)
	}
	return nil
}

// replicaGroup is the replicas that take requests.
type replicaGroup struct {
	mu   sync.Mutex
	live []*weir
}

func (g *replicaGroup) any(rng *rand.Rand) *weir {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live[rng.IntN(len(g.live))]
}

func (g *replicaGroup) leave(w *weir) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.live {
		if g.live[i] == w {
			g.live = append(append([]*weir(nil), g.live[:i]...), g.live[i+1:]...)
			return
		}
	}
}

// kill9: with a spool each acknowledged occurrence survives a crash at any time, and none counts twice.
func kill9(r *run) error {
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, wild))
	if err != nil {
		return err
	}
	defer x.close()
	spool := filepath.Join(r.dir, "spool")
	begin := func() (*weir, error) {
		// The limit of different messages is high enough that none is combined.
		alone := "correlation: {burstSize: 100000, qps: 1000000, groupBurstSize: 0, maxEvents: 1000}\n"
		return r.weir(kubeconfig, alone+"ingest: {ack: durable}\n", "eventweir", "--spool-dir", spool)
	}
	w, err := begin()
	if err != nil {
		return err
	}
	var current atomic.Pointer[weir]
	current.Store(w)
	account := newAccount()
	load := load{to: func(*rand.Rand) *weir { return current.Load() }, workers: 8, every: 5 * time.Millisecond}
	done := make(chan struct{})
	// The load lasts as long as the crashes. Half of the occurrences have unique messages.
	author, number := newAuthor(r.seed, r.namespace(), r.name, false), min(r.occurrences, 150*r.kills)
	scripts := append(author.scripts(number/2), author.scripts(number-number/2, author.own)...)
	author.rng.Shuffle(len(scripts), func(i, j int) { scripts[i], scripts[j] = scripts[j], scripts[i] })
	go func() {
		load.send(r.ctx, r.seed, scripts, account)
		close(done)
	}()
	rng := rand.New(rand.NewPCG(r.seed, 3))
	for range r.kills {
		// Some crashes hit the start, the reading of the spool, or an idle process.
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		current.Store(nil)
		w.kill()
		if w, err = begin(); err != nil {
			return errors.Join(errors.New("after a crash"), err)
		}
		current.Store(w)
	}
	defer func() { w.kill() }()
	<-done
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	r.logf("%d crashes; %d requests had no answer; %d occurrences with unique messages", r.kills, account.unknown.total(),
		len(account.messages))
	if end.lost() != 0 {
		return fmt.Errorf("lost: %s", end.nonzero("eventweir_ledger_lost_total"))
	}
	return first(account.sent(number), between(records, account.acked, account.high()), account.arrived(records), tallied(records))
}
