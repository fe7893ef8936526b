package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// informer is a shared informer whose lists, watches and notifications are written down.
type informer struct {
	cache.SharedIndexInformer
	stop func()

	mutex   sync.Mutex
	lists   []listed
	watches []*watched
	// told is what the handlers were told in all.
	told state
	// versions are those that the handlers were told, each event's in order.
	versions map[string][]uint64
	wrong    []string
	// refused are watches that fell behind before they began.
	refused int
}

// listed is one page or the whole of a list.
type listed struct {
	version uint64
	items   state
}

// watched is one watch: where it began, whether with all objects, and what it was told after those.
type watched struct {
	from     uint64
	initial  state
	complete bool
	changes  []change
	expired  bool
}

func startInformer(client cache.Getter, namespace string, object runtime.Object) (*informer, error) {
	i := &informer{told: state{}, versions: map[string][]uint64{}}
	plain := cache.NewListWatchFromClient(client, "events", namespace, fields.Everything())
	i.SharedIndexInformer = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := plain.ListWithContextFunc(ctx, options)
			i.sawList(list, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			watcher, err := plain.WatchFuncWithContext(ctx, options)
			return i.sawWatch(options, watcher, err)
		},
	}, object, 0, cache.Indexers{})
	if _, err := i.AddEventHandler(i); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	go i.RunWithContext(ctx)
	return i, nil
}

func (i *informer) synced() error {
	if !i.HasSynced() {
		return fmt.Errorf("the informer has not synced")
	}
	return nil
}

func (i *informer) sawList(list runtime.Object, err error) {
	if err != nil {
		return
	}
	seen := listed{items: state{}}
	accessor, err := meta.ListAccessor(list)
	if err == nil {
		seen.version, err = strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	}
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			name, version, err := nameAndVersion(item)
			seen.items[name] = version
			return err
		})
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if err != nil {
		i.wrong = append(i.wrong, fmt.Sprintf("a list: %v", err))
	}
	i.lists = append(i.lists, seen)
}

func (i *informer) sawWatch(options metav1.ListOptions, watcher watch.Interface, err error) (watch.Interface, error) {
	w := &watched{complete: true}
	if options.ResourceVersion != "" {
		from, err := strconv.ParseUint(options.ResourceVersion, 10, 64)
		if err != nil {
			return nil, err
		}
		w.from = from
	}
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		w.initial, w.complete = state{}, false
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if err != nil {
		if apierrors.IsResourceExpired(err) {
			i.refused++
		}
		return nil, err
	}
	i.watches = append(i.watches, w)
	return watch.Filter(watcher, func(event watch.Event) (watch.Event, bool) {
		i.mutex.Lock()
		defer i.mutex.Unlock()
		i.sawEvent(w, event)
		return event, true
	}), nil
}

func (i *informer) sawEvent(w *watched, event watch.Event) {
	if event.Type == watch.Error {
		err := apierrors.FromObject(event.Object)
		w.expired = apierrors.IsResourceExpired(err)
		// The client itself tells of a connection that was cut within an event.
		if !w.expired && !apierrors.HasStatusCause(err, "ClientWatchDecoding") {
			i.wrong = append(i.wrong, fmt.Sprintf("a watch was told: %v", err))
		}
		return
	}
	c, err := changeOf(event)
	switch {
	case err != nil:
		i.wrong = append(i.wrong, fmt.Sprintf("a watch: %v", err))
	case w.expired:
		i.wrong = append(i.wrong, "something after a 410")
	case c.kind == watch.Bookmark:
		accessor, err := meta.Accessor(event.Object)
		if err == nil && accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			w.complete, w.from = true, c.version
		}
	case !w.complete:
		if c.kind != watch.Added || w.initial[c.name] != 0 {
			i.wrong = append(i.wrong, fmt.Sprintf("%s of %s among the initial events", c.kind, c.name))
		}
		w.initial[c.name] = c.version
	default:
		w.changes = append(w.changes, c)
	}
}

// OnAdd is told by the informer.
func (i *informer) OnAdd(object any, _ bool) { i.notified(watch.Added, object) }

