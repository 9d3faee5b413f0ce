//go:build linux

package main

import (
	"fmt"
	"io"
)

// A part of the benchmarks is measured and written by itself: none takes longer than
// a few minutes.
type part struct {
	name   string // also that of its markers in the document
	rounds int
	groups []group
	print  func(w io.Writer, p *part)
	chart  func(p *part) *chart // nil for none
	close  func()               // nil for nothing
}

func (p *part) byID() map[string]*subject {
	by := map[string]*subject{}
	for _, g := range p.groups {
		for _, s := range g.subjects {
			by[s.ID] = s
		}
	}
	return by
}

// allParts are all there are.
func allParts(l *testLab) []*part {
	return []*part{
		{name: "targets", rounds: 3, groups: targetGroups(l), print: printTargetPart},
		{name: "veth", rounds: 3, groups: sweepGroups(&l.veth), print: printSweep, chart: sweepChart},
		{name: "loopback", rounds: 3, groups: sweepGroups(&l.loopback), print: printSweep, chart: sweepChart},
		{name: "latency", rounds: 3, groups: latencyGroups(l), print: printLatencies},
	}
}

// printTargetPart writes the targets, then all that was measured for them.
func printTargetPart(w io.Writer, p *part) {
	printTargets(w, p.byID())
	for i := range p.groups {
		fmt.Fprintln(w)
		printSubjects(w, &p.groups[i])
	}
}

// latencyGroups have 8-byte messages, polling and sleeping.
func latencyGroups(l *testLab) (groups []group) {
	for _, n := range []*network{&l.veth, &l.loopback} {
		g := group{title: n.name}
		for _, t := range []struct {
			what, test string
			flags      []string
			sleeps     bool // or it looks at memory, which wakes nobody
		}{
			{"WRITE, one way", "write_lat", []string{"-s", "8"}, false},
			{"SEND, one way", "send_lat", []string{"-s", "8"}, true},
			{"READ", "read_lat", []string{"-s", "8"}, true},
			{"FetchAdd", "atomic_lat", nil, true},
		} {
			flags := append([]string{"-n", "20000"}, t.flags...)
			g.subjects = append(g.subjects, &subject{ID: n.name + "/" + t.test, What: t.what + ", polling", Unit: usec, player: perf{n, t.test, flags, usecs}})
			if t.sleeps {
				g.subjects = append(g.subjects, &subject{ID: n.name + "/" + t.test + "/sleep", What: t.what + ", sleeping", Unit: usec, player: perf{n, t.test, append(flags, "-e"), usecs}})
			}
		}
		g.subjects = append(g.subjects,
			&subject{ID: n.name + "/spin", What: "UDP, one way, polling", Unit: usec, player: baseline{n, "udp-pingpong", []string{"spin"}, roleUsecs}},
			&subject{ID: n.name + "/block", What: "UDP, one way, sleeping", Unit: usec, player: baseline{n, "udp-pingpong", []string{"block"}, roleUsecs}},
			&subject{ID: n.name + "/tcp", What: "TCP, one way, sleeping", Unit: usec, player: baseline{n, "tcp-pingpong", nil, roleUsecs}})
		groups = append(groups, g)
	}
	return groups
}

func printLatencies(w io.Writer, p *part) {
	for i, g := range p.groups {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "| 8 bytes, %s | p50 | p99 | p99.9 | CPU client, server |\n|---|---|---|---|---|\n", g.title)
		for _, s := range g.subjects {
			fmt.Fprintf(w, "| %s | %.3g us | %.3g us | %.3g us | %s |\n", s.What, s.median(value), s.median(p99), s.median(p999), s.cost())
		}
	}
}
