package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// mounted is a folder in which a certificate and its key are replaced at once, as the kubelet does with a Secret.
type mounted struct {
	dir      string
	versions int
}

// replace writes the files into a new folder, and then renames the link `..data` to it.
func (m *mounted) replace(certificate, key []byte) error {
	m.versions++
	version := fmt.Sprintf("..%d", m.versions)
	folder, link := filepath.Join(m.dir, version), filepath.Join(m.dir, "..new")
	return first(
		os.Mkdir(folder, 0o700),
		os.WriteFile(filepath.Join(folder, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(folder, "tls.key"), key, 0o600),
		os.Symlink(version, link),
		os.Rename(link, filepath.Join(m.dir, "..data")),
	)
}

// certificate: the certificate is replaced under load, by one of the same authority, by one of another, and by one that
// does not go with its key. No request fails, over connections that last and over new ones.
func certificate(r *run) error {
	one, err := newAuthority()
	if err != nil {
		return err
	}
	other, err := newAuthority()
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(one.certificate)
	roots.AddCert(other.certificate)
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, nil))
	if err != nil {
		return err
	}
	defer x.close()
	files := &mounted{dir: filepath.Join(r.dir, "tls")}
	err = first(
		os.Mkdir(files.dir, 0o700),
		os.Symlink("..data/tls.crt", filepath.Join(files.dir, "tls.crt")),
		os.Symlink("..data/tls.key", filepath.Join(files.dir, "tls.key")),
		one.replace(files, 1),
	)
	if err != nil {
		return err
	}
	w, err := r.weir(kubeconfig, fmt.Sprintf(`%stls: {certFile: %[2]s/tls.crt, keyFile: %[2]s/tls.key}
auth: {tokenReview: {enabled: true}, subjectAccessReview: {enabled: true}}
`, large, files.dir), "eventweir")
	if err != nil {
		return err
	}
	defer w.kill()

	var workers atomic.Int64
	load := load{to: to(w), token: adminToken, workers: 8, every: 30 * time.Millisecond, transport: func() *http.Transport {
		n := workers.Add(1)
		return &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: n%2 == 0, ForceAttemptHTTP2: n%4 < 2,
		}
	}}
	account, done, number := newAccount(), make(chan struct{}), r.occurrences/2
	go func() {
		load.send(r.ctx, r.seed, newAuthor(r.seed, r.namespace(), r.name, true).scripts(number), account)
		close(done)
	}()
	err = r.replacements(w, files, one, other, roots)
	select {
	case <-done:
		if err == nil {
			err = errors.New("the load ended before the last replacement; its requests prove nothing")
		}
	default:
	}
	if err != nil {
		return err
	}
	<-done
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	r.logf("%d requests had no answer %.150q, %d were repeated", account.unknown.total(), account.why, account.repeated)
	if account.unknown.total() != 0 || account.repeated != 0 {
		return errors.New("a request failed")
	}
	return first(
		account.sent(number),
		exact("eventweir", end, number),
		between(records, account.acked, account.acked),
		accounted(records, end.written()),
	)
}

// replacements replaces the certificate several times, and then waits for some more requests.
func (r *run) replacements(w *weir, files *mounted, one, other *authority, roots *x509.CertPool) error {
	served := func(what string, serial int64) error {
		began := time.Now()
		for {
			connection, err := tls.Dial("tcp", w.listen[len("https://"):], &tls.Config{RootCAs: roots})
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			have := connection.ConnectionState().PeerCertificates[0].SerialNumber
			_ = connection.Close()
			if have.Cmp(big.NewInt(serial)) == 0 {
				r.logf("%s: after %.1f s", what, time.Since(began).Seconds())
				return nil
			}
			if time.Since(began) > 30*time.Second {
				return fmt.Errorf("%s: still the certificate %d after 30 s, expected %d", what, have, serial)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	read := func(good bool) error {
		result := map[bool]int{true: 1, false: 0}[good]
		_, err := w.until("has read its files", 30*time.Second, func(s samples) bool {
			return s.sum("eventweir_tls_last_reload_successful", `listener="main"`) == result
		})
		return err
	}
	reload := func() error { return w.cmd.Process.Signal(syscall.SIGHUP) }
	// The first is found without a signal.
	if err := first(one.replace(files, 2), served("found by itself", 2)); err != nil {
		return err
	}
	certificate, _, err := one.server(9)
	if err != nil {
		return err
	}
	_, key, err := other.server(9)
	if err != nil {
		return err
	}
	for serial := int64(3); serial < 6; serial++ {
		err := first(
			files.replace(certificate, key), reload(), read(false), served("a key of another certificate", serial-1),
			other.replace(files, serial), reload(), read(true), served("of another authority", serial),
		)
		if err != nil {
			return err
		}
	}
	before, err := w.scrape()
	if err != nil {
		return err
	}
	_, err = w.until("has 100 more", time.Minute, func(s samples) bool { return s.received() >= before.received()+100 })
	return err
}

// replace makes a certificate with this serial number and writes it.
func (a *authority) replace(files *mounted, serial int64) error {
	certificate, key, err := a.server(serial)
	if err != nil {
		return err
	}
	return files.replace(certificate, key)
}
