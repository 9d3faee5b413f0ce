//go:build linux

// Command bench measures roce perf against what the socket, TCP and UCX reach on the
// same machine, in the same run, in turns. It needs root and iproute2: both ends are
// processes in network namespaces that it makes. `make bench` runs it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
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
		which  = flag.String("part", "targets,veth,loopback,latency", "what to measure; there is rxe, too")
		rounds = flag.Int("rounds", 0, "how often each subject is measured (default: what the part says)")
		dir    = flag.String("json", "", "write all samples into this folder, a file for each part")
		docs   = flag.String("docs", "", "write the tables into this document, and the charts beside it (default: print them)")
		suite  = flag.String("suite", "trixie", "for the part rxe: the Debian whose kernel the guests have")
		agent  = flag.String("agent", "build/agent", "for the part rxe: what answers in the guests, test/interop/agent built without cgo")
		only   = flag.String("only", "", "measure these subjects only, and print: names separated by commas")
	)
	flag.Parse()
	l, err := newLab(ctx, *roce)
	defer l.close()
	if err != nil {
		return err
	}
	for _, p := range append(allParts(l), rxePart(*suite, *agent, *roce)) {
		if !slices.Contains(strings.Split(*which, ","), p.name) {
			continue
		}
		if p.groups, err = pick(p.groups, *only); err != nil {
			return err
		}
		if *only != "" {
			p.print, p.chart = printTargetPart, nil
		}
		if *rounds > 0 {
			p.rounds = *rounds
		}
		if err := p.run(ctx, l, *docs, *dir); err != nil {
			return err
		}
	}
	return nil
}

// run measures the part and writes what it has found.
func (p *part) run(ctx context.Context, l *testLab, docs, dir string) error {
	where := conditions()
	if p.close != nil {
		defer p.close()
	}
	for i := range p.groups {
		if err := measure(ctx, l, &p.groups[i], p.rounds); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s, medians of %d.\n\n", where, p.rounds)
	p.print(&text, p)
	if dir != "" {
		samples, err := json.MarshalIndent(map[string]any{"when": where, "groups": p.groups}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "bench-"+p.name+".json"), append(samples, '\n'), 0o644); err != nil {
			return err
		}
	}
	if docs == "" {
		_, err := os.Stdout.Write(text.Bytes())
		return err
	}
	if p.chart != nil {
		drawing := "performance-" + p.name + ".svg"
		if err := os.WriteFile(filepath.Join(filepath.Dir(docs), drawing), p.chart(p).svg(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&text, "\n![%s](%s)\n", p.chart(p).title, drawing)
	}
	return replaceBetween(docs, p.name, text.Bytes())
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
func measure(ctx context.Context, l *testLab, g *group, rounds int) error {
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

// conditions says when and where.
func conditions() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%s, Linux %s, %d processors (%s), %s, load %s", time.Now().UTC().Format(time.DateOnly),
		strings.TrimSpace(string(kernel)), runtime.NumCPU(), processor(), runtime.Version(), load())
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
