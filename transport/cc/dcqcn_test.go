package cc

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const us = time.Microsecond

// step is something that happens to a controller, and its state afterwards. Without
// a signal and bytes only time passes.
type step struct {
	at     time.Duration
	signal string // "cnp", "timeout", "start", "ack"
	sent   int
	got    Rate // delivered
	rtt    time.Duration

	rate, target Rate
	alpha        float64
}

func (s step) do(c Controller) {
	switch s.signal {
	case "cnp":
		c.Signal(s.at, Signal{Kind: CNP, Delivered: s.got})
	case "timeout":
		c.Signal(s.at, Signal{Kind: Timeout, Delivered: s.got})
	case "start":
		c.Signal(s.at, Signal{Kind: Start})
	case "ack":
		c.Signal(s.at, Signal{Kind: Ack, RTT: s.rtt, Least: us})
	default:
		c.Sent(s.at, s.sent)
	}
	c.Rate(s.at)
}

func newOf(t testing.TB, a Algorithm) Controller {
	t.Helper()
	c, err := a.New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// near allows for rounding: a bit per second.
func near(a, b Rate) bool { return a == b || math.Abs(float64(a-b)) < 1 }

// Each rule of the algorithm, with values computed by hand: rates in Mb/s, halves of
// halves, with g = 1/2, so that nothing is rounded. K is 60 us, Tr 100 us, B 1000
// bytes, F 2, RAI 8, RHAI 100, Rmin 10, the line 1024 Mb/s.
func TestDCQCN(t *testing.T) {
	p := DCQCN{G: 0.5, K: 60 * us, Tr: 100 * us, B: 1000, F: 2, RAI: 8 * Mbps, RHAI: 100 * Mbps, LineRate: 1024 * Mbps}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"RC and RT start at line rate, alpha at 1", []step{
			{at: 0, rate: 1024, target: 1024, alpha: 1},
			{at: time.Second, rate: 1024, target: 1024, alpha: 1},
		}},
		{"a CNP: RT = RC, RC = RC (1 - alpha/2), alpha = (1-g) alpha + g", []step{
			{at: 10 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 20 * us, signal: "cnp", rate: 256, target: 512, alpha: 1},
			// at 80 us alpha = 1/2; the CNP takes 1/4 of 256 away; alpha = 1/4 + 1/2
			{at: 80 * us, signal: "cnp", rate: 192, target: 256, alpha: 0.75},
			// 192 (1 - 3/8) = 120; alpha = 3/8 + 1/2
			{at: 81 * us, signal: "cnp", rate: 120, target: 192, alpha: 0.875},
		}},
		{"each K without a CNP: alpha = (1-g) alpha; a CNP begins K anew", []step{
			{at: 10 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 69 * us, rate: 512, target: 1024, alpha: 1},
			{at: 70 * us, rate: 512, target: 1024, alpha: 0.5},
			{at: 100 * us, signal: "cnp", rate: 384, target: 512, alpha: 0.75},
			{at: 159 * us, rate: 384, target: 512, alpha: 0.75},
			{at: 160 * us, rate: 384, target: 512, alpha: 0.375},
		}},
		{"fast recovery: RC = (RC+RT)/2, F-1 times; then additive: RT += RAI; the line bounds RT", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 0, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 99 * us, rate: 256, target: 512, alpha: 0.5},
			{at: 100 * us, rate: 384, target: 512, alpha: 0.5},
			{at: 200 * us, rate: 452, target: 520, alpha: 0.125}, // T = 2 = F
			{at: 300 * us, rate: 490, target: 528, alpha: 1.0 / 32},
		}},
		{"steps that were not asked for are made up for", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 0, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 300 * us, rate: 490, target: 528, alpha: 1.0 / 32},
		}},
		{"every B bytes: a step of its own; a CNP sets T, BC and the count of bytes to 0", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 1 * us, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 2 * us, sent: 999, rate: 256, target: 512, alpha: 1},
			{at: 2 * us, sent: 1, rate: 384, target: 512, alpha: 1},
			{at: 3 * us, sent: 900, rate: 384, target: 512, alpha: 1},
			{at: 4 * us, signal: "cnp", rate: 192, target: 384, alpha: 1},
			{at: 5 * us, sent: 999, rate: 192, target: 384, alpha: 1},
			{at: 6 * us, sent: 1001, rate: 340, target: 392, alpha: 1}, // two steps: 288, then RT + 8
		}},
		{"with a round trip of 40 us: no CNP within half of one of the last; K and Tr are longer by one", []step{
			{at: 0, signal: "ack", rtt: 40 * us, rate: 1024, target: 1024, alpha: 1},
			{at: 100 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 119 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 120 * us, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 219 * us, rate: 256, target: 512, alpha: 1},
			{at: 220 * us, rate: 256, target: 512, alpha: 0.5},
			{at: 259 * us, rate: 256, target: 512, alpha: 0.5},
			{at: 260 * us, rate: 384, target: 512, alpha: 0.5},
			{at: 260 * us, signal: "ack", rtt: 200 * us, rate: 384, target: 512, alpha: 0.5}, // 40 + 160/8 = 60
			{at: 339 * us, rate: 384, target: 512, alpha: 0.5},
			{at: 340 * us, rate: 384, target: 512, alpha: 0.25},
			{at: 420 * us, rate: 452, target: 520, alpha: 0.25}, // T = 2 = F
			{at: 420 * us, signal: "start", rate: 1024, target: 1024, alpha: 1},
			{at: 421 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 422 * us, signal: "cnp", rate: 256, target: 512, alpha: 1}, // not known any more
		}},
		{"hyper increase: min(T,BC) > F: RT += i RHAI, i = min(T,BC) - F", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 0, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 0, signal: "cnp", rate: 128, target: 256, alpha: 1},
			{at: 0, signal: "cnp", rate: 64, target: 128, alpha: 1},
			// BC = 1: 96; BC = 2: RT 136, 116; BC = 3: RT 144, 130
			{at: 1 * us, sent: 3000, rate: 130, target: 144, alpha: 1},
			// T = 1, 2 with max 3: RT 152, 160; RC 141, 150.5
			{at: 200 * us, rate: 150.5, target: 160, alpha: 0.125},
			// T = 3: min is 3: i = 1: RT 260
			{at: 300 * us, rate: 205.25, target: 260, alpha: 1.0 / 32},
			// BC = 4, then T = 4: i = 1: RT 360, i = 2: RT 560
			{at: 301 * us, sent: 1000, rate: 282.625, target: 360, alpha: 1.0 / 32},
			{at: 400 * us, rate: 421.3125, target: 560, alpha: 1.0 / 64},
		}},
		{"RC is never below Rmin", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 0, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 0, signal: "cnp", rate: 128, target: 256, alpha: 1},
			{at: 0, signal: "cnp", rate: 64, target: 128, alpha: 1},
			{at: 0, signal: "cnp", rate: 32, target: 64, alpha: 1},
			{at: 0, signal: "cnp", rate: 16, target: 32, alpha: 1},
			{at: 0, signal: "cnp", rate: 10, target: 16, alpha: 1},
			{at: 0, signal: "cnp", rate: 10, target: 10, alpha: 1},
		}},
		{"the first CNP counts from what was delivered", []step{
			{at: 0, signal: "cnp", got: 400, rate: 200, target: 400, alpha: 1},
			{at: 0, signal: "cnp", got: 20, rate: 100, target: 200, alpha: 1},
		}},
		{"a timeout halves RC and leaves alpha alone", []step{
			{at: 0, signal: "timeout", rate: 512, target: 1024, alpha: 1},
			{at: 10 * us, signal: "cnp", rate: 256, target: 512, alpha: 1},
			{at: 75 * us, signal: "timeout", rate: 128, target: 256, alpha: 0.5},
			{at: 174 * us, rate: 128, target: 256, alpha: 0.25},
			{at: 175 * us, rate: 192, target: 256, alpha: 0.25},
		}},
		{"after a pause everything is as at the start", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 100 * us, signal: "start", rate: 1024, target: 1024, alpha: 1},
			{at: 101 * us, signal: "cnp", rate: 512, target: 1024, alpha: 1},
		}},
		{"back at line rate nothing is counted", []step{
			{at: 0, signal: "cnp", rate: 512, target: 1024, alpha: 1},
			{at: 10 * time.Millisecond, rate: 1024, target: 1024, alpha: math.Pow(0.5, 166)},
			{at: 10 * time.Millisecond, sent: 999, rate: 1024, target: 1024, alpha: math.Pow(0.5, 166)},
			// alpha is next to nothing, and so is the cut; BC begins at 0
			{at: 10 * time.Millisecond, signal: "cnp", rate: 1024, target: 1024, alpha: 0.5},
			{at: 10 * time.Millisecond, signal: "cnp", rate: 768, target: 1024, alpha: 0.75},
			{at: 10 * time.Millisecond, sent: 999, rate: 768, target: 1024, alpha: 0.75},
			{at: 10 * time.Millisecond, sent: 1, rate: 896, target: 1024, alpha: 0.75},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cc := newOf(t, p)
			for i, s := range c.steps {
				s.got *= Mbps
				s.do(cc)
				got, want := cc.State(), State{s.rate * Mbps, s.target * Mbps, s.alpha}
				if !near(got.Rate, want.Rate) || !near(got.Target, want.Target) || math.Abs(got.Alpha-want.Alpha) > 1e-12 {
					t.Fatalf("step %d, %+v: %+v, want %+v", i, s, got, want)
				}
			}
		})
	}
}

