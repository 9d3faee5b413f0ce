package congestion

import (
	"fmt"
	"io"
	"time"

	"github.com/goroce/goroce/test/sim/network"
	"github.com/goroce/goroce/transport/cc"
)

// Defaults are those of cc.DCQCN, written out, at a line rate.
func Defaults(line float64) cc.DCQCN {
	return cc.DCQCN{
		G: 1.0 / 256, K: 55 * time.Microsecond, Tr: 55 * time.Microsecond, B: 10_000_000, F: 1,
		RAI: cc.Rate(line / 1250), RHAI: cc.Rate(line / 250), Rmin: 10 * cc.Mbps, LineRate: cc.Rate(line),
	}
}

// Red are thresholds of RED in use: those of the paper, and those of the simulator of
// HPCC for 25 Gb/s.
var (
	paperRED = network.SwitchConfig{RED: network.RED{Kmin: 5_000, Kmax: 200_000, Pmax: 0.01}, Pause: 300_000, Resume: 250_000}
	hpccRED  = network.SwitchConfig{RED: network.RED{Kmin: 100_000, Kmax: 400_000, Pmax: 0.2}, Pause: 500_000, Resume: 450_000}
)

// seeds are those of the equal flows. Parameters were chosen with others.
var seeds = []uint64{101, 102, 103, 104, 105}

// Equal is n flows that begin together.
func Equal(n int, line float64, sw network.SwitchConfig, d time.Duration) Config {
	return Config{
		Algorithm: Defaults(line), Rate: line, Delay: time.Microsecond, Switch: sw,
		Flows: make([]Flow, n), Length: d, Window: 10 * time.Millisecond, Seed: seeds[0],
	}
}

// settled is when the equal flows are looked at: what the issue of fairness asks for.
const settled = 50 * time.Millisecond

// report runs experiments and writes what they show, until something fails.
type report struct {
	w   io.Writer
	err error
}

func (p *report) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *report) run(cfg Config) Result {
	if p.err != nil {
		return Result{Config: cfg}
	}
	r, err := Run(cfg)
	p.err = err
	return r
}

// several is what the runs of all seeds show after they have settled.
type several struct {
	jain, used, queue float64 // averages
	lowJain, lowUsed  float64
	dropped           int // in sum
	last              Result
}

// seeds runs an experiment with each seed.
func (p *report) seeds(cfg Config) several {
	s := several{lowJain: 1, lowUsed: 1}
	for _, cfg.Seed = range seeds {
		r := p.run(cfg)
		if p.err != nil {
			break
		}
		jain, used, n := Jain(r.Mean(settled)), r.Utilisation(settled), float64(len(seeds))
		s.jain, s.used, s.queue = s.jain+jain/n, s.used+used/n, s.queue+r.MeanQueue(settled)/n
		s.lowJain, s.lowUsed = min(s.lowJain, jain), min(s.lowUsed, used)
		s.dropped += r.Dropped
		s.last = r
	}
	return s
}

// Report runs all experiments, writes the tables and returns the charts by name.
func Report(w io.Writer) (charts map[string]string, err error) {
	p := &report{w: w}
	charts = map[string]string{}
	p.fairness(charts)
	p.differences()
	p.convergence(charts)
	p.incast(charts)
	p.parameters()
	return charts, p.err
}

