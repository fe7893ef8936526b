package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	toolsrecord "k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Parameters of the scenario admission-storm.
const (
	webhookPods   = 400
	webhookNodes  = 50
	webhookRounds = 8
	webhookRound  = 2 * time.Second
	// tools/events does not report a third occurrence before its series ends.
	seriesRounds = 2
	// Limit in seconds for most reviews, a bound of the histogram.
	answerLimit = "0.002"
)

// admission-storm: kubelets with client-go's tools/record and a scheduler with tools/events report the same storm to an
// apiserver in four phases. It has no webhook, then eventweir as its webhook without and with group budgets, then two
// replicas. The replica that is called is killed midway. The apiserver does not ask about the scheduler's events, as in
// the recipe. Logs the apiserver's cost of each phase. Counts are exact, the recorders log nothing, and while eventweir
// is down, events are stored as without the webhook.
func admissionStorm(r *run) error {
	s, err := startAPIServer(r.ctx, r.apiserver, filepath.Join(r.dir, "apiserver"))
	if err != nil {
		return err
	}
	defer s.stop()
	own := *r.bench
	own.long = s
	r = &run{bench: &own, name: r.name, seed: r.seed, dir: r.dir, out: r.out, ctx: r.ctx}
	x, kubeconfig, err := r.behindProxy(nil)
	if err != nil {
		return err
	}
	defer x.close()
	idle, err := r.measured(s, "idle", func() error { return sleep(r.ctx, 5*time.Second) })
	if err != nil {
		return err
	}
	var faults []error
	costs := make([]cost, len(webhookPhases))
	for i, phase := range webhookPhases {
		p := *r
		p.name, p.dir = r.name+"-"+phase.name, filepath.Join(r.dir, phase.name)
		if err := first(os.Mkdir(p.dir, 0o700), s.createNamespace(p.namespace())); err != nil {
			return err
		}
		if costs[i], err = p.phase(kubeconfig, phase); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", phase.name, err))
		}
	}
	for i, c := range costs {
		above := c.cpu - idle.cpu/idle.seconds*c.seconds
		r.logf("%s: %d requests, %d stored, %.1f s of CPU above idle, etcd grew by %d KiB", webhookPhases[i].name, c.writes, c.stored, above, c.bytes>>10)
	}
	return errors.Join(faults...)
}

// webhookPhase is one configuration for the storm.
type webhookPhase struct {
	name     string
	replicas int
	// correlation is the section `correlation` of the configuration.
	correlation string
	// quick is the percentage of reviews that must be answered within the limit.
	quick int
}

const webhookReplicas = "groupBurstSize: 30, groupQps: 1, naming: deterministic"

var webhookPhases = []webhookPhase{
	{"none", 0, "", 99},
	{"ungrouped", 1, "groupBurstSize: 0", 99},
	{"grouped", 1, "groupBurstSize: 30, groupQps: 1", 99},
	{"replicas", 2, webhookReplicas, 99},
}

// admissionReplicas: the last phase of admission-storm, at whatever speed.
func admissionReplicas(r *run) error {
	x, kubeconfig, err := r.behindProxy(nil)
	if err != nil {
		return err
	}
	defer x.close()
	_, err = r.phase(kubeconfig, webhookPhase{"replicas", 2, webhookReplicas, 0})
	return err
}

// phase runs the storm of a phase, and returns its cost.
func (r *run) phase(kubeconfig string, phase webhookPhase) (cost, error) {
	replicas := phase.replicas
	service, err := newService()
	if err != nil {
		return cost{}, err
	}
	defer service.close()
	weirs, err := r.startReplicas(kubeconfig, phase, service)
	for _, w := range weirs {
		defer w.kill()
	}
	if err != nil {
		return cost{}, err
	}
	c, err := r.startClients()
	if err != nil {
		return cost{}, err
	}
	defer c.stop()
	var ends []samples
	took, err := r.measured(r.long, r.name, func() error {
		for round := range webhookRounds {
			if replicas > 1 && round == webhookRounds/2 {
				if weirs, err = killCalled(weirs); err != nil {
					return err
				}
			}
			if err := c.round(r.name, round < seriesRounds); err != nil {
				return err
			}
		}
		if err := c.finish(); err != nil {
			return err
		}
		for _, w := range weirs {
			end, err := w.settled(settleLimit)
			if err != nil {
				return err
			}
			ends = append(ends, end)
		}
		return nil
	})
	if err != nil {
		return took, err
	}
	if took.reviews > 0 {
		r.logf("the apiserver waited for %d reviews, for %d of them at most 5 ms", took.reviews, took.quick)
	}
	faults := []error{c.quiet(), c.exact(replicas > 1)}
	reviews := 0
	for _, end := range ends {
		all, quick := end.sum("eventweir_admission_duration_seconds_count"), end.sum("eventweir_admission_duration_seconds_bucket", `le="`+answerLimit+`"`)
		r.logf("%d reviews, %d within %s s: %s", all, quick, answerLimit, end.nonzero("eventweir_admission_requests_total"))
		reviews += all
		if quick*100 < all*phase.quick {
			faults = append(faults, fmt.Errorf("of %d reviews only %d took at most %s s", all, quick, answerLimit))
		}
		if end.lost() != 0 {
			faults = append(faults, fmt.Errorf("lost: %s", end.nonzero("eventweir_ledger_lost_total")))
		}
	}
	if replicas == 0 {
		return took, errors.Join(faults...)
	}
	if reviews == 0 {
		faults = append(faults, errors.New("no review reached eventweir"))
	}
	// While eventweir is down, events are stored as without the webhook.
	for _, w := range weirs {
		w.kill()
	}
	stored := c.answers.stored()
	if err := first(c.round(r.name+"-after", false), c.finish()); err != nil {
		return took, err
	}
	if n := c.answers.stored() - stored; n < webhookPods {
		faults = append(faults, fmt.Errorf("while eventweir was down, %d events of %d were stored", n, webhookPods))
	}
	return took, errors.Join(append(faults, c.quiet(), c.exact(replicas > 1))...)
}

