package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math"
	"math/rand"
	"reflect"
	"strings"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
)

type stepClock struct{ now time.Time }

func (c *stepClock) Now() time.Time                  { return c.now }
func (c *stepClock) Since(t time.Time) time.Duration { return c.now.Sub(t) }

const stamp = "2006-01-02T15:04:05.999999999Z07:00"

var long = strings.Repeat("long message ", 400)

func text(r *rand.Rand) string {
	return pick(r, "", "a", "b", "ab", "abc", "a b", " ", "A", "ä", "a\u0308", "世界", "<&>", "\u2028", "\"\\", "\x00\x01\b\f\n", "\x7f", "\U0001f600", "\ufffd", "v1", "Pod")
}

func message(r *rand.Rand) string {
	switch r.Intn(10) {
	case 0:
		return text(r)
	case 1:
		return long[:r.Intn(len(long))]
	case 2:
		return "(combined from similar events): message " + fmt.Sprint(r.Intn(3))
	default:
		return fmt.Sprint("message ", r.Intn(14))
	}
}

func seconds(r *rand.Rand, now time.Time) any {
	switch r.Intn(12) {
	case 0:
		return nil
	case 1:
		return pick(r, "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.9Z", "1970-01-01T01:00:00+01:00", "1969-12-31T23:59:59.999Z",
			"0001-01-01T02:00:00+02:00", "2026-02-28T7:59:59,123456789012Z")
	case 2, 3:
		return now.In(time.FixedZone("", pick(r, -12, -1, 1, 14)*3600+pick(r, 0, 1800))).Format(stamp)
	default:
		return now.UTC().Format(stamp)
	}
}

func micros(r *rand.Rand, now time.Time) any {
	if chance(r, 10) {
		return pick[any](r, nil, "0001-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z", "2026-01-01T00:00:00,000001+23:59")
	}
	return now.Format("2006-01-02T15:04:05.000000Z07:00")
}

// event returns the body of one event; every member is absent, empty, null or odd sometimes.
func event(r *rand.Rand, now time.Time, odd int) object {
	e := object{}
	set := func(o object, name string, usual any) {
		switch {
		case !chance(r, odd):
			o[name] = usual
		case chance(r, 30):
			o[name] = nil
		case chance(r, 50):
			if _, is := usual.(string); is {
				o[name] = text(r)
			}
		}
	}
	name := pick(r, "web-0", "web-1", "job")
	meta := object{}
	set(meta, "name", fmt.Sprintf("%s.%x", name, now.UnixNano()))
	set(meta, "namespace", pick(r, "shop", "default"))
	if chance(r, odd) {
		meta["resourceVersion"] = pick(r, "1", "x")
		meta["labels"] = object{text(r): text(r), "k": nil}
		meta["finalizers"] = []any{nil, "f", "g"}
		meta["ownerReferences"] = []any{object{"uid": "u", "name": "o", "controller": true}, object{"uid": "u"}}
		meta["annotations"] = object{}
		meta["uid"] = text(r)
		meta["generateName"] = text(r)
		meta["creationTimestamp"] = seconds(r, now)
		meta["deletionTimestamp"] = seconds(r, now)
		meta["generation"] = pick[any](r, 0, -1, int64(math.MaxInt64))
		meta["deletionGracePeriodSeconds"] = pick[any](r, nil, 0, -1)
	}
	e["metadata"] = meta
	reference := func() object {
		o := object{}
		set(o, "kind", "Pod")
		set(o, "namespace", "shop")
		set(o, "name", name)
		set(o, "uid", "u-"+name)
		set(o, "apiVersion", "v1")
		set(o, "resourceVersion", fmt.Sprint(r.Intn(3)))
		set(o, "fieldPath", pick(r, "", "spec.containers{a}", "spec.containers{b}"))
		return o
	}
	e["involvedObject"] = reference()
	set(e, "reason", pick(r, "BackOff", "Failed"))
	if !chance(r, odd) {
		e["message"] = message(r)
	}
	source := object{}
	set(source, "component", pick(r, "kubelet", "kubelet", "scheduler"))
	set(source, "host", "node-1")
	set(e, "source", source)
	e["firstTimestamp"] = seconds(r, now)
	e["lastTimestamp"] = seconds(r, now)
	set(e, "count", 1)
	if chance(r, odd) {
		e["count"] = pick[any](r, 0, -1, -2, 2, 5, math.MaxInt32, math.MaxInt32-1, math.MinInt32, nil)
	}
	set(e, "type", pick(r, "Normal", "Warning"))
	set(e, "reportingComponent", "kubelet")
	set(e, "reportingInstance", "node-1")
	if chance(r, odd) {
		e["eventTime"] = micros(r, now)
	}
	if chance(r, odd) {
		e["series"] = pick[any](r, nil, object{}, object{"count": 3, "lastObservedTime": micros(r, now)}, object{"count": nil})
		e["action"] = text(r)
		e["related"] = pick[any](r, nil, object{}, reference())
	}
	if chance(r, odd) {
		e["kind"], e["apiVersion"] = "Event", "v1"
	}
	return e
}

