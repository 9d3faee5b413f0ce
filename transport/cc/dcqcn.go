package cc

import (
	"math"
	"time"
)

// DCQCN is the algorithm of Zhu et al., "Congestion Control for Large-Scale RDMA
// Deployments" (SIGCOMM 2015), section 5.1, at the sender, its reaction point. The
// names are those of the paper. A zero value of a field is its default.
//
// The paper's networks have round trips shorter than K, Tr and the time between CNPs.
// Where a requester measures longer ones (Ack), a cut shows only after a round trip:
// until then no CNP says anything new, and no CNP is no good news. So one that comes
// within half a round trip of the last is not obeyed, and K and Tr are longer by a
// round trip.
//
// It differs in where it begins. A host does not know the rate of its link (that of
// a virtual one is fiction), so without LineRate a queue pair is not limited until
// its first CNP, which counts from the rate at which it was sending. It is not limited
// again once its rate has passed 1 Tb/s, or when it had nothing to send for a while.
// Beyond the paper, a timeout halves the rate if there is one: without PFC packets
// are lost, and DCQCN knows no loss. Timeouts of a queue pair without limit are left
// to its window.
type DCQCN struct {
	// G is the weight g of a CNP in alpha; 0 means 1/256.
	G float64
	// K is how long after the last CNP alpha decreases, and again; it should be
	// longer than the peer's time between CNPs. 0 means 55 us.
	K time.Duration
	// Tr is the time between two steps of the rate; 0 means 55 us.
	Tr time.Duration
	// B is how many bytes sent are a step as well; 0 means 10 MB.
	B int64
	// F is the number of steps, by time or bytes, that bring a rate back half of
	// the way each; after them it grows. 0 means 1, as in mlx5; the paper has 5.
	F int
	// RAI is what the target grows by at a step; 0 means a 1250th of LineRate, 32 Mb/s
	// of 40 Gb/s, where the paper has 40. Without one a first CNP says that at least
	// two share a link, so it is a 625th of what was delivered then, and no less than
	// the 5 Mb/s of mlx5.
	RAI Rate
	// RHAI is what it grows by, times the steps so far, after F steps by both time
	// and bytes; 0 means five times RAI.
	RHAI Rate
	// Rmin is the lowest rate; 0 means 10 Mb/s.
	Rmin Rate
	// LineRate is the highest rate, at which queue pairs begin; 0 means that there
	// is none.
	LineRate Rate
	// InitialRate is where queue pairs begin instead of LineRate.
	InitialRate Rate
}

const (
	// ceiling stands for the line rate where none is given: nothing limits beyond.
	ceiling = 1000 * Gbps
	// lineSteps is how many steps of additive increase a link has.
	lineSteps = 1250
	// leastStep is the step where no line rate is known.
	leastStep = 5 * Mbps
)

// check puts defaults in place and checks.
func (p *DCQCN) check() error {
	k, tr, b, f := p.K.Seconds(), p.Tr.Seconds(), float64(p.B), float64(p.F)
	rai, rhai, rmin, line := float64(p.RAI), float64(p.RHAI), float64(p.Rmin), float64(p.LineRate)
	err := fill([]param{
		{"G", &p.G, 1.0 / 256, 1e-6, 1},
		{"K in seconds", &k, 55e-6, 1e-6, 10},
		{"Tr in seconds", &tr, 55e-6, 1e-6, 10},
		{"B", &b, 10e6, 1, 1 << 50},
		{"F", &f, 1, 1, 1000},
		{"LineRate", &line, float64(ceiling), 1e3, float64(ceiling)},
	})
	if err != nil {
		return err
	}
	step := float64(leastStep)
	if p.LineRate > 0 {
		step = max(line/lineSteps, 1e3)
	}
	if err := fill([]param{{"RAI", &rai, step, 1e3, 1e12}}); err != nil {
		return err
	}
	initial := float64(p.InitialRate)
	err = fill([]param{
		{"RHAI", &rhai, min(5*rai, 1e12), 1e3, 1e12},
		{"Rmin", &rmin, min(10e6, line), 1e3, line},
		{"InitialRate", &initial, line, 1e3, line},
	})
	p.K, p.Tr = time.Duration(math.Round(k*1e9)), time.Duration(math.Round(tr*1e9))
	p.B, p.F = int64(b), int(f)
	p.RAI, p.RHAI, p.Rmin, p.LineRate, p.InitialRate = Rate(rai), Rate(rhai), Rate(rmin), Rate(line), Rate(initial)
	return err
}

