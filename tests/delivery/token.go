package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// rotating is a service account whose tokens are valid as long as the secret they are bound to.
type rotating struct {
	run     *run
	secrets string
	path    string
}

// next creates a token for these audiences, if any. It returns the token and a function that revokes it.
func (a *rotating) next(name string, audiences ...string) (token string, end func() error, err error) {
	secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name}}
	var made struct{ Metadata struct{ UID string } }
	if err := a.run.long.do(http.MethodPost, a.secrets, secret, &made); err != nil {
		return "", nil, err
	}
	bound := map[string]any{"kind": "Secret", "apiVersion": "v1", "name": name, "uid": made.Metadata.UID}
	request := map[string]any{"spec": map[string]any{
		"expirationSeconds": 600, "boundObjectRef": bound, "audiences": audiences,
	}}
	var answer struct{ Status struct{ Token string } }
	err = a.run.long.do(http.MethodPost, a.path+"/token", request, &answer)
	end = func() error { return a.run.long.do(http.MethodDelete, a.secrets+"/"+name, nil, nil) }
	return answer.Status.Token, end, err
}

// token: the token in the file is revoked before the next one is written. Occurrences of that time wait, and eventweir
// reads the new file soon. Nothing is lost or counted twice.
func token(r *run) error {
	accounts := "/api/v1/namespaces/" + r.namespace() + "/serviceaccounts"
	account := map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "rotating"},
	}
	if err := r.long.create(accounts, account); err != nil {
		return err
	}
	binding := map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
		"metadata": map[string]any{"name": r.namespace()},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []map[string]any{{"kind": "ServiceAccount", "name": "rotating", "namespace": r.namespace()}},
	}
	if err := r.long.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding); err != nil {
		return err
	}
	tokens := &rotating{r, "/api/v1/namespaces/" + r.namespace() + "/secrets", accounts + "/rotating"}
	original, end, err := tokens.next("first")
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "token")
	if err := os.WriteFile(file, []byte(original), 0o600); err != nil {
		return err
	}
	x, err := startProxy(r.long, r.dir, true, newPlan(r.seed, nil))
	if err != nil {
		return err
	}
	defer x.close()
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	if err := x.kubeconfigOf(kubeconfig, "tokenFile", file); err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, large, "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	next := func() error {
		second, _, err := tokens.next("second")
		if err != nil {
			return err
		}
		return os.WriteFile(file, []byte(second), 0o600)
	}
	return r.renewed(w, r.long, end, next)
}

// renewed ends eventweir's own credentials under load, and then replaces their file. Occurrences of the time between wait.
func (r *run) renewed(w *weir, s *apiserver, end, next func() error) error {
	clients, number := newAccount(), r.occurrences/10
	author := newAuthor(r.seed, r.namespace(), r.name, false)
	load := load{to: to(w), workers: 4}
	load.send(r.ctx, r.seed, author.scripts(number), clients)
	before, err := w.settled(settleLimit)
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	// The apiserver accepts a revoked token for some seconds more.
	refused := func(s samples) bool {
		return s.sum("eventweir_upstream_requests_total", `answer="retry_unauthorized"`) > 3
	}
	for range 60 {
		load.send(r.ctx, r.seed, author.scripts(10), clients)
		number += 10
		if now, err := w.scrape(); err != nil || refused(now) {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	waiting, err := w.until("is answered 401", 30*time.Second, refused)
	if err != nil {
		return err
	}
	replaced := time.Now()
	if err := next(); err != nil {
		return err
	}
	last, err := w.settled(settleLimit)
	if err != nil {
		return err
	}
	took := time.Since(replaced)
	r.logf("%d written before; %d waited for the next credentials, and were written %.1f s after them",
		before.written(), waiting.waiting(), took.Seconds())
	// Without a 401, eventweir reads the files only once a minute.
	if before.written() == 0 || waiting.waiting() == 0 || took > 20*time.Second {
		return fmt.Errorf("%d were written, %d waited, and were written after %s", before.written(), waiting.waiting(), took)
	}
	records, err := r.upstream(s)
	if err != nil {
		return err
	}
	return first(
		clients.sent(number), exact("eventweir", last, number), between(records, clients.acked, clients.acked),
		accounted(records, last.written()),
	)
}
