// Package cc decides how fast a queue pair may send: congestion control as state
// machines that are told the time. There is [DCQCN], which NICs run, [Swift], which
// goes by round trip times, and [None]. A program may bring its own [Algorithm].
//
// A controller says a rate. Package transport keeps to it, and tells the controller
// what happens.
package cc

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Rate is in bits per second, IP and UDP headers included.
type Rate float64

const (
	Mbps Rate = 1e6
	Gbps Rate = 1e9

	// Unlimited is the rate of a queue pair that is not held back.
	Unlimited Rate = math.MaxFloat64
)

func (r Rate) String() string {
	switch {
	case r == Unlimited:
		return "unlimited"
	case r >= Gbps:
		return fmt.Sprintf("%.3g Gb/s", float64(r/Gbps))
	}
	return fmt.Sprintf("%.3g Mb/s", float64(r/Mbps))
}

// MarshalJSON writes a number, and null for Unlimited.
func (r Rate) MarshalJSON() ([]byte, error) {
	if r == Unlimited {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(r), 'f', 0, 64), nil
}

// Bytes returns how many bytes are sent in d at rate r, at most 2^62.
func (r Rate) Bytes(d time.Duration) int64 {
	return int64(min(float64(r)/8*d.Seconds(), 1<<62))
}

// Time returns how long n bytes take at rate r, at least a nanosecond.
func (r Rate) Time(n int64) time.Duration {
	return time.Duration(min(max(math.Ceil(float64(n)*8/float64(r)*1e9), 1), math.MaxInt64/2))
}

// Algorithm makes the controllers of queue pairs. What implements it holds the
// parameters; it may be used by any number of devices at once.
type Algorithm interface {
	// New returns the controller of one queue pair, nil to leave it alone. The
	// error names a parameter that is wrong; those of this package are a
	// *ParamError. It is called when a queue pair is made, to check, and again when
	// that first sends, under the lock of its engine: it must not wait.
	New() (Controller, error)
}

// Controller controls one queue pair. Its methods belong to the owner of the queue
// pair's engine: one at a time, under its lock, so that they must not wait. They are
// called for each turn of sending and each signal; the time never goes back.
type Controller interface {
	// Rate returns how fast the queue pair may send now, more than 0.
	Rate(now time.Duration) Rate
	// Sent says that n bytes were sent, IP and UDP headers included.
	Sent(now time.Duration, n int)
	// Signal says what was learned of the network.
	Signal(now time.Duration, s Signal)
	// State returns what to show to people. It changes nothing.
	State() State
}

// Kind says what a signal is about.
type Kind uint8

const (
	// Start: the queue pair begins to send, or had nothing to send for a while.
	Start Kind = iota
	// CNP: the peer has seen packets with the mark "congestion experienced".
	CNP
	// Timeout: a request was not acknowledged in time and is sent again.
	Timeout
	// Ack: a packet was acknowledged RTT after it was sent. RC and XRC only.
	Ack
)

var kindNames = [...]string{"start", "cnp", "timeout", "ack"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Signal is something that was learned of the network.
type Signal struct {
	Kind Kind
	// Delivered is what the queue pair has sent of late, over about one round trip
	// time; 0 is nothing.
	Delivered Rate
	// RTT is that of an Ack, Least the least there has been.
	RTT, Least time.Duration
}

// smooth returns the smoothed round trip time after one more sample; 0 is none yet.
func smooth(was, sample time.Duration) time.Duration {
	if was == 0 {
		return sample
	}
	return was + (sample-was)/8
}

// State is what a controller shows: the rate, the one that it comes back to, and
// DCQCN's estimate of the congestion, between 0 and 1. Controllers without a target
// show the rate again.
type State struct {
	Rate, Target Rate
	Alpha        float64
}

// None leaves queue pairs alone: only their window limits what they send.
type None struct{}

// New implements Algorithm. There is no controller.
func (None) New() (Controller, error) { return nil, nil }

// ParamError says which parameter of an algorithm is out of its range.
type ParamError struct {
	Param   string
	Value   any
	Allowed string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("cc: %s is %v: %s", e.Param, e.Value, e.Allowed)
}

// param is a parameter, its default and its bounds.
type param struct {
	name            string
	v               *float64
	zero, low, high float64
}

// fill puts defaults in place of zeros and checks.
func fill(params []param) error {
	for _, p := range params {
		if *p.v == 0 {
			*p.v = p.zero
		}
		if !(*p.v >= p.low && *p.v <= p.high) { // not a number is neither
			return &ParamError{p.name, *p.v, fmt.Sprintf("allowed are %g to %g, and 0 for %g", p.low, p.high, p.zero)}
		}
	}
	return nil
}