// startReplicas starts replicas behind the service, and waits until the apiserver calls one.
func (r *run) startReplicas(kubeconfig string, phase webhookPhase, service *service) ([]*weir, error) {
	if phase.replicas == 0 {
		return nil, nil
	}
	config, err := r.webhookConfig("127.0.0.1:0", "")
	if err != nil {
		return nil, err
	}
	config += "upstream: {qps: 40, burst: 400, timeout: 10s}\noutbox: {coalesceInterval: 1s}\ncorrelation: {" + phase.correlation + "}\n"
	var weirs []*weir
	for n := range phase.replicas {
		w, err := r.weir(kubeconfig, config, fmt.Sprintf("eventweir-%d", n))
		if err != nil {
			return weirs, err
		}
		weirs = append(weirs, w)
		service.add(w.listen)
		if err := w.ready(); err != nil {
			return weirs, err
		}
	}
	if err := r.registerWebhook(service.address()); err != nil {
		return weirs, err
	}
	return weirs, (&recorders{run: r, codes: counts{}}).untilCalled(weirs...)
}

// killCalled kills the replica that the apiserver calls, and returns the others.
func killCalled(weirs []*weir) ([]*weir, error) {
	var left []*weir
	killed := false
	for _, w := range weirs {
		now, err := w.scrape()
		if err != nil {
			return nil, err
		}
		if !killed && now.received() > 0 {
			w.kill()
			killed = true
		} else {
			left = append(left, w)
		}
	}
	if !killed {
		return nil, errors.New("no replica has received an event")
	}
	return left, nil
}

// answers are the apiserver's answers to client-go's recorders, and the recorders' log lines.
type answers struct {
	mu sync.Mutex
	// codes are the answers. finished counts occurrences that a recorder will not send again. storedTotal is the sum of
	// the totals in stored requests.
	codes                 counts
	finished, storedTotal int
	// repeated are refused series. Their client retries them, and finally logs that it gives up.
	repeated counts
	logged   []string
}

// add counts the answer to a write of an event with this total. A client retries a refused series.
func (h *answers) add(verb, series string, total int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.codes["stored"]++
		h.storedTotal += total
	} else {
		h.codes[string(apierrors.ReasonForError(err))]++
	}
	again := h.repeated[series] > 0
	if series != "" && apierrors.IsAlreadyExists(err) {
		h.repeated[series]++
	}
	if !again && (verb != "patch" || !apierrors.IsNotFound(err)) {
		h.finished++
	}
}

func (h *answers) stored() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.codes["stored"]
}

// kubeletSink and schedulerSink are client-go's sinks, and count the answers.
type kubeletSink struct {
	toolsrecord.EventSink
	answers *answers
}

func (s kubeletSink) Create(event *corev1.Event) (*corev1.Event, error) {
	stored, err := s.EventSink.Create(event)
	s.answers.add("create", "", int(event.Count), err)
	return stored, err
}

func (s kubeletSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	stored, err := s.EventSink.Patch(event, data)
	s.answers.add("patch", "", 1, err)
	return stored, err
}

type schedulerSink struct {
	events.EventSink
	answers *answers
}

func (s schedulerSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Create(ctx, event)
	series, total := seriesOf(event)
	s.answers.add("create", series, total, err)
	return stored, err
}

func (s schedulerSink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Patch(ctx, event, data)
	series, _ := seriesOf(event)
	s.answers.add("patch", series, 1, err)
	return stored, err
}

// seriesOf returns the name of an event with a series, and its total.
func seriesOf(event *eventsv1.Event) (string, int) {
	if event.Series == nil {
		return "", 1
	}
	return event.Name, int(event.Series.Count)
}

// clients are the kubelets and the scheduler of a phase.
type clients struct {
	run       *run
	answers   *answers
	kubelets  []toolsrecord.EventRecorder
	scheduler events.EventRecorder
	stop      func()
	sent      int
}

