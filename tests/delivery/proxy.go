package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// proxy forwards requests of eventweir to the apiserver, with its own certificate, and injects the faults of its plan.
type proxy struct {
	upstream  *apiserver
	transport *http.Transport
	server    *http.Server
	address   string
	ca        []byte
	plan      atomic.Pointer[plan]
	// down simulates an outage: requests are read and never answered.
	down atomic.Bool
	// pending are requests without a waiting client that the proxy still executes, and requests that stay unanswered.
	pending  sync.WaitGroup
	inFlight atomic.Int64
	peak     atomic.Int64

	mu       sync.Mutex
	open     map[*http.Request]fault
	arrivals []time.Time
	faults   map[fault]int
	answers  map[int]int
	out      *os.File
}

// harmed returns an error if the proxy has injected few kinds of faults.
func (x *proxy) harmed() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.faults) < 10 {
		return fmt.Errorf("the proxy injected only %v", x.faults)
	}
	return nil
}

type connKey struct{}

// restLimit is far above each client timeout.
const restLimit = 30 * time.Second

// startProxy starts a proxy that logs its requests to DIR/proxy.log. Without http2 it serves HTTP/1.1 only.
func startProxy(upstream *apiserver, dir string, http2 bool, p *plan) (*proxy, error) {
	cert, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(dir, "proxy.log"))
	if err != nil {
		return nil, err
	}
	x := &proxy{
		upstream: upstream, transport: upstream.transport(), address: listener.Addr().String(), ca: ca,
		open: map[*http.Request]fault{}, faults: map[fault]int{}, answers: map[int]int{}, out: out,
	}
	x.plan.Store(p)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(http2)
	x.server = &http.Server{
		Handler: x, Protocols: protocols, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:    log.New(io.Discard, "", 0),
	}
	go func() { _ = x.server.ServeTLS(listener, "", "") }()
	return x, nil
}

// rest waits until the proxy has executed all pending requests. A client without a timeout is an error.
func (x *proxy) rest() error {
	done := make(chan struct{})
	go func() {
		x.pending.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(restLimit):
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var open []string
	for r, fault := range x.open {
		open = append(open, fmt.Sprintf("%s %s (%s)", r.Method, r.URL.RequestURI(), fault))
	}
	return fmt.Errorf("after %s the client still waits for answers to %q", restLimit, open)
}

// close stops the proxy after its pending requests.
func (x *proxy) close() {
	_ = x.server.Close()
	_ = x.rest()
	x.transport.CloseIdleConnections()
	_ = x.out.Close()
}

// kubeconfig writes a kubeconfig for the proxy with this token.
func (x *proxy) kubeconfig(path, token string) error {
	return x.kubeconfigOf(path, "token", token)
}

// kubeconfigOf writes a kubeconfig for the proxy whose user has this member.
func (x *proxy) kubeconfigOf(path, member, value string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: proxy
contexts: [{name: proxy, context: {cluster: proxy, user: user}}]
clusters: [{name: proxy, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: user, user: {%s: "%s"}}]
`, x.address, base64.StdEncoding.EncodeToString(x.ca), member, value)
	return os.WriteFile(path, []byte(text), 0o600)
}

// since returns the arrival times of requests since t.
func (x *proxy) since(t time.Time) []time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, at := range x.arrivals {
		if !at.Before(t) {
			return append([]time.Time(nil), x.arrivals[i:]...)
		}
	}
	return nil
}

// answer is the response of the apiserver.
type answer struct {
	code   int
	header http.Header
	body   io.ReadCloser
}

func (x *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	x.peak.Store(max(x.peak.Load(), x.inFlight.Add(1)))
	defer x.inFlight.Add(-1)
	fate := x.plan.Load().draw(r)
	if x.down.Load() {
		fate.fault = holeBefore
	}
	x.mu.Lock()
	x.arrivals = append(x.arrivals, arrived)
	x.faults[fate.fault]++
	x.open[r] = fate.fault
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.open, r)
	}()

	switch fate.fault {
	case cutBefore, resetBefore, failBefore, overloaded, quiet, unavailable, holeBefore:
		x.pending.Add(1)
		defer x.pending.Done()
		x.note(r, body, fate, 0, nil)
		x.inject(w, r, fate)
		return
	case slowBefore:
		time.Sleep(fate.delay)
	case appliedLate:
		x.pending.Add(1)
		go x.applyLate(r, body, fate)
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}

	// A request with a fault after it is executed even if the client cancels. Otherwise the cancellation is forwarded.
	ctx := r.Context()
	switch fate.fault {
	case none, slowBefore, slowAfter:
	default:
		x.pending.Add(1)
		defer x.pending.Done()
		ctx = context.WithoutCancel(ctx)
	}
	a, err := x.ask(ctx, r, body)
	if err != nil {
		x.note(r, body, fate, -1, []byte(err.Error()))
		panic(http.ErrAbortHandler)
	}
	defer a.body.Close()
	if fate.fault == none && r.URL.Query().Has("watch") {
		x.note(r, body, fate, a.code, nil)
		x.stream(w, a)
		return
	}
	text, err := io.ReadAll(a.body)
	if err != nil {
		x.note(r, body, fate, -1, []byte(err.Error()))
		panic(http.ErrAbortHandler)
	}
	x.note(r, body, fate, a.code, text)
	switch fate.fault {
	case none, slowBefore, slowAfter:
		if fate.fault == slowAfter {
			time.Sleep(fate.delay)
		}
		copyHeader(w, a)
		w.WriteHeader(a.code)
		_, _ = w.Write(text)
	case truncated:
		copyHeader(w, a)
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		w.WriteHeader(a.code)
		_, _ = w.Write(text[:len(text)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	default:
		x.inject(w, r, fate)
	}
}

// inject sends a wrong answer, or none.
func (x *proxy) inject(w http.ResponseWriter, r *http.Request, fate fate) {
	plain := func(code int, text string) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text+"\n")
	}
	conn, _ := r.Context().Value(connKey{}).(*tls.Conn)
	switch fate.fault {
	case cutBefore, cutAfter:
		_ = conn.NetConn().Close()
	case halfClosed:
		_ = conn.CloseWrite()
		<-r.Context().Done()
	case failBefore, failAfter:
		plain(http.StatusInternalServerError, "Internal Server Error: injected by a test")
		return
	case late504:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: `+
			`request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}`+"\n")
		return
	case overloaded, quiet:
		if fate.fault == quiet {
			w.Header().Set("Retry-After", "1")
		}
		plain(http.StatusTooManyRequests, "Too many requests, please try again later.")
		return
	case unavailable:
		plain(http.StatusServiceUnavailable, "apiserver is shutting down")
		return
	case holeBefore, holeAfter:
		<-r.Context().Done()
	}
	panic(http.ErrAbortHandler)
}