// OnUpdate is told by the informer.
func (i *informer) OnUpdate(before, after any) {
	name, version, err := nameAndVersion(before.(runtime.Object))
	i.mutex.Lock()
	if err != nil || i.told[name] != version {
		i.wrong = append(i.wrong, fmt.Sprintf("an update of %s from %d, but %d was told", name, version, i.told[name]))
	}
	i.mutex.Unlock()
	i.notified(watch.Modified, after)
}

// OnDelete is told by the informer.
func (i *informer) OnDelete(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	i.notified(watch.Deleted, object)
}

func (i *informer) notified(kind watch.EventType, object any) {
	name, version, err := nameAndVersion(object.(runtime.Object))
	i.mutex.Lock()
	defer i.mutex.Unlock()
	before, known := i.told[name]
	// What a new list holds unchanged is told as an update, and what it does not hold any more is deleted as it was.
	grown := version > before || (kind != watch.Added && version == before)
	if err != nil || known != (kind != watch.Added) || !grown {
		i.wrong = append(i.wrong, fmt.Sprintf("%s of %s at %d, told before: %t at %d", kind, name, version, known, before))
	}
	if kind != watch.Deleted && version != before {
		i.versions[name] = append(i.versions[name], version)
	}
	i.told.apply(change{version, kind, name})
}

// equals compares the informer's cache, and what its handlers were told, with a fresh list.
func (i *informer) equals(client *kubernetes.Clientset, namespace string) error {
	fresh, err := freshList(client, namespace)
	if err != nil {
		return err
	}
	held := state{}
	for _, object := range i.GetStore().List() {
		name, version, err := nameAndVersion(object.(runtime.Object))
		if err != nil {
			return err
		}
		held[name] = version
	}
	if err := held.differs(fresh); err != nil {
		return fmt.Errorf("the cache: %w", err)
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if err := i.told.differs(fresh); err != nil {
		return fmt.Errorf("the handlers: %w", err)
	}
	return nil
}

// fellBehind is how often it was told that changes are forgotten.
func (i *informer) fellBehind() int {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	behind := i.refused
	for _, w := range i.watches {
		if w.expired {
			behind++
		}
	}
	return behind
}

// check compares everything the informer was told with the history.
func (i *informer) check(past *history, watchList bool) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if len(i.wrong) > 0 {
		return fmt.Errorf("%d wrong, first: %s", len(i.wrong), i.wrong[0])
	}
	for n, list := range i.lists {
		if err := list.items.differs(past.at(list.version)); err != nil {
			return fmt.Errorf("list %d at %d: %w", n, list.version, err)
		}
	}
	all := past.all()
	resumed, initial := 0, 0
	for n, w := range i.watches {
		if w.initial == nil {
			resumed++
		} else if w.complete {
			initial++
			if err := w.initial.differs(past.at(w.from)); err != nil {
				return fmt.Errorf("the initial events of watch %d at %d: %w", n, w.from, err)
			}
		}
		first, _ := slices.BinarySearchFunc(all, w.from+1, func(c change, version uint64) int {
			return int(int64(c.version) - int64(version))
		})
		last := min(first+len(w.changes), len(all))
		if !slices.Equal(all[first:last], w.changes) {
			return fmt.Errorf("watch %d from %d was told %v, but that is not what happened", n, w.from, w.changes)
		}
	}
	for name, versions := range i.versions {
		if err := wasSo(name, versions, all); err != nil {
			return err
		}
	}
	lists := len(i.lists)
	if watchList {
		if lists > 0 {
			return fmt.Errorf("%d lists, although watches began with all events", lists)
		}
		lists = initial
	}
	// The first list, one after the stall and one after having been away; and watches over the cuts.
	account := fmt.Sprintf("%d changes; %d watches, %d of them resumed; %d lists", len(all), len(i.watches), resumed, lists)
	if lists < 3 || resumed < 4 {
		return fmt.Errorf("the scenario did not happen: %s", account)
	}
	fmt.Println("  " + account)
	return nil
}

// wasSo says whether an event had these versions.
func wasSo(name string, versions []uint64, all []change) error {
	for _, version := range versions {
		at, found := slices.BinarySearchFunc(all, version, func(c change, version uint64) int {
			return int(int64(c.version) - int64(version))
		})
		if !found || all[at].name != name || all[at].kind == watch.Deleted {
			return fmt.Errorf("the handlers were told of %s at %d, which was never so", name, version)
		}
	}
	return nil
}
