package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// change is one entry of the store's history.
type change struct {
	version uint64
	kind    watch.EventType
	name    string
}

// state is what a store, a list or a cache holds: the version of each event.
type state map[string]uint64

func (s state) apply(c change) {
	if c.kind == watch.Deleted {
		delete(s, c.name)
	} else {
		s[c.name] = c.version
	}
}

// differs says how, with a few names.
func (s state) differs(from state) error {
	if maps.Equal(s, from) {
		return nil
	}
	text, shown := "", 0
	for name, version := range from {
		if s[name] != version && shown < 5 {
			text += fmt.Sprintf(" %s is at %d and not at %d;", name, s[name], version)
			shown++
		}
	}
	for name, version := range s {
		if _, ok := from[name]; !ok && shown < 10 {
			text += fmt.Sprintf(" %s at %d is too much;", name, version)
			shown++
		}
	}
	return fmt.Errorf("%d events and not %d:%s", len(s), len(from), text)
}

// history is what a watch without a proxy is told from an empty namespace on. It must not fall behind.
type history struct {
	stop func()

	mutex   sync.Mutex
	changed *sync.Cond
	start   uint64
	changes []change
	added   int
	// failed is why it does not go on.
	failed error
}

func follow(client *kubernetes.Clientset, namespace string) (*history, error) {
	ctx, cancel := context.WithCancel(context.Background())
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	if len(list.Items) != 0 {
		cancel()
		return nil, fmt.Errorf("the namespace %s is not empty", namespace)
	}
	watcher, err := client.CoreV1().Events(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		return nil, err
	}
	start, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		cancel()
		return nil, err
	}
	h := &history{stop: cancel, start: start}
	h.changed = sync.NewCond(&h.mutex)
	go h.read(watcher)
	return h, nil
}

func (h *history) read(watcher watch.Interface) {
	for event := range watcher.ResultChan() {
		h.append(event)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.failed == nil {
		h.failed = fmt.Errorf("the watch without a proxy has ended")
	}
	h.changed.Broadcast()
}

// await returns when so many events have been added.
func (h *history) await(added int) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for h.failed == nil && h.added < added {
		h.changed.Wait()
	}
	return h.failed
}

func (h *history) append(event watch.Event) {
	c, err := changeOf(event)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	defer h.changed.Broadcast()
	last := h.start
	if len(h.changes) > 0 {
		last = h.changes[len(h.changes)-1].version
	}
	switch {
	case h.failed != nil:
	case err != nil:
		h.failed = err
	case c.version <= last:
		h.failed = fmt.Errorf("%s of %s at %d after %d", c.kind, c.name, c.version, last)
	default:
		h.changes = append(h.changes, c)
		if c.kind == watch.Added {
			h.added++
		}
	}
}

// changeOf reads an event of a watch, of either API group.
func changeOf(event watch.Event) (change, error) {
	if event.Type == watch.Error {
		return change{}, fmt.Errorf("the watch was told: %v", event.Object)
	}
	name, version, err := nameAndVersion(event.Object)
	return change{version, event.Type, name}, err
}

func nameAndVersion(object runtime.Object) (string, uint64, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", 0, err
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	return accessor.GetName(), version, err
}

// all are the changes so far.
func (h *history) all() []change {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.changes
}

// at is the state as it was at a version.
func (h *history) at(version uint64) state {
	s := state{}
	for _, c := range h.all() {
		if c.version > version {
			break
		}
		s.apply(c)
	}
	return s
}

// equals compares what the history comes to with a fresh list. Each change must fit the state before it.
func (h *history) equals(client *kubernetes.Clientset, namespace string) error {
	fresh, err := freshList(client, namespace)
	if err != nil {
		return err
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.failed != nil {
		return h.failed
	}
	s := state{}
	for _, c := range h.changes {
		if _, known := s[c.name]; known != (c.kind != watch.Added) {
			return fmt.Errorf("%s of %s at %d, and known before: %t", c.kind, c.name, c.version, known)
		}
		s.apply(c)
	}
	return s.differs(fresh)
}

func freshList(client *kubernetes.Clientset, namespace string) (state, error) {
	list, err := client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	fresh := state{}
	for i := range list.Items {
		name, version, err := nameAndVersion(&list.Items[i])
		if err != nil {
			return nil, err
		}
		fresh[name] = version
	}
	return fresh, nil
}
