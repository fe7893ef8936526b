package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// informer is a shared informer with checked notifications.
type informer struct {
	cache.SharedIndexInformer
	stop func()

	mutex sync.Mutex
	// held is the version of each event according to the handlers.
	held           map[string]uint64
	added, deleted map[string]int
	wrong          []string
	gone           int
}

func startInformer(client *kubernetes.Clientset) (*informer, error) {
	i := &informer{held: map[string]uint64{}, added: map[string]int{}, deleted: map[string]int{}}
	plain := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "events", namespace, fields.Everything())
	i.SharedIndexInformer = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: plain.ListWithContextFunc,
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			watcher, err := plain.WatchFuncWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			return watch.Filter(watcher, i.watched), nil
		},
	}, &corev1.Event{}, 0, cache.Indexers{})
	if _, err := i.AddEventHandler(i); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	go i.RunWithContext(ctx)
	return i, nil
}

// watched counts watches that end with a 410.
func (i *informer) watched(event watch.Event) (watch.Event, bool) {
	if event.Type == watch.Error && apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		i.mutex.Lock()
		defer i.mutex.Unlock()
		i.gone++
	}
	return event, true
}

func (i *informer) expired() int {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.gone
}

// OnAdd is called by the informer.
func (i *informer) OnAdd(object any, _ bool) {
	name, version := nameAndVersion(object)
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if before, known := i.held[name]; known {
		i.fail("%s was added at %d and again at %d", name, before, version)
	}
	i.held[name] = version
	i.added[name]++
}

// OnUpdate is called by the informer, also for unchanged events of a new list.
func (i *informer) OnUpdate(before, after any) {
	name, from := nameAndVersion(before)
	_, to := nameAndVersion(after)
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if held, known := i.held[name]; !known || held != from || to < from {
		i.fail("%s was updated from %d to %d, but held at %d", name, from, to, held)
	}
	i.held[name] = to
}

// OnDelete is called by the informer.
func (i *informer) OnDelete(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	name, _ := nameAndVersion(object)
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if _, known := i.held[name]; !known {
		i.fail("%s was deleted, but not held", name)
	}
	delete(i.held, name)
	i.deleted[name]++
}

func (i *informer) fail(format string, arguments ...any) {
	i.wrong = append(i.wrong, fmt.Sprintf(format, arguments...))
}

func nameAndVersion(object any) (string, uint64) {
	event := object.(*corev1.Event)
	version, err := strconv.ParseUint(event.ResourceVersion, 10, 64)
	if err != nil {
		panic(err)
	}
	return event.Name, version
}

// equals compares the informer's cache, and the events that its handlers hold, with a list.
func (i *informer) equals(load *load) error {
	list, err := load.client.List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	listed, cached := map[string]uint64{}, map[string]uint64{}
	for _, event := range list.Items {
		name, version := nameAndVersion(&event)
		listed[name] = version
	}
	for _, object := range i.GetStore().List() {
		name, version := nameAndVersion(object)
		cached[name] = version
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if !maps.Equal(cached, listed) || !maps.Equal(i.held, listed) {
		return fmt.Errorf("%d events are listed, %d cached, %d held", len(listed), len(cached), len(i.held))
	}
	return nil
}

// check returns the first event that was notified more than once, or not at all.
func (i *informer) check(load *load) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if len(i.wrong) > 0 {
		return fmt.Errorf("%d wrong notifications, the first: %s", len(i.wrong), i.wrong[0])
	}
	for number := range load.written {
		name := name(number)
		added, deleted := i.added[name], i.deleted[name]
		switch {
		case !isDeleted(number) && (added != 1 || deleted != 0):
			return fmt.Errorf("%s was added %d times and deleted %d times", name, added, deleted)
		// An event created and deleted while the informer was disconnected is not seen.
		case isDeleted(number) && (added > 1 || deleted != added):
			return fmt.Errorf("%s, a deleted event, was added %d times and deleted %d times", name, added, deleted)
		}
	}
	return nil
}
