package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// impersonate: in pass-through, clients with only a certificate act in their own name, with their own rights. The apiserver
// refuses users and groups that eventweir may not impersonate. eventweir refuses requests with an impersonation header.
func impersonate(r *run) error {
	x, kubeconfig, err := r.behindProxy(nil)
	if err != nil {
		return err
	}
	defer x.close()
	if err := r.impersonators(); err != nil {
		return err
	}
	clientCA, err := newAuthority()
	if err != nil {
		return err
	}
	caFile, dir := filepath.Join(r.dir, "clients.crt"), filepath.Join(r.dir, "tls")
	if err := first(os.WriteFile(caFile, clientCA.pem(), 0o600), os.Mkdir(dir, 0o700)); err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, fmt.Sprintf(`%stls: {selfSigned: {dir: %s}}
auth: {clientCAFile: %s}
passthrough: {enabled: on, impersonate: true}
`, large, dir, caFile), "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return err
	}
	if err := r.impersonated(w, newCallers(r, w, ca, clientCA)); err != nil {
		return err
	}
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	return first(exact("eventweir", end, 1), accounted(records, 1))
}

// impersonators lets eventweir impersonate a node, and jane of the group ops, which may list pods.
func (r *run) impersonators() error {
	rules := map[string][]map[string]any{
		"eventweir-impersonator": {
			{"apiGroups": []string{""}, "resources": []string{"users"}, "resourceNames": []string{"jane", node}, "verbs": []string{"impersonate"}},
			{"apiGroups": []string{""}, "resources": []string{"groups"}, "resourceNames": []string{"ops", "system:nodes"}, "verbs": []string{"impersonate"}},
		},
		"ops": {{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"list", "watch"}}},
	}
	for name, rules := range rules {
		role := map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": name},
			"rules": rules,
		}
		if err := r.long.create(rbacAPI+"clusterroles", role); err != nil {
			return err
		}
	}
	ours := binding("ClusterRole", "eventweir-impersonator", "ServiceAccount", "eventweir", "eventweir")
	return first(
		r.long.create(rbacAPI+"clusterrolebindings", ours("ClusterRoleBinding", "eventweir-impersonator")),
		r.long.create(rbacAPI+"clusterrolebindings", binding("ClusterRole", "ops", "Group", "ops", "")("ClusterRoleBinding", "ops")),
	)
}

func (r *run) impersonated(w *weir, c *callers) error {
	var certificates []tls.Certificate
	for _, names := range [][]string{{"jane", "ops"}, {"mallory", "ops"}, {"jane", "system:masters"}, {node, "system:nodes"}} {
		certificate, err := c.clientCA.client(names[0], names[1:]...)
		if err != nil {
			return err
		}
		certificates = append(certificates, certificate)
	}
	jane, mallory, master, kubelet := c.client(certificates[0]), c.client(certificates[1]), c.client(certificates[2]), c.client(certificates[3])
	const pods, review = "/api/v1/pods", "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	for _, step := range []struct {
		what         string
		client       *http.Client
		method, path string
		header       string
		code         int
		text         string
	}{
		{"her own name", jane, "POST", review, "", 201, `"username":"jane","groups":["ops","system:authenticated"]`},
		{"a node's name", kubelet, "POST", review, "", 201, `"username":"` + node + `","groups":["system:nodes","system:authenticated"]`},
		{"a right of her group", jane, "GET", pods, "", 200, `"kind":"PodList"`},
		{"a right that she has not", jane, "GET", "/api/v1/secrets", "", 403, `User \"jane\" cannot list resource \"secrets\"`},
		{"another user", mallory, "GET", pods, "", 403, `cannot impersonate resource \"users\"`},
		{"another group", master, "GET", "/api/v1/secrets", "", 403, `cannot impersonate resource \"groups\"`},
		{"another user by a header", jane, "GET", pods, "jane", 403, "cannot impersonate another user as well"},
	} {
		body := strings.NewReader(`{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`)
		request, err := http.NewRequest(step.method, w.listen+step.path, body)
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		if step.header != "" {
			request.Header.Set("Impersonate-User", step.header)
		}
		answer, err := step.client.Do(request)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != step.code || !strings.Contains(string(text), step.text) {
			return fmt.Errorf("%s: %d %.500s %v, expected %d and %q", step.what, answer.StatusCode, text, err, step.code, step.text)
		}
	}
	if code, text, _, err := c.post(jane, "", r.namespace()); err != nil || code != 201 {
		return fmt.Errorf("an event: %d %.300s %v, expected 201", code, text, err)
	}
	return nil
}
