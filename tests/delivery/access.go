package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const rbacAPI = "/apis/rbac.authorization.k8s.io/v1/"

// access: callers over TLS, authenticated by tokens and client certificates, and authorized by the apiserver. A caller
// without a right, or with a revoked right or token, is refused. While the apiserver is down, nothing is allowed.
func access(r *run) error {
	x, kubeconfig, err := r.behindProxy(nil)
	if err != nil {
		return err
	}
	defer x.close()
	delegator := binding("ClusterRole", "system:auth-delegator", "ServiceAccount", "eventweir", "eventweir")
	if err := r.long.create(rbacAPI+"clusterrolebindings", delegator("ClusterRoleBinding", "eventweir-auth-delegator")); err != nil {
		return err
	}
	clientCA, err := newAuthority()
	if err != nil {
		return err
	}
	caFile := filepath.Join(r.dir, "clients.crt")
	if err := os.WriteFile(caFile, clientCA.pem(), 0o600); err != nil {
		return err
	}
	dir := filepath.Join(r.dir, "tls")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, fmt.Sprintf(`%stls: {selfSigned: {dir: %s}}
auth:
  clientCAFile: %s
  tokenReview: {enabled: true, audiences: [eventweir], cacheTTL: 1s}
  subjectAccessReview: {enabled: true, allowTTL: 1s, denyTTL: 1s}
`, large, dir, caFile), "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return err
	}
	callers, err := r.callers(w, ca, clientCA)
	if err != nil {
		return err
	}
	if err := callers.answers(); err != nil {
		return err
	}
	if err := callers.expires(); err != nil {
		return err
	}
	if err := callers.away(x); err != nil {
		return err
	}
	if err := callers.takenBack(); err != nil {
		return err
	}
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	log, err := os.ReadFile(w.log)
	if err != nil {
		return err
	}
	for _, secret := range callers.secrets {
		if bytes.Contains(log, []byte(secret)) {
			return fmt.Errorf("a token is in %s", w.log)
		}
	}
	r.logf("%d accepted, %d refused", callers.accepted, callers.refused)
	if written, lost := end.written(), end.lost(); written != callers.accepted || lost != 0 {
		return fmt.Errorf("%d occurrences were accepted, %d were written and %d lost", callers.accepted, written, lost)
	}
	return accounted(records, end.written())
}

// binding returns a function that makes bindings of a role to a subject.
func binding(roleKind, role, kind, name, namespace string) func(kind, name string) map[string]any {
	subject := map[string]any{"kind": kind, "name": name}
	if kind == "ServiceAccount" {
		subject["namespace"] = namespace
	} else {
		subject["apiGroup"] = "rbac.authorization.k8s.io"
	}
	return func(kind, name string) map[string]any {
		return map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": map[string]any{"name": name},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": roleKind, "name": role},
			"subjects": []map[string]any{subject},
		}
	}
}

// callers are the clients of the scenario access.
type callers struct {
	run               *run
	server            string
	roots             *x509.CertPool
	clientCA          *authority
	reporter, nobody  string
	endReporter       func() error
	secrets           []string
	accepted, refused int
}

const node = "system:node:node-1"

// Times within which a change is seen. Beside eventweir's caches (1 s) they have those of the apiserver: 10 s of a token,
// which it accepts for a leeway after its expiry, and its watch of roles. The rest is for slow machines.
const (
	leeway      = time.Minute
	tokenCaches = 1*time.Second + 10*time.Second + 10*time.Second
	rightCaches = 1*time.Second + 10*time.Second
)

// newCallers returns clients of w that trust this authority.
func newCallers(r *run, w *weir, ca []byte, clientCA *authority) *callers {
	c := &callers{run: r, server: w.listen, roots: x509.NewCertPool(), clientCA: clientCA}
	c.roots.AppendCertsFromPEM(ca)
	return c
}

// callers creates two service accounts and a node. The account `reporter` and the node may write events in the
// namespace.
func (r *run) callers(w *weir, ca []byte, clientCA *authority) (*callers, error) {
	c := newCallers(r, w, ca, clientCA)
	accounts := "/api/v1/namespaces/" + r.namespace() + "/serviceaccounts"
	for _, name := range []string{"reporter", "nobody"} {
		account := map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": name}}
		if err := r.long.create(accounts, account); err != nil {
			return nil, err
		}
	}
	roles := rbacAPI + "namespaces/" + r.namespace() + "/"
	role := map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": map[string]any{"name": "reporter"},
		"rules": []map[string]any{{
			"apiGroups": []string{"", "events.k8s.io"}, "resources": []string{"events"}, "verbs": []string{"create", "patch"},
		}},
	}
	if err := r.long.create(roles+"roles", role); err != nil {
		return nil, err
	}
	account := binding("Role", "reporter", "ServiceAccount", "reporter", r.namespace())
	if err := r.long.create(roles+"rolebindings", account("RoleBinding", "reporter")); err != nil {
		return nil, err
	}
	if err := r.long.create(roles+"rolebindings", binding("Role", "reporter", "User", node, "")("RoleBinding", "node")); err != nil {
		return nil, err
	}
	reporter := &rotating{r, "/api/v1/namespaces/" + r.namespace() + "/secrets", accounts + "/reporter"}
	var err error
	if c.reporter, c.endReporter, err = reporter.next("reporter", "eventweir"); err != nil {
		return nil, err
	}
	c.secrets = append(c.secrets, c.reporter)
	c.nobody, err = c.token("nobody", "eventweir")
	return c, err
}

