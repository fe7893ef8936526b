package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// step is one request of a client.
type step struct {
	object      string // name of the involved object, the key of all counts
	method      string
	path        string
	contentType string
	body        []byte
	occurrences int
	// message is unique to this occurrence; empty if the check does not need to identify occurrences.
	message string
}

// script is the requests of one client, in order.
type script []step

// author writes scripts. All object names begin with its prefix, which separates runs in one namespace.
type author struct {
	rng       *rand.Rand
	namespace string
	prefix    string
	serial    int
	// growth allows clients that count by themselves and send patches. Only one eventweir has the aliases for their
	// names, so such scripts cannot be spread over several.
	growth bool
	// varied reports the occurrences of a script about several containers and from several instances.
	varied bool
}

func newAuthor(seed uint64, namespace, prefix string, growth bool) *author {
	return &author{rng: rand.New(rand.NewPCG(seed, 2)), namespace: namespace, prefix: prefix, growth: growth}
}

func (a *author) number() int {
	a.serial++
	return a.serial
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// scripts returns scripts with this many occurrences in total, of these shapes; without arguments, of all shapes.
func (a *author) scripts(occurrences int, shapes ...func() script) []script {
	if len(shapes) == 0 {
		shapes = []func() script{
			a.once, a.once, a.repeated, a.repeated, a.differing, a.burst, a.newStyle, a.ofNode, a.manySources,
		}
		if a.growth {
			shapes = append(shapes, a.series, a.counted)
		}
	}
	var scripts []script
	for left := occurrences; left > 0; {
		script := pick(a.rng, shapes...)()
		if left == 1 {
			script = a.once()
		}
		for i, step := range script {
			if left -= step.occurrences; left < 0 {
				// Cut off the surplus. Only a script that counts by itself has steps of more than one occurrence.
				left += step.occurrences
				script = script[:i]
				break
			}
		}
		if len(script) > 0 {
			scripts = append(scripts, script)
		}
	}
	return scripts
}

// once: a single event.
func (a *author) once() script {
	return script{a.core(a.object("once"), a.source(), pick(a.rng, "Pulled", "Started"), "Normal", "it happened")}
}

// repeated: the same event many times.
func (a *author) repeated() script {
	object, source, kind := a.object("same"), a.source(), pick(a.rng, "Normal", "Warning")
	var s script
	for range 2 + a.rng.IntN(40) {
		s = append(s, a.core(object, source, "BackOff", kind, "Back-off restarting failed container"))
	}
	return s
}

// differing: different messages, so that the later events are combined.
func (a *author) differing() script {
	object, source := a.object("differing"), a.source()
	var s script
	for range 5 + a.rng.IntN(40) {
		s = append(s, a.core(object, source, "Unhealthy", "Warning", fmt.Sprintf("probe %d failed", a.rng.IntN(25))))
	}
	return s
}

// burst: many reasons for one object.
func (a *author) burst() script {
	object, source := a.object("burst"), a.source()
	var s script
	for range 20 + a.rng.IntN(60) {
		reason := fmt.Sprintf("Reason%d", a.rng.IntN(30))
		s = append(s, a.core(object, source, reason, pick(a.rng, "Normal", "Warning"), "message of "+reason))
	}
	return s
}

// own: occurrences of one object, each with a unique message.
func (a *author) own() script {
	object, source := a.object("own"), a.source()
	var s script
	for range 5 + a.rng.IntN(40) {
		message := fmt.Sprintf("%s sends %d", a.prefix, a.number())
		next := a.core(object, source, "Unhealthy", "Warning", message)
		next.message = message
		s = append(s, next)
	}
	return s
}

// flood: more different events of one object than its default budget admits.
func (a *author) flood() script {
	object, source := a.object("flood"), a.source()
	var s script
	for n := range 40 + a.rng.IntN(60) {
		s = append(s, a.core(object, source, fmt.Sprintf("Reason%d", n), "Normal", "one of many"))
	}
	return s
}

// manySources: the same event from several reporters, which gives one record per reporter.
func (a *author) manySources() script {
	object := a.object("shared")
	var s script
	for range 3 + a.rng.IntN(10) {
		s = append(s, a.core(object, a.source(), "Evicted", "Warning", "The node was low on resource: memory."))
	}
	return s
}

// ofNode: an event about a cluster-scoped object; such core/v1 events are in the namespace `default`.
func (a *author) ofNode() script {
	name, source := a.name("node"), a.source()
	var s script
	for range 1 + a.rng.IntN(6) {
		now := time.Now().UTC().Format(time.RFC3339)
		event := a.event(name, "default", map[string]any{
			"apiVersion": "v1", "kind": "Event", "reason": "NodeHasDiskPressure", "message": "status is now: true",
			"type": "Warning", "source": source, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
			"involvedObject": map[string]any{"kind": "Node", "name": name, "uid": name},
		})
		s = append(s, a.post("/api/v1/namespaces/default/events", name, event))
	}
	return s
}

// newStyle: events.k8s.io/v1 events of a client that does not count.
func (a *author) newStyle() script {
	object, controller := a.object("new"), pick(a.rng, "example.com/scheduler", "example.com/autoscaler")
	note := pick(a.rng, "no node fits", "")
	var s script
	for range 1 + a.rng.IntN(10) {
		s = append(s, a.events(object, controller, note))
	}
	return s
}

// series: client-go's tools/events, which patches its series.
func (a *author) series() script {
	object := a.object("series")
	s := script{a.events(object, "example.com/controller", "reconcile failed")}
	return append(s, a.growing(s[0], func(count int) map[string]any {
		observed := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
		return map[string]any{"series": map[string]any{"count": count, "lastObservedTime": observed}}
	})...)
}

// counted: client-go's tools/record, which patches its count.
func (a *author) counted() script {
	object := a.object("counted")
	s := script{a.core(object, a.source(), "FailedMount", "Warning", "Unable to attach or mount volumes")}
	return append(s, a.growing(s[0], func(count int) map[string]any {
		return map[string]any{"count": count, "lastTimestamp": time.Now().UTC().Format(time.RFC3339)}
	})...)
}

// growing returns patches of the event that a step posts, each with a higher count.
func (a *author) growing(posted step, patch func(count int) map[string]any) script {
	var named struct{ Metadata struct{ Name string } }
	must(json.Unmarshal(posted.body, &named))
	var s script
	count := 1
	for range 1 + a.rng.IntN(8) {
		grown := 1 + a.rng.IntN(5)
		count += grown
		s = append(s, step{
			object: posted.object, method: http.MethodPatch, path: posted.path + "/" + named.Metadata.Name,
			contentType: "application/strategic-merge-patch+json", body: encode(patch(count)), occurrences: grown,
		})
	}
	return s
}

func (a *author) name(shape string) string {
	return fmt.Sprintf("%s-%s-%d", a.prefix, shape, a.number())
}

func (a *author) object(shape string) map[string]any {
	name := a.name(shape)
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "namespace": a.namespace, "name": name, "uid": name,
	}
}

