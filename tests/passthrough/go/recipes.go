package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The recipes of docs/clients.md. tests/tidy.rs compares their lines.

var endpoint = os.Getenv("ENDPOINT")

// ownEndpoint: a second client of client-go.
func ownEndpoint(ctx context.Context, e env) (string, error) {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	config := &rest.Config{
		Host:            endpoint,
		BearerTokenFile: "/var/run/secrets/eventweir/token",
		TLSClientConfig: rest.TLSClientConfig{CAFile: "/var/run/secrets/eventweir/ca.crt"},
	}
	events := kubernetes.NewForConfigOrDie(config).CoreV1().Events("")
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: events})
	return e.records(ctx, "own-endpoint", broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "own"}))
}

// redirected: a manager whose configuration is the apiserver's.
func redirected(ctx context.Context, e env) (string, error) {
	if err := os.Setenv("KUBECONFIG", os.Getenv("ADMIN")); err != nil {
		return "", err
	}
	defer os.Unsetenv("KUBECONFIG")
	config := ctrl.GetConfigOrDie()
	err := RedirectEvents(config, &rest.Config{
		Host:            endpoint,
		BearerTokenFile: "/var/run/secrets/eventweir/token",
		TLSClientConfig: rest.TLSClientConfig{CAFile: "/var/run/secrets/eventweir/ca.crt"},
	})
	if err != nil {
		panic(err)
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{})
	if err != nil {
		return "", err
	}
	object := configMap("redirected")
	object.Namespace = e.namespace
	if err := manager.GetClient().Create(ctx, object); err != nil {
		return "", err
	}
	//nolint:staticcheck // Deprecated, but used by most controllers.
	return e.records(ctx, "redirected", manager.GetEventRecorderFor("redirected"))
}

// records: eventweir counts what the recorder reports.
func (e env) records(ctx context.Context, object string, recorder record.EventRecorder) (string, error) {
	return "20 occurrences are one record", e.accounts(ctx, 20, func() error {
		for range 20 {
			recorder.Event(e.pod(object), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
		}
		return e.exactly(ctx, object, 1, 20)
	})
}

var paths = regexp.MustCompile(`^/(api/v1|apis/events\.k8s\.io/v1)/namespaces/[^/]+/events(/[^/]+)?$`)

// RedirectEvents makes the clients of config write their events to eventweir, and do everything else as before.
func RedirectEvents(config, eventweir *rest.Config) error {
	server, err := url.Parse(eventweir.Host)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(eventweir)
	if err != nil {
		return err
	}
	config.Wrap(func(others http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet || !paths.MatchString(request.URL.Path) {
				return others.RoundTrip(request)
			}
			request = request.Clone(request.Context())
			request.URL.Scheme, request.URL.Host, request.Host = server.Scheme, server.Host, server.Host
			request.Header.Del("Authorization") // the API server's token is not for eventweir
			return transport.RoundTrip(request)
		})
	})
	return nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
