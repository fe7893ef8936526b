package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

const webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// admission: clients that write to the apiserver, which calls eventweir as its admission webhook. Events of
// tools/record, of tools/events and of clients that post each occurrence count exactly, and no client gets an answer
// that it would log. While eventweir is down, the apiserver stores events as without the webhook.
func admission(r *run) error {
	x, kubeconfig, err := r.behindProxy(nil)
	if err != nil {
		return err
	}
	defer x.close()
	address, err := freeAddress()
	if err != nil {
		return err
	}
	config, err := r.webhookConfig(address, "seriesInterval: 0s, timeout: 500ms")
	if err != nil {
		return err
	}
	config += large
	w, err := r.weir(kubeconfig, config, "eventweir")
	if err != nil {
		return err
	}
	defer func() { w.kill() }()
	if err := r.registerWebhook(address); err != nil {
		return err
	}
	c := &recorders{run: r, codes: counts{}}
	if err := c.untilCalled(w); err != nil {
		return err
	}
	occurrences := max(r.occurrences/100, 20)
	c.storm(occurrences)
	end, err := w.settled(settleLimit)
	if err := first(err, c.check()); err != nil {
		return err
	}
	reviews := end.sum("eventweir_admission_requests_total")
	quick := end.sum("eventweir_admission_duration_seconds_bucket", `le="0.002"`)
	r.logf("%d reviews: %s; %d within 2 ms", reviews, end.nonzero("eventweir_admission_requests_total"), quick)
	// A series that is allowed to grow upstream belongs to its client: it is stored, but not in the ledger.
	begun, counted := end.sum("eventweir_admission_requests_total", "begun"), end.sum("eventweir_admission_requests_total", "counted")
	if end.written() != begun+counted || end.lost() != 0 {
		return fmt.Errorf("%d were written and %d lost, expected %d begun and %d counted ones to be written",
			end.written(), end.lost(), begun, counted)
	}
	if counted < reviews/2 {
		return fmt.Errorf("eventweir counted only %d of %d events", reviews, counted)
	}
	// While eventweir is down, events are stored, and nothing is counted twice after the crash.
	w.kill()
	stored := c.codes["201"]
	c.storm(2)
	if c.codes["201"] == stored {
		return errors.New("nothing was stored while eventweir was down")
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("while eventweir was down: %w", err)
	}
	if w, err = r.weir(kubeconfig, config, "eventweir"); err != nil {
		return err
	}
	// The restarted eventweir keeps its certificate, because its TLS folder is still there.
	if err := c.untilCalled(w); err != nil {
		return err
	}
	c.storm(occurrences)
	if _, err := w.settled(settleLimit); err != nil {
		return err
	}
	if _, err := r.records(x, r.long); err != nil {
		return err
	}
	r.logf("answers to clients: %v", c.codes)
	return c.check()
}

// webhookConfig returns the configuration of an eventweir that serves an apiserver without credentials over TLS: the
// recipe of docs/clients.md, with these keys of `admission`.
func (r *run) webhookConfig(listen, more string) (string, error) {
	clientCA, err := newAuthority()
	if err != nil {
		return "", err
	}
	caFile, dir := filepath.Join(r.dir, "clients.crt"), filepath.Join(r.dir, "tls")
	config, err := r.recipe("exemptUsers: ")
	if err != nil {
		return "", err
	}
	var keys map[string]any
	if err := yaml.Unmarshal([]byte("admission: {"+more+"}"), &keys); err != nil {
		return "", err
	}
	overlay(config, keys)
	text, err := yaml.Marshal(config)
	return fmt.Sprintf("listen: %s\ntls: {selfSigned: {dir: %s}}\nauth: {clientCAFile: %s}\n%s", listen, dir, caFile, text),
		first(err, os.WriteFile(caFile, clientCA.pem(), 0o600), os.Mkdir(dir, 0o700))
}

