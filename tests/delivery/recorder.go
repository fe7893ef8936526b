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

// recorder: client-go's tools/events, while eventweir is restarted by drains and crashes alternately. The client's
// clock is simulated: a series is reported when it begins, every half hour, and six minutes after its last occurrence.
// If a process does not have the series, the client posts it whole. Each object shows all occurrences recorded for it.
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
				return errors.Join(err, fmt.Errorf("the final balance is %+v", end))
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
	r.logf("%d occurrences were recorded; the last process received %d", recorded.total(), end.received())
	if recorded.total() == 0 || end.lost() != 0 {
		return fmt.Errorf("lost: %s", end.nonzero("eventweir_ledger_lost_total"))
	}
	return first(between(records, recorded, recorded), tallied(records))
}

// ready waits until /readyz answers 200, that is, until history has read the records of the apiserver.
func (w *weir) ready() error {
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		code, text, err := ask(http.MethodGet, w.admin+"/readyz")
		if err == nil && code == http.StatusOK {
			return nil
		}
		if time.Now().After(until) {
			return errors.Join(fmt.Errorf("/readyz answers %d %q", code, text), err)
		}
	}
}

func freeAddress() (string, error) {
	// The port must stay the same when eventweir restarts, so it cannot be 0.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return free.Addr().String(), free.Close()
}

// recordingProcess starts this program as a client, restarts eventweir at its request, and returns the recorded
// occurrences.
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
	output, err := client.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	var recorded counts
	var faults []error
	lines := bufio.NewScanner(output)
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

// recordAsClient is the main function of that process. It does not return.
func recordAsClient(arguments string) {
	parameters := strings.Split(arguments, ",")
	now, stdin := time.Now(), bufio.NewReader(os.Stdin)
	restart := func(how string) error {
		fmt.Println("restart", how)
		_, err := stdin.ReadString('\n')
		return err
	}
	// The clock of synctest advances to the next timer as soon as all goroutines are blocked on it.
	client := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			recorded, err := recordForHours(parameters[0], parameters[1], parameters[2], now, restart)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("recorded %s\n", encode(recorded))
		})
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "recorder", F: client}}, nil, nil)
}

// recordForHours records for hours of simulated time.
func recordForHours(address, namespace, prefix string, now time.Time, restart func(how string) error) (counts, error) {
	time.Sleep(time.Until(now))
	recorded := counts{}
	// A reader of an idle connection would block outside of synctest, and the simulated clock would stop.
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
	record := func(object string) {
		name := prefix + "-" + object
		regarding := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1"}}
		recorder.Eventf(regarding, nil, corev1.EventTypeWarning, "BackOff", "Restart", "restarting")
		recorded[name]++
		synctest.Wait()
	}
	for round := range 8 {
		for minute := range 16 {
			for n := range 4 {
				// A series that continues through all restarts. At each restart some of its occurrences are not yet
				// reported.
				if minute%(n+1) == 0 {
					record(fmt.Sprintf("long-%d", n))
				}
				// A series that ends before the restart; the next series counts on the same record.
				if minute <= n {
					record(fmt.Sprintf("short-%d", n))
				}
			}
			// A series that ends and begins again under a new name before each restart, so its record has another name.
			if minute < 3 || minute > 9+round {
				record("renamed")
			}
			if minute == round {
				record("once")
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if err := restart([]string{"drain", "kill"}[round%2]); err != nil {
			return nil, err
		}
	}
	// Wait until all series have ended.
	time.Sleep(time.Hour)
	synctest.Wait()
	return recorded, nil
}
