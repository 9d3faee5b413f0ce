//go:build linux

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// document is what the table is made of.
type document struct {
	mode    string
	results []result
	own     map[ownTest]bool // the tests that stand for what rxe lacks, and whether they passed
	at      time.Time
}

// writeTable writes the results of a run. A relative path is one from the top of the repository.
func writeTable(t *testing.T, path string, d document) {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(root(t), path)
	}
	if err := os.WriteFile(path, []byte(d.text()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %s", path)
	for _, m := range uncovered(d.results, kernelsOf(d.results)) {
		t.Errorf("no case has tried %s", m)
	}
}

// kernelsOf lists the kernels in the order in which they ran.
func kernelsOf(results []result) (kernels []string) {
	for _, r := range results {
		if !slices.Contains(kernels, r.kernel) {
			kernels = append(kernels, r.kernel)
		}
	}
	return kernels
}

const tableIntro = `# Interoperability with Linux rxe

%s: %d of %d cases passed. The page is written by the run. The peer is the rxe driver of a Debian kernel in QEMU under software
emulation, so the times say nothing about speed. Its programs are those of Debian 12 (rdma-core 44, perftest 4.5), for ATOMIC_WRITE, FLUSH
and "perftest 25.01" those of Debian 13 (rdma-core 56). Every RoCE packet of both sides was checked: its ICRC, its form by package ib, and by tshark.
Both versions of perftest over each service, with and without rdma_cm: [reports](reports/README.md).

## Operations

How many cases use the operation and passed, and in which groups of the last table they are.

`

// ranBy says which run the page is of.
func (d document) ranBy() string {
	date := d.at.UTC().Format("2006-01-02")
	if d.mode == full {
		return "Run on " + date + " by `make interop`, all cases"
	}
	return "Run on " + date + ", of all cases the subset that `make test` runs and that has each value of every parameter"
}

// text is the page: operations, programs, and one row per case with one column per kernel.
func (d document) text() string {
	results, kernels := d.results, kernelsOf(d.results)
	passed := 0
	for _, r := range results {
		if r.ok {
			passed++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, tableIntro, d.ranBy(), passed, len(results))
	operationTable(&b, results, kernels, d.own)
	b.WriteString("\n## Programs\n\n")
	programTable(&b, results, kernels)
	b.WriteString("\n## Cases\n\n")
	caseTable(&b, results, kernels)
	return b.String()
}

func caseTable(b *strings.Builder, results []result, kernels []string) {
	var rows []string
	cells := map[string]string{}
	total := map[string]time.Duration{}
	for _, r := range results {
		row := r.group + " | " + r.name
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		cell := fmt.Sprintf("ok %.1f s", r.took.Seconds())
		if !r.ok {
			cell = "**failed**"
		}
		if r.note != "" {
			cell += ", " + r.note
		}
		cells[row+r.kernel] = cell
		total[r.kernel] += r.took
	}
	b.WriteString("| group | case |" + headings(kernels) + "\n|---|---|" + strings.Repeat("---|", len(kernels)) + "\n")
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
		fmt.Fprintf(b, " %.0f |", total[k].Seconds())
	}
	b.WriteString("\n")
}
