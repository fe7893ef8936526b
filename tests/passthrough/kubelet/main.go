// A kubelet for tests. It serves exec, attach, port-forward and logs of any pod, with the streaming code of the real
// kubelet (k8s.io/cri-streaming). Commands run and ports are on this machine, and all containers have one log file.
//
//	kubelet LOG     prints its port on 127.0.0.1, and serves over TLS until it is killed
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idle    = 5 * time.Minute
	creates = 30 * time.Second
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: kubelet LOG")
	}
	if err := serve(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func serve(logFile string) error {
	certificate, err := certificate()
	if err != nil {
		return err
	}
	// HTTP/1.1 only, as on a kubelet's port, because an upgrade needs it.
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return http.Serve(listener, handler(logFile))
}

// certificate returns a self-signed certificate, which an apiserver without --kubelet-certificate-authority accepts.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func handler(logFile string) http.Handler {
	mux := http.NewServeMux()
	var pod container
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if options, ok := options(w, r); ok {
			command := r.URL.Query()["command"]
			remotecommand.ServeExec(w, r, pod, r.PathValue("pod"), "", r.PathValue("container"), command, options, idle, creates,
				remotecommand.SupportedStreamingProtocols)
		}
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if options, ok := options(w, r); ok {
			remotecommand.ServeAttach(w, r, pod, r.PathValue("pod"), "", r.PathValue("container"), options, idle, creates,
				remotecommand.SupportedStreamingProtocols)
		}
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, pod, r.PathValue("pod"), "", options, idle, creates, portforward.SupportedProtocols)
	})
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		arguments := []string{"-n", "+1", logFile}
		if r.FormValue("follow") == "true" {
			arguments = append(arguments, "-f")
		}
		// Send each line at once.
		out := &flusher{w, http.NewResponseController(w)}
		_ = run(r.Context(), append([]string{"tail"}, arguments...), nil, out, io.Discard)
	})
	return mux
}

func options(w http.ResponseWriter, r *http.Request) (*remotecommand.Options, bool) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return options, err == nil
}

// container stands for all containers of all pods.
type container struct{}

// ExecInContainer runs a command on this machine.
func (container) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, err io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	return run(ctx, command, in, out, err)
}

// AttachContainer attaches to a process that echoes its input.
func (container) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	return run(ctx, []string{"cat"}, in, out, err)
}

// PortForward connects to the port on this machine.
func (container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer func() { _ = stream.Close() }()
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

// run runs a command. The streaming code sends its exit code, as an error, to the client.
func run(ctx context.Context, command []string, in io.Reader, out, err io.Writer) error {
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stdout, c.Stderr = out, err
	if in != nil {
		// With c.Stdin, Wait would block until the client closes its input.
		stdin, fault := c.StdinPipe()
		if fault != nil {
			return fault
		}
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	fault := c.Run()
	if exit, ok := fault.(*exec.ExitError); ok {
		return utilexec.CodeExitError{Err: exit, Code: exit.ExitCode()}
	}
	return fault
}

// flusher flushes after each write.
type flusher struct {
	io.Writer
	controller *http.ResponseController
}

func (f *flusher) Write(piece []byte) (int, error) {
	n, err := f.Writer.Write(piece)
	if err == nil {
		err = f.controller.Flush()
	}
	return n, err
}
