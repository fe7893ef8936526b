package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// rbac: with exactly the rights of our manifest, events are written under faults, read, listed and watched. A request
// for any other right is refused and changes nothing.
func rbac(r *run) error {
	x, kubeconfig, err := r.behindProxy(wild)
	if err != nil {
		return err
	}
	defer x.close()
	w, err := r.weir(kubeconfig, large, "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	account, number := newAccount(), r.occurrences/10
	author := newAuthor(r.seed, r.namespace(), r.name, true)
	load := load{to: to(w), workers: 8}
	load.send(r.ctx, r.seed, author.scripts(number), account)
	if _, err := finish(w, x); err != nil {
		return err
	}
	x.plan.Store(newPlan(r.seed, nil))
	one := author.repeated()[:2]
	events := w.listen + "/api/v1/namespaces/" + r.namespace() + "/events"
	watched := watchFor(events+"?watch=true", one[0].object)
	load.send(r.ctx, r.seed, []script{one}, account)
	number += 2
	if _, err := finish(w, x); err != nil {
		return err
	}
	if err := <-watched; err != nil {
		return fmt.Errorf("WATCH: %w", err)
	}
	name, err := nameOf(one[0])
	if err != nil {
		return err
	}
	for _, request := range []struct {
		method, url string
		code        int
		text        string
	}{
		{http.MethodGet, events + "/" + name, 200, one[0].object},
		{http.MethodGet, strings.Replace(events, "/api/v1/", "/apis/events.k8s.io/v1/", 1), 200, one[0].object},
		{http.MethodGet, events + "?fieldSelector=involvedObject.name=" + one[0].object, 200, one[0].object},
		{http.MethodDelete, events + "/" + name, 403, "delete"},
		{http.MethodDelete, events, 403, "delete"},
	} {
		code, text, err := ask(request.method, request.url)
		if err != nil || code != request.code || !strings.Contains(text, request.text) {
			return fmt.Errorf("%s %s: %d %.300s %v, expected %d and %q", request.method, request.url, code, text, err, request.code,
				request.text)
		}
	}
	// The refused deletes have changed nothing: the next repeat counts on the same record.
	load.send(r.ctx, r.seed, []script{one[:1]}, account)
	number++
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	return first(
		account.sent(number), exact("eventweir", end, number), between(records, account.acked, account.acked),
		accounted(records, end.written()),
	)
}

// behindProxy starts a proxy with these faults in front of the apiserver. Returns it, and the path of a kubeconfig that
// reaches it as the service account of the manifest.
func (r *run) behindProxy(faults rates) (*proxy, string, error) {
	token, err := r.serviceAccount()
	if err != nil {
		return nil, "", err
	}
	x, err := startProxy(r.long, r.dir, true, newPlan(r.seed, faults))
	if err != nil {
		return nil, "", err
	}
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	if err := x.kubeconfig(kubeconfig, token); err != nil {
		x.close()
		return nil, "", err
	}
	return x, kubeconfig, nil
}

// serviceAccount applies the rights of the manifest and returns a token of its service account.
func (r *run) serviceAccount() (string, error) {
	raw, err := os.ReadFile(r.role)
	if err != nil {
		return "", err
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	path := map[string]string{
		"ServiceAccount": "/api/v1/namespaces/eventweir/serviceaccounts",
		"ClusterRole":    rbac + "clusterroles", "ClusterRoleBinding": rbac + "clusterrolebindings",
	}
	if err := r.long.createNamespace("eventweir"); err != nil {
		return "", err
	}
	applied := map[string]bool{}
	for _, document := range strings.Split(string(raw), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return "", fmt.Errorf("%s: %w", r.role, err)
		}
		kind, _ := object["kind"].(string)
		if path[kind] == "" {
			continue
		}
		if err := r.long.create(path[kind], object); err != nil {
			return "", err
		}
		applied[kind] = true
	}
	if len(applied) != len(path) {
		return "", fmt.Errorf("%s has only %v of a ServiceAccount, a ClusterRole and its binding", r.role, applied)
	}
	var made struct{ Status struct{ Token string } }
	request := map[string]any{"spec": map[string]any{"expirationSeconds": 3600}}
	err = r.long.do(http.MethodPost, path["ServiceAccount"]+"/eventweir/token", request, &made)
	return made.Status.Token, err
}

func nameOf(s step) (string, error) {
	var named struct{ Metadata struct{ Name string } }
	err := json.Unmarshal(s.body, &named)
	return named.Metadata.Name, err
}

func ask(method, url string) (int, string, error) {
	req, err := http.NewRequest(method, url, bytes.NewReader(nil))
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Timeout: 20 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// watchFor waits for a watch event about an object. It returns once the watch has begun.
func watchFor(url, object string) <-chan error {
	found := make(chan error, 1)
	client := http.Client{Timeout: 30 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		found <- err
		return found
	}
	go func() {
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"ADDED"`) && strings.Contains(lines.Text(), object) {
				found <- nil
				return
			}
		}
		found <- errors.Join(fmt.Errorf("WATCH: %d, without an event about %s", res.StatusCode, object), lines.Err())
	}()
	return found
}

// nobody: an identity without rights, and an identity that the apiserver cannot authenticate. All occurrences wait.
// /readyz shows `upstream forbidden` for the first and `upstream down` for the second. The final balance counts each
// loss.
func nobody(r *run) error {
	for _, c := range []struct {
		token string
		check func(*weir, int) error
	}{{"nobody-token", r.forbidden}, {"no-such-token", r.unauthorized}} {
		x, err := startProxy(r.long, r.dir, true, newPlan(r.seed, nil))
		if err != nil {
			return err
		}
		defer x.close()
		kubeconfig := filepath.Join(r.dir, "kubeconfig-"+c.token)
		if err := x.kubeconfig(kubeconfig, c.token); err != nil {
			return err
		}
		w, err := r.weir(kubeconfig, large+"shutdown: {drainTimeout: 500ms}\n", "eventweir-"+c.token)
		if err != nil {
			return err
		}
		defer w.kill()
		account, number := newAccount(), r.occurrences/20
		author := newAuthor(r.seed, r.namespace(), r.name, false)
		load := load{to: to(w), workers: 4}
		load.send(r.ctx, r.seed, author.scripts(number), account)
		if err := first(account.sent(number), c.check(w, number)); err != nil {
			return fmt.Errorf("%s: %w", c.token, err)
		}
		end, err := w.stop(20 * time.Second)
		if err != nil {
			return err
		}
		if end.Written != 0 || end.Lost+end.Rejected != end.Received {
			return fmt.Errorf("%s: the final balance is %+v", c.token, end)
		}
	}
	records, err := r.upstream(r.long)
	if err == nil && len(records) != 0 {
		err = fmt.Errorf("%d records were written", len(records))
	}
	return err
}

// forbidden checks that all occurrences wait, because a right may be granted later, and that /readyz shows the reason.
func (r *run) forbidden(w *weir, number int) error {
	for until := time.Now().Add(45 * time.Second); ; time.Sleep(time.Second) {
		code, text, err := ask(http.MethodGet, w.admin+"/readyz")
		if err == nil && code == http.StatusOK && strings.Contains(text, "upstream forbidden: it answers 403 to create") {
			break
		}
		if err != nil || time.Now().After(until) {
			return errors.Join(fmt.Errorf("/readyz answers %d %q", code, text), err)
		}
	}
	now, err := w.scrape()
	if err != nil {
		return err
	}
	if now.waiting() != number || now.lost() != 0 || now[`eventweir_upstream_forbidden{verb="create"}`] != 1 {
		return fmt.Errorf("%d of %d wait, %d are lost, and forbidden is %v", now.waiting(), number, now.lost(),
			now[`eventweir_upstream_forbidden{verb="create"}`])
	}
	return nil
}

func (r *run) unauthorized(w *weir, number int) error {
	// Readiness waits for history, at most 30 s.
	for until := time.Now().Add(45 * time.Second); ; time.Sleep(time.Second) {
		code, text, err := ask(http.MethodGet, w.admin+"/readyz")
		if err == nil && code == http.StatusOK && strings.Contains(text, "upstream down") {
			break
		}
		if err != nil || time.Now().After(until) {
			return errors.Join(fmt.Errorf("/readyz answers %d %q", code, text), err)
		}
	}
	now, err := w.scrape()
	if err != nil {
		return err
	}
	unauthorized := now.sum("eventweir_upstream_requests_total", `answer="retry_unauthorized"`)
	if now.waiting() != number || now.lost() != 0 || now["eventweir_upstream_up"] != 0 || unauthorized == 0 {
		return fmt.Errorf("%d of %d wait, %d are lost, up is %v, %d answers were 401", now.waiting(), number, now.lost(),
			now["eventweir_upstream_up"], unauthorized)
	}
	return nil
}
