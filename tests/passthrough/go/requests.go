package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// straight returns the pod's configuration with the address of the apiserver.
func (e env) straight() *rest.Config {
	config := rest.AnonymousClientConfig(e.adminConfig)
	config.QPS = -1
	config.BearerToken = e.config.BearerToken
	return config
}

// answers: the same requests, directly and through eventweir, have the same answers: code, headers and body. They
// include refusals, compressed answers and other formats.
func answers(ctx context.Context, e env) (string, error) {
	through, err := rest.TransportFor(e.config)
	if err != nil {
		return "", err
	}
	direct, err := rest.TransportFor(e.straight())
	if err != nil {
		return "", err
	}
	for n := range 3 {
		made := configMap(fmt.Sprintf("answers-%d", n))
		made.Data["large"] = strings.Repeat("x", 200_000)
		if _, err := e.admin.CoreV1().ConfigMaps(e.namespace).Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return "", err
		}
	}
	namespace := "/api/v1/namespaces/" + e.namespace
	accepts := []string{
		"", "application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/unknown",
	}
	to := [2]struct {
		host      string
		transport http.RoundTripper
	}{{e.adminConfig.Host, direct}, {e.config.Host, through}}
	compared, size := 0, 0
	for _, path := range []string{
		"/", "/version", "/api", "/api/v1", "/apis", "/apis/events.k8s.io/v1", "/openapi/v2", "/openapi/v3", "/readyz", "/metrics",
		namespace, namespace + "/configmaps", namespace + "/configmaps?limit=1", namespace + "/configmaps/answers-0", namespace + "/secrets/none",
		namespace + "/events", namespace + "/events?fieldSelector=nonsense%3D1", "/apis/events.k8s.io/v1" + namespace[len("/api/v1"):] + "/events",
		namespace + "/events/none", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/nonsense", "/api/v1/namespaces/a%2Fb/pods",
	} {
		for _, accept := range accepts {
			for _, encoding := range []string{"", "gzip"} {
				got, err := compare(func(i int) (answer, error) { return ask(ctx, to[i].transport, to[i].host+path, accept, encoding) })
				if err != nil {
					return "", fmt.Errorf("%s as %q: %w", path, accept, err)
				}
				compared++
				size += len(got.body)
			}
		}
	}
	return fmt.Sprintf("%d answers of %.1f MB are equal", compared, float64(size)/1e6), nil
}

// compare sends a request directly (0) and through eventweir (1), at most three times. Between two answers the
// apiserver may have written an object, and a list has the resourceVersion of its time.
func compare(request func(int) (answer, error)) (answer, error) {
	var seen [2]answer
	for range 3 {
		for i := range seen {
			var err error
			if seen[i], err = request(i); err != nil {
				return answer{}, err
			}
		}
		if seen[0].code == seen[1].code && slices.Equal(seen[0].headers, seen[1].headers) && bytes.Equal(seen[0].body, seen[1].body) {
			return seen[0], nil
		}
	}
	return answer{}, fmt.Errorf("%d %q %.300q directly, %d %q %.300q through eventweir",
		seen[0].code, seen[0].headers, seen[0].body, seen[1].code, seen[1].headers, seen[1].body)
}

type answer struct {
	code    int
	headers []string
	body    []byte
}

func ask(ctx context.Context, transport http.RoundTripper, url, accept, encoding string) (answer, error) {
	header := http.Header{"Accept-Encoding": {"identity"}}
	if encoding != "" {
		header.Set("Accept-Encoding", encoding)
	}
	if accept != "" {
		header.Set("Accept", accept)
	}
	return send(ctx, transport, http.MethodGet, url, nil, header)
}

func send(ctx context.Context, transport http.RoundTripper, method, url string, body []byte, header http.Header) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header = header
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	got := answer{code: response.StatusCode, body: text}
	for name, values := range response.Header {
		switch name {
		// These differ in each answer.
		case "Audit-Id", "Date", "Last-Modified":
			values = []string{"…"}
		}
		got.headers = append(got.headers, fmt.Sprintf("%s: %q", name, values))
	}
	slices.Sort(got.headers)
	if strings.HasSuffix(url, "/metrics") && got.code == http.StatusOK {
		got.body = nil
	}
	return got, err
}