func (p *report) fairness(charts map[string]string) {
	p.line("| flows | links | RED | Jain after 50 ms: mean, lowest | utilisation | queue | of the fluid model | dropped |\n|---|---|---|---|---|---|---|---|")
	for _, c := range []struct {
		name string
		red  network.SwitchConfig
		line float64
		ns   []int
	}{
		{"5/200 KB, 1 %", paperRED, 40e9, []int{2, 4, 8, 16}},
		{"100/400 KB, 20 %", hpccRED, 10e9, []int{2, 16}},
		{"100/400 KB, 20 %", hpccRED, 25e9, []int{2, 4, 8, 16}},
		{"100/400 KB, 20 %", hpccRED, 100e9, []int{2, 16}},
	} {
		var series []Series
		for _, n := range c.ns {
			cfg := Equal(n, c.line, c.red, 2*settled)
			s := p.seeds(cfg)
			if p.err != nil {
				return
			}
			share, fluid := FixedPoint(Defaults(c.line), cfg, n)
			note := fmt.Sprintf("%.0f KB", fluid/1000)
			if share > c.red.Pmax {
				note = "none: above Kmax"
			}
			p.line("| %d | %.0f Gb/s | %s | %.3f, %.3f | %.1f %%, %.1f %% | %.0f KB | %s | %d |", n, c.line/1e9, c.name, s.jain, s.lowJain, 100*s.used, 100*s.lowUsed, s.queue/1000, note, s.dropped)
			series = append(series, s.last.queueSeries(fmt.Sprintf("%d flows", n)))
		}
		if c.line == 25e9 {
			charts["queue"] = Chart{Title: "Queue of the bottleneck, 25 Gb/s, RED 100/400 KB, 20 %", X: "ms", Y: "KB", Series: series}.SVG()
		}
	}
}

// differences shows what the differences from the paper do to many flows: timers that
// know round trip times, and other steps.
func (p *report) differences() {
	p.line("\n| 16 flows, RED 100/400 KB, 20 %% | 10 Gb/s: Jain | utilisation | queue | 25 Gb/s: Jain | utilisation | queue |\n|---|---|---|---|---|---|---|")
	for _, c := range []struct {
		name   string
		noRTT  bool
		change func(d *cc.DCQCN)
	}{
		{"the paper's: F 5, RAI 40 Mb/s, no round trip times", true, func(d *cc.DCQCN) { d.F, d.RAI, d.RHAI = 5, 40*cc.Mbps, 200*cc.Mbps }},
		{"no round trip times: UC, UD", true, func(*cc.DCQCN) {}},
		{"F 5", false, func(d *cc.DCQCN) { d.F = 5 }},
		{"RAI 40 Mb/s", false, func(d *cc.DCQCN) { d.RAI, d.RHAI = 40*cc.Mbps, 200*cc.Mbps }},
		{"the default", false, func(*cc.DCQCN) {}},
	} {
		row := "| " + c.name + " |"
		for _, line := range []float64{10e9, 25e9} {
			cfg, d := Equal(16, line, hpccRED, 2*settled), Defaults(line)
			c.change(&d)
			cfg.Algorithm, cfg.NoRTT = d, c.noRTT
			s := p.seeds(cfg)
			if p.err != nil {
				return
			}
			row += fmt.Sprintf(" %.3f, %.3f | %.1f %%, %.1f %% | %.0f KB |", s.jain, s.lowJain, 100*s.used, 100*s.lowUsed, s.queue/1000)
		}
		p.line("%s", row)
	}
}

// convergence has four flows, four more from 100 ms on, of which four end at 250 ms.
func (p *report) convergence(charts map[string]string) {
	const join, leave = 100 * time.Millisecond, 250 * time.Millisecond
	p.line("\n| links | Jain over 10 ms is 0.9 again, after four flows joined four | after four left |\n|---|---|---|")
	for _, line := range []float64{10e9, 40e9, 100e9} {
		cfg := Equal(8, line, hpccRED, 400*time.Millisecond)
		for i := range cfg.Flows {
			if i >= 4 {
				cfg.Flows[i].Start = join
			} else if i >= 2 {
				cfg.Flows[i].Stop = leave
			}
			if i >= 6 {
				cfg.Flows[i].Stop = leave
			}
		}
		r := p.run(cfg)
		if p.err != nil {
			return
		}
		p.line("| %.0f Gb/s | %s | %s |", line/1e9, r.fairAfter(join), r.fairAfter(leave))
		if line == 40e9 {
			charts["convergence"] = Chart{Title: "Four flows, four more at 100 ms, four end at 250 ms, 40 Gb/s", X: "ms", Y: "Gb/s", Series: r.rateSeries()}.SVG()
		}
	}
}

func (r *Result) fairAfter(at time.Duration) string {
	if d, ok := r.Fair(at); ok {
		return d.String()
	}
	return "not seen"
}