// applyLate executes a request after its client's timeout.
func (x *proxy) applyLate(r *http.Request, body []byte, fate fate) {
	defer x.pending.Done()
	<-r.Context().Done()
	time.Sleep(fate.delay)
	a, err := x.ask(context.WithoutCancel(r.Context()), r, body)
	if err != nil {
		x.note(r, body, fate, -1, []byte(err.Error()))
		return
	}
	text, _ := io.ReadAll(a.body)
	_ = a.body.Close()
	x.note(r, body, fate, a.code, text)
}

// ask forwards the request.
func (x *proxy) ask(ctx context.Context, r *http.Request, body []byte) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, x.upstream.server+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	kept := []string{"Authorization", "Content-Type", "Accept", "User-Agent", "Impersonate-User", "Impersonate-Group"}
	for _, name := range kept {
		for _, value := range r.Header.Values(name) {
			req.Header.Add(name, value)
		}
	}
	res, err := x.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	return &answer{res.StatusCode, res.Header, res.Body}, nil
}

func copyHeader(w http.ResponseWriter, a *answer) {
	for _, name := range []string{"Content-Type", "Retry-After", "Warning"} {
		for _, value := range a.header.Values(name) {
			w.Header().Add(name, value)
		}
	}
}

// stream forwards a response body as it arrives.
func (x *proxy) stream(w http.ResponseWriter, a *answer) {
	copyHeader(w, a)
	w.WriteHeader(a.code)
	buffer := make([]byte, 32<<10)
	for {
		n, err := a.body.Read(buffer)
		if n > 0 {
			_, _ = w.Write(buffer[:n])
			_ = http.NewResponseController(w).Flush()
		}
		if err != nil {
			return
		}
	}
}

// note logs a request, its fault, and the apiserver's answer (0: not sent to it).
func (x *proxy) note(r *http.Request, request []byte, fate fate, code int, response []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answers[code]++
	_, _ = fmt.Fprintf(x.out, "%s %s %s %s %d request=%s response=%s\n", time.Now().Format("15:04:05.000"), fate.fault, r.Method,
		r.URL.RequestURI(), code, request, bytes.TrimSpace(response))
}

func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "fault-proxy"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}
