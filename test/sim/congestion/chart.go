package congestion

import (
	"fmt"
	"math"
	"strings"
)

// Series is one line of a chart.
type Series struct {
	Name string
	X, Y []float64
}

// Chart is lines over one another.
type Chart struct {
	Title, X, Y string
	Series      []Series
}

var colours = []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#148f77", "#7b4b3a", "#566573"}

// SVG draws the chart.
func (c Chart) SVG() string {
	const width, height, left, right, top, bottom = 760, 340, 60, 20, 40, 45
	xmax, ymax := 0.0, 0.0
	for _, s := range c.Series {
		for i := range s.X {
			xmax, ymax = max(xmax, s.X[i]), max(ymax, s.Y[i])
		}
	}
	xstep, ystep := tick(xmax), tick(ymax)
	xmax, ymax = math.Ceil(xmax/xstep)*xstep, math.Ceil(ymax/ystep)*ystep
	px := func(x float64) float64 { return left + x/xmax*(width-left-right) }
	py := func(y float64) float64 { return height - bottom - y/ymax*(height-top-bottom) }
	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	out(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`, width, height)
	out(`<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="20" font-size="14">%s</text>`, left, c.Title)
	for y := 0.0; y <= ymax; y += ystep {
		out(`<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`, left, py(y), width-right, left-6, py(y)+4, y)
	}
	for x := 0.0; x <= xmax; x += xstep {
		out(`<text x="%.1f" y="%d" text-anchor="middle">%g</text>`, px(x), height-bottom+18, x)
	}
	out(`<text x="%d" y="%d" text-anchor="end">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`, width-right, height-8, c.X, left-6, top-6, c.Y)
	for i, s := range c.Series {
		var path strings.Builder
		for k := range s.X {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(k, 1)], px(s.X[k]), py(s.Y[k]))
		}
		colour := colours[i%len(colours)]
		out(`<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, path.String(), colour)
		out(`<text x="%d" y="%d" fill="%s" text-anchor="end">%s</text>`, width-right-4, top+14*(i+1), colour, s.Name)
	}
	out(`</svg>`)
	return b.String()
}

// tick is a round number of which about five fit.
func tick(most float64) float64 {
	if most <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, f := range []float64{1, 2, 5} {
		if most/(f*unit) <= 6 {
			return f * unit
		}
	}
	return 10 * unit
}

// queueSeries is the queue over time, in averages of half a millisecond.
func (r *Result) queueSeries(name string) Series {
	const group = 100
	s := Series{Name: name}
	for at := 0; at+group <= len(r.Queue); at += group {
		sum := 0
		for _, q := range r.Queue[at : at+group] {
			sum += q
		}
		s.X = append(s.X, float64(at)*sample.Seconds()*1e3)
		s.Y = append(s.Y, float64(sum)/group/1000)
	}
	return s
}

// rateSeries is the rate of each flow over time.
func (r *Result) rateSeries() (l []Series) {
	for i := range r.Flows {
		s := Series{Name: fmt.Sprintf("flow %d", i+1)}
		for w := range r.Rates {
			s.X = append(s.X, (float64(w)+0.5)*r.Window.Seconds()*1e3)
			s.Y = append(s.Y, r.Rates[w][i]/1e9)
		}
		l = append(l, s)
	}
	return l
}
