package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// weir is a running eventweir.
type weir struct {
	cmd           *exec.Cmd
	listen, admin string
	log           string
	exited        chan struct{}
	err           error
	final         atomic.Pointer[balance]
}

// balance is the last log line of eventweir.
type balance struct{ Received, Rejected, Written, Lost int }

// startWeir starts `eventweir serve` with this configuration and waits until it listens.
func startWeir(binary, config, log string, flags ...string) (*weir, error) {
	file := log + ".yaml"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	args := append([]string{"serve", "--config", file, "--log-format", "json"}, flags...)
	w := &weir{cmd: exec.Command(binary, args...), log: log, exited: make(chan struct{})}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.cmd.Stderr = w.cmd.Stdout
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	listening := make(chan struct{})
	go func() {
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			_, _ = fmt.Fprintln(output, scanner.Text())
			w.read(scanner.Bytes(), listening)
		}
		w.err = w.cmd.Wait()
		_ = output.Close()
		close(w.exited)
	}()
	select {
	case <-listening:
		return w, nil
	case <-w.exited:
		return nil, fmt.Errorf("eventweir ended before it listened: %v; see %s", w.err, log)
	case <-time.After(30 * time.Second):
		w.kill()
		return nil, fmt.Errorf("eventweir does not listen after 30 s; see %s", log)
	}
}

func (w *weir) read(text []byte, listening chan<- struct{}) {
	var line struct {
		balance
		Message, Listen, Admin string
		TLS                    bool
	}
	if json.Unmarshal(text, &line) != nil {
		return
	}
	switch line.Message {
	case "listening":
		w.listen, w.admin = "http://"+line.Listen, "http://"+line.Admin
		if line.TLS {
			w.listen = "https://" + line.Listen
		}
		close(listening)
	case "stopped":
		w.final.Store(&line.balance)
	}
}

// kill simulates a crash.
func (w *weir) kill() {
	_ = w.cmd.Process.Kill()
	<-w.exited
}

// stop drains eventweir, and returns its final balance.
func (w *weir) stop(limit time.Duration) (balance, error) {
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return balance{}, fmt.Errorf("SIGTERM: %w; see %s", err, w.log)
	}
	select {
	case <-w.exited:
	case <-time.After(limit):
		w.kill()
		return balance{}, fmt.Errorf("eventweir still runs %s after SIGTERM; see %s", limit, w.log)
	}
	final := w.final.Load()
	// A drain with losses has its own exit code.
	var exit *exec.ExitError
	isDrainWithLosses := errors.As(w.err, &exit) && exit.ExitCode() == 75 && final != nil && final.Lost > 0
	if w.err != nil && !isDrainWithLosses || final == nil {
		return balance{}, fmt.Errorf("eventweir ended with %v and balance %v; see %s", w.err, final, w.log)
	}
	return *final, nil
}

// samples are the values of a scrape, keyed by name and labels as exposed.
type samples map[string]float64

func (w *weir) scrape() (samples, error) {
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Get(w.admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	values := samples{}
	scanner := bufio.NewScanner(res.Body)
	for scanner.Scan() {
		line := scanner.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		values[line[:at]] = value
	}
	return values, scanner.Err()
}

// sum adds the samples of a metric that have all of these labels.
func (s samples) sum(name string, labels ...string) int {
	total := 0.0
	for key, value := range s {
		metric, rest, _ := strings.Cut(key, "{")
		matches := metric == name
		for _, label := range labels {
			matches = matches && strings.Contains(rest, label)
		}
		if matches {
			total += value
		}
	}
	return int(total)
}

func (s samples) received() int { return s.sum("eventweir_ledger_received_total") }
func (s samples) rejected() int { return s.sum("eventweir_ledger_rejected_total") }
func (s samples) written() int  { return s.sum("eventweir_ledger_written_total") }
func (s samples) waiting() int  { return s.sum("eventweir_ledger_waiting") }
func (s samples) lost() int     { return s.sum("eventweir_ledger_lost_total") }

// nonzero formats the samples of a metric that are not 0.
func (s samples) nonzero(name string) string {
	var parts []string
	for key, value := range s {
		if strings.HasPrefix(key, name+"{") && value != 0 {
			parts = append(parts, fmt.Sprintf("%s=%.0f", strings.TrimPrefix(key, name), value))
		}
	}
	return strings.Join(parts, " ")
}

// settled waits until nothing is waiting.
func (w *weir) settled(limit time.Duration) (samples, error) {
	return w.until("has nothing waiting", limit, func(s samples) bool { return s.waiting() == 0 })
}

// until scrapes until a condition holds. The ledger must balance at each scrape.
func (w *weir) until(what string, limit time.Duration, good func(samples) bool) (samples, error) {
	until := time.Now().Add(limit)
	for {
		now, err := w.scrape()
		if err != nil {
			return nil, err
		}
		if in, out := now.received(), now.rejected()+now.written()+now.waiting()+now.lost(); in != out {
			return now, fmt.Errorf("the ledger does not balance: received %d, the rest %d", in, out)
		}
		if good(now) {
			return now, nil
		}
		if time.Now().After(until) {
			waiting := now.nonzero("eventweir_ledger_waiting")
			return now, fmt.Errorf("after %s, still not true that eventweir %s: %s; see %s",
				limit, what, waiting, w.log)
		}
		select {
		case <-w.exited:
			return now, fmt.Errorf("eventweir ended: %v; see %s", w.err, w.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
