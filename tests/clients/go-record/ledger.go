package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// checkLedger reads the metrics once: nothing waits, and received = rejected + written + waiting + lost.
func checkLedger(url string, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	sums, err := sumFamilies(response.Body)
	if err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	for _, name := range []string{"received_total", "rejected_total", "written_total", "waiting", "lost_total"} {
		if _, ok := sums["eventweir_ledger_"+name]; !ok {
			return fmt.Errorf("GET %s: no eventweir_ledger_%s", url, name)
		}
	}
	received := sums["eventweir_ledger_received_total"]
	rejected := sums["eventweir_ledger_rejected_total"]
	written := sums["eventweir_ledger_written_total"]
	waiting := sums["eventweir_ledger_waiting"]
	lost := sums["eventweir_ledger_lost_total"]
	account := fmt.Sprintf("received %v = rejected %v + written %v + waiting %v + lost %v", received, rejected, written, waiting, lost)
	switch {
	case received == 0:
		return fmt.Errorf("the ledger is empty: %s", account)
	case received != rejected+written+waiting+lost:
		return fmt.Errorf("the ledger does not balance: %s", account)
	case waiting != 0:
		return fmt.Errorf("occurrences are still waiting: %s", account)
	}
	return nil
}

// sumFamilies adds up the samples of each name in a Prometheus text exposition, whatever their labels.
func sumFamilies(text io.Reader) (map[string]float64, error) {
	sums := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:strings.IndexAny(line+" ", "{ ")]
		// Label values may hold spaces; the value follows the closing brace.
		rest := line[len(name):]
		if end := strings.LastIndex(rest, "}"); end >= 0 {
			rest = rest[end+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return nil, fmt.Errorf("no value in %q", line)
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("in %q: %w", line, err)
		}
		sums[name] += value
	}
	return sums, lines.Err()
}
