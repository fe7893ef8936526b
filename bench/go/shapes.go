package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// occurrence is one occurrence at a time of a shape.
type occurrence struct {
	at      time.Duration
	source  corev1.EventSource
	object  corev1.ObjectReference
	normal  bool
	reason  string
	message string
}

func node(n int) string { return fmt.Sprintf("node-%04d.example.internal", n) }

func kubelet(n int) corev1.EventSource {
	return corev1.EventSource{Component: "kubelet", Host: node(n)}
}

func ref(kind, name string) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: kind, Namespace: "shop", Name: name, UID: types.UID("uid-" + kind + "-" + name), APIVersion: "v1",
	}
}

var scheduler = corev1.EventSource{Component: "default-scheduler"}

// all shapes. Each is an hour or less in a cluster.
var all = map[string]func(add func(occurrence)){
	// 50 pods on 10 nodes crash for half an hour; the kubelet reports it every 10 s.
	"crash-loop": func(add func(occurrence)) {
		for pod := range 50 {
			object := ref("Pod", fmt.Sprintf("crash-%02d", pod))
			object.FieldPath = "spec.containers{app}"
			message := fmt.Sprintf("Back-off restarting failed container app in pod %s_shop(%s)", object.Name, object.UID)
			for i := range 180 {
				at := time.Duration(i)*10*time.Second + time.Duration(pod)*137*time.Millisecond
				add(occurrence{at, kubelet(pod % 10), object, false, "BackOff", message})
			}
		}
	},
	// 100 pods cannot be scheduled for half an hour; the numbers in the message differ between tries.
	"failed-scheduling": func(add func(occurrence)) {
		for pod := range 100 {
			object := ref("Pod", fmt.Sprintf("pending-%03d", pod))
			for i := range 60 {
				message := fmt.Sprintf("0/5000 nodes are available: %d Insufficient cpu, %d node(s) had untolerated taint {dedicated: batch}.",
					4900-(i*7+pod)%60, 100+(i*7+pod)%60)
				add(occurrence{time.Duration(i)*30*time.Second + time.Duration(pod)*211*time.Millisecond, scheduler, object, false, "FailedScheduling", message})
			}
		}
	},
	// 40 pods on 10 nodes have a missing image: pull, fail, back off.
	"image-pull": func(add func(occurrence)) {
		for pod := range 40 {
			object := ref("Pod", fmt.Sprintf("pull-%02d", pod))
			object.FieldPath = "spec.containers{app}"
			image := "registry.example.com/shop/checkout:v1.42.7"
			for i := range 120 {
				at := time.Duration(i)*15*time.Second + time.Duration(pod)*173*time.Millisecond
				report := func(normal bool, reason, message string) {
					add(occurrence{at, kubelet(pod % 10), object, normal, reason, message})
				}
				if i%20 == 0 {
					report(true, "Pulling", fmt.Sprintf("Pulling image %q", image))
					report(false, "Failed", fmt.Sprintf("Failed to pull image %q: not found", image))
					report(false, "Failed", "Error: ErrImagePull")
				}
				report(true, "BackOff", fmt.Sprintf("Back-off pulling image %q", image))
				report(false, "Failed", "Error: ImagePullBackOff")
			}
		}
	},
	// 50 nodes with 100 pods each fail: 5,000 pods become not ready, are evicted, and are created on other nodes.
	"node-loss": func(add func(occurrence)) {
		lifecycle := corev1.EventSource{Component: "node-controller"}
		taint := corev1.EventSource{Component: "taint-eviction-controller"}
		for n := range 50 {
			add(occurrence{time.Duration(n) * 100 * time.Millisecond, lifecycle, ref("Node", node(n)), true, "NodeNotReady",
				fmt.Sprintf("Node %s status is now: NodeNotReady", node(n))})
			for p := range 100 {
				pod := n*100 + p
				old, made := ref("Pod", fmt.Sprintf("lost-%04d", pod)), ref("Pod", fmt.Sprintf("made-%04d", pod))
				spread := time.Duration(pod) * 6 * time.Millisecond
				add(occurrence{spread, lifecycle, old, false, "NodeNotReady", "Node is not ready"})
				add(occurrence{5*time.Minute + spread, taint, old, true, "TaintManagerEviction", "Marking for deletion Pod shop/" + old.Name})
				to := kubelet(1000 + pod%200)
				add(occurrence{5*time.Minute + time.Second + spread, scheduler, made, true, "Scheduled", "Successfully assigned shop/" + made.Name + " to " + to.Host})
				for i, reason := range []string{"Pulled", "Created", "Started"} {
					add(occurrence{5*time.Minute + time.Duration(i+2)*time.Second + spread, to, made, true, reason, "Container app: " + reason})
				}
			}
		}
	},
	// 30 cron jobs start a job every minute for an hour.
	"cronjob-hour": func(add func(occurrence)) {
		cron, job := corev1.EventSource{Component: "cronjob-controller"}, corev1.EventSource{Component: "job-controller"}
		for c := range 30 {
			object := ref("CronJob", fmt.Sprintf("cron-%02d", c))
			for minute := range 60 {
				name := fmt.Sprintf("%s-%08d", object.Name, 29_000_000+minute)
				pod, to := ref("Pod", name+"-x7k2p"), kubelet(minute%20)
				at := time.Duration(minute)*time.Minute + time.Duration(c)*97*time.Millisecond
				add(occurrence{at, cron, object, true, "SuccessfulCreate", "Created job " + name})
				add(occurrence{at + time.Second, job, ref("Job", name), true, "SuccessfulCreate", "Created pod: " + pod.Name})
				add(occurrence{at + time.Second, scheduler, pod, true, "Scheduled", "Successfully assigned shop/" + pod.Name + " to " + to.Host})
				for i, reason := range []string{"Pulled", "Created", "Started"} {
					add(occurrence{at + time.Duration(2+i)*time.Second, to, pod, true, reason, "Container job: " + reason})
				}
				add(occurrence{at + 20*time.Second, job, ref("Job", name), true, "Completed", "Job completed"})
				add(occurrence{at + 21*time.Second, cron, object, true, "SawCompletedJob", "Saw completed job: " + name + ", condition: Complete"})
				if minute >= 3 {
					add(occurrence{at + 22*time.Second, cron, object, true, "SuccessfulDelete", fmt.Sprintf("Deleted job %s-%08d", object.Name, 29_000_000+minute-3)})
				}
			}
		}
	},
	// One object and one message, 1,000 times per second for half a minute.
	"one-object": func(add func(occurrence)) {
		for i := range 30_000 {
			add(occurrence{time.Duration(i) * time.Millisecond, kubelet(1), ref("Pod", "busy"), false, "Unhealthy", "Readiness probe failed"})
		}
	},
}