// New implements Algorithm. The error is a *ParamError.
func (p DCQCN) New() (Controller, error) {
	open := p.LineRate == 0
	finds := open && p.RAI == 0 && p.RHAI == 0
	if err := p.check(); err != nil {
		return nil, err
	}
	c := &dcqcn{DCQCN: p, open: open, finds: finds}
	c.start(0)
	return c, nil
}

// dcqcn is the reaction point of one queue pair. Its timers are not run: what they
// would have done is made up for when somebody asks.
type dcqcn struct {
	DCQCN
	open    bool // LineRate is the ceiling
	finds   bool // RAI and RHAI follow from what is delivered
	rc, rt  Rate // current and target
	alpha   float64
	cut     bool          // there was a CNP: alpha has a timer
	cutAt   time.Duration // when the last one was obeyed
	rtt     time.Duration // smoothed; 0 is unknown
	alphaAt time.Duration // when that timer began or last ran out
	rateAt  time.Duration // the same of the rate
	bytes   int64         // sent since the last step by bytes
	t, bc   int           // steps by time and by bytes since the last cut
}

func (c *dcqcn) start(now time.Duration) {
	*c = dcqcn{DCQCN: c.DCQCN, open: c.open, finds: c.finds, rc: c.InitialRate, rt: c.InitialRate, alpha: 1, rateAt: now}
}

// full says that the rate is as high as it can be: it has no timers.
func (c *dcqcn) full() bool { return c.rc >= c.LineRate }

// advance makes up for the timers that have run out.
func (c *dcqcn) advance(now time.Duration) {
	if n := (now - c.alphaAt) / (c.K + c.rtt); c.cut && n > 0 {
		c.alpha *= math.Pow(1-c.G, float64(n))
		c.alphaAt += n * (c.K + c.rtt)
	}
	for !c.full() && now-c.rateAt >= c.Tr+c.rtt {
		c.rateAt += c.Tr + c.rtt
		c.t++
		c.increase()
	}
}

// increase is one step: fast recovery, hyper increase or additive increase.
func (c *dcqcn) increase() {
	switch low, high := min(c.t, c.bc), max(c.t, c.bc); {
	case high < c.F: // the target stays
	case low > c.F:
		c.rt += Rate(low-c.F) * c.RHAI
	default:
		c.rt += c.RAI
	}
	c.rt = min(c.rt, c.LineRate)
	c.rc = (c.rc + c.rt) / 2
	if c.LineRate-c.rc < 1 {
		c.rc, c.rt = c.LineRate, c.LineRate
	}
}

// Rate implements Controller.
func (c *dcqcn) Rate(now time.Duration) Rate {
	c.advance(now)
	return c.shown(c.rc)
}

// Sent implements Controller.
func (c *dcqcn) Sent(now time.Duration, n int) {
	c.advance(now)
	for c.bytes += int64(n); c.bytes >= c.B && !c.full(); {
		c.bytes -= c.B
		c.bc++
		c.increase()
	}
	if c.full() {
		c.bytes = 0
	}
}

// Signal implements Controller.
func (c *dcqcn) Signal(now time.Duration, s Signal) {
	switch s.Kind {
	case Start:
		c.start(now)
	case CNP:
		c.advance(now)
		if c.cut && now-c.cutAt < c.rtt/2 || c.full() && !c.begin(s.Delivered) {
			return
		}
		c.reduce(now, c.alpha/2)
		c.alpha = (1-c.G)*c.alpha + c.G
		c.cut, c.cutAt, c.alphaAt = true, now, now
	case Ack:
		c.advance(now)
		c.rtt = smooth(c.rtt, s.RTT)
	case Timeout:
		c.advance(now)
		if !c.full() || !c.open {
			c.reduce(now, 0.5)
		}
	}
}

// begin sets the rate that the first CNP reduces: what was sent, so that it bites at
// once; and the steps by which it grows again. Without a line rate it reports false if nothing was.
func (c *dcqcn) begin(delivered Rate) bool {
	if delivered > 0 {
		c.rc = min(c.rc, max(delivered, c.Rmin))
	}
	if c.finds {
		c.RAI = max(leastStep, 2*delivered/lineSteps)
		c.RHAI = 5 * c.RAI
	}
	return delivered > 0 || !c.open
}

// reduce cuts the rate by a part of it, and begins to recover anew.
func (c *dcqcn) reduce(now time.Duration, part float64) {
	c.rt = c.rc
	c.rc = max(c.Rmin, c.rc*Rate(1-part))
	c.t, c.bc, c.bytes, c.rateAt = 0, 0, 0, now
}

// State implements Controller.
func (c *dcqcn) State() State { return State{c.shown(c.rc), c.shown(c.rt), c.alpha} }

func (c *dcqcn) shown(r Rate) Rate {
	if c.open && r >= ceiling {
		return Unlimited
	}
	return r
}
