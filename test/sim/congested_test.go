package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/sim/congestion"
	"github.com/goroce/goroce/test/sim/network"
	"github.com/goroce/goroce/transport/cc"
)

var congestedAll = flag.Bool("sim.congested", false, "run TestCongested with 2 to 16 senders at 10 to 100 Gb/s and without a line rate, for the table of docs/simulation.md")

// Whole devices share a port with RED and PFC: DCQCN gives them the same from 50 ms on,
// uses the link and loses nothing.
func TestCongested(t *testing.T) {
	if raceEnabled {
		t.Skip("all in one goroutine: nothing for the race detector to find")
	}
	type row struct {
		senders int
		rate    float64
		line    bool // the devices know it
	}
	rows := []row{{4, 10e9, true}}
	if *congestedAll {
		rows = nil
		for _, rate := range []float64{10e9, 25e9, 100e9} {
			for _, n := range []int{2, 4, 8, 16} {
				rows = append(rows, row{n, rate, true}, row{n, rate, false})
			}
		}
	}
	for _, c := range rows {
		t.Run(fmt.Sprintf("%d at %v Gb/s, line rate known %v", c.senders, c.rate/1e9, c.line), func(t *testing.T) {
			const settled, end = 50 * time.Millisecond, 100 * time.Millisecond
			d := cc.DCQCN{}
			if c.line {
				d.LineRate = cc.Rate(c.rate)
			}
			s := newStar(t, 101, c.senders, 256<<10, network.LinkConfig{Rate: c.rate, Delay: time.Microsecond},
				network.SwitchConfig{RED: network.RED{Kmin: 100_000, Kmax: 400_000, Pmax: 0.2}, Pause: 500_000, Resume: 450_000}, roce.Config{Congestion: d})
			s.run(settled)
			before, bytes := make([]int, c.senders), s.port.Bytes
			for i, l := range s.links[1:] {
				before[i] = l.Ports[0].Bytes
			}
			s.run(end)
			var rates []float64
			for i, l := range s.links[1:] {
				rates = append(rates, float64(8*(l.Ports[0].Bytes-before[i]))/(end-settled).Seconds())
			}
			jain, used := congestion.Jain(rates), float64(8*(s.port.Bytes-bytes))/(end-settled).Seconds()/c.rate
			again, timeouts, cnps := s.counter("retransmitted_pkts"), s.counter("local_ack_timeout_err"), s.counter("rp_cnp_handled")
			t.Logf("| %d | %.0f Gb/s | %v | %.3f | %.1f %% | %d | %d | %d | %d |", c.senders, c.rate/1e9, map[bool]string{true: "known", false: "not known"}[c.line],
				jain, 100*used, s.dropped(), again, timeouts, cnps)
			if s.dropped() > 0 || timeouts > 0 || 100*again > s.counter("sent_pkts") {
				t.Errorf("%d packets dropped with PFC, %d sent again, %d timeouts", s.dropped(), again, timeouts)
			}
			if cnps == 0 {
				t.Error("no CNPs: the case has shown nothing")
			}
			if *congestedAll {
				return // the table says what is reached
			}
			if jain < 0.98 {
				t.Errorf("Jain's index is %.3f: %v", jain, rates)
			}
			if used < 0.95 {
				t.Errorf("%.3f of the link is used", used)
			}
		})
	}
}
