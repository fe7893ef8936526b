// The reference in Go: what client-go's own recorder costs and writes, for the comparisons of ../run.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"syscall"
)

func main() {
	commands := map[string]func([]string) error{
		"micro": micro, "serve": serve, "shapes": shapes, "simulate": simulate, "broadcast": broadcast, "post": post, "show": show,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: eventweir-bench-go micro|serve|shapes|simulate|broadcast|post|show [flags]")
		os.Exit(64)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// parse reads flags that `declare` names.
func parse(arguments []string, declare func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	declare(flags)
	return flags.Parse(arguments)
}

// tell prints a result as one line.
func tell(result any) error { return json.NewEncoder(os.Stdout).Encode(result) }

// cpuSeconds is the CPU time of this process so far, the garbage collector's included.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}
