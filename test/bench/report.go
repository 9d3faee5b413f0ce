//go:build linux

package main

import (
	"fmt"
	"io"
)

// printTargets writes the table of the targets that can be judged.
func printTargets(w io.Writer, by map[string]*subject) {
	fmt.Fprintf(w, "| what | measured | wanted | |\n|---|---|---|---|\n")
	for _, t := range targets {
		v, ok := t.value(by)
		if !ok {
			continue
		}
		sign, verdict := "at most", "no"
		if t.atLeast {
			sign = "at least"
		}
		if t.met(v) {
			verdict = "yes"
		}
		fmt.Fprintf(w, "| %s | %s | %s %s | %s |\n", t.what, quantity(v, t.unit), sign, quantity(t.bound, t.unit), verdict)
	}
}

// printSubjects writes what was measured.
func printSubjects(w io.Writer, g *group) {
	fmt.Fprintf(w, "| %s | median | lowest | highest | p99 | p99.9 | CPU client, server |\n|---|---|---|---|---|---|---|\n", g.title)
	for _, s := range g.subjects {
		low, high := s.extent()
		fmt.Fprintf(w, "| %s | %s | %.3g | %.3g | %s | %s | %s |\n", s.What, quantity(s.median(value), s.Unit), low, high,
			unlessZero(s.median(p99)), unlessZero(s.median(p999)), s.cost())
	}
}

// extent returns the least and the largest value.
func (s *subject) extent() (low, high float64) {
	for i, x := range s.Samples {
		if i == 0 || x.Value < low {
			low = x.Value
		}
		high = max(high, x.Value)
	}
	return low, high
}

// cost is the processor time of a message, or of a KiB of long ones.
func (s *subject) cost() string {
	if len(s.Samples) == 0 || s.Samples[0].SendNs == 0 {
		return ""
	}
	n, of := 1.0, "message"
	if bytes := s.Samples[0].Bytes; bytes > 1024 {
		n, of = float64(bytes)/1024, "KiB"
	}
	return fmt.Sprintf("%.0f, %.0f ns per %s", s.median(sendNs)/n, s.median(recvNs)/n, of)
}

func quantity(v float64, unit string) string {
	switch {
	case unit == "":
		return fmt.Sprintf("%.2f", v)
	case unit == "%":
		return fmt.Sprintf("%.2g %%", v)
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

func unlessZero(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", v)
}
