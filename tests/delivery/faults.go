package main

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// fault is the behaviour of the proxy for one request.
type fault string

// Faults come in pairs: before the apiserver receives the request, and after it has executed it.
const (
	none        fault = "none"
	cutBefore   fault = "cut-before"      // the connection is closed, with all its streams
	cutAfter    fault = "cut-after"       // …
	resetBefore fault = "reset-before"    // only the stream is reset (HTTP/1.1: the connection)
	resetAfter  fault = "reset-after"     // …
	slowBefore  fault = "slow-before"     // a delay
	slowAfter   fault = "slow-after"      // …
	failBefore  fault = "500-before"      // 500
	failAfter   fault = "500-after"       // …
	late504     fault = "504-after"       // the apiserver's own timeout, although it executes the request
	overloaded  fault = "429"             // from priority and fairness, in plain text
	quiet       fault = "429-retry-after" // the same, with Retry-After: 1
	unavailable fault = "503"             // in bursts
	truncated   fault = "truncated"       // half of the response body
	halfClosed  fault = "half-close"      // executed; the client reads EOF, and can still write
	holeBefore  fault = "hole-before"     // no answer
	holeAfter   fault = "hole-after"      // …
	appliedLate fault = "late"            // no answer; executed after the client's timeout
)

// rates are the faults per 1,000 requests.
type rates []struct {
	fault    fault
	permille int
}

// wild is a fault in about one of four requests.
var wild = rates{
	{cutBefore, 5}, {cutAfter, 8}, {resetBefore, 15}, {resetAfter, 30}, {slowBefore, 30}, {slowAfter, 20},
	{failBefore, 10}, {failAfter, 15}, {late504, 10}, {overloaded, 15}, {quiet, 1}, {unavailable, 2}, {truncated, 20},
	{halfClosed, 5}, {holeBefore, 5}, {holeAfter, 8}, {appliedLate, 25},
}

// plan draws the faults. The same seed and the same order of requests give the same faults.
type plan struct {
	mu    sync.Mutex
	rng   *rand.Rand
	rates rates
	burst time.Time
}

// fate is a fault with its parameters.
type fate struct {
	fault fault
	delay time.Duration
}

func newPlan(seed uint64, rates rates) *plan {
	return &plan{rng: rand.New(rand.NewPCG(seed, 1)), rates: rates}
}

func (p *plan) draw(r *http.Request) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	roll, delay := p.rng.IntN(1000), p.rng.Float64()
	if r.URL.Query().Has("watch") {
		return fate{fault: none}
	}
	if time.Now().Before(p.burst) {
		return fate{fault: unavailable}
	}
	for _, rate := range p.rates {
		if roll -= rate.permille; roll >= 0 {
			continue
		}
		f := fate{fault: rate.fault}
		switch rate.fault {
		case unavailable:
			p.burst = time.Now().Add(time.Duration(delay * float64(300*time.Millisecond)))
		case slowBefore, slowAfter:
			f.delay = time.Duration(delay * float64(300*time.Millisecond))
		case appliedLate:
			f.delay = time.Duration(delay * float64(1500*time.Millisecond))
		}
		return f
	}
	return fate{fault: none}
}
