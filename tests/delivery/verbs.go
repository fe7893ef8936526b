package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// verbs: the manifest grants five verbs on events. Without one of them, only the function named in docs/operations.md
// fails.
func verbs(r *run) error {
	granted := []string{"create", "patch", "get", "list", "watch"}
	for _, missing := range granted {
		left := slices.DeleteFunc(slices.Clone(granted), func(verb string) bool { return verb == missing })
		if err := r.without(missing, left); err != nil {
			return fmt.Errorf("without %s: %w", missing, err)
		}
	}
	return nil
}

// without starts an eventweir with all these verbs except `missing`, and reports an event twice.
func (r *run) without(missing string, left []string) error {
	token, err := r.account("without-"+missing, left)
	if err != nil {
		return err
	}
	x, err := startProxy(r.long, r.dir, true, newPlan(r.seed, nil))
	if err != nil {
		return err
	}
	defer x.close()
	kubeconfig := filepath.Join(r.dir, "kubeconfig-"+missing)
	if err := x.kubeconfig(kubeconfig, token); err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, large+"shutdown: {drainTimeout: 500ms}\n", "eventweir-"+missing)
	if err != nil {
		return err
	}
	defer w.kill()
	author := newAuthor(r.seed, r.namespace(), r.name+"-"+missing, false)
	twice := author.repeated()[:2]
	load, sent := load{to: to(w), workers: 1}, newAccount()
	load.send(r.ctx, r.seed, []script{twice[:1]}, sent)
	shown := func(count int) func(samples) bool { return func(s samples) bool { return s.written() == count } }
	forbidden := func(s samples) bool { return s.sum("eventweir_upstream_forbidden", `verb="`+missing+`"`) == 1 }
	if missing == "create" {
		if _, err := w.until("reports that it may not create", settleLimit, forbidden); err != nil {
			return err
		}
	} else if _, err := w.until("has written one occurrence", settleLimit, shown(1)); err != nil {
		return err
	}
	load.send(r.ctx, r.seed, []script{twice[1:]}, sent)
	switch missing {
	case "create":
		_, err = w.until("has two occurrences waiting", settleLimit, func(s samples) bool { return s.waiting() == 2 && s.written() == 0 })
	case "patch":
		_, err = w.until("reports that it may not patch", settleLimit, func(s samples) bool { return forbidden(s) && s.waiting() == 1 })
	default:
		_, err = w.until("has written both occurrences", settleLimit, shown(2))
	}
	if err != nil {
		return err
	}
	if err := r.checkStatus(w, missing); err != nil {
		return err
	}
	return r.reads(w, twice[0], missing)
}

// checkStatus checks /readyz, or the metric of history.
func (r *run) checkStatus(w *weir, missing string) error {
	follows := missing != "list" && missing != "watch"
	synced := func(s samples) bool { return s.sum("eventweir_history_synced") == 1 }
	if follows {
		if _, err := w.until("follows the upstream's events", settleLimit, synced); err != nil {
			return err
		}
	} else {
		// Both requests are or will be answered 403; eventweir repeats them and counts each answer.
		failed := func(s samples) bool { return s.sum("eventweir_history_news_total", `kind="error"`) > 1 }
		end, err := w.until("has failed to follow twice", settleLimit, failed)
		if err != nil {
			return err
		}
		if synced(end) {
			return fmt.Errorf("eventweir_history_synced is 1, expected 0")
		}
	}
	if missing != "create" && missing != "patch" {
		return nil
	}
	_, text, err := ask(http.MethodGet, w.admin+"/readyz")
	if err == nil && !strings.Contains(text, "upstream forbidden: it answers 403 to "+missing) {
		err = fmt.Errorf("/readyz answers %q", text)
	}
	return err
}

// reads checks that clients are refused the missing verb only.
func (r *run) reads(w *weir, one step, missing string) error {
	name, err := nameOf(one)
	if err != nil {
		return err
	}
	events := w.listen + "/api/v1/namespaces/" + r.namespace() + "/events"
	for verb, url := range map[string]string{
		"get": events + "/" + name, "list": events, "watch": events + "?watch=true&timeoutSeconds=1",
	} {
		// Nothing was created, so there is no event to get, and a watch has no initial event.
		if missing == "create" && verb != "list" {
			continue
		}
		code, text, err := ask(http.MethodGet, url)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", verb, err)
		case verb == missing && (code != 403 || !strings.Contains(text, "cannot "+verb)):
			return fmt.Errorf("%s: %d %.300s, expected 403", verb, code, text)
		case verb != missing && code != 200:
			return fmt.Errorf("%s: %d %.300s, expected 200", verb, code, text)
		}
	}
	return nil
}

// account creates a service account with these verbs on events, and returns its token.
func (r *run) account(name string, verbs []string) (string, error) {
	const rbac, namespace = "/apis/rbac.authorization.k8s.io/v1/", "eventweir"
	metadata := map[string]any{"name": name}
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	for _, object := range []struct {
		path string
		body map[string]any
	}{
		{"/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": namespace}}},
		{accounts, map[string]any{"metadata": metadata}},
		{rbac + "clusterroles", map[string]any{"metadata": metadata, "rules": []any{map[string]any{
			"apiGroups": []string{"", "events.k8s.io"}, "resources": []string{"events"}, "verbs": verbs,
		}}}},
		{rbac + "clusterrolebindings", map[string]any{
			"metadata": metadata,
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": namespace}},
		}},
	} {
		if err := r.long.create(object.path, object.body); err != nil {
			return "", err
		}
	}
	// The apiserver's authorizer sees the binding a moment later.
	until := time.Now().Add(10 * time.Second)
	for {
		var review struct{ Status struct{ Allowed bool } }
		err := r.long.do(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", map[string]any{"spec": map[string]any{
			"user":               "system:serviceaccount:" + namespace + ":" + name,
			"resourceAttributes": map[string]any{"resource": "events", "verb": verbs[0], "namespace": r.namespace()},
		}}, &review)
		if err != nil {
			return "", err
		}
		if review.Status.Allowed {
			break
		}
		if time.Now().After(until) {
			return "", fmt.Errorf("%s has no rights after ten seconds", name)
		}
		time.Sleep(50 * time.Millisecond)
	}
	var made struct{ Status struct{ Token string } }
	err := r.long.do(http.MethodPost, accounts+"/"+name+"/token", map[string]any{"spec": map[string]any{"expirationSeconds": 3600}}, &made)
	return made.Status.Token, err
}