// token creates a token of a service account for an audience.
func (c *callers) token(account, audience string) (string, error) {
	request := map[string]any{"spec": map[string]any{"expirationSeconds": 600, "audiences": []string{audience}}}
	var answer struct{ Status struct{ Token string } }
	path := "/api/v1/namespaces/" + c.run.namespace() + "/serviceaccounts/" + account + "/token"
	err := c.run.long.do(http.MethodPost, path, request, &answer)
	c.secrets = append(c.secrets, answer.Status.Token)
	return answer.Status.Token, err
}

// client returns a client with these certificates.
func (c *callers) client(certificates ...tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: c.roots, Certificates: certificates}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}, Timeout: 20 * time.Second}
}

// post reports an occurrence in a namespace, and returns the answer's code and text.
func (c *callers) post(client *http.Client, token, namespace string) (int, string, http.Header, error) {
	body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "access-", "namespace": %q},
		"involvedObject": {"kind": "Pod", "name": %q, "namespace": %q}, "reason": "BackOff", "message": "restarting",
		"type": "Warning", "source": {"component": "kubelet", "host": "node-1"}}`, namespace, c.run.name+"-web-0", namespace)
	return c.send(client, http.MethodPost, token, namespace, strings.NewReader(body))
}

func (c *callers) send(client *http.Client, method, token, namespace string, body io.Reader) (int, string, http.Header, error) {
	request, err := http.NewRequest(method, c.server+"/api/v1/namespaces/"+namespace+"/events", body)
	if err != nil {
		return 0, "", nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if method == http.MethodPost && response.StatusCode == http.StatusCreated {
		c.accepted++
	} else if response.StatusCode >= 400 {
		c.refused++
	}
	return response.StatusCode, string(text), response.Header, err
}

// answers checks the codes 201, 401 and 403.
func (c *callers) answers() error {
	mine, client := c.run.namespace(), c.client()
	foreign, err := c.token("reporter", "https://elsewhere.example")
	if err != nil {
		return err
	}
	certificate, err := c.clientCA.client(node, "system:nodes")
	if err != nil {
		return err
	}
	for _, request := range []struct {
		what      string
		client    *http.Client
		token     string
		namespace string
		code      int
		text      string
	}{
		{"a token with the right", client, c.reporter, mine, 201, ""},
		{"the same token again", client, c.reporter, mine, 201, ""},
		{"a token without the right", client, c.nobody, mine, 403, `cannot create resource \"events\"`},
		{"another namespace", client, c.reporter, "default", 403, `in the namespace \"default\"`},
		{"a token for another audience", client, foreign, mine, 401, "Unauthorized"},
		{"an invalid token", client, "not-a-token", mine, 401, "Unauthorized"},
		{"no credentials", client, "", mine, 401, "Unauthorized"},
		{"a certificate with the right", c.client(certificate), "", mine, 201, ""},
		{"a certificate in another namespace", c.client(certificate), "", "default", 403, node},
	} {
		code, text, _, err := c.post(request.client, request.token, request.namespace)
		if err != nil || code != request.code || !strings.Contains(text, request.text) {
			return fmt.Errorf("%s: %d %.300s %v, expected %d and %q", request.what, code, text, err, request.code, request.text)
		}
	}
	// The right to write does not include the right to read.
	if code, text, _, err := c.send(client, http.MethodGet, c.reporter, mine, nil); err != nil || code != 403 {
		return fmt.Errorf("LIST: %d %.300s %v, expected 403", code, text, err)
	}
	forger, err := newAuthority()
	if err != nil {
		return err
	}
	forged, err := forger.client(node, "system:masters")
	if err != nil {
		return err
	}
	expired, err := c.clientCA.clientUntil(time.Now().Add(-time.Minute), node, "system:nodes")
	if err != nil {
		return err
	}
	for what, certificate := range map[string]tls.Certificate{"of another authority": forged, "that has expired": expired} {
		if code, text, _, err := c.post(c.client(certificate), "", mine); err == nil {
			return fmt.Errorf("a certificate %s is answered %d %.300s", what, code, text)
		}
	}
	return nil
}

