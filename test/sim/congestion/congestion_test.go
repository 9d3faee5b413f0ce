package congestion

import (
	"encoding/xml"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var charts = flag.String("congestion.charts", "", "run all experiments, and write the charts to this directory")

// Flows that share a link have the same share of it 50 ms after they began, use it up,
// lose nothing where there is PFC, and leave a queue that the fluid model explains.
func TestFairness(t *testing.T) {
	t.Run("4 flows, 25 Gb/s", func(t *testing.T) { fairness(t, 4, 25e9) })
	t.Run("16 flows, 10 Gb/s", func(t *testing.T) { fairness(t, 16, 10e9) })
}

func fairness(t *testing.T, n int, line float64) {
	r, err := Run(Equal(n, line, hpccRED, 2*settled))
	if err != nil {
		t.Fatal(err)
	}
	if j := Jain(r.Mean(settled)); j < 0.98 {
		t.Errorf("Jain's index is %.3f: %v", j, r.Mean(settled))
	}
	if u := r.Utilisation(settled); u < 0.95 || u > 1.001 {
		t.Errorf("%.3f of the link is used", u)
	}
	if r.Dropped > 0 {
		t.Errorf("%d packets were dropped, with PFC", r.Dropped)
	}
	if _, fluid := FixedPoint(Defaults(line), r.Config, n); r.MeanQueue(settled) < fluid/2 || r.MeanQueue(settled) > 2*fluid {
		t.Errorf("the queue is %.0f bytes, of the fluid model %.0f", r.MeanQueue(settled), fluid)
	}
	if r.Marked == 0 || r.CNPs == 0 || r.CNPs > r.Marked {
		t.Errorf("%d packets marked, %d CNPs", r.Marked, r.CNPs)
	}
}

// All experiments, their tables and their charts.
func TestReport(t *testing.T) {
	if *charts == "" {
		t.Skip("no -congestion.charts")
	}
	files, err := Report(os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	for name, svg := range files {
		if err := os.WriteFile(filepath.Join(*charts, name+".svg"), []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Jain's index is 1 for equal shares, 1/n for one that has all.
func TestJain(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		want  float64
	}{{[]float64{5, 5, 5}, 1}, {[]float64{7, 0, 0, 0}, 0.25}, {[]float64{1, 3}, 0.8}, {nil, 0}} {
		if got := Jain(c.rates); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.rates, got, c.want)
		}
	}
}

// Fair is when the fairness has come to stay.
func TestFair(t *testing.T) {
	r := Result{Config: Config{Window: time.Millisecond, Flows: make([]Flow, 2)}}
	for w := range 40 {
		rates := []float64{1, 1}
		if w < 12 || w == 15 {
			rates[1] = 0
		}
		r.Rates = append(r.Rates, rates)
	}
	if d, ok := r.Fair(10 * time.Millisecond); d != 7*time.Millisecond || !ok {
		t.Errorf("%v, %v, want 7ms: windows 16 to 25 are fair", d, ok)
	}
}

// A chart is well-formed and has a line for each series.
func TestChart(t *testing.T) {
	svg := Chart{Title: "t", X: "ms", Y: "KB", Series: []Series{{"a", []float64{0, 1}, []float64{2, 3}}, {"b", []float64{0, 2}, []float64{0, 0}}}}.SVG()
	d := xml.NewDecoder(strings.NewReader(svg))
	lines := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" && strings.Contains(svg[:d.InputOffset()], `fill="none"`) {
			lines++
		}
	}
	if lines != 2 {
		t.Errorf("%d lines, want 2", lines)
	}
}