func (a *author) source() map[string]any {
	return map[string]any{
		"component": pick(a.rng, "kubelet", "kubelet", "default-scheduler", "job-controller"),
		"host":      fmt.Sprintf("node-%d", a.rng.IntN(20)),
	}
}

// core returns a POST of a core/v1 event.
func (a *author) core(object, source map[string]any, reason, kind, message string) step {
	now := time.Now().UTC().Format(time.RFC3339)
	fields := map[string]any{
		"apiVersion": "v1", "kind": "Event", "involvedObject": object, "source": source, "reason": reason, "type": kind,
		"message": message, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
	}
	if a.varied {
		fields["involvedObject"] = a.container(object)
		fields["reportingComponent"], fields["reportingInstance"] = source["component"], a.instance()
	}
	event := a.event(object["name"].(string), a.namespace, fields)
	return a.post("/api/v1/namespaces/"+a.namespace+"/events", object["name"].(string), event)
}

// events returns a POST of an events.k8s.io/v1 event.
func (a *author) events(object map[string]any, controller, note string) step {
	fields := map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": object, "reason": "Scheduling", "type": "Warning",
		"note": note, "action": "Binding", "reportingController": controller, "reportingInstance": controller + "-0",
		"eventTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
	}
	if a.varied {
		fields["regarding"], fields["reportingInstance"] = a.container(object), a.instance()
	}
	event := a.event(object["name"].(string), a.namespace, fields)
	return a.post("/apis/events.k8s.io/v1/namespaces/"+a.namespace+"/events", object["name"].(string), event)
}

// container returns the object with the fieldPath of one of its containers.
func (a *author) container(object map[string]any) map[string]any {
	of := maps.Clone(object)
	of["fieldPath"] = fmt.Sprintf("spec.containers{c%d}", a.rng.IntN(3))
	return of
}

func (a *author) instance() string { return fmt.Sprintf("instance-%d", a.rng.IntN(3)) }

func (a *author) event(object, namespace string, event map[string]any) map[string]any {
	name := fmt.Sprintf("%s.%x", object, 1<<40+a.number())
	event["metadata"] = map[string]any{"name": name, "namespace": namespace}
	return event
}