// expires: a token that has expired is refused, and one that expires is refused within the time of the caches.
func (c *callers) expires() error {
	old, err := c.expiring(-5 * time.Minute)
	if err != nil {
		return err
	}
	mine := c.run.namespace()
	if code, text, _, err := c.post(c.client(), old, mine); err != nil || code != 401 {
		return fmt.Errorf("an expired token: %d %.300s %v, expected 401", code, text, err)
	}
	soon, err := c.expiring(5*time.Second - leeway)
	if err != nil {
		return err
	}
	if code, text, _, err := c.post(c.client(), soon, mine); err != nil || code != 201 {
		return fmt.Errorf("a token that expires: %d %.300s %v, expected 201", code, text, err)
	}
	return c.until("the token expires", c.client(), soon, 401, 5*time.Second+tokenCaches)
}

// expiring returns the token of the reporter with an expiry at this time from now, signed with the apiserver's key.
func (c *callers) expiring(after time.Duration) (string, error) {
	raw, err := os.ReadFile(filepath.Join(c.run.long.dir, "sa.key"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return "", errors.New("sa.key is not PEM")
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	parts := strings.Split(c.reporter, ".")
	encoding := base64.RawURLEncoding
	payload, err := encoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	claims := map[string]any{}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	expiry := time.Now().Add(after)
	for name, at := range map[string]time.Time{"exp": expiry, "nbf": expiry.Add(-time.Hour), "iat": expiry.Add(-time.Hour)} {
		claims[name] = at.Unix()
	}
	signed := parts[0] + "." + encoding.EncodeToString(encode(claims))
	hash := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, hash[:])
	token := signed + "." + encoding.EncodeToString(signature)
	c.secrets = append(c.secrets, token)
	return token, err
}

// away: during an apiserver outage no new caller is authenticated and no new right is allowed. A known caller reports, and
// reads nothing. Afterwards all work again.
func (c *callers) away(x *proxy) error {
	mine, client := c.run.namespace(), c.client()
	unseen, err := c.token("reporter", "eventweir")
	if err != nil {
		return err
	}
	certificate, err := c.clientCA.client("somebody")
	if err != nil {
		return err
	}
	x.down.Store(true)
	code, text, header, err := c.post(client, unseen, mine)
	if err != nil || code != 503 || header.Get("Retry-After") == "" {
		return fmt.Errorf("a new token: %d %.300s %v, expected 503 and Retry-After", code, text, err)
	}
	code, text, header, err = c.post(c.client(certificate), "", mine)
	if err != nil || code != 500 || header.Get("Retry-After") == "" {
		return fmt.Errorf("a new certificate: %d %.300s %v, expected 500 and Retry-After", code, text, err)
	}
	// Longer than the caches of tokens.
	for began := time.Now(); time.Since(began) < tokenCaches; time.Sleep(time.Second) {
		if code, text, _, err := c.post(client, c.reporter, mine); err != nil || code != 201 {
			return fmt.Errorf("a known token: %d %.300s %v, expected 201", code, text, err)
		}
	}
	if code, text, _, err := c.send(client, http.MethodGet, c.reporter, mine, nil); err != nil || code != 503 {
		return fmt.Errorf("a read with a known token: %d %.300s %v, expected 503", code, text, err)
	}
	x.down.Store(false)
	return c.until("the apiserver answers again", client, unseen, 201, time.Minute)
}

// takenBack: a right is revoked, and then a token.
func (c *callers) takenBack() error {
	r := c.run
	if err := c.until("a token is accepted", c.client(), c.reporter, 201, time.Minute); err != nil {
		return err
	}
	right := rbacAPI + "namespaces/" + r.namespace() + "/rolebindings/reporter"
	if err := r.long.do(http.MethodDelete, right, nil, nil); err != nil {
		return err
	}
	if err := c.until("the right is revoked", c.client(), c.reporter, 403, rightCaches); err != nil {
		return err
	}
	if err := c.endReporter(); err != nil {
		return err
	}
	return c.until("the token is revoked", c.client(), c.reporter, 401, tokenCaches)
}

// until posts until the answer has this code. The apiserver caches its decisions for seconds.
func (c *callers) until(what string, client *http.Client, token string, code int, limit time.Duration) error {
	began := time.Now()
	for {
		got, text, _, err := c.post(client, token, c.run.namespace())
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if got == code {
			c.run.logf("%s: %d after %.1f s", what, code, time.Since(began).Seconds())
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%s: still %d %.300s after %s, expected %d", what, got, text, limit, code)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(raw)
	return &authority{certificate, key}, err
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// client returns a certificate of a user in these groups.
func (a *authority) client(user string, groups ...string) (tls.Certificate, error) {
	return a.clientUntil(time.Now().Add(time.Hour), user, groups...)
}

// clientUntil returns such a certificate with this expiry.
func (a *authority) clientUntil(expiry time.Time, user string, groups ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: expiry,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, err
}

// server returns a certificate for 127.0.0.1 with this serial number, and its key.
func (a *authority) server(serial int64) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &private.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	block := func(kind string, bytes []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	return block("CERTIFICATE", raw), block("PRIVATE KEY", pkcs8), err
}
