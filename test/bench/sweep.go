//go:build linux

package main

import (
	"fmt"
	"io"
	"strconv"
)

// A sweep is throughput over message sizes on one network, at two path MTUs.

var sweepOps = []struct{ name, test string }{{"WRITE", "write_bw"}, {"SEND", "send_bw"}, {"READ", "read_bw"}}

var sweepMTUs = []int{4096, 1024}

// sweepSizes are 64 bytes to 4 MiB.
func sweepSizes() (all []int) {
	for n := 64; n <= 4<<20; n *= 4 {
		all = append(all, n)
	}
	return all
}

// sweepBytes are what a run moves, as far as sweepMost messages suffice.
const (
	sweepBytes = 512 << 20
	sweepMost  = 200_000
)

// sweepGroups has a group for each MTU, and one for what is drawn beside them.
func sweepGroups(n *network) (groups []group) {
	for _, mtu := range sweepMTUs {
		g := group{title: fmt.Sprintf("%s, MTU %d", n.name, mtu)}
		for _, bytes := range sweepSizes() {
			for _, op := range sweepOps {
				flags := size(bytes, "-m", strconv.Itoa(mtu), "-N", "-n", strconv.Itoa(min(sweepMost, sweepBytes/bytes)))
				g.subjects = append(g.subjects, &subject{
					ID: sweepID(mtu, op.name, bytes), What: fmt.Sprintf("%s %s", op.name, byteSize(bytes)), Unit: gbit, player: perf{n, op.test, flags, gbits},
				})
			}
		}
		groups = append(groups, g)
	}
	return append(groups, group{title: n.name + ", others", subjects: []*subject{
		{ID: "tcp", What: "TCP, 64 KiB writes", Unit: gbit, player: baseline{n, "tcp-stream", nil, roleGbits}},
		{ID: "limit", What: "limit program, MTU 4096", Unit: gbit, player: baseline{n, "udp-stream", []string{"limit", "4112"}, roleGbits}},
	}})
}

func sweepID(mtu int, op string, bytes int) string { return fmt.Sprintf("%d/%s/%d", mtu, op, bytes) }

// printSweep writes one table.
func printSweep(w io.Writer, p *part) {
	by := p.byID()
	fmt.Fprint(w, "| message |")
	for _, mtu := range sweepMTUs {
		for _, op := range sweepOps {
			fmt.Fprintf(w, " %s, MTU %d |", op.name, mtu)
		}
	}
	fmt.Fprint(w, " CPU of WRITE, MTU 4096: client, server |\n|---|---|---|---|---|---|---|---|\n")
	for _, bytes := range sweepSizes() {
		fmt.Fprintf(w, "| %s |", byteSize(bytes))
		for _, mtu := range sweepMTUs {
			for _, op := range sweepOps {
				fmt.Fprintf(w, " %.3g |", by[sweepID(mtu, op.name, bytes)].median(value))
			}
		}
		fmt.Fprintf(w, " %s |\n", by[sweepID(4096, "WRITE", bytes)].cost())
	}
	fmt.Fprintln(w)
	for _, id := range []string{"tcp", "limit"} {
		fmt.Fprintf(w, "%s: %s.\n", by[id].What, quantity(by[id].median(value), by[id].Unit))
	}
}

// sweepChart draws it.
func sweepChart(p *part) *chart {
	by := p.byID()
	c := &chart{title: "Throughput over " + p.name + " by message size (median)", sizes: sweepSizes()}
	for _, mtu := range sweepMTUs {
		for _, op := range sweepOps {
			if mtu != sweepMTUs[0] && op.name != "WRITE" {
				continue
			}
			l := chartLine{name: fmt.Sprintf("%s, MTU %d", op.name, mtu)}
			for _, bytes := range c.sizes {
				l.values = append(l.values, by[sweepID(mtu, op.name, bytes)].median(value))
			}
			c.lines = append(c.lines, l)
		}
	}
	for _, id := range []string{"tcp", "limit"} {
		c.levels = append(c.levels, chartLine{by[id].What, []float64{by[id].median(value)}})
	}
	return c
}