// The defaults are those of the paper but for F and RAI: g = 1/256, K and Tr 55 us.
// With its F 5 and RAI 40 Mb/s: two CNPs halve 40 Gb/s twice; T = 1 to 4 are 15, 17.5,
// 18.75 and 19.375 Gb/s; T = 5 is the first additive step: RT 20.04, RC 19.7075.
func TestDCQCNDefaults(t *testing.T) {
	c := newOf(t, DCQCN{LineRate: 40 * Gbps, F: 5, RAI: 40 * Mbps})
	c.Signal(0, Signal{Kind: CNP})
	c.Signal(0, Signal{Kind: CNP})
	for i, want := range []Rate{10, 15, 17.5, 18.75, 19.375, 19.7075} {
		at := time.Duration(i) * 55 * us
		if got := c.Rate(at); !near(got, want*Gbps) {
			t.Errorf("at %v: %v, want %v", at, float64(got), float64(want*Gbps))
		}
	}
	if a, want := c.State().Alpha, math.Pow(255.0/256, 5); math.Abs(a-want) > 1e-12 {
		t.Errorf("alpha %v, want %v", a, want)
	}
}

// Without a line rate nothing is limited before the first CNP, which counts from
// what was delivered; neither by a CNP when nothing was, nor by a timeout. Once the
// rate has passed 1 Tb/s it is unlimited again.
func TestDCQCNUnlimited(t *testing.T) {
	c := newOf(t, DCQCN{})
	unlimited := State{Unlimited, Unlimited, 1}
	c.Signal(0, Signal{Kind: Timeout, Delivered: Gbps})
	c.Signal(0, Signal{Kind: CNP})
	c.Sent(time.Second, 1<<30)
	if c.Rate(time.Second) != Unlimited || c.State() != unlimited {
		t.Fatalf("without a CNP: %+v", c.State())
	}
	now := 2 * time.Second
	c.Signal(now, Signal{Kind: CNP, Delivered: 3 * Gbps})
	if s := c.State(); s != (State{1.5 * Gbps, 3 * Gbps, 1}) {
		t.Fatalf("first CNP: %+v", s)
	}
	c.Signal(now, Signal{Kind: Timeout})
	if s := c.State(); s != (State{0.75 * Gbps, 1.5 * Gbps, 1}) {
		t.Fatalf("timeout: %+v", s)
	}
	for end := now + 2*time.Second; now < end; now += 100 * us {
		c.Sent(now, 100_000)
	}
	if s := c.State(); s.Rate != Unlimited || s.Target != Unlimited {
		t.Fatalf("after two seconds: %+v", s)
	}
}