func (a *author) post(path, object string, event map[string]any) step {
	return step{
		object: object, method: http.MethodPost, path: path, contentType: "application/json", body: encode(event),
		occurrences: 1,
	}
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	must(err)
	return raw
}

// must panics on an error that cannot occur.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// counts are occurrences per involved object.
type counts map[string]int

func (c counts) total() int {
	total := 0
	for _, n := range c {
		total += n
	}
	return total
}

// account holds the results of all requests that the clients have sent.
type account struct {
	mu sync.Mutex
	// acked are occurrences answered with 2xx; by are the same per eventweir. unknown are occurrences of requests that
	// may have arrived, without an answer.
	acked, unknown counts
	by             map[*weir]counts
	// messages maps each unique message to whether its occurrence was acknowledged.
	messages map[string]bool
	// reached is closed once `mark` occurrences are acknowledged.
	mark, answered int
	reached        chan struct{}
	// repeated is the number of requests that were sent again.
	repeated int
	// why are the errors behind unknown; faults are refusals.
	why, faults []string
}

func newAccount() *account {
	return &account{acked: counts{}, unknown: counts{}, by: map[*weir]counts{}, messages: map[string]bool{}, reached: make(chan struct{})}
}

// load sends scripts.
type load struct {
	// to returns the eventweir for a worker's next request, or nil while there is none.
	to func(rng *rand.Rand) *weir
	// ack returns the value of the header Eventweir-Ack, or an empty string for no header.
	ack     func(w *weir) string
	workers int
	// every is the interval between requests of a worker.
	every time.Duration
	// token is sent with each request, if it is not empty.
	token string
	// transport makes the transport of a worker; by default plain HTTP.
	transport func() *http.Transport
}

// send sends all scripts. Each worker interleaves its own scripts. Returns after the last request, or when ctx ends.
func (l *load) send(ctx context.Context, seed uint64, scripts []script, account *account) {
	var workers sync.WaitGroup
	for n := range l.workers {
		var own []script
		for i := n; i < len(scripts); i += l.workers {
			own = append(own, scripts[i])
		}
		workers.Go(func() { l.work(ctx, rand.New(rand.NewPCG(seed, uint64(n)+10)), own, account) })
	}
	workers.Wait()
}

func (l *load) work(ctx context.Context, rng *rand.Rand, scripts []script, account *account) {
	transport := &http.Transport{}
	if l.transport != nil {
		transport = l.transport()
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	open, next := scripts, time.Now()
	for len(open) > 0 && ctx.Err() == nil {
		// With 20 scripts at a time, repeats are close enough to be folded, and still interleaved with other events.
		i := rng.IntN(min(len(open), 20))
		l.report(ctx, rng, client, open[i][0], account)
		if open[i] = open[i][1:]; len(open[i]) == 0 {
			open[i] = open[0]
			open = open[1:]
		}
		if l.every > 0 {
			next = next.Add(l.every)
			time.Sleep(time.Until(next))
		}
	}
}

// report sends one request, and retries it while that is safe.
func (l *load) report(ctx context.Context, rng *rand.Rand, client *http.Client, s step, account *account) {
	for ctx.Err() == nil {
		w := l.to(rng)
		if w == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		code, text, err := l.request(client, w, s)
		account.mu.Lock()
		if s.message != "" {
			account.messages[s.message] = err == nil && code/100 == 2
		}
		switch {
		case err == nil && code/100 == 2:
			account.acked[s.object] += s.occurrences
			if account.by[w] == nil {
				account.by[w] = counts{}
			}
			account.by[w][s.object] += s.occurrences
			if before := account.answered; before < account.mark && before+s.occurrences >= account.mark {
				close(account.reached)
			}
			account.answered += s.occurrences
		case err == nil && (code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable), notSent(err):
			account.repeated++
			account.mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			continue
		case err != nil:
			account.unknown[s.object] += s.occurrences
			account.why = append(account.why, err.Error())
		default:
			account.faults = append(account.faults, fmt.Sprintf("%s %s: %d %s", s.method, s.path, code, text))
		}
		account.mu.Unlock()
		return
	}
}

func (l *load) request(client *http.Client, w *weir, s step) (int, string, error) {
	req, err := http.NewRequest(s.method, w.listen+s.path, bytes.NewReader(s.body))
	must(err)
	req.Header.Set("Content-Type", s.contentType)
	if l.token != "" {
		req.Header.Set("Authorization", "Bearer "+l.token)
	}
	if l.ack != nil {
		if ack := l.ack(w); ack != "" {
			req.Header.Set("Eventweir-Ack", ack)
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// notSent reports whether a request cannot have arrived, because the connection was never opened.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
