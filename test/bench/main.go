//go:build linux

// Command bench measures roce perf against what the socket, TCP and UCX reach on the
// same machine, in the same run, in turns. It needs root and iproute2: both ends are
// processes in network namespaces that it makes. `make bench` runs it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		if err := runRole(os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var (
		roce   = flag.String("roce", "build/roce", "the program")
		rounds = flag.Int("rounds", 3, "how often each subject is measured")
		asJSON = flag.String("json", "", "write all samples to this file")
		only   = flag.String("only", "", "measure these subjects only: names separated by commas")
	)
	flag.Parse()
	before := load()
	l, err := newLab(ctx, *roce)
	defer l.close()
	if err != nil {
		return err
	}
	groups, err := pick(targetGroups(l), *only)
	if err != nil {
		return err
	}
	for i := range groups {
		if err := measure(ctx, l, &groups[i], *rounds); err != nil {
			return err
		}
	}
	by := map[string]*subject{}
	fmt.Printf("%s\n\n", conditions(before))
	for i := range groups {
		for _, s := range groups[i].subjects {
			by[s.ID] = s
		}
		printSubjects(os.Stdout, &groups[i])
		fmt.Println()
	}
	printTargets(os.Stdout, by)
	if *asJSON == "" {
		return nil
	}
	text, err := json.MarshalIndent(by, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*asJSON, append(text, '\n'), 0o644)
}

// pick leaves the subjects that are wanted; an empty list wants all.
func pick(groups []group, only string) (picked []group, err error) {
	if only == "" {
		return groups, nil
	}
	wanted := map[string]bool{}
	for id := range strings.SplitSeq(only, ",") {
		wanted[id] = true
	}
	for _, g := range groups {
		var some []*subject
		for _, s := range g.subjects {
			if wanted[s.ID] {
				some = append(some, s)
				delete(wanted, s.ID)
			}
		}
		if g.subjects = some; len(some) > 0 {
			picked = append(picked, g)
		}
	}
	for id := range wanted {
		return nil, fmt.Errorf("there is no subject %q", id)
	}
	return picked, nil
}

// measure takes a sample of each subject in turn, several times.
func measure(ctx context.Context, l *lab, g *group, rounds int) error {
	for range rounds {
		for _, s := range g.subjects {
			one, err := s.player.play(ctx, l)
			if err != nil {
				return fmt.Errorf("%s: %w", s.What, err)
			}
			s.Samples = append(s.Samples, one)
			fmt.Fprintf(os.Stderr, "%-12s %8.3f %s\n", s.ID, one.Value, s.Unit)
		}
	}
	return nil
}

// conditions says where and when.
func conditions(load string) string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, Linux %s, %d processors (%s), %s, load %s before", time.Now().UTC().Format(time.DateOnly),
		strings.TrimSpace(string(kernel)), runtime.NumCPU(), processor(), runtime.Version(), load)
}

// load is the load average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// processor is the name of the first processor.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