// It does not matter how often a controller is asked.
func TestDCQCNLazy(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		a, b := newOf(t, DCQCN{LineRate: 10 * Gbps, B: 100_000}), newOf(t, DCQCN{LineRate: 10 * Gbps, B: 100_000})
		now := time.Duration(0)
		for i := range 300 {
			for next := now + time.Duration(rng.IntN(500_000)); now < next; now += 1 + next/50 {
				a.Rate(now)
			}
			s := step{at: now, sent: rng.IntN(20_000)}
			switch rng.IntN(8) {
			case 0:
				s.signal = "cnp"
			case 1:
				s.signal, s.rtt = "ack", time.Duration(rng.IntN(1_000_000))
			}
			s.do(a)
			s.do(b)
			x, y := a.State(), b.State()
			if !nearly(x.Rate, y.Rate) || !nearly(x.Target, y.Target) || math.Abs(x.Alpha-y.Alpha) > 1e-9 {
				t.Fatalf("seed %d, step %d: %+v asked often, %+v asked seldom", seed, i, x, y)
			}
			if x.Rate < 10*Mbps || x.Rate > x.Target || x.Target > 10*Gbps || !(x.Alpha >= 0 && x.Alpha <= 1) {
				t.Fatalf("seed %d, step %d: %+v", seed, i, x)
			}
		}
	}
}

