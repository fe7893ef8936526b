// The Go reference: the cost and the writes of client-go's own recorder, for the comparisons of ../run.
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

// parse reads the flags that `declare` registers.
func parse(arguments []string, declare func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	declare(flags)
	return flags.Parse(arguments)
}

// report prints a result as one JSON line.
func report(result any) error { return json.NewEncoder(os.Stdout).Encode(result) }

// cpuSeconds returns the CPU time of this process so far, with garbage collection.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}
