package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// renewal: the client certificate of the kubeconfig expires before its files are replaced. Occurrences of that time
// wait, and are written soon after. Nothing is lost or counted twice.
func renewal(r *run) error {
	clientCA, err := newAuthority()
	if err != nil {
		return err
	}
	caFile := filepath.Join(r.dir, "clients.crt")
	if err := os.WriteFile(caFile, clientCA.pem(), 0o600); err != nil {
		return err
	}
	s, err := startAPIServer(r.ctx, r.apiserver, filepath.Join(r.dir, "apiserver"), "--namespaces", r.namespace(), "--",
		"--client-ca-file="+caFile)
	if err != nil {
		return err
	}
	defer s.stop()
	expiry := time.Now().Add(30 * time.Second)
	kubeconfig, err := r.certified(s, clientCA, expiry)
	if err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, large, "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()
	end := func() error {
		time.Sleep(time.Until(expiry.Add(time.Second)))
		return nil
	}
	next := func() error {
		_, err := r.certified(s, clientCA, time.Now().Add(time.Hour))
		return err
	}
	return r.renewed(w, s, end, next)
}

// certified writes a kubeconfig, and the files of an administrator's client certificate that it names.
func (r *run) certified(s *apiserver, clientCA *authority, expiry time.Time) (string, error) {
	certificate, err := clientCA.clientUntil(expiry, "eventweir", "system:masters")
	if err != nil {
		return "", err
	}
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		return "", err
	}
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: eventweir
clusters: [{name: harness, cluster: {server: %q, certificate-authority: apiserver/ca.crt}}]
users: [{name: eventweir, user: {client-certificate: client.crt, client-key: client.key}}]
contexts: [{name: eventweir, context: {cluster: harness, user: eventweir}}]
`, s.server)
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	block := func(kind string, raw []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}) }
	return kubeconfig, first(
		os.WriteFile(filepath.Join(r.dir, "client.crt"), block("CERTIFICATE", certificate.Certificate[0]), 0o600),
		os.WriteFile(filepath.Join(r.dir, "client.key"), block("PRIVATE KEY", key), 0o600),
		os.WriteFile(kubeconfig, []byte(config), 0o600),
	)
}