// refusals: an event of a caller without rights or with an invalid token has the same answer as from the apiserver.
// Eventweir has no anonymous users, so without a token it answers as an apiserver without them does.
func refusals(ctx context.Context, e env) (string, error) {
	body, err := json.Marshal(e.event("refused", "Refused"))
	if err != nil {
		return "", err
	}
	codes := []string{}
	for _, token := range []string{"nobody-token", "reader-token", "not-a-token", ""} {
		straight := token
		if token == "" {
			straight = "not-a-token"
		}
		var seen [2]answer
		for i, config := range []*rest.Config{e.straight(), rest.CopyConfig(e.config)} {
			config.BearerToken, config.BearerTokenFile = []string{straight, token}[i], ""
			transport, err := rest.TransportFor(config)
			if err != nil {
				return "", err
			}
			path := config.Host + "/api/v1/namespaces/" + e.namespace + "/events"
			if seen[i], err = send(ctx, transport, http.MethodPost, path, body, http.Header{"Content-Type": {"application/json"}}); err != nil {
				return "", err
			}
		}
		if seen[0].code != seen[1].code || !bytes.Equal(bytes.TrimSpace(seen[0].body), bytes.TrimSpace(seen[1].body)) {
			return "", fmt.Errorf("%q: %d %s directly, %d %s through eventweir", token, seen[0].code, seen[0].body, seen[1].code, seen[1].body)
		}
		codes = append(codes, strconv.Itoa(seen[0].code))
	}
	return strings.Join(codes, ", "), e.exactly(ctx, "refused", 0, 0)
}

// informer: an informer sees the administrator's changes.
func informer(ctx context.Context, e env) (string, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(e.client, 0, informers.WithNamespace(e.namespace))
	seen := make(chan string, 100)
	configMaps := factory.Core().V1().ConfigMaps().Informer()
	if _, err := configMaps.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "added " + o.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, o any) { seen <- "updated " + o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) { seen <- "deleted " + o.(*corev1.ConfigMap).Name },
	}); err != nil {
		return "", err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), configMaps.HasSynced) {
		return "", errors.New("the informer did not receive the list")
	}
	configMapsOf := e.admin.CoreV1().ConfigMaps(e.namespace)
	made, err := configMapsOf.Create(ctx, configMap("informed"), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	made.Data["a"] = "2"
	if _, err := configMapsOf.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	if err := configMapsOf.Delete(ctx, "informed", metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	for _, expected := range []string{"added informed", "updated informed", "deleted informed"} {
		for got := ""; got != expected; {
			select {
			case got = <-seen:
			case <-time.After(deadline):
				return "", fmt.Errorf("the informer did not report: %s", expected)
			}
		}
	}
	return "added, updated and deleted", nil
}

// lease: a lease is acquired, renewed and released.
func lease(ctx context.Context, e env) (string, error) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Name: "leader", Namespace: e.namespace}, Client: e.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "pass"},
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	leading := make(chan struct{})
	ended := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) }, OnStoppedLeading: func() { close(ended) },
		},
	})
	if err != nil {
		return "", err
	}
	go elector.Run(ctx)
	select {
	case <-leading:
	case <-time.After(deadline):
		return "", errors.New("the lease was not acquired")
	}
	var holder string
	var renewed int
	last := time.Time{}
	err = await(ctx, func() error {
		held, err := e.admin.CoordinationV1().Leases(e.namespace).Get(ctx, "leader", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if held.Spec.RenewTime.After(last) {
			last, renewed = held.Spec.RenewTime.Time, renewed+1
		}
		if holder = *held.Spec.HolderIdentity; holder != "pass" || renewed < 4 {
			return fmt.Errorf("held by %s, renewed %d times", holder, renewed)
		}
		return nil
	})
	stop()
	<-ended
	return fmt.Sprintf("held by %s, renewed at least %d times", holder, renewed), err
}

