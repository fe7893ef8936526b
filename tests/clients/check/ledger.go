package check

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

// ledger is eventweir's account of all occurrences, from its metrics.
type ledger struct {
	received, rejected, written, waiting, lost int64
}

func (l ledger) String() string {
	return fmt.Sprintf("received %d = rejected %d + written %d + waiting %d + lost %d",
		l.received, l.rejected, l.written, l.waiting, l.lost)
}

func (l ledger) balances() bool {
	return l.received == l.rejected+l.written+l.waiting+l.lost
}

// readLedger scrapes the metrics once.
func readLedger(url string, deadline time.Duration) (ledger, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ledger{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ledger{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return ledger{}, fmt.Errorf("GET %s: %s", url, response.Status)
	}
	sums, err := sumFamilies(response.Body)
	if err != nil {
		return ledger{}, fmt.Errorf("GET %s: %w", url, err)
	}
	var l ledger
	for name, field := range map[string]*int64{
		"received_total": &l.received, "rejected_total": &l.rejected, "written_total": &l.written,
		"waiting": &l.waiting, "lost_total": &l.lost,
	} {
		sum, ok := sums["eventweir_ledger_"+name]
		if !ok {
			return ledger{}, fmt.Errorf("GET %s: no eventweir_ledger_%s", url, name)
		}
		*field = int64(sum)
	}
	return l, nil
}

// sumFamilies sums the samples of each name in a Prometheus text exposition over all labels.
func sumFamilies(text io.Reader) (map[string]float64, error) {
	sums := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:strings.IndexAny(line+" ", "{ ")]
		// Label values may contain spaces; the value follows the closing brace.
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
