package main

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

const mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

// prefix is added to each message by changesMessages.
const prefix = "[cluster-a] "

// mutation returns the JSON patch of a webhook's answer; empty for no change.
type mutation func(event record) []map[string]any

func changesMessages(event record) []map[string]any {
	if strings.HasPrefix(event.Message, prefix) {
		return nil
	}
	return []map[string]any{{"op": "add", "path": "/message", "value": prefix + event.Message}}
}

func stripsAnnotations(event record) []map[string]any {
	if len(event.Metadata.Annotations) == 0 {
		return nil
	}
	return []map[string]any{{"op": "remove", "path": "/metadata/annotations"}}
}

// admitted: faults, and a mutating webhook that changes each create and patch. The records have tags unless it removes
// them.
func admitted(r *run, change mutation, leavesTags bool) error {
	hook, err := startWebhook(&webhook{change: change})
	if err != nil {
		return err
	}
	defer hook.close()
	if err := r.long.create(mutating, hook.configuration(r, "MutatingWebhookConfiguration")); err != nil {
		return err
	}
	if err := r.untilMutated(hook); err != nil {
		return err
	}
	w, x, quit, err := r.begin(r.long, r.seed%2 == 0, newPlan(r.seed, wild), large)
	if err != nil {
		return err
	}
	defer quit()
	account, number := newAccount(), r.occurrences/8
	author := newAuthor(r.seed, r.namespace(), r.name, true)
	// Events of nodes are in another namespace, which the webhook does not cover.
	shapes := []func() script{author.once, author.repeated, author.differing, author.burst, author.newStyle, author.series, author.counted}
	load := load{to: to(w), workers: 8}
	load.send(r.ctx, r.seed, author.scripts(number, shapes...), account)
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	tagged := 0
	for _, record := range records {
		if len(change(record)) > 0 {
			return fmt.Errorf("the webhook did not change %+v", record)
		}
		tagged += len(record.tallies())
	}
	r.logf("the webhook changed %d requests; %d records have tags", hook.changed.Load(), tagged)
	err = first(account.sent(number), exact("eventweir", end, number), between(records, account.acked, account.acked))
	if err != nil {
		return err
	}
	if !leavesTags {
		return nil
	}
	return accounted(records, end.written())
}

// denied: a validating webhook refuses events. `explain` shows the webhook's message, both for an occurrence lost at
// once and for one that waits. It waits after a 403, because a missing right may be granted later.
func denied(r *run) error {
	const words = "events about this object are not wanted"
	lost, waits := r.name+"-lost", r.name+"-waits"
	var isOver atomic.Bool
	hook, err := startWebhook(&webhook{deny: func(event record) map[string]any {
		switch object := event.InvolvedObject.Name; {
		case object == lost || object == "probe":
			return map[string]any{"message": words}
		case object == waits && !isOver.Load():
			return map[string]any{"message": words, "code": http.StatusForbidden}
		default:
			return nil
		}
	}})
	if err != nil {
		return err
	}
	defer hook.close()
	if err := r.long.create(webhooks, hook.configuration(r, "ValidatingWebhookConfiguration")); err != nil {
		return err
	}
	client := &recorders{run: r}
	for until := time.Now().Add(time.Minute); hook.changed.Load() == 0; time.Sleep(50 * time.Millisecond) {
		_ = r.long.do(http.MethodPost, client.path("", false)+"?dryRun=All", client.core("probe", "probe", "m"), nil)
		if time.Now().After(until) {
			return errors.New("the apiserver does not call the webhook")
		}
	}
	w, x, quit, err := r.begin(r.long, true, newPlan(r.seed, nil), large)
	if err != nil {
		return err
	}
	defer quit()
	load := load{to: to(w)}
	for _, object := range []string{lost, waits} {
		s := step{object: object, method: http.MethodPost, path: client.path("", false), contentType: "application/json", body: encode(client.core(object+".1", object, "m"))}
		if code, text, err := load.request(http.DefaultClient, w, s); err != nil || code != http.StatusCreated {
			return fmt.Errorf("POST: %d %s %v", code, text, err)
		}
	}
	_, err = w.until("is refused", time.Minute, func(s samples) bool {
		return s.lost() == 1 && s.sum("eventweir_ledger_waiting", `why="retry"`) == 1
	})
	if err != nil {
		return err
	}
	message := `admission webhook "events.example.com" denied the request: ` + words
	for _, want := range []struct{ object, line string }{
		{lost, "Lost at "}, {waits, "Not written: the upstream has refused it since "},
	} {
		output, err := exec.Command(r.eventweir, "explain", "pod/"+want.object, "-n", r.namespace(), "--server", w.listen).Output()
		if err != nil {
			return fmt.Errorf("explain: %w: %s", err, output)
		}
		first, _, _ := strings.Cut(string(output), "\n")
		r.logf("%s", first)
		if !strings.HasPrefix(first, want.line) || !strings.Contains(first, message) || !strings.Contains(string(output), "DO  Exempt Events") {
			return fmt.Errorf("explain prints: %s", output)
		}
	}
	isOver.Store(true)
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	if end.lost() != 1 || end.written() != 1 || len(records) != 1 || records[0].InvolvedObject.Name != waits {
		return fmt.Errorf("%d are lost, %d written, and the apiserver has %+v", end.lost(), end.written(), records)
	}
	return nil
}

