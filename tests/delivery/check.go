package main

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// upstream returns the apiserver's records about the objects of this run.
func (r *run) upstream(s *apiserver) ([]record, error) {
	var records []record
	for _, namespace := range []string{r.namespace(), "default"} {
		listed, err := s.list(namespace)
		if err != nil {
			return nil, err
		}
		for _, record := range listed {
			if strings.HasPrefix(record.InvolvedObject.Name, r.name+"-") {
				records = append(records, record)
			}
		}
	}
	return records, nil
}

func sums(records []record) counts {
	sums := counts{}
	for _, record := range records {
		sums[record.InvolvedObject.Name] += record.occurrences()
	}
	return sums
}

// sumTallies returns the occurrences counted per writer, summed over all records.
func sumTallies(records []record) counts {
	sums := counts{}
	for _, record := range records {
		for writer, n := range record.tallies() {
			sums[writer] += n
		}
	}
	return sums
}

// between checks that the records of each object stand for at least `low` and at most `high` occurrences.
func between(records []record, low, high counts) error {
	got := sums(records)
	objects := map[string]bool{}
	for _, known := range []counts{got, low, high} {
		for object := range known {
			objects[object] = true
		}
	}
	var faults []string
	wrong, suspect := 0, ""
	for _, object := range slices.Sorted(maps.Keys(objects)) {
		if got[object] >= low[object] && got[object] <= high[object] {
			continue
		}
		if wrong++; wrong == 1 {
			suspect = object
		}
		if len(faults) >= 10 {
			continue
		}
		text := fmt.Sprintf("%s: %d occurrences, expected %d to %d:", object, got[object], low[object], high[object])
		for _, record := range records {
			if record.InvolvedObject.Name == object {
				text += fmt.Sprintf("\n      %s %s %q count %d tallies %v", record.Metadata.Name, record.Reason,
					record.Message, record.occurrences(), record.tallies())
			}
		}
		faults = append(faults, text)
	}
	if wrong == 0 {
		return nil
	}
	text := fmt.Sprintf("%d of %d objects have wrong counts (%d occurrences, expected %d to %d):\n    %s", wrong, len(objects),
		got.total(), low.total(), high.total(), strings.Join(faults, "\n    "))
	return &miscounted{text, suspect}
}

// miscounted reports wrong counts. `object` is the first object with one.
type miscounted struct{ text, object string }

func (m *miscounted) Error() string { return m.text }

// evidence logs the lines of the proxy's log about an object's records.
func (r *run) evidence(object string) {
	log, err := os.Open(filepath.Join(r.dir, "proxy.log"))
	if err != nil {
		return
	}
	defer log.Close()
	about := regexp.MustCompile(regexp.QuoteMeta(object) + `\b[^-]`)
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 8<<20)
	for shown := 0; shown < 100 && lines.Scan(); {
		if about.MatchString(lines.Text()) {
			r.logf("%.800s", lines.Text())
			shown++
		}
	}
}

// tallied checks that the tallies of each record add up to its count.
func tallied(records []record) error {
	var faults []string
	for _, record := range records {
		sum := counts(record.tallies()).total()
		if sum != record.occurrences() && len(faults) < 10 {
			faults = append(faults, fmt.Sprintf("%s (%s): count %d, tallies %v", record.Metadata.Name, record.Reason,
				record.occurrences(), record.tallies()))
		}
	}
	if len(faults) > 0 {
		return errors.New("counts are not the sum of their tallies:\n    " + strings.Join(faults, "\n    "))
	}
	return nil
}

// accounted checks that the tallies of each record add up to its count. All counts together must equal the written
// occurrences of the ledgers.
func accounted(records []record, written int) error {
	if shown := sums(records).total(); shown != written {
		return fmt.Errorf("the apiserver shows %d occurrences, but %d were written", shown, written)
	}
	return tallied(records)
}

// arrived checks occurrences with a unique message: an acknowledged one must be shown once, any other at most once.
func (a *account) arrived(records []record) error {
	shown := counts{}
	for _, record := range records {
		shown[record.Message] += record.occurrences()
	}
	var faults []string
	for _, message := range slices.Sorted(maps.Keys(a.messages)) {
		if n, acked := shown[message], a.messages[message]; n > 1 || acked && n == 0 {
			faults = append(faults, fmt.Sprintf("%q is shown %d times, acknowledged: %t", message, n, acked))
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d of %d occurrences are wrong: %s",
			len(faults), len(a.messages), strings.Join(faults[:min(len(faults), 10)], "; "))
	}
	return nil
}

// sent checks that no request was refused and that all occurrences were sent.
func (a *account) sent(occurrences int) error {
	if len(a.faults) > 0 {
		return fmt.Errorf("%d requests were refused, the first: %s", len(a.faults), a.faults[0])
	}
	if sum := a.acked.total() + a.unknown.total(); sum != occurrences {
		return fmt.Errorf("%d occurrences were sent, expected %d", sum, occurrences)
	}
	return nil
}

// high returns the largest possible number of occurrences per object.
func (a *account) high() counts {
	high := counts{}
	for _, known := range []counts{a.acked, a.unknown} {
		for object, n := range known {
			high[object] += n
		}
	}
	return high
}

// exact checks the ledger of an eventweir with nothing waiting: all occurrences are written and none is lost.
func exact(name string, s samples, occurrences int) error {
	if s.received()-s.rejected() != occurrences || s.written() != occurrences || s.lost() != 0 {
		return fmt.Errorf("%s: %d occurrences, but the ledger has received %d, rejected %d, written %d, lost %d (%s)", name,
			occurrences, s.received(), s.rejected(), s.written(), s.lost(), s.nonzero("eventweir_ledger_lost_total"))
	}
	return nil
}