func (p *report) incast(charts map[string]string) {
	p.line("\n| 32 flows into one, 40 Gb/s | dropped | longest queue | queue after 50 ms | pauses | Jain after 50 ms | utilisation |\n|---|---|---|---|---|---|---|")
	pfc, buffer := hpccRED, hpccRED
	pfc.Pause, pfc.Resume = 250_000, 200_000 // 32 of them fit into the buffer
	buffer.Pause = 0
	none := Equal(32, 40e9, buffer, 2*settled)
	none.Algorithm = fixed{}
	var series []Series
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"DCQCN, PFC", Equal(32, 40e9, pfc, 2*settled)},
		{"DCQCN, shared buffer of 12 MB, no PFC", Equal(32, 40e9, buffer, 2*settled)},
		{"no control, shared buffer of 12 MB, no PFC", none},
	} {
		r := p.run(c.cfg)
		if p.err != nil {
			return
		}
		longest := 0
		for _, q := range r.Queue {
			longest = max(longest, q)
		}
		p.line("| %s | %d | %.1f MB | %.2f MB | %d | %.3f | %.1f %% |", c.name, r.Dropped, float64(longest)/1e6, r.MeanQueue(settled)/1e6,
			r.Pauses, Jain(r.Mean(settled)), 100*r.Utilisation(settled))
		series = append(series, r.queueSeries(c.name))
	}
	charts["incast"] = Chart{Title: "32 flows into one: queue of the bottleneck, 40 Gb/s", X: "ms", Y: "KB", Series: series}.SVG()
}

// parameters shows what each does to eight flows.
func (p *report) parameters() {
	p.line("\n| eight flows, 40 Gb/s, RED 100/400 KB, 20 %% | Jain after 50 ms | utilisation | queue |\n|---|---|---|---|")
	for _, c := range []struct {
		name   string
		change func(d *cc.DCQCN, s *network.SwitchConfig)
	}{
		{"defaults", func(*cc.DCQCN, *network.SwitchConfig) {}},
		{"G 1/16", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.G = 1.0 / 16 }},
		{"G 1/1024", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.G = 1.0 / 1024 }},
		{"K 200 us", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.K = 200 * time.Microsecond }},
		{"Tr 20 us", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.Tr = 20 * time.Microsecond }},
		{"Tr 300 us", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.Tr = 300 * time.Microsecond }},
		{"B 150 KB", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.B = 150_000 }},
		{"F 5", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.F = 5 }},
		{"RAI 5 Mb/s", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.RAI = 5 * cc.Mbps }},
		{"RAI 200 Mb/s", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.RAI = 200 * cc.Mbps }},
		{"RHAI 2 Gb/s", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.RHAI = 2 * cc.Gbps }},
		{"Rmin 1 Gb/s", func(d *cc.DCQCN, _ *network.SwitchConfig) { d.Rmin = cc.Gbps }},
		{"Kmin 400 KB, Kmax 400 KB: a step", func(_ *cc.DCQCN, s *network.SwitchConfig) { s.Kmin = s.Kmax }},
		{"Pmax 1 %", func(_ *cc.DCQCN, s *network.SwitchConfig) { s.Pmax = 0.01 }},
	} {
		cfg := Equal(8, 40e9, hpccRED, 2*settled)
		d := Defaults(cfg.Rate)
		c.change(&d, &cfg.Switch)
		cfg.Algorithm = d
		r := p.run(cfg)
		if p.err != nil {
			return
		}
		p.line("| %s | %.3f | %.1f %% | %.0f KB |", c.name, Jain(r.Mean(settled)), 100*r.Utilisation(settled), r.MeanQueue(settled)/1000)
	}
}

// fixed is no control: what is sent goes as fast as the link.
type fixed struct{}

func (fixed) New() (cc.Controller, error)     { return fixed{}, nil }
func (fixed) Rate(time.Duration) cc.Rate      { return cc.Unlimited }
func (fixed) Sent(time.Duration, int)         {}
func (fixed) Signal(time.Duration, cc.Signal) {}
func (fixed) State() cc.State                 { return cc.State{Rate: cc.Unlimited, Target: cc.Unlimited} }
