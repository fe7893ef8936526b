// Command pass runs client-go and a controller-runtime manager as in a pod whose apiserver is eventweir in
// pass-through. The service account's folder and two variables configure them. The checks read the results from the
// apiserver.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
)

const deadline = 30 * time.Second

// env is a pod, and the administrator who checks its results.
type env struct {
	namespace string
	// config is the pod's configuration, as client-go reads it. client uses it.
	config *rest.Config
	client kubernetes.Interface
	// admin connects directly to the apiserver.
	adminConfig *rest.Config
	admin       kubernetes.Interface
	metrics     string
	pidFile     string
}

type scenario struct {
	name string
	run  func(context.Context, env) (string, error)
}

var scenarios = []scenario{
	{"answers-are-the-apiservers", answers},
	{"refusals-are-the-apiservers", refusals},
	{"informer", informer},
	{"lease", lease},
	{"patches", patches},
	{"old-recorder", oldRecorder},
	{"new-recorder", newRecorder},
	{"posts", posts},
	{"own-endpoint", ownEndpoint},
	{"redirected", redirected},
	{"manager", manages},
	{"websocket", webSocket},
	{"watch-is-not-delayed", watchDelay},
	{"large-answers", largeAnswers},
	{"large-request", largeRequest},
	{"smuggled", smuggled},
	{"killed", killed},
}

func main() {
	ctrl.SetLogger(logr.Discard())
	e, err := environment()
	if err != nil {
		fmt.Println("FAILED environment:", err)
		os.Exit(1)
	}
	run := scenarios
	switch names := os.Args[1:]; {
	case slices.Equal(names, []string{"limited"}):
		run = []scenario{{"limited", limited}}
	case slices.Equal(names, []string{"unknown"}):
		run = []scenario{{"unknown", unknown}}
	case len(names) > 0:
		run = slices.DeleteFunc(run, func(s scenario) bool { return !slices.Contains(names, s.name) })
	}
	code := 0
	for _, s := range run {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		began := time.Now()
		seen, err := s.run(ctx, e)
		cancel()
		if err != nil {
			fmt.Printf("FAILED %s: %s\n", s.name, strings.ReplaceAll(err.Error(), "\n", "; "))
			code = 1
			continue
		}
		fmt.Printf("ok %s: %s (%.1f s)\n", s.name, seen, time.Since(began).Seconds())
	}
	os.Exit(code)
}

func environment() (e env, err error) {
	e = env{namespace: os.Getenv("NAMESPACE"), metrics: os.Getenv("METRICS"), pidFile: os.Getenv("PID_FILE")}
	if e.config, err = rest.InClusterConfig(); err != nil {
		return e, err
	}
	if e.adminConfig, err = clientcmd.BuildConfigFromFlags("", os.Getenv("ADMIN")); err != nil {
		return e, err
	}
	// client-go's own rate limit would only slow down the test.
	e.config.QPS, e.adminConfig.QPS = -1, -1
	if e.client, err = kubernetes.NewForConfig(e.config); err != nil {
		return e, err
	}
	e.admin, err = kubernetes.NewForConfig(e.adminConfig)
	return e, err
}

// await repeats a check until it passes. After the deadline it returns the check's last error.
func await(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		wrong := check()
		if wrong == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", deadline, wrong)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// events returns the apiserver's records about an object, and the sum of their counts.
func (e env) events(ctx context.Context, object string) ([]corev1.Event, int, error) {
	list, err := e.admin.CoreV1().Events(e.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
	if err != nil {
		return nil, 0, err
	}
	total := 0
	for i := range list.Items {
		count := max(int(list.Items[i].Count), 1)
		if series := list.Items[i].Series; series != nil {
			count = max(count, int(series.Count))
		}
		total += count
	}
	return list.Items, total, nil
}

// exactly waits until the apiserver has this number of records about an object with this sum of counts, and nothing
// waits in eventweir.
func (e env) exactly(ctx context.Context, object string, records, total int) error {
	return await(ctx, func() error {
		if waiting, err := e.metric(ctx, "eventweir_ledger_waiting"); err != nil || waiting != 0 {
			return fmt.Errorf("%d occurrences wait: %v", waiting, err)
		}
		have, count, err := e.events(ctx, object)
		if err != nil || len(have) != records || count != total {
			return fmt.Errorf("%d records about %s with counts of %d in total, expected %d and %d: %v", len(have), object, count, records, total, err)
		}
		return nil
	})
}

// metric returns the sum of a family's samples that have all of these labels.
func (e env) metric(ctx context.Context, family string, labels ...string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.metrics, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	sum := 0
	for _, sample := range regexp.MustCompile(`(?m)^`+family+`(\{.*\})? (\d+)$`).FindAllStringSubmatch(string(text), -1) {
		if slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(sample[1], label) }) {
			continue
		}
		value, err := strconv.Atoi(sample[2])
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}

// ledger is the totals of eventweir's ledger.
type ledger struct{ received, written, rejected, lost int }

func (e env) ledger(ctx context.Context) (ledger, error) {
	var values [4]int
	var failed error
	for i, name := range []string{"received", "written", "rejected", "lost"} {
		value, err := e.metric(ctx, "eventweir_ledger_"+name+"_total")
		values[i], failed = value, errors.Join(failed, err)
	}
	return ledger{values[0], values[1], values[2], values[3]}, failed
}

// accounts calls a function that reports these occurrences, and checks that eventweir has received and written as many.
func (e env) accounts(ctx context.Context, occurrences int, what func() error) error {
	before, err := e.ledger(ctx)
	if err != nil {
		return err
	}
	if err := what(); err != nil {
		return err
	}
	after, err := e.ledger(ctx)
	if err != nil {
		return err
	}
	before.received += occurrences
	before.written += occurrences
	if after != before {
		return fmt.Errorf("the ledger is %+v, expected %+v", after, before)
	}
	return nil
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1"}}
}

func (e env) pod(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.namespace, Name: name, UID: types.UID("uid-" + name)}
}
