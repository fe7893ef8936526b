package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

// recorder: client-go's tools/events through restarts of eventweir, drains and crashes by turns, while the client's clock leaps:
// a series is told of when it begins, every half hour, and six minutes after its last occurrence. A series that a process has not
// heard of is posted whole, and each object shows what was recorded about it.
func recorder(r *run) error {
	x, kubeconfig, err := r.stage(r.long, true, newPlan(r.seed, nil))
	if err != nil {
		return err
	}
	defer x.close()
	address, err := freeAddress()
	if err != nil {
		return err
	}
	more := large + "ingest: {ack: durable}\nlisten: " + address + "\n"
	spool := filepath.Join(r.dir, "spool")
	w, err := r.weir(kubeconfig, more, "eventweir", "--spool-dir", spool)
	if err != nil {
		return err
	}
	defer func() { w.kill() }()
	if err := w.ready(); err != nil {
		return err
	}
	again := func(drains bool) error {
		if drains {
			end, err := w.stop(60 * time.Second)
			if err != nil || end.Lost > 0 {
				return errors.Join(err, fmt.Errorf("the last balance is %+v", end))
			}
		}
		w.kill()
		next, err := r.weir(kubeconfig, more, "eventweir", "--spool-dir", spool)
		if err != nil {
			return err
		}
		w = next
		return w.ready()
	}
	recorded, err := r.recordingProcess(address, again)
	if err != nil {
		return err
	}
	end, records, err := r.result(w, x, r.long)
	if err != nil {
		return err
	}
	r.logf("%d occurrences were recorded; the last process has received %d", recorded.total(), end.received())
	if recorded.total() == 0 || end.lost() != 0 {
		return fmt.Errorf("lost: %s", end.nonzero("eventweir_ledger_lost_total"))
	}
	return first(between(records, recorded, recorded), tallied(records))
}

// ready waits until a Service would let clients come: what the apiserver holds is known.
func (w *weir) ready() error {
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		code, text, err := ask(http.MethodGet, w.admin+"/readyz")
		if err == nil && code == http.StatusOK {
			return nil
		}
		if time.Now().After(until) {
			return errors.Join(fmt.Errorf("/readyz says %d %q", code, text), err)
		}
	}
}

func freeAddress() (string, error) {
	// Not of the system's choice: it stays the same when eventweir is started again.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return free.Addr().String(), free.Close()
}

// recordingProcess starts this program as a client, does the restarts that it asks for, and returns what it has recorded.
func (r *run) recordingProcess(address string, restart func(drains bool) error) (counts, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	client := exec.CommandContext(r.ctx, self, "--record", strings.Join([]string{address, r.namespace(), r.name}, ","))
	client.Stderr = r.out
	answers, err := client.StdinPipe()
	if err != nil {
		return nil, err
	}
	said, err := client.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	var recorded counts
	var faults []error
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "restart":
			faults = append(faults, restart(rest == "drain"))
			_, _ = fmt.Fprintln(answers)
		case "recorded":
			faults = append(faults, json.Unmarshal([]byte(rest), &recorded))
		}
	}
	return recorded, errors.Join(append(faults, client.Wait())...)
}

// recordAsClient is what that process does. It does not return.
func recordAsClient(arguments string) {
	asked := strings.Split(arguments, ",")
	now, stdin := time.Now(), bufio.NewReader(os.Stdin)
	restart := func(how string) error {
		fmt.Println("restart", how)
		_, err := stdin.ReadString('\n')
		return err
	}
	// The clock of synctest leaps to the next timer as soon as every goroutine waits for one.
	client := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			recorded, err := recordForHours(asked[0], asked[1], asked[2], now, restart)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("recorded %s\n", encode(recorded))
		})
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "recorder", F: client}}, nil, nil)
}

// recordForHours records for hours of the client's clock.
func recordForHours(address, namespace, prefix string, now time.Time, restart func(how string) error) (counts, error) {
	time.Sleep(time.Until(now))
	recorded := counts{}
	// A connection that outlived its request would be read for ever, and the clock would stand still.
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(context.Background(), network, address)
		},
	}
	client, err := typedeventsv1.NewForConfig(&rest.Config{Host: "http://" + address, QPS: -1, Transport: transport})
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client})
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		broadcaster.Shutdown()
		cancel()
	}()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "example.com/recorder")
	tell := func(object string) {
		name := prefix + "-" + object
		regarding := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1"}}
		recorder.Eventf(regarding, nil, corev1.EventTypeWarning, "BackOff", "Restart", "restarting")
		recorded[name]++
		synctest.Wait()
	}
	for round := range 8 {
		for minute := range 16 {
			for n := range 4 {
				// A series that goes on through all restarts, each of which leaves some of it untold.
				if minute%(n+1) == 0 {
					tell(fmt.Sprintf("long-%d", n))
				}
				// One that ends before the restart; the next one counts on the same record.
				if minute <= n {
					tell(fmt.Sprintf("short-%d", n))
				}
			}
			// One that ends and begins again under a new name before each restart: its total counts on a record of another name.
			if minute < 3 || minute > 9+round {
				tell("renamed")
			}
			if minute == round {
				tell("once")
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if err := restart([]string{"drain", "kill"}[round%2]); err != nil {
			return nil, err
		}
	}
	// Every series ends.
	time.Sleep(time.Hour)
	synctest.Wait()
	return recorded, nil
}
