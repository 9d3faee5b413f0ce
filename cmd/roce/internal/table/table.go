// Package table prints columns of text: the first aligned left, the others
// right.
package table

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells. The zero value is an empty table.
type Table struct {
	rows [][]string // nil for a rule
}

// Row appends a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Rule appends a line across the table.
func (t *Table) Rule() { t.rows = append(t.rows, nil) }

// WriteTo prints the table; lines have no trailing spaces.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	total := max(0, 2*(len(widths)-1))
	for _, n := range widths {
		total += n
	}
	var b strings.Builder
	for _, row := range t.rows {
		if row == nil {
			b.WriteString(strings.Repeat("-", total))
		}
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i == 0 {
				line.WriteString(c + pad)
			} else {
				line.WriteString("  " + pad + c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
