// Records random walks of client-go's correlator and token bucket, in the formats of tests/vectors. Each file has its own
// seed and random settings.
//
//	cd bench/go && go run ./vectors -out DIR -seed 1 -files 100 -steps 200
//
// Then `EVENTWEIR_VECTORS=DIR cargo test --test golden` replays them.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "", "folder to write to")
	seed := flag.Int64("seed", 1, "seed of the first file")
	files := flag.Int("files", 10, "files of each kind")
	steps := flag.Int("steps", 200, "steps per file")
	flag.Parse()
	recorders := map[string]func(*rand.Rand, string, int, *file){
		"correlator": recordCorrelator, "token_bucket": recordBucket,
	}
	for kind, record := range recorders {
		if err := os.MkdirAll(filepath.Join(*out, kind), 0o755); err != nil {
			log.Fatal(err)
		}
		for n := range *files {
			s := *seed + int64(n)
			f := &file{}
			scenario := fmt.Sprintf("210_walk_%d", s)
			record(rand.New(rand.NewSource(s)), scenario, *steps, f)
			if err := os.WriteFile(filepath.Join(*out, kind, scenario+".jsonl"), f.lines, 0o644); err != nil {
				log.Fatal(err)
			}
		}
	}
}

type object = map[string]any

type file struct{ lines []byte }

func (f *file) line(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		log.Fatal(err)
	}
	f.lines = append(append(f.lines, data...), '\n')
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.Intn(len(values))] }

func chance(r *rand.Rand, percent int) bool { return r.Intn(100) < percent }