// recipe returns the block of YAML in docs/clients.md that contains a text.
func (r *run) recipe(part string) (map[string]any, error) {
	document, err := os.ReadFile(r.recipes)
	if err != nil {
		return nil, err
	}
	for _, rest := range strings.Split(string(document), "\n```yaml\n")[1:] {
		block, _, _ := strings.Cut(rest, "\n```")
		if strings.Contains(block, part) {
			var keys map[string]any
			err := yaml.Unmarshal([]byte(block), &keys)
			return keys, err
		}
	}
	return nil, fmt.Errorf("%s has no block with %q", r.recipes, part)
}

// schedulerUser is the user of kube-scheduler, about whose events the apiserver does not ask.
const schedulerUser = "system:kube-scheduler"

// registerWebhook makes the apiserver call this address about the events of this run, as the recipe says.
func (r *run) registerWebhook(address string) error {
	ca, err := os.ReadFile(filepath.Join(r.dir, "tls", "ca.crt"))
	if err != nil {
		return err
	}
	configuration, err := r.recipe("kind: ValidatingWebhookConfiguration")
	if err != nil {
		return err
	}
	configuration["metadata"] = map[string]any{"name": r.name}
	hook := configuration["webhooks"].([]any)[0].(map[string]any)
	service := hook["clientConfig"].(map[string]any)["service"].(map[string]any)
	hook["clientConfig"] = map[string]any{
		"url": "https://" + address + service["path"].(string), "caBundle": base64.StdEncoding.EncodeToString(ca),
	}
	hook["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.namespace()}}
	return r.long.create(webhooks, configuration)
}

// recorders are clients of the apiserver with one line of occurrences each.
type recorders struct {
	run *run
	// sent are occurrences per object.
	sent   counts
	lines  []*recorderLine
	mu     sync.Mutex
	codes  counts
	logged []string
}

// recorderLine is the occurrences of one event of one client.
type recorderLine struct {
	kind, object, name string
	count              int
	posted             map[string]any
}

// untilCalled waits until the apiserver calls one of these.
func (c *recorders) untilCalled(weirs ...*weir) error {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		for _, w := range weirs {
			if now, err := w.scrape(); err != nil || now.sum("eventweir_admission_requests_total") > 0 {
				return err
			}
		}
		event := c.core(fmt.Sprintf("probe-%d", time.Now().UnixNano()), "probe", "a probe")
		_ = c.run.long.do(http.MethodPost, c.path("", false)+"?dryRun=All", event, nil)
	}
	return errors.New("the apiserver does not call the webhook")
}

func (c *recorders) path(name string, isNew bool) string {
	path := "/api/v1/namespaces/"
	if isNew {
		path = "/apis/events.k8s.io/v1/namespaces/"
	}
	path += c.run.namespace() + "/events"
	if name != "" {
		path += "/" + name
	}
	return path
}

func (c *recorders) core(name, object, message string) map[string]any {
	now := time.Now().UTC().Format(time.RFC3339)
	return map[string]any{
		"metadata":       map[string]any{"name": name, "namespace": c.run.namespace()},
		"involvedObject": map[string]any{"kind": "Pod", "namespace": c.run.namespace(), "name": object},
		"source":         map[string]any{"component": "kubelet", "host": "node-1"},
		"reason":         "BackOff", "message": message, "type": "Warning", "count": 1, "firstTimestamp": now, "lastTimestamp": now,
	}
}

func (c *recorders) events(name, object string) map[string]any {
	return map[string]any{
		"metadata":  map[string]any{"name": name, "namespace": c.run.namespace()},
		"regarding": map[string]any{"kind": "Pod", "namespace": c.run.namespace(), "name": object},
		"reason":    "FailedScheduling", "action": "Scheduling", "note": "0/3 nodes", "type": "Warning",
		"reportingController": "default-scheduler", "reportingInstance": "scheduler-1",
		"eventTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
	}
}

