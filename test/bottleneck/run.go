//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/test/sim/congestion"
)

// config is one run: flows that share the bottleneck.
type config struct {
	roce    string // the program
	queue   queueConfig
	control string // for --cc
	flows   int
	seconds int
	args    []string // further ones of roce perf
}

// result is what was seen of the flows: rates are from a part of the time in which all
// of them sent.
type result struct {
	config
	rates   []float64 // bits per second that left the bottleneck, IP headers included
	goodput float64   // bits per second of messages, in sum
	data    counts    // of the direction of the flows, but for rates of the whole run
	back    counts    // of the other
	lost    int       // before the forwarder
	sums    map[string]uint64
}

// settle is what is left out after the last flow has begun.
const settle = 500 * time.Millisecond

// run lets flows share the bottleneck.
func run(c config) (r result, err error) {
	r = result{config: c, sums: map[string]uint64{}}
	n, err := newTwoNets(c.queue)
	defer func() { err = errors.Join(err, n.close()) }()
	if err != nil {
		return r, err
	}
	var flows []flow
	defer func() {
		for _, f := range flows {
			f.kill()
		}
	}()
	args := append([]string{"--cc", c.control, "-D", fmt.Sprint(c.seconds)}, c.args...)
	for i := range c.flows {
		f, err := n.startFlow(c.roce, i, args...)
		flows = append(flows, f)
		if err != nil {
			return r, err
		}
	}
	begun := time.Now()
	time.Sleep(settle)
	before := n.seen(0)
	time.Sleep(time.Duration(c.seconds)*time.Second - time.Since(begun) - settle/2)
	after := n.seen(0)
	took := after.left - before.left
	for i := range c.flows {
		from := netip.MustParseAddr(addr(0, i)).As4()
		r.rates = append(r.rates, float64(8*(after.from[from]-before.from[from]))/took.Seconds())
	}
	for i, f := range flows {
		client, server, err := f.end(30 * time.Second)
		if err != nil {
			return r, fmt.Errorf("flow %d: %w", i, err)
		}
		r.goodput += client.Results[0].Gbit * 1e9
		for _, side := range []report{client, server} {
			for name, v := range side.Counters {
				r.sums[name] += v
			}
		}
	}
	r.data, r.back = n.seen(0), n.seen(1)
	r.lost, err = n.lost()
	return r, err
}

func (r *result) jain() float64 { return congestion.Jain(r.rates) }

// used is the part of the bottleneck's rate that the flows had.
func (r *result) used() float64 {
	sum := 0.0
	for _, x := range r.rates {
		sum += x
	}
	return sum / r.queue.rate
}

// again is the part of the packets that were sent again.
func (r *result) again() float64 {
	return float64(r.sums["retransmitted_pkts"]) / float64(r.sums["sent_pkts"])
}

const head = `| flows, control | Mb/s of each | of the link | goodput | Jain | queue, mean and longest | marked | CNPs | dropped | sent again | timeouts |
|---|---|---|---|---|---|---|---|---|---|---|`

// row is the line of the table.
func (r *result) row() string {
	each := ""
	for i, x := range r.rates {
		if i > 0 {
			each += ", "
		}
		each += fmt.Sprintf("%.0f", x/1e6)
	}
	return fmt.Sprintf("| %d, `%s` | %s | %.1f %% | %.0f Mb/s | %.3f | %.0f KB, %.0f KB | %.1f %% | %d | %.2f %% | %.2f %% | %d |",
		r.flows, r.control, each, 100*r.used(), r.goodput/1e6, r.jain(),
		r.data.waited/float64(r.data.packets)/1e3, float64(r.data.longest)/1e3, 100*float64(r.data.marked)/float64(r.data.packets),
		r.back.cnps, 100*float64(r.data.dropped)/float64(r.data.packets+r.data.dropped), 100*r.again(), r.sums["local_ack_timeout_err"])
}
