package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const adminToken = "admin-token"

// apiserver is a running harness of tests/apiserver: a real kube-apiserver with its etcd.
type apiserver struct {
	cmd    *exec.Cmd
	dir    string
	server string
	ca     []byte
	roots  *x509.CertPool
	client *http.Client
}

// startAPIServer starts the harness in dir, which must be empty, and waits until it is ready.
func startAPIServer(ctx context.Context, binary, dir string, flags ...string) (*apiserver, error) {
	cmd := exec.CommandContext(ctx, binary, append([]string{"--unsafe-no-fsync", "--dir", dir}, flags...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	var info struct{ Server string }
	for lines.Scan() {
		ready, ok := strings.CutPrefix(lines.Text(), "READY ")
		if !ok {
			return nil, errors.Join(fmt.Errorf("the apiserver printed: %s", lines.Text()), cmd.Wait())
		}
		if err := json.Unmarshal([]byte(ready), &info); err != nil {
			return nil, err
		}
		break
	}
	if info.Server == "" {
		return nil, fmt.Errorf("the apiserver ended before it was ready: %v", cmd.Wait())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s := &apiserver{cmd: cmd, dir: dir, server: info.Server, ca: ca, roots: roots}
	s.client = &http.Client{Transport: s.transport(), Timeout: time.Minute}
	return s, nil
}

func (s *apiserver) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
	}
}

func (s *apiserver) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// refused is an answer other than 2xx.
type refused struct {
	code int
	text string
}

func (r *refused) Error() string { return fmt.Sprintf("%d %s", r.code, r.text) }

// do sends a request as the administrator, without the proxy and eventweir, and decodes the answer into out.
func (s *apiserver) do(method, path string, body, out any) error {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, s.server+path, reader)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %w", method, path, &refused{res.StatusCode, string(raw)})
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// create posts an object. An existing one is no error.
func (s *apiserver) create(path string, object any) error {
	err := s.do(http.MethodPost, path, object, nil)
	var no *refused
	if errors.As(err, &no) && no.code == http.StatusConflict {
		return nil
	}
	return err
}

func (s *apiserver) createNamespace(name string) error {
	return s.create("/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
}

// record is the fields of a core/v1 Event that the checks need.
type record struct {
	Metadata struct {
		Name, Namespace string
		ResourceVersion string
		Annotations     map[string]string
	}
	InvolvedObject     struct{ Name string }
	Source             struct{ Component, Host string }
	ReportingComponent string
	Reason, Type       string
	Message            string
	Count              int
	Series             *struct{ Count int }
}

// occurrences returns the count of the record.
func (r record) occurrences() int {
	count := max(r.Count, 1)
	if r.Series != nil {
		count = max(count, r.Series.Count)
	}
	return count
}

// tallies returns the occurrences per writer on the record.
func (r record) tallies() map[string]int {
	tallies := map[string]int{}
	for name, value := range r.Metadata.Annotations {
		if tag, ok := strings.CutPrefix(name, "tally.eventweir/"); ok {
			// The name is WRITER.RECORD, the value TALLY@COUNT.
			writer, _, _ := strings.Cut(tag, ".")
			value, _, _ := strings.Cut(value, "@")
			var n int
			if _, err := fmt.Sscan(value, &n); err == nil {
				tallies[writer] += n
			}
		}
	}
	return tallies
}

// list returns the events of a namespace.
func (s *apiserver) list(namespace string) ([]record, error) {
	var records []record
	next := ""
	for {
		var page struct {
			Metadata struct{ Continue string }
			Items    []record
		}
		path := "/api/v1/namespaces/" + namespace + "/events?limit=500&continue=" + url.QueryEscape(next)
		if err := s.do(http.MethodGet, path, nil, &page); err != nil {
			return nil, err
		}
		records = append(records, page.Items...)
		if next = page.Metadata.Continue; next == "" {
			return records, nil
		}
	}
}