// patches: patches of all types.
func patches(ctx context.Context, e env) (string, error) {
	configMaps := e.client.CoreV1().ConfigMaps(e.namespace)
	if _, err := configMaps.Create(ctx, configMap("patched"), metav1.CreateOptions{}); err != nil {
		return "", err
	}
	for _, patch := range []struct {
		kind types.PatchType
		body string
	}{
		{types.MergePatchType, `{"data": {"merge": "1"}}`},
		{types.JSONPatchType, `[{"op": "add", "path": "/data/json", "value": "1"}]`},
		{types.StrategicMergePatchType, `{"data": {"strategic": "1"}}`},
	} {
		if _, err := configMaps.Patch(ctx, "patched", patch.kind, []byte(patch.body), metav1.PatchOptions{}); err != nil {
			return "", fmt.Errorf("%s: %w", patch.kind, err)
		}
	}
	applied := corev1apply.ConfigMap("patched", e.namespace).WithData(map[string]string{"apply": "1"})
	if _, err := configMaps.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "pass"}); err != nil {
		return "", fmt.Errorf("apply: %w", err)
	}
	have, err := e.admin.CoreV1().ConfigMaps(e.namespace).Get(ctx, "patched", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, key := range []string{"a", "merge", "json", "strategic", "apply"} {
		if have.Data[key] != "1" {
			return "", fmt.Errorf("the apiserver has %v without %s", have.Data, key)
		}
	}
	return "merge, JSON, strategic merge and apply", nil
}

// webSocket: a watch over an upgraded connection.
func webSocket(ctx context.Context, e env) (string, error) {
	roots, err := rest.TLSConfigFor(e.config)
	if err != nil {
		return "", err
	}
	address, err := url.Parse(e.config.Host)
	if err != nil {
		return "", err
	}
	address.Scheme, address.Path, address.RawQuery = "wss", "/api/v1/namespaces/"+e.namespace+"/configmaps", "watch=1"
	config, err := websocket.NewConfig(address.String(), e.config.Host)
	if err != nil {
		return "", err
	}
	config.TlsConfig = &tls.Config{RootCAs: roots.RootCAs, NextProtos: []string{"http/1.1"}}
	config.Header.Set("Authorization", "Bearer "+e.config.BearerToken)
	connection, err := config.DialContext(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(deadline)); err != nil {
		return "", err
	}
	if _, err := e.admin.CoreV1().ConfigMaps(e.namespace).Create(ctx, configMap("socket"), metav1.CreateOptions{}); err != nil {
		return "", err
	}
	for events := 0; ; events++ {
		var event struct {
			Type   string
			Object corev1.ConfigMap
		}
		if err := websocket.JSON.Receive(connection, &event); err != nil {
			return "", fmt.Errorf("after %d events: %w", events, err)
		}
		if event.Type == "ADDED" && event.Object.Name == "socket" {
			break
		}
	}
	tunnels, err := e.metric(ctx, "eventweir_passthrough_requests_total", `kind="upgrade"`)
	if err == nil && tunnels < 1 {
		err = errors.New("eventweir counts no upgrade")
	}
	return fmt.Sprintf("an event over %d tunnel", tunnels), err
}

