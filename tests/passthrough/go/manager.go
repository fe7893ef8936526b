package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// labeller labels ConfigMaps whose data requests it, and reports each label with both recorders.
type labeller struct {
	client.Client
	old    record.EventRecorder
	newer  events.EventRecorder
	passes atomic.Int64
}

func (l *labeller) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object corev1.ConfigMap
	if err := l.Get(ctx, request.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if object.Data["label"] == "" || object.Labels["seen"] == object.Data["label"] {
		return ctrl.Result{}, nil
	}
	before := object.DeepCopy()
	object.Labels = map[string]string{"seen": object.Data["label"]}
	if err := l.Patch(ctx, &object, client.MergeFrom(before)); err != nil {
		return ctrl.Result{}, err
	}
	l.passes.Add(1)
	l.old.Event(&object, corev1.EventTypeNormal, "Labelled", "reported by the older recorder")
	l.newer.Eventf(&object, nil, corev1.EventTypeNormal, "Labelled", "Label", "reported by the newer recorder")
	return ctrl.Result{}, nil
}

// managed is the running manager. The program starts only one.
var managed struct {
	labeller *labeller
	ended    chan error
}

func manage(ctx context.Context, e env) error {
	if managed.labeller != nil {
		return nil
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	m, err := ctrl.NewManager(config, manager.Options{
		LeaderElection: true, LeaderElectionID: "manager", Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{e.namespace: {}}},
	})
	if err != nil {
		return err
	}
	//nolint:staticcheck // Deprecated, but used by most controllers.
	l := &labeller{Client: m.GetClient(), old: m.GetEventRecorderFor("labeller"), newer: m.GetEventRecorder("eventweir.dev/labeller")}
	if err := ctrl.NewControllerManagedBy(m).For(&corev1.ConfigMap{}).Complete(l); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Start(context.Background()) }()
	select {
	case <-m.Elected():
	case err := <-ended:
		return fmt.Errorf("the manager ended: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
	managed.labeller, managed.ended = l, ended
	return nil
}

// label makes the manager label a ConfigMap, and waits for the label.
func (e env) label(ctx context.Context, name, value string) error {
	configMaps := e.admin.CoreV1().ConfigMaps(e.namespace)
	object, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		object = configMap(name)
		object.Data["label"] = value
		_, err = configMaps.Create(ctx, object, metav1.CreateOptions{})
	} else {
		object.Data["label"] = value
		_, err = configMaps.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		object, err := configMaps.Get(ctx, name, metav1.GetOptions{})
		if err == nil && object.Labels["seen"] != value {
			err = fmt.Errorf("%s is not labelled: %v", name, object.Labels)
		}
		return err
	})
}

// manages: the manager is elected, sees ConfigMaps, patches them, and reports each patch with both recorders.
func manages(ctx context.Context, e env) (string, error) {
	if err := manage(ctx, e); err != nil {
		return "", err
	}
	// The election is reported as an event.
	if err := e.exactly(ctx, "manager", 1, 1); err != nil {
		return "", err
	}
	const objects, times = 5, 4
	err := e.accounts(ctx, objects*times*2, func() error {
		for n := range objects {
			for time := range times {
				if err := e.label(ctx, fmt.Sprintf("managed-%d", n), strconv.Itoa(time)); err != nil {
					return err
				}
			}
			// The newer recorder's key has the object's resourceVersion, so it sends each occurrence as a separate
			// event.
			if err := e.exactly(ctx, fmt.Sprintf("managed-%d", n), 2, times*2); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	held, err := e.admin.CoordinationV1().Leases(e.namespace).Get(ctx, "manager", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d patches, %d occurrences are %d records, the lease is held by %s", managed.labeller.passes.Load(),
		objects*times*2, objects*2, *held.Spec.HolderIdentity), nil
}

// killed: eventweir is killed while the manager runs, and restarted. The manager continues, and keeps its lease.
func killed(ctx context.Context, e env) (string, error) {
	if err := manage(ctx, e); err != nil {
		return "", err
	}
	if err := e.label(ctx, "survivor", "1"); err != nil {
		return "", err
	}
	if err := e.exactly(ctx, "survivor", 2, 2); err != nil {
		return "", err
	}
	lease := func() (string, time.Time, error) {
		held, err := e.admin.CoordinationV1().Leases(e.namespace).Get(ctx, "manager", metav1.GetOptions{})
		if err != nil {
			return "", time.Time{}, err
		}
		return *held.Spec.HolderIdentity, held.Spec.RenewTime.Time, nil
	}
	holder, _, err := lease()
	if err != nil {
		return "", err
	}
	process, err := os.ReadFile(e.pidFile)
	if err != nil {
		return "", err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(process)))
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	began := time.Now()
	if err := e.label(ctx, "survivor", "2"); err != nil {
		return "", err
	}
	seen := time.Since(began)
	if err := e.exactly(ctx, "survivor", 2, 4); err != nil {
		return "", err
	}
	counted := time.Since(began)
	if err := await(ctx, func() error {
		now, renewed, err := lease()
		if err != nil || now != holder || renewed.Before(began) {
			return fmt.Errorf("the lease was held by %s, is held by %s, renewed %s: %v", holder, now, renewed, err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	select {
	case err := <-managed.ended:
		return "", fmt.Errorf("the manager ended: %w", err)
	default:
	}
	if now, err := os.ReadFile(e.pidFile); err != nil || string(now) == string(process) {
		return "", errors.New("eventweir was not restarted")
	}
	return fmt.Sprintf("labelled %.1f s after the kill, counted after %.1f s, the lease is kept", seen.Seconds(), counted.Seconds()), nil
}