func recordCorrelator(r *rand.Rand, scenario string, steps int, f *file) {
	clock := &stepClock{now: time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)}
	options := record.CorrelatorOptions{
		LRUCacheSize:         pick(r, 1, 2, 3, 5, 8, 4096),
		BurstSize:            pick(r, 1, 2, 3, 25, 1000000),
		QPS:                  pick(r, float32(1./300.), 0.02, 3, 1e-30, 1e30, math.MaxFloat32, math.SmallestNonzeroFloat32, 1000, 0.1),
		MaxEvents:            pick(r, 1, 2, 3, 10),
		MaxIntervalInSeconds: pick(r, 1, 2, 60, 600),
		Clock:                clock,
	}
	window := time.Duration(options.MaxIntervalInSeconds) * time.Second
	refill := time.Duration(math.Min(1/float64(options.QPS), 1e6) * 1e9)
	odd := pick(r, 0, 3, 15)
	f.line(object{"scenario": scenario, "description": "Random walk with odd values", "clientGoVersion": "v0.37.2", "options": object{
		"lruCacheSize": options.LRUCacheSize, "burstSize": options.BurstSize, "qps": options.QPS,
		"maxEvents": options.MaxEvents, "maxIntervalInSeconds": options.MaxIntervalInSeconds}})
	correlator := record.NewEventCorrelatorWithOptions(options)
	store := map[string]*v1.Event{}
	version := 0
	var last object
	for range steps {
		step := pick(r, 0, 0, 1, time.Second-1, time.Second, time.Second+1, window-1, window, window+1, refill-1, refill, refill+1, -1, -time.Second, -window, -refill, time.Duration(r.Int63n(int64(5*time.Second))))
		if chance(r, 50) {
			step = pick(r, 0, time.Millisecond, time.Second)
		}
		if next := clock.now.Add(step); next.Year() > 1700 && next.Year() < 2200 {
			clock.now = next
		}
		at := clock.now.UTC().Format(stamp)
		body := event(r, clock.now, odd)
		if last != nil && chance(r, 30) {
			body = last
		}
		last = body
		data, err := json.Marshal(body)
		if err != nil {
			log.Fatal(err)
		}
		in := &v1.Event{}
		if err := json.Unmarshal(data, in); err != nil {
			log.Fatalf("%v: %s", err, data)
		}
		result, err := correlate(correlator, in)
		answer := object{"skip": result.Skip, "event": nil, "patch": nil, "write": nil, "err": nil}
		if err != nil {
			answer["err"] = err.Error()
		}
		if !result.Skip {
			answer["event"] = result.Event
			answer["write"] = "create"
			if result.Event.Count > 1 {
				answer["write"] = "patch"
			}
			if result.Patch != nil {
				answer["patch"] = json.RawMessage(result.Patch)
			}
		}
		f.line(object{"op": "correlate", "at": at, "event": body, "result": answer})
		if result.Skip || chance(r, 20) {
			continue
		}
		// The answer of a server, sometimes an odd one.
		stored := result.Event.DeepCopy()
		name := stored.Namespace + "/" + stored.Name
		if old := store[name]; old != nil && result.Patch != nil {
			merged := old.DeepCopy()
			merged.Count, merged.LastTimestamp, merged.Message = stored.Count, stored.LastTimestamp, stored.Message
			stored = merged
		}
		version++
		stored.ResourceVersion = fmt.Sprint(version)
		if chance(r, odd) {
			switch r.Intn(5) {
			case 0:
				stored.Count = pick[int32](r, 0, 1, 41, -1, math.MaxInt32)
			case 1:
				stored.Name += "x"
			case 2:
				stored.FirstTimestamp = metav1.Time{}
			case 3:
				stored.Message += "!"
			case 4:
				stored.InvolvedObject.UID = types.UID(text(r))
			}
		}
		store[name] = stored.DeepCopy()
		// What the wire leaves of it.
		data, err = json.Marshal(stored)
		if err != nil {
			log.Fatal(err)
		}
		fed := &v1.Event{}
		if err := json.Unmarshal(data, fed); err != nil {
			// A year that Go writes and does not read.
			continue
		}
		correlator.UpdateState(fed)
		f.line(object{"op": "update_state", "at": at, "event": fed})
	}
}

