//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math"
)

// A chart has one line for each operation, over message sizes.
type chart struct {
	title  string
	sizes  []int // of messages, in bytes
	lines  []chartLine
	levels []chartLine // horizontal ones: their first value
}

type chartLine struct {
	name   string
	values []float64 // Gbit/s
}

const (
	chartWidth, chartHeight    = 760, 400
	chartLeft, chartRight      = 60, 200 // margins
	chartTop, chartBottom      = 40, 50
	chartPlotWide, chartPlotUp = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
)

var chartColors = []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#7f7f7f"}

// svg draws the chart.
func (c *chart) svg() []byte {
	most := 1.0
	for _, l := range append(c.lines, c.levels...) {
		for _, v := range l.values {
			most = max(most, v)
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	if most/step < 3 {
		step /= 2
	}
	top := math.Ceil(most/step) * step
	x := func(i int) float64 { return chartLeft + float64(i)*chartPlotWide/float64(max(1, len(c.sizes)-1)) }
	y := func(v float64) float64 { return chartTop + chartPlotUp*(1-v/top) }

	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", chartWidth, chartHeight)
	fmt.Fprintf(&b, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"22\" font-size=\"14\">%s</text>\n", chartLeft, c.title)
	for v := 0.0; v <= top+step/2; v += step {
		fmt.Fprintf(&b, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", chartLeft, y(v), chartLeft+chartPlotWide, y(v))
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", chartLeft-6, y(v)+4, v)
	}
	fmt.Fprintf(&b, "<text x=\"14\" y=\"%d\" transform=\"rotate(-90 14 %d)\" text-anchor=\"middle\">Gbit/s</text>\n", chartTop+chartPlotUp/2, chartTop+chartPlotUp/2)
	for i, n := range c.sizes {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x(i), chartHeight-chartBottom+18, byteSize(n))
	}
	row := 0
	legend := func(name, style string) {
		fmt.Fprintf(&b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" %s/>\n", chartWidth-chartRight+14, chartTop+8+18*row, chartWidth-chartRight+38, chartTop+8+18*row, style)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\">%s</text>\n", chartWidth-chartRight+44, chartTop+12+18*row, name)
		row++
	}
	for k, l := range c.lines {
		style := fmt.Sprintf("fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", chartColors[k%len(chartColors)])
		b.WriteString("<polyline points=\"")
		for i, v := range l.values {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(i), y(v))
		}
		fmt.Fprintf(&b, "\" %s/>\n", style)
		legend(l.name, style)
	}
	for k, l := range c.levels {
		style := fmt.Sprintf("stroke=\"%s\" stroke-dasharray=\"6 4\"", chartColors[(len(c.lines)+k)%len(chartColors)])
		fmt.Fprintf(&b, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" %s/>\n", chartLeft, y(l.values[0]), chartLeft+chartPlotWide, y(l.values[0]), style)
		legend(l.name, style)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// byteSize is a size as people write it.
func byteSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
