// Command go-watch runs a client-go informer on events over a connection that is cut, and then lost for longer than the
// server's window of changes. The informer must see each event once, and must equal a list at the end.
package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"eventweir.dev/tests/clients/check"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// window is upstream.embedded.maxChanges of config.yaml.
const window = 1000

const namespace = "watch"

func main() {
	// The reflector logs each lost connection; the test loses them on purpose.
	klog.SetLogger(klog.Logger{})
	check.Main([]check.Test{{Name: "informer", Run: run}})
}

func run(e check.Env) error {
	// client-go retries after up to a minute ("[30,60) sec interval", reflector.go).
	e.Deadline = max(e.Deadline, 90*time.Second)
	if err := listBeforeWatching(); err != nil {
		return err
	}
	proxy, err := listen(strings.TrimPrefix(e.Server, "http://"))
	if err != nil {
		return err
	}
	defer proxy.leave()
	direct, err := kubernetes.NewForConfig(e.Config("application/json"))
	if err != nil {
		return err
	}
	config := e.Config("application/json")
	config.Host = "http://" + proxy.address
	behind, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	load := &load{client: direct.CoreV1().Events(namespace)}
	if err := load.write(300); err != nil {
		return err
	}
	informer, err := startInformer(behind)
	if err != nil {
		return err
	}
	defer informer.stop()
	catchUp := func() error { return e.Await(func() error { return informer.equals(load) }) }
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"list", catchUp},
		{"cut", func() error { return cutOften(load, proxy) }},
		{"resume", catchUp},
		{"away", func() error { return away(load, proxy, informer, catchUp) }},
		{"write on", func() error { return load.write(100) }},
		{"catch up", catchUp},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return informer.check(load)
}

// cutOften cuts the connection repeatedly while it writes events.
func cutOften(load *load, proxy *proxy) error {
	for range 8 {
		if err := load.write(50); err != nil {
			return err
		}
		proxy.cut()
	}
	return nil
}

// away refuses connections until the window has passed and the informer has received a 410. If a watch brings no event
// in its first second, or is cut within an event, client-go lists without a 410. Then this is tried again.
func away(load *load, proxy *proxy, informer *informer, catchUp func() error) error {
	for range 5 {
		before := informer.expired()
		if err := load.write(100); err != nil {
			return err
		}
		if err := catchUp(); err != nil {
			return err
		}
		proxy.leave()
		if err := load.write(window + 200); err != nil {
			return err
		}
		if err := proxy.comeBack(); err != nil {
			return err
		}
		if err := catchUp(); err != nil {
			return err
		}
		if informer.expired() > before {
			return nil
		}
	}
	return fmt.Errorf("the informer received no 410")
}

// load writes events about different objects, so that no budget delays a write.
type load struct {
	client  typedcorev1.EventInterface
	written int
}

func name(i int) string { return fmt.Sprintf("load-%d", i) }

// isDeleted reports whether an event is deleted after it was written.
func isDeleted(i int) bool { return i%3 == 0 }

// write creates this many events. Every second one is repeated, every third is deleted.
func (l *load) write(number int) error {
	ctx := context.Background()
	for ; number > 0; number-- {
		i := l.written
		l.written++
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name(i), Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name(i)},
			Source:         corev1.EventSource{Component: "go-watch"},
			Type:           corev1.EventTypeNormal,
			Reason:         "Load",
			Message:        "message",
			Count:          1,
		}
		if _, err := l.client.Create(ctx, event, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", name(i), err)
		}
		if i%2 == 0 {
			patch := []byte(`{"count":2,"lastTimestamp":"2026-11-21T00:15:20Z"}`)
			if _, err := l.client.Patch(ctx, name(i), types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return fmt.Errorf("patch %s: %w", name(i), err)
			}
		}
		if isDeleted(i) {
			if err := l.client.Delete(ctx, name(i), metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("delete %s: %w", name(i), err)
			}
		}
	}
	return nil
}

// listBeforeWatching makes client-go list and then watch, instead of watching with initial events.
func listBeforeWatching() error {
	gates, ok := clientfeatures.FeatureGates().(interface {
		Set(clientfeatures.Feature, bool) error
	})
	if !ok {
		return fmt.Errorf("client-go's feature gates cannot be set")
	}
	return gates.Set(clientfeatures.WatchListClient, false)
}
