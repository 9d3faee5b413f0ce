package cc

import (
	"testing"
	"time"
)

// Each rule, with values computed by hand: round trips of 1 ms with a target of 1 ms,
// so that 1 Gb/s is a window of 125,000 bytes; no flow scaling.
func TestSwift(t *testing.T) {
	const ms = time.Millisecond
	ack := func(rtt time.Duration) Signal { return Signal{Kind: Ack, RTT: rtt, Least: us, Delivered: Gbps} }
	type sig struct {
		at   time.Duration
		s    Signal
		rate Rate
	}
	p := Swift{Target: ms, AI: 1000, FSRange: -1, MaxMDF: 0.5}
	for _, c := range []struct {
		name string
		p    Swift
		sigs []sig
	}{
		{"at the target nothing is limited", p, []sig{
			{0, ack(ms), Unlimited},
			{ms, ack(ms), Unlimited},
		}},
		{"above it, a part of Beta (RTT-target)/RTT goes, once per round trip; below AI comes", p, []sig{
			{0, ack(ms), Unlimited},
			// smoothed (7*1 + 1.6)/8 = 1.075 ms: the window was 134375; 0.8*0.6/1.6 = 0.3 of it goes
			{1 * ms, ack(1600 * us), 0.7 * Gbps},
			{2 * ms, ack(1600 * us), 94062.5 * 8 / 1140.625e-6}, // too soon: only the RTT has grown
			{3 * ms, ack(1 * ms), 95062.5 * 8 / 1123.046875e-6},
		}},
		{"MaxMDF is the most that goes, and what a CNP and a timeout take", p, []sig{
			{0, ack(ms), Unlimited},
			{1 * ms, Signal{Kind: CNP, Delivered: Gbps}, 0.5 * Gbps},
			{2 * ms, Signal{Kind: Timeout, Delivered: Gbps}, 0.25 * Gbps},
			{2 * ms, Signal{Kind: CNP}, 0.25 * Gbps}, // too soon
			{3 * ms, Signal{Kind: Start}, Unlimited},
		}},
		{"never below Rmin", Swift{Target: ms, FSRange: -1, Rmin: 400 * Mbps}, []sig{
			{0, ack(ms), Unlimited},
			{1 * ms, Signal{Kind: CNP, Delivered: Gbps}, 0.5 * Gbps},
			{2 * ms, Signal{Kind: CNP}, 0.4 * Gbps},
		}},
		{"nothing delivered, or nothing acknowledged: nothing to limit", p, []sig{
			{0, Signal{Kind: CNP, Delivered: Gbps}, Unlimited},
			{0, ack(ms), Unlimited},
			{1 * ms, Signal{Kind: CNP}, Unlimited},
		}},
		{"without Target: the least and 500 us", Swift{FSRange: -1}, []sig{
			{0, Signal{Kind: Ack, RTT: 1500 * us, Least: 1000 * us, Delivered: Gbps}, Unlimited},
			{ms, Signal{Kind: CNP, Delivered: Gbps}, 0.5 * Gbps},
		}},
		{"flow scaling: a window of FSMin packets may wait FSRange longer, one of FSMax not", Swift{
			Target: ms, FSRange: ms, FSMin: 1.0 / 4, FSMax: 1, Rmin: Mbps, AI: 1,
		}, []sig{
			{0, ack(ms), Unlimited},
			// a window of 8320 bytes: 2 packets: no scaling; half of it is 1 packet: none
			{1 * ms, Signal{Kind: CNP, Delivered: 66.56 * Mbps}, 33.28 * Mbps},
			// 1/4 packet in two cuts: 1/sqrt(1/4) = 2: target 2 ms
			{2 * ms, Signal{Kind: CNP}, 16.64 * Mbps},
			{3 * ms, Signal{Kind: CNP}, 8.32 * Mbps},
			{4 * ms, ack(2 * ms), 1041 * 8 / 1.125e-3},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cc := newOf(t, c.p)
			for i, s := range c.sigs {
				cc.Signal(s.at, s.s)
				if got := cc.Rate(s.at); !near(got, s.rate) && !nearly(got, s.rate) {
					t.Fatalf("signal %d, %+v: %v, want %v", i, s.s, float64(got), float64(s.rate))
				}
			}
		})
	}
}

// nearly allows for whole bytes and nanoseconds.
func nearly(a, b Rate) bool { return a > b*0.9999 && a < b*1.0001 }