// correlate correlates, and then makes the set of messages what it is if the newest member leaves it: client-go removes an
// arbitrary member of a map, which is one of several legal ways (tests/vectors/correlator_any).
func correlate(c *record.EventCorrelator, in *v1.Event) (*record.EventCorrelateResult, error) {
	group, local := record.EventAggregatorByReasonFunc(in)
	before := members(c, group)
	had := sets.New[string]()
	for key := range before {
		had.Insert(key)
	}
	result, err := c.EventCorrelate(in)
	if result == nil {
		log.Fatal(err)
	}
	after := members(c, group)
	if before == nil || reflect.ValueOf(before).Pointer() != reflect.ValueOf(after).Pointer() {
		had = sets.New[string]()
	}
	full := had.Union(sets.New(local))
	if len(after) == len(full) {
		return result, err
	}
	after.Insert(local)
	if !full.IsSuperset(after) {
		log.Fatalf("set %v of %v", after, full)
	}
	clear(after)
	for key := range full {
		if key != local {
			after.Insert(key)
		}
	}
	return result, err
}

// members returns the set of messages of a group, or nil.
func members(c *record.EventCorrelator, group string) sets.Set[string] {
	aggregator := reflect.ValueOf(c).Elem().FieldByName("aggregator").Elem()
	cache := *(**lru.Cache)(unsafe.Pointer(aggregator.FieldByName("cache").UnsafeAddr()))
	value, found := cache.Get(group)
	if !found {
		return nil
	}
	copied := reflect.New(reflect.TypeOf(value)).Elem()
	copied.Set(reflect.ValueOf(value))
	return *(*sets.Set[string])(unsafe.Pointer(copied.FieldByName("localKeys").UnsafeAddr()))
}

func recordBucket(r *rand.Rand, scenario string, steps int, f *file) {
	clock := &stepClock{now: time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)}
	qps := pick(r, float32(1./300.), 0.02, 3, 1e-30, 1e30, math.MaxFloat32, math.SmallestNonzeroFloat32, 1000, 0.1, r.Float32(), 1/r.Float32(), 5e9, 1e9, 2e9, 1e-9)
	burst := pick(r, 1, 2, 3, 25, 1000, math.MaxInt32)
	f.line(object{"scenario": scenario, "description": "Random walk with odd values", "clientGoVersion": "v0.37.2", "qps": qps, "qpsAsFloat64": float64(qps), "burst": burst})
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(qps, burst, clock)
	refill := time.Duration(math.Min(1/float64(qps), 1e8) * 1e9)
	for range steps {
		step := pick(r, 0, 0, 0, 1, 2, refill-1, refill, refill+1, -1, -refill, refill/2, refill/3, 3*refill, time.Duration(r.Int63n(int64(refill)+2)))
		if next := clock.now.Add(step); next.Year() > 1700 && next.Year() < 2200 {
			clock.now = next
		}
		f.line(object{"at": clock.now.UTC().Format(stamp), "accept": limiter.TryAccept()})
	}
}
