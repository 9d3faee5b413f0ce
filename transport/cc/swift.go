package cc

import (
	"math"
	"time"
)

// Swift goes by round trip times, as Kumar et al., "Swift: Delay is Simple and
// Effective for Congestion Control in the Datacenter" (SIGCOMM 2020), sections 3.1
// to 3.5: below a target the window grows by a little per round trip, above it
// shrinks by how far it is above, once per round trip. It needs nothing of switches
// and nothing of the peer but its acknowledgements, so it controls what RC and XRC
// requesters send. READ responses, UC and UD are left alone.
//
// The window is kept as a rate, window / RTT, because that is what a queue pair
// obeys; its own window stays as it is. Delays of NIC, fabric and host are not told
// apart: there is one sample per round trip, of the whole. A queue pair is not limited
// until the first sample above the target, which counts from the rate at which it
// was sending, and again once the window has passed 64 MiB or after a pause. A CNP
// counts as a delay far above the target, and a timeout, too.
//
// A zero value of a field is its default.
type Swift struct {
	// Target is the round trip time to aim for, without flow scaling; 0 means the
	// least there has been and 500 us, which is what a busy host may add.
	Target time.Duration
	// AI is what the window grows by per round trip, in bytes; 0 means 4160, a
	// packet.
	AI int64
	// Beta is the weight of a delay; 0 means 0.8.
	Beta float64
	// MaxMDF is the most that one decrease takes, as a part; 0 means 0.5.
	MaxMDF float64
	// FSRange is the most that the target grows by for a small window, which is
	// how a flow among many has; negative means nothing and 0 means 500 us. It
	// does so between windows of FSMax packets of 4 KiB, nothing, and FSMin, all
	// of it; 0 means 100 and 0.1.
	FSRange      time.Duration
	FSMin, FSMax float64
	// Rmin is the lowest rate; 0 means 10 Mb/s.
	Rmin Rate
}

const (
	swiftQueueing  = 500 * time.Microsecond
	swiftPacket    = 4160    // bytes
	swiftUnlimited = 1 << 26 // bytes of window
)

// New implements Algorithm. The error is a *ParamError.
func (p Swift) New() (Controller, error) {
	target, ai, fs, rmin := p.Target.Seconds(), float64(p.AI), max(p.FSRange.Seconds(), 0), float64(p.Rmin)
	noFS := p.FSRange < 0
	err := fill([]param{
		{"Target in seconds", &target, 0, 0, 10},
		{"AI", &ai, swiftPacket, 1, 1 << 30},
		{"Beta", &p.Beta, 0.8, 1e-3, 1},
		{"MaxMDF", &p.MaxMDF, 0.5, 1e-3, 0.99},
		{"FSRange in seconds", &fs, 500e-6, 0, 10},
		{"FSMin", &p.FSMin, 0.1, 1e-3, 1e6},
		{"FSMax", &p.FSMax, 100, 1e-3, 1e6},
		{"Rmin", &rmin, 10e6, 1e3, 1e12},
	})
	if err != nil {
		return nil, err
	}
	if p.FSMin >= p.FSMax {
		return nil, &ParamError{"FSMin", p.FSMin, "it must be below FSMax"}
	}
	p.AI, p.Rmin = int64(ai), Rate(rmin)
	c := &swift{Swift: p, window: swiftUnlimited}
	if !noFS {
		// Section 3.5: alpha / sqrt(window) + beta is FSRange at FSMin, 0 at FSMax.
		low, high := 1/math.Sqrt(p.FSMin), 1/math.Sqrt(p.FSMax)
		c.fsAlpha = fs / (low - high)
		c.fsBeta = -c.fsAlpha * high
		c.fsMost = fs
	}
	return c, nil
}

// swift controls one queue pair.
type swift struct {
	Swift
	fsAlpha, fsBeta, fsMost float64 // seconds

	window  float64       // bytes
	rtt     time.Duration // smoothed
	reduced time.Duration // when the window shrank last
}

// limited says whether the window is one.
func (c *swift) limited() bool { return c.window < swiftUnlimited }

// target returns the delay to aim for.
func (c *swift) target(least time.Duration) time.Duration {
	t := c.Target
	if t == 0 {
		t = least + swiftQueueing
	}
	scale := c.fsAlpha/math.Sqrt(c.window/swiftPacket) + c.fsBeta
	return t + time.Duration(min(max(scale, 0), c.fsMost)*1e9)
}

// Signal implements Controller.
func (c *swift) Signal(now time.Duration, s Signal) {
	switch s.Kind {
	case Start:
		c.window, c.rtt = swiftUnlimited, 0
	case Ack:
		c.rtt = smooth(c.rtt, s.RTT)
		if t := c.target(s.Least); s.RTT > t {
			c.shrink(now, s.Delivered, c.Beta*float64(s.RTT-t)/float64(s.RTT))
		} else if c.limited() {
			c.window += float64(c.AI)
		}
	case CNP, Timeout:
		c.shrink(now, s.Delivered, c.MaxMDF)
	}
}

// shrink takes a part of the window away, MaxMDF at most, once per round trip.
func (c *swift) shrink(now time.Duration, delivered Rate, part float64) {
	switch {
	case c.rtt == 0:
		return // nothing was acknowledged yet
	case !c.limited():
		if delivered == 0 {
			return
		}
		c.window = min(float64(delivered.Bytes(c.rtt)), swiftUnlimited-1)
	case now-c.reduced < c.rtt:
		return
	}
	c.reduced = now
	c.window = max(c.window*(1-min(part, c.MaxMDF)), float64(c.Rmin.Bytes(c.rtt)))
}

// Rate implements Controller.
func (c *swift) Rate(time.Duration) Rate { return c.State().Rate }

// Sent implements Controller.
func (c *swift) Sent(time.Duration, int) {}

// State implements Controller.
func (c *swift) State() State {
	r := Unlimited
	if c.limited() && c.rtt > 0 {
		r = max(Rate(c.window*8/c.rtt.Seconds()), c.Rmin)
	}
	return State{Rate: r, Target: r}
}