// Parameters out of range are refused by name.
func TestParams(t *testing.T) {
	for _, c := range []struct {
		a    Algorithm
		want string // "" for none
	}{
		{DCQCN{}, ""}, {Swift{}, ""}, {None{}, ""}, {Swift{FSRange: -1}, ""},
		{DCQCN{LineRate: 5 * Mbps}, ""}, // Rmin is the line rate then
		{DCQCN{G: 2}, "G"}, {DCQCN{G: math.NaN()}, "G"}, {DCQCN{K: -1}, "K in seconds"}, {DCQCN{F: -1}, "F"},
		{DCQCN{RAI: Unlimited}, "RAI"}, {DCQCN{LineRate: Gbps, Rmin: 2 * Gbps}, "Rmin"},
		{DCQCN{LineRate: Gbps, InitialRate: 2 * Gbps}, "InitialRate"},
		{Swift{Beta: 3}, "Beta"}, {Swift{FSMin: 200}, "FSMin"}, {Swift{AI: -1}, "AI"},
	} {
		_, err := c.a.New()
		e, _ := err.(*ParamError)
		if (err == nil) != (c.want == "") || e != nil && (e.Param != c.want || e.Error() == "") {
			t.Errorf("%+v: %v, want one for %q", c.a, err, c.want)
		}
	}
}

// Nothing is allocated for a packet.
func TestAllocs(t *testing.T) {
	for _, a := range []Algorithm{DCQCN{}, Swift{}} {
		c, now := newOf(t, a), time.Duration(0)
		if n := testing.AllocsPerRun(100, func() {
			now += 20 * us
			c.Signal(now, Signal{Kind: CNP, Delivered: Gbps})
			c.Signal(now, Signal{Kind: Ack, RTT: time.Millisecond, Least: us, Delivered: Gbps})
			c.Rate(now)
			c.Sent(now, 4000)
			c.State()
		}); n != 0 {
			t.Errorf("%T: %v allocations", a, n)
		}
	}
}

// Rates, in bytes and time.
func TestRate(t *testing.T) {
	if n := (8 * Gbps).Bytes(us); n != 1000 {
		t.Errorf("8 Gb/s in 1 us: %d bytes", n)
	}
	if d := (8 * Gbps).Time(1000); d != us {
		t.Errorf("1000 bytes at 8 Gb/s: %v", d)
	}
	if n, d := Unlimited.Bytes(time.Hour), Unlimited.Time(1<<40); n != 1<<62 || d != 1 {
		t.Errorf("unlimited: %d bytes in an hour, 1 TiB in %v", n, d)
	}
	for r, want := range map[Rate]string{Unlimited: "unlimited", 2.5 * Gbps: "2.5 Gb/s", 10 * Mbps: "10 Mb/s"} {
		if r.String() != want {
			t.Errorf("%v, want %s", r, want)
		}
	}
	for r, want := range map[Rate]string{Unlimited: "null", 2.5 * Gbps: "2500000000"} {
		if b, err := json.Marshal(r); err != nil || string(b) != want {
			t.Errorf("%v in JSON is %s, %v", r, b, err)
		}
	}
	for k, want := range map[Kind]string{Start: "start", CNP: "cnp", Timeout: "timeout", Ack: "ack", 9: "Kind(9)"} {
		if k.String() != want {
			t.Errorf("%v, want %s", k, want)
		}
	}
}

// What the target grows by follows from the line rate, without one from what the first
// CNP finds; hyper increase is five times as much. What was asked for stays.
func TestDCQCNSteps(t *testing.T) {
	for _, c := range []struct {
		p         DCQCN
		delivered Rate
		rai, rhai Rate
	}{
		{DCQCN{LineRate: 40 * Gbps}, 20 * Gbps, 32 * Mbps, 160 * Mbps},
		{DCQCN{LineRate: 10 * Gbps}, 5 * Gbps, 8 * Mbps, 40 * Mbps},
		{DCQCN{}, 50 * Gbps, 80 * Mbps, 400 * Mbps},
		{DCQCN{}, Gbps, 5 * Mbps, 25 * Mbps},
		{DCQCN{RAI: 7 * Mbps}, 50 * Gbps, 7 * Mbps, 35 * Mbps},
		{DCQCN{RHAI: 7 * Mbps}, 50 * Gbps, 5 * Mbps, 7 * Mbps},
		{DCQCN{LineRate: 10 * Gbps, RAI: 7 * Mbps, RHAI: Mbps}, Gbps, 7 * Mbps, Mbps},
	} {
		d := newOf(t, c.p).(*dcqcn)
		d.Signal(0, Signal{Kind: CNP, Delivered: c.delivered})
		if d.F != 1 || d.RAI != c.rai || d.RHAI != c.rhai {
			t.Errorf("%+v, %v delivered: F %d, %v and %v, want 1, %v and %v", c.p, c.delivered, d.F, d.RAI, d.RHAI, c.rai, c.rhai)
		}
	}
}
