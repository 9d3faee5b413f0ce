package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"slices"
	"time"
)

// interopReport is what --json prints, and what the page shows.
type interopReport struct {
	Host       string         `json:"host"`
	Label      string         `json:"label,omitempty"`
	Peer       string         `json:"peer_addr"`
	Local      string         `json:"local_addr"`
	Version    string         `json:"version"` // of roce
	Began      time.Time      `json:"began"`
	Kinds      []string       `json:"peers"` // what was tested there: serve, rping, perftest
	Passed     int            `json:"passed"`
	Failed     int            `json:"failed"`
	NotOffered int            `json:"not_offered"`
	Seconds    float64        `json:"seconds"`
	Cells      []*interopCell `json:"cells"`

	began time.Time
}

// interopAll are the operations that some peer offers.
var interopAll = serveOffers()

// lacks lists what a kind of peer does not offer.
func (r *interopReport) lacks(kind string, offers []interopOffer) {
	for i := range interopAll {
		all := &interopAll[i]
		if !slices.ContainsFunc(offers, func(o interopOffer) bool { return o.op == all.op && o.service == all.service }) {
			r.Cells = append(r.Cells, &interopCell{
				Peer: kind, Transport: all.service.String(), Operation: all.op.name, By: all.op.by(),
				Result: resultNotOffered, Reason: kind + " has no such operation",
			})
		}
	}
}

// finish counts.
func (r *interopReport) finish() {
	r.Seconds = time.Since(r.began).Seconds()
	for _, c := range r.Cells {
		switch c.Result {
		case resultOK:
			r.Passed++
		case resultFailed:
			r.Failed++
		default:
			r.NotOffered++
		}
	}
}

// Row is one operation of the matrix: a result for each path MTU and size.
type interopRow struct {
	Peer, Transport, Operation, By string
	Fault, Expected, Rule          string
	Passed, Failed                 int
	Lacking                        string // why it is not offered
	MTUs, Sizes                    []int
	Bad                            []*interopCell
}

// Rows sums up the cells of each operation, those with faults by fault.
func (r *interopReport) Rows() (rows []*interopRow) {
	find := func(c *interopCell) *interopRow {
		for _, w := range rows {
			if w.Peer == c.Peer && w.Transport == c.Transport && w.Operation == c.Operation && w.By == c.By && w.Fault == c.Fault {
				return w
			}
		}
		w := &interopRow{Peer: c.Peer, Transport: c.Transport, Operation: c.Operation, By: c.By, Fault: c.Fault, Expected: c.Expected, Rule: c.Rule}
		rows = append(rows, w)
		return w
	}
	for _, c := range r.Cells {
		w := find(c)
		switch c.Result {
		case resultOK:
			w.Passed++
		case resultFailed:
			w.Failed++
			w.Bad = append(w.Bad, c)
		default:
			w.Lacking = c.Reason
			continue
		}
		if !slices.Contains(w.MTUs, c.MTU) {
			w.MTUs = append(w.MTUs, c.MTU)
		}
		if !slices.Contains(w.Sizes, c.Size) {
			w.Sizes = append(w.Sizes, c.Size)
		}
	}
	for _, w := range rows {
		slices.Sort(w.MTUs)
		slices.Sort(w.Sizes)
	}
	return rows
}

// Result is the row's in a word or two.
func (w *interopRow) Result() string {
	switch {
	case w.Failed > 0:
		return fmt.Sprintf("FAILED %d of %d", w.Failed, w.Failed+w.Passed)
	case w.Passed > 0:
		return fmt.Sprintf("ok %d", w.Passed)
	}
	return resultNotOffered
}

// print prints the report as text.
func (r *interopReport) print(w io.Writer) {
	if r.Label != "" {
		fmt.Fprintln(w, r.Label)
	}
	fmt.Fprintf(w, "%s (%s) from %s, %s, roce %s\n", r.Host, r.Peer, r.Local, r.Began.Format(time.RFC3339), r.Version)
	fmt.Fprintf(w, "%-8s %-4s %-9s %-4s %-11s %-14s\n", "peer", "", "operation", "by", "fault", "result")
	for _, row := range r.Rows() {
		fmt.Fprintf(w, "%-8s %-4s %-9s %-4s %-11s %s", row.Peer, row.Transport, row.Operation, row.By, row.Fault, row.Result())
		switch {
		case row.Failed+row.Passed == 0:
			fmt.Fprintf(w, ": %s", row.Lacking)
		case row.Fault == "":
			fmt.Fprintf(w, ", path MTUs %v, bytes %v", row.MTUs, row.Sizes)
		}
		fmt.Fprintln(w)
		for _, c := range row.Bad {
			fmt.Fprintf(w, "    path MTU %d, %d bytes: %s\n", c.MTU, c.Size, c.Reason)
			if c.Expected != "" {
				fmt.Fprintf(w, "    expected: %s (%s)\n", c.Expected, c.Rule)
			}
			for _, p := range c.Packets {
				fmt.Fprintf(w, "      %s\n", p)
			}
		}
	}
	fmt.Fprintf(w, "passed %d failed %d not-offered %d in %.1f s\n", r.Passed, r.Failed, r.NotOffered, r.Seconds)
}

//go:embed interop_report.html
var interopPage string

var interopTemplate = template.Must(template.New("report").Parse(interopPage))

// writeHTML writes the report as one page that needs nothing else.
func (r *interopReport) writeHTML(name string) error {
	var b bytes.Buffer
	if err := interopTemplate.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