// begin is the start time of all shapes.
var begin = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// event returns the event that client-go's recorder makes of an occurrence (tools/record/event.go: makeEvent).
func (o occurrence) event(serial int) *corev1.Event {
	at := metav1.NewTime(begin.Add(o.at))
	severity := corev1.EventTypeWarning
	if o.normal {
		severity = corev1.EventTypeNormal
	}
	name := fmt.Sprintf("%s.%x", o.object.Name, at.UnixNano()+int64(serial%1000))
	return &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: "shop"},
		InvolvedObject: o.object, Reason: o.reason, Message: o.message, Source: o.source,
		FirstTimestamp: at, LastTimestamp: at, Count: 1, Type: severity,
		ReportingController: o.source.Component, ReportingInstance: o.source.Host,
	}
}

// shapes writes each shape to its own file, as NDJSON in order of time.
func shapes(arguments []string) error {
	dir := "."
	if err := parse(arguments, func(f *flag.FlagSet) { f.StringVar(&dir, "dir", dir, "folder to write to") }); err != nil {
		return err
	}
	for name, make := range all {
		var found []occurrence
		make(func(o occurrence) { found = append(found, o) })
		slices.SortStableFunc(found, func(a, b occurrence) int { return cmp.Compare(a.at, b.at) })
		if err := write(filepath.Join(dir, name+".ndjson"), found); err != nil {
			return err
		}
	}
	return report(len(all))
}

func write(path string, found []occurrence) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for n, o := range found {
		if err := encoder.Encode(o.event(n)); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return file.Close()
}
