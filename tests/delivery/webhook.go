package main

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

// prefix is what changesMessages puts before each message.
const prefix = "[cluster-a] "

// mutation is the JSON patch that a webhook answers with; empty where it changes nothing.
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

// admitted: faults, and a webhook of the apiserver changes everything that is stored, by creates and by patches.
func admitted(r *run, change mutation) error {
	hook, err := startWebhook(change)
	if err != nil {
		return err
	}
	defer hook.close()
	if err := r.long.create(mutating, hook.configuration(r)); err != nil {
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
	// Events of nodes are in another namespace.
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
			return fmt.Errorf("the webhook has not changed %+v", record)
		}
		tagged += len(record.tallies())
	}
	r.logf("the webhook has changed %d requests; %d records have tags", hook.changed.Load(), tagged)
	err = first(account.sent(number), exact("eventweir", end, number), between(records, account.acked, account.acked))
	if err != nil {
		return err
	}
	if tagged == 0 {
		// What strips them leaves no tags to compare.
		return nil
	}
	return accounted(records, end.written())
}

// webhook is a mutating webhook.
type webhook struct {
	server  *http.Server
	url     string
	ca      []byte
	change  mutation
	changed atomic.Int64
}

func startWebhook(change mutation) (*webhook, error) {
	cert, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &webhook{url: "https://" + listener.Addr().String() + "/", ca: ca, change: change}
	h.server = &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go func() { _ = h.server.ServeTLS(listener, "", "") }()
	return h, nil
}

func (h *webhook) close() { _ = h.server.Close() }

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Request struct {
			UID    string
			Object record
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := map[string]any{"uid": asked.Request.UID, "allowed": true}
	if patch := h.change(asked.Request.Object); len(patch) > 0 {
		h.changed.Add(1)
		response["patchType"], response["patch"] = "JSONPatch", encode(patch)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

// configuration makes the apiserver ask about the events of a run.
func (h *webhook) configuration(r *run) map[string]any {
	mine := map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.namespace()}}
	return map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
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

// untilMutated waits until the apiserver asks.
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
			return fmt.Errorf("the apiserver never asks the webhook")
		}
	}
	return nil
}