// storm sends this many occurrences of each line, all lines in parallel.
func (c *recorders) storm(occurrences int) {
	if c.lines == nil {
		c.sent = counts{}
		for i := range 24 {
			kind := []string{"record", "events", "poster"}[i%3]
			object := fmt.Sprintf("%s-%s-%d", c.run.name, kind, i)
			if kind == "poster" {
				// Two lines report about one object.
				object = fmt.Sprintf("%s-%s-%d", c.run.name, kind, i/6)
			}
			c.lines = append(c.lines, &recorderLine{kind: kind, object: object, name: fmt.Sprintf("%s.%x", object, i)})
		}
	}
	var all sync.WaitGroup
	for _, line := range c.lines {
		all.Go(func() {
			for range occurrences {
				line.count++
				switch line.kind {
				case "record":
					c.record(line)
				case "events":
					c.series(line, line.count == 1, line.count == 2)
				default:
					event := c.core(fmt.Sprintf("%s.%d", line.name, line.count), line.object, "the same")
					if line.count%2 == 0 {
						event["metadata"] = map[string]any{"generateName": line.name + ".", "namespace": c.run.namespace()}
					}
					c.send(http.MethodPost, c.path("", false), event)
				}
			}
			if line.kind == "events" {
				// A series ends six minutes after its last occurrence.
				c.series(line, false, true)
			}
		})
		c.mu.Lock()
		c.sent[line.object] += occurrences
		c.mu.Unlock()
	}
	all.Wait()
}

// record reports an occurrence as tools/record does: a repeat is a PATCH, or a POST if the PATCH is answered 404.
func (c *recorders) record(line *recorderLine) {
	now := time.Now().UTC().Format(time.RFC3339)
	if line.count > 1 {
		patch := map[string]any{"count": line.count, "lastTimestamp": now}
		if c.send(http.MethodPatch, c.path(line.name, false), patch) != http.StatusNotFound {
			return
		}
	}
	event := c.core(line.name, line.object, "restarting")
	event["count"] = line.count
	c.send(http.MethodPost, c.path("", false), event)
}

// series reports an occurrence as tools/events does: the first by a POST, the second by a PATCH that begins a series.
// The others are reported by a PATCH at the end of the series.
func (c *recorders) series(line *recorderLine, begins, reports bool) {
	if begins {
		line.posted = c.events(line.name, line.object)
		c.send(http.MethodPost, c.path("", true), line.posted)
		return
	}
	if !reports {
		return
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	series := map[string]any{"count": line.count, "lastObservedTime": now}
	code := c.send(http.MethodPatch, c.path(line.name, true), map[string]any{"series": series})
	if code == http.StatusNotFound {
		line.posted["series"] = series
		code = c.send(http.MethodPost, c.path("", true), line.posted)
	}
	if code == http.StatusConflict {
		c.complain("a series was refused, and its client will retry it")
	}
}

// send sends a request and returns the status code. It notes an answer that a recorder would log.
func (c *recorders) send(method, path string, body any) int {
	code := http.StatusOK
	if method == http.MethodPost {
		code = http.StatusCreated
	}
	err := c.run.long.do(method, path, body, nil)
	var no *refused
	if errors.As(err, &no) {
		code = no.code
	} else if err != nil {
		c.complain(err.Error())
		return 0
	}
	isQuiet := code/100 == 2 || code == http.StatusConflict || code == http.StatusNotFound && method == http.MethodPatch
	if !isQuiet {
		c.complain(fmt.Sprintf("%s %s: %v", method, path, err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.codes[fmt.Sprint(code)]++
	return code
}

func (c *recorders) complain(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logged = append(c.logged, text)
}

// check compares the sent occurrences with the records of the apiserver.
func (c *recorders) check() error {
	if len(c.logged) > 0 {
		return fmt.Errorf("clients would have logged %d lines; the first: %s", len(c.logged), c.logged[0])
	}
	records, err := c.run.upstream(c.run.long)
	if err != nil {
		return err
	}
	return between(records, c.sent, c.sent)
}
