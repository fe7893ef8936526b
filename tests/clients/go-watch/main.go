// Command go-watch holds a client-go informer on events against a server under load, over a connection that is cut, stalls
// and stays away for longer than the server remembers changes. At the end the informer's cache must equal a fresh list, and
// everything that it was told on the way must be what happened, in order, nothing missed and nothing twice.
package main

import (
	"fmt"
	"strings"
	"time"

	"eventweir.dev/tests/clients/check"
	"k8s.io/apimachinery/pkg/runtime"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/kubernetes"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// window is upstream.embedded.maxChanges of config.yaml.
const window = 1000

// door is an API group, an encoding, and a way to list: through LIST or through a watch that begins with all objects.
type door struct {
	name        string
	contentType string
	watchList   bool
	object      runtime.Object
	client      func(*kubernetes.Clientset) cache.Getter
}

func core(c *kubernetes.Clientset) cache.Getter   { return c.CoreV1().RESTClient() }
func events(c *kubernetes.Clientset) cache.Getter { return c.EventsV1().RESTClient() }

func main() {
	// The reflector tells of every lost connection; they are lost on purpose.
	klog.SetLogger(klog.Logger{})
	var tests []check.Test
	for _, d := range []door{
		{"core", "application/json", false, &corev1.Event{}, core},
		{"core-watchlist", "application/json", true, &corev1.Event{}, core},
		{"events-protobuf", check.Protobuf, false, &eventsv1.Event{}, events},
		{"events-protobuf-watchlist", check.Protobuf, true, &eventsv1.Event{}, events},
	} {
		tests = append(tests, check.Test{Name: d.name, Run: d.run})
	}
	check.Main(tests)
}

func (d door) run(e check.Env) error {
	// What has failed an informer repeats after up to a minute ("[30,60) sec interval", client-go's reflector.go), and the slower this
	// machine, the more has failed while the server was away.
	e.Deadline = max(e.Deadline, 90*time.Second)
	if err := setWatchList(d.watchList); err != nil {
		return err
	}
	proxy, err := listen(strings.TrimPrefix(e.Server, "http://"))
	if err != nil {
		return err
	}
	defer proxy.close()
	direct, err := kubernetes.NewForConfig(e.Config("application/json"))
	if err != nil {
		return err
	}
	config := e.Config(d.contentType)
	config.Host = "http://" + proxy.address
	behind, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := "watch-" + d.name
	past, err := follow(direct, namespace)
	if err != nil {
		return err
	}
	defer past.stop()
	load := newLoad(direct, namespace, past)

	// Some are there before the informer starts.
	if err := load.write(300, ""); err != nil {
		return err
	}
	informer, err := startInformer(d.client(behind), namespace, d.object)
	if err != nil {
		return err
	}
	defer informer.stop()
	if err := e.Await(informer.synced); err != nil {
		return err
	}
	catchUp := func() error { return e.Await(func() error { return informer.equals(direct, namespace) }) }
	some := func() error { return load.write(100, "") }
	// client-go lists anew by itself when a watch has been told nothing within its first second, or is cut within an event.
	// Then it does not hear that it has fallen behind, and the same is tried again.
	untilBehind := func(do func() error) func() error {
		return func() error {
			for range 5 {
				before := informer.fellBehind()
				for _, step := range []func() error{some, catchUp, do, catchUp} {
					if err := step(); err != nil {
						return err
					}
				}
				if informer.fellBehind() > before {
					return nil
				}
			}
			return fmt.Errorf("the informer was never told that it has fallen behind")
		}
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"cut", func() error { return cutOften(load, proxy) }},
		{"stall", untilBehind(func() error { return stall(load, proxy) })},
		{"away", untilBehind(func() error { return away(load, proxy) })},
		{"clear", load.clear},
		{"write on", some},
		{"catch up at last", catchUp},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if err := e.Await(func() error { return past.equals(direct, namespace) }); err != nil {
		return fmt.Errorf("the history: %w", err)
	}
	if err := load.check(past); err != nil {
		return fmt.Errorf("the history: %w", err)
	}
	return informer.check(past, d.watchList)
}

// cutOften cuts the connection again and again while events are written.
func cutOften(load *load, proxy *proxy) error {
	for range 8 {
		if err := load.write(100, ""); err != nil {
			return err
		}
		proxy.cut()
		if err := load.write(20, ""); err != nil {
			return err
		}
	}
	return nil
}

// stall keeps the connection but forwards nothing, while more is written than the window and all buffers between hold. What
// the buffers hold is still delivered afterwards, then the watch learns that it has missed something.
func stall(load *load, proxy *proxy) error {
	proxy.hold()
	defer proxy.release()
	return load.write(window+1000, strings.Repeat("x", 8<<10))
}

// away refuses connections until the window has passed. client-go repeats a refused watch as it was.
func away(load *load, proxy *proxy) error {
	proxy.leave()
	if err := load.write(window+200, ""); err != nil {
		return err
	}
	return proxy.comeBack()
}

func setWatchList(on bool) error {
	gates, ok := clientfeatures.FeatureGates().(interface {
		Set(clientfeatures.Feature, bool) error
	})
	if !ok {
		return fmt.Errorf("client-go's feature gates cannot be set")
	}
	return gates.Set(clientfeatures.WatchListClient, on)
}