// webhook is an admission webhook that changes or denies.
type webhook struct {
	server *http.Server
	url    string
	ca     []byte
	change mutation
	// deny returns the status of a refusal, or nil.
	deny func(event record) map[string]any
	// changed counts requests that it has changed or denied.
	changed atomic.Int64
}

func startWebhook(h *webhook) (*webhook, error) {
	cert, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h.url, h.ca = "https://"+listener.Addr().String()+"/", ca
	h.server = &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go func() { _ = h.server.ServeTLS(listener, "", "") }()
	return h, nil
}

func (h *webhook) close() { _ = h.server.Close() }

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID    string
			Object record
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := map[string]any{"uid": review.Request.UID, "allowed": true}
	if h.deny != nil {
		if status := h.deny(review.Request.Object); status != nil {
			h.changed.Add(1)
			response["allowed"], response["status"] = false, status
		}
	} else if patch := h.change(review.Request.Object); len(patch) > 0 {
		h.changed.Add(1)
		response["patchType"], response["patch"] = "JSONPatch", encode(patch)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

// configuration makes the apiserver call the webhook about the events of a run.
func (h *webhook) configuration(r *run, kind string) map[string]any {
	mine := map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.namespace()}}
	return map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
		"metadata": map[string]any{"name": r.name},
		"webhooks": []map[string]any{{
			"name": "events.example.com", "admissionReviewVersions": []string{"v1"}, "sideEffects": "None",
			"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10, "namespaceSelector": mine,
			"clientConfig": map[string]any{"url": h.url, "caBundle": base64.StdEncoding.EncodeToString(h.ca)},
			"rules": []map[string]any{{
				"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"events"},
				"operations": []string{"CREATE", "UPDATE"}, "scope": "Namespaced",
			}},
		}},
	}
}

// untilMutated waits until the apiserver calls the webhook.
func (r *run) untilMutated(h *webhook) error {
	path := "/api/v1/namespaces/" + r.namespace() + "/events"
	for until := time.Now().Add(time.Minute); h.changed.Load() == 0; time.Sleep(50 * time.Millisecond) {
		author := newAuthor(r.seed, r.namespace(), "probe", false)
		var event map[string]any
		must(json.Unmarshal(author.once()[0].body, &event))
		event["metadata"].(map[string]any)["annotations"] = map[string]any{"a": "b"}
		if err := r.long.do(http.MethodPost, path+"?dryRun=All", event, nil); err != nil {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("the apiserver does not call the webhook")
		}
	}
	return nil
}
