package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// writers is how many write at a time.
const writers = 4

// load writes events, each about an object of its own, so that no budget holds a write back.
type load struct {
	client    typedcorev1.EventInterface
	namespace string
	past      *history
	written   int
	// deleted are the names of the events that were deleted one by one.
	deleted map[string]bool
	mutex   sync.Mutex
}

func newLoad(client *kubernetes.Clientset, namespace string, past *history) *load {
	return &load{client: client.CoreV1().Events(namespace), namespace: namespace, past: past, deleted: map[string]bool{}}
}

// write creates so many events. Every second is repeated, every third is deleted, every fourth is replaced before. It writes
// no faster than the history is read, which must not fall out of the window.
func (l *load) write(number int, padding string) error {
	for number > 0 {
		some := min(number, window/10)
		if err := l.writeSome(some, padding); err != nil {
			return err
		}
		if err := l.past.await(l.written); err != nil {
			return err
		}
		number -= some
	}
	return nil
}

func (l *load) writeSome(number int, padding string) error {
	var group sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		first, last := l.written+number*w/writers, l.written+number*(w+1)/writers
		group.Go(func() {
			for i := first; i < last && errs[w] == nil; i++ {
				errs[w] = l.writeOne(i, padding)
			}
		})
	}
	group.Wait()
	l.written += number
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *load) writeOne(i int, padding string) error {
	ctx := context.Background()
	name := fmt.Sprintf("load-%d", i)
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: l.namespace, Labels: map[string]string{"part": fmt.Sprint(i % 10)}},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: l.namespace, Name: name},
		Source:         corev1.EventSource{Component: "go-watch"},
		Type:           corev1.EventTypeNormal,
		Reason:         "Load",
		Message:        "message " + padding,
		Count:          1,
	}
	if _, err := l.client.Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if i%2 == 0 {
		// Without another message, which would make it another event.
		patch := []byte(`{"count":2,"lastTimestamp":"2026-11-21T00:15:20Z"}`)
		if _, err := l.client.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch %s: %w", name, err)
		}
	}
	if i%4 == 0 {
		event.Count = 7
		if _, err := l.client.Update(ctx, event, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update %s: %w", name, err)
		}
	}
	if i%3 == 0 {
		if err := l.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		l.mutex.Lock()
		defer l.mutex.Unlock()
		l.deleted[name] = true
	}
	return nil
}

// clear deletes a tenth of what is there, as a collection.
func (l *load) clear() error {
	return l.client.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "part=1"})
}

// check compares the history with what was asked for: each event was added once, and is gone if it was deleted.
func (l *load) check(past *history) error {
	added, gone := map[string]int{}, map[string]int{}
	for _, c := range past.all() {
		switch c.kind {
		case watch.Added:
			added[c.name]++
		case watch.Deleted:
			gone[c.name]++
		}
	}
	for i := range l.written {
		name := fmt.Sprintf("load-%d", i)
		if added[name] != 1 {
			return fmt.Errorf("%s was added %d times", name, added[name])
		}
		if l.deleted[name] && gone[name] != 1 {
			return fmt.Errorf("%s was deleted %d times", name, gone[name])
		}
	}
	if len(added) != l.written {
		return fmt.Errorf("%d events were written, %d were added", l.written, len(added))
	}
	return nil
}