// watchDelay: two direct watches and one through eventweir receive the same changes. Limits the delay of the last one.
func watchDelay(ctx context.Context, e env) (string, error) {
	const changes = 50
	direct, err := kubernetes.NewForConfig(e.straight())
	if err != nil {
		return "", err
	}
	configMaps := e.admin.CoreV1().ConfigMaps(e.namespace)
	made, err := configMaps.Create(ctx, configMap("delayed"), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	options := metav1.ListOptions{FieldSelector: "metadata.name=delayed", ResourceVersion: made.ResourceVersion}
	var arrivals [3]chan time.Time
	for i, client := range []kubernetes.Interface{direct, direct, e.client} {
		watching, err := client.CoreV1().ConfigMaps(e.namespace).Watch(ctx, options)
		if err != nil {
			return "", err
		}
		defer watching.Stop()
		arrivals[i] = make(chan time.Time, changes)
		go func() {
			for event := range watching.ResultChan() {
				if event.Type == watch.Modified {
					arrivals[i] <- time.Now()
				}
			}
		}()
	}
	var between, later []time.Duration
	for n := range changes {
		patch := fmt.Sprintf(`{"data": {"a": "%d"}}`, n+2)
		if _, err := configMaps.Patch(ctx, "delayed", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return "", err
		}
		var at [3]time.Time
		for i := range arrivals {
			select {
			case at[i] = <-arrivals[i]:
			case <-time.After(deadline):
				return "", fmt.Errorf("watch %d of 3 did not receive change %d", i+1, n+1)
			}
		}
		between = append(between, at[1].Sub(at[0]).Abs())
		later = append(later, at[2].Sub(at[0]))
	}
	slices.Sort(between)
	slices.Sort(later)
	seen := fmt.Sprintf("later than directly: median %.2f ms, at most %.2f ms; "+
		"two direct watches differ by %.2f ms, at most %.2f ms",
		ms(later[changes/2]), ms(later[changes-1]), ms(between[changes/2]), ms(between[changes-1]))
	// Nagle's algorithm with delayed acknowledgements would add 40 ms, and a buffer would hold an event back.
	if later[changes/2] > 30*time.Millisecond {
		return "", errors.New(seen)
	}
	return seen, nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// largeAnswers: 200 MB of answers raise the peak memory by less than half of one answer.
func largeAnswers(ctx context.Context, e env) (string, error) {
	const objects, size, least = 20, 900_000, 200_000_000
	filler := strings.Repeat("0123456789", size/10)
	for n := range objects {
		object := configMap(fmt.Sprintf("large-%d", n))
		object.Labels, object.Data = map[string]string{"large": "yes"}, map[string]string{"a": filler}
		if _, err := e.admin.CoreV1().ConfigMaps(e.namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return "", err
		}
	}
	transport, err := rest.TransportFor(e.config)
	if err != nil {
		return "", err
	}
	before, err := e.peak()
	if err != nil {
		return "", err
	}
	total, began := 0, time.Now()
	for total < least {
		path := "/api/v1/namespaces/" + e.namespace + "/configmaps?labelSelector=large%3Dyes"
		got, err := ask(ctx, transport, e.config.Host+path, "application/json", "")
		if err != nil || got.code != http.StatusOK || len(got.body) < objects*size {
			return "", fmt.Errorf("%d with %d bytes: %v", got.code, len(got.body), err)
		}
		total += len(got.body)
	}
	took := time.Since(began)
	after, err := e.peak()
	if err == nil && after-before > 8<<10 {
		err = fmt.Errorf("eventweir's memory grew from %d to %d KiB", before, after)
	}
	return fmt.Sprintf("%d MB in %.1f s, peak memory grew by %d KiB to %d KiB", total/1e6, took.Seconds(), after-before, after), err
}

// largeRequest: the apiserver refuses a request that is too large, and eventweir does not buffer it.
func largeRequest(ctx context.Context, e env) (string, error) {
	const size = 200_000_000
	before, err := e.peak()
	if err != nil {
		return "", err
	}
	var codes [2]string
	for i, config := range []*rest.Config{e.straight(), e.config} {
		transport, err := rest.TransportFor(config)
		if err != nil {
			return "", err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+"/api/v1/namespaces/"+e.namespace+"/configmaps",
			io.LimitReader(zeros{}, size))
		if err != nil {
			return "", err
		}
		request.ContentLength = size
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		if err != nil {
			codes[i] = err.Error()
			continue
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		codes[i] = fmt.Sprintf("%d %s", response.StatusCode, text)
	}
	after, err := e.peak()
	if err != nil {
		return "", err
	}
	switch {
	case !strings.HasPrefix(codes[1], "413 ") || codes[0] != codes[1]:
		return "", fmt.Errorf("directly: %s; through eventweir: %s", codes[0], codes[1])
	case after-before > 8<<10:
		return "", fmt.Errorf("eventweir's memory grew from %d to %d KiB", before, after)
	}
	return fmt.Sprintf("refused with 413 as directly, peak memory grew by %d KiB", after-before), nil
}

type zeros struct{}

func (zeros) Read(into []byte) (int, error) {
	clear(into)
	return len(into), nil
}

// peak returns the peak memory of eventweir in KiB.
func (e env) peak() (int, error) {
	process, err := os.ReadFile(e.pidFile)
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(process)) + "/status")
	if err != nil {
		return 0, err
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if peak == nil {
		return 0, errors.New("the process has no VmHWM")
	}
	return strconv.Atoi(string(peak[1]))
}