func (r *run) startClients() (*clients, error) {
	c := &clients{run: r, answers: &answers{codes: counts{}, repeated: counts{}}}
	ctx, cancel := context.WithCancel(klog.NewContext(r.ctx, funcr.New(func(_, line string) {
		c.answers.mu.Lock()
		defer c.answers.mu.Unlock()
		c.answers.logged = append(c.answers.logged, line)
	}, funcr.Options{})))
	config := &rest.Config{
		Host: r.long.server, BearerToken: adminToken, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: r.long.ca},
	}
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		cancel()
		return nil, err
	}
	asScheduler := rest.CopyConfig(config)
	asScheduler.Impersonate.UserName = schedulerUser
	newer, err := typedeventsv1.NewForConfig(asScheduler)
	if err != nil {
		cancel()
		return nil, err
	}
	for n := range webhookNodes {
		broadcaster := toolsrecord.NewBroadcaster(toolsrecord.WithContext(ctx))
		broadcaster.StartRecordingToSink(kubeletSink{&typedcorev1.EventSinkImpl{Interface: core.Events("")}, c.answers})
		source := corev1.EventSource{Component: "kubelet", Host: fmt.Sprintf("node-%d", n)}
		c.kubelets = append(c.kubelets, broadcaster.NewRecorder(scheme.Scheme, source))
	}
	broadcaster := events.NewBroadcaster(schedulerSink{&events.EventSinkImpl{Interface: newer}, c.answers})
	c.stop = func() { broadcaster.Shutdown(); cancel() }
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		c.stop()
		return nil, err
	}
	c.scheduler = broadcaster.NewRecorder(scheme.Scheme, "default-scheduler")
	return c, nil
}

// round reports one occurrence per pod, and another one by the scheduler if `schedules`.
func (c *clients) round(prefix string, schedules bool) error {
	began := time.Now()
	for n := range webhookPods {
		if err := sleep(c.run.ctx, time.Until(began.Add(webhookRound*time.Duration(n)/webhookPods))); err != nil {
			return err
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.run.namespace(), Name: fmt.Sprintf("%s-pod-%d", prefix, n), UID: "1"}}
		c.kubelets[n%webhookNodes].Event(pod, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container web")
		c.sent++
		if schedules {
			c.scheduler.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "0/50 nodes are available")
			c.sent++
		}
	}
	return nil
}

// finish waits until the recorders have an answer for each occurrence.
func (c *clients) finish() error {
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		c.answers.mu.Lock()
		finished, codes := c.answers.finished, fmt.Sprint(c.answers.codes)
		c.answers.mu.Unlock()
		if finished >= c.sent {
			c.run.logf("answers to clients: %s", codes)
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("the recorders have answers for %[2]d of %[1]d occurrences: %[3]s", c.sent, finished, codes)
		}
	}
}

// quiet checks that the recorders have logged nothing, and have nothing to retry.
func (c *clients) quiet() error {
	c.answers.mu.Lock()
	defer c.answers.mu.Unlock()
	if n := len(c.answers.logged); n > 0 {
		return fmt.Errorf("the recorders logged %d lines; the first: %.400s", n, c.answers.logged[0])
	}
	if n := len(c.answers.repeated); n > 0 {
		return fmt.Errorf("%d series were refused, %d times, and their client retries them", n, c.answers.repeated.total())
	}
	return nil
}

// exact checks that the apiserver shows each occurrence once. After a replica was killed, an occurrence that the
// apiserver stored without an answer of the webhook may count twice.
func (c *clients) exact(mayRepeat bool) error {
	records, err := c.run.long.list(c.run.namespace())
	if err != nil {
		return err
	}
	shown, high := sums(records).total(), c.sent
	if mayRepeat {
		high += c.answers.storedTotal
	}
	reasons := counts{}
	for _, record := range records {
		reasons[record.Reason] += record.occurrences()
	}
	c.run.logf("%d occurrences, %d shown in %d records: %v", c.sent, shown, len(records), reasons)
	if shown < c.sent || shown > high {
		return fmt.Errorf("%d occurrences are shown, expected %d to %d", shown, c.sent, high)
	}
	return nil
}

// service forwards connections to its servers in turn, as a Service does.
type service struct {
	listener net.Listener
	mu       sync.Mutex
	servers  []string
	next     int
}

func newService() (*service, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &service{listener: listener}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go s.pass(client)
		}
	}()
	return s, nil
}

func (s *service) address() string { return s.listener.Addr().String() }

func (s *service) close() { _ = s.listener.Close() }

func (s *service) add(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, url[len("https://"):])
}

// pass forwards a connection to the next server that accepts it.
func (s *service) pass(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	first, servers := s.next, s.servers
	s.next++
	s.mu.Unlock()
	for n := range servers {
		server, err := net.Dial("tcp", servers[(first+n)%len(servers)])
		if err != nil {
			continue
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		}()
		_, _ = io.Copy(client, server)
		return
	}
}
