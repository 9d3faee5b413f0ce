//go:build linux

package interop

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeTable writes the results of a full run as a document.
func writeTable(t *testing.T, path string, results []result, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(table(results, at)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %s", path)
}

// table is the document: one row per case, one column per kernel.
func table(results []result, at time.Time) string {
	var kernels, rows []string
	cells := map[string]string{}
	total := map[string]time.Duration{}
	passed := 0
	for _, r := range results {
		row := r.group + " | " + r.name
		if !slices.Contains(kernels, r.kernel) {
			kernels = append(kernels, r.kernel)
		}
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		cell := fmt.Sprintf("ok %.1f s", r.took.Seconds())
		if !r.ok {
			cell = "**failed**"
		} else {
			passed++
		}
		if r.note != "" {
			cell += ", " + r.note
		}
		cells[row+r.kernel] = cell
		total[r.kernel] += r.took
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Interoperability with Linux rxe\n\nRun on %s by `make interop`: %d of %d cases passed. The peer is the rxe driver of a Debian kernel with rdma-core 44\n"+
		"(ibv_*_pingpong, pyverbs), in QEMU under software emulation, so the times say nothing about speed. Every RoCE packet of both sides was\n"+
		"checked: its ICRC, its form by package ib, and by tshark.\n\n", at.UTC().Format("2006-01-02"), passed, len(results))
	b.WriteString("| group | case |")
	for _, k := range kernels {
		b.WriteString(" " + k + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(kernels)) + "\n")
	for _, row := range rows {
		b.WriteString("| " + row + " |")
		for _, k := range kernels {
			cell := cells[row+k]
			if cell == "" {
				cell = "not run"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("| | seconds in all |")
	for _, k := range kernels {
		fmt.Fprintf(&b, " %.0f |", total[k].Seconds())
	}
	b.WriteString("\n")
	return b.String()
}
