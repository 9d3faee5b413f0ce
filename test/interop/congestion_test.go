//go:build linux

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
)

// congestionCase is a test of perftest whose data packets are ECT(0) (traffic class 2), and marked on the way.
type congestionCase struct{ perfCase }

// marksPerMille of the packets are marked in each direction.
const marksPerMille = 300

// congestionSubset has rxe as the sender of data that we verify.
var congestionSubset = []congestionCase{congestionOf("read_bw", false, ipv4, "")}

func congestionOf(test string, weServe bool, family, service string) congestionCase {
	return congestionCase{perfCase{test: test, weServe: weServe, family: family, size: 4096, service: service, more: "--tclass=2"}}
}

// congestionFull has rxe and us as senders of data, with every operation that has much of it.
func congestionFull() (all []congestionCase) {
	for _, family := range pingpongFamilies {
		for _, serve := range []bool{true, false} {
			for _, test := range []string{"send_bw", "write_bw", "read_bw"} {
				all = append(all, congestionOf(test, serve, family, ""))
			}
			all = append(all, congestionOf("send_bw", serve, family, "UC"))
		}
	}
	return all
}

// rxeSends says that data comes from rxe.
func (p congestionCase) rxeSends() bool { return p.weServe != p.fetches() }

func (s *session) congestion(t *testing.T) {
	if s.mode == reference {
		return // rxe neither looks at marks nor sends CNPs
	}
	cases := congestionSubset
	if s.mode == full {
		cases = congestionFull()
	}
	s.closePeers() // ours would have the port
	t.Run("congestion", func(t *testing.T) {
		for _, p := range cases {
			s.run(t, "congestion", p.name(), func(c *testCase) { c.congested(p) })
		}
	})
}

// congested plays a test while nftables marks packets in both directions.
func (c *testCase) congested(p congestionCase) {
	marks, err := c.s.guest.StartMarks(c.s.ctx, marksPerMille)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := marks.Stop(context.WithoutCancel(c.s.ctx)); err != nil {
			c.Errorf("remove the marks: %v", err)
		}
	})
	c.play(p)
	toUs, toGuest, err := marks.Counts(c.s.ctx)
	if err != nil {
		c.Fatal(err)
	}
	c.note = fmt.Sprintf("marked %d to us, %d to rxe", toUs, toGuest)
	if p.rxeSends() && toUs == 0 || !p.rxeSends() && toGuest == 0 {
		c.Errorf("%s: the case has shown nothing", c.note)
	}
}

// report looks at our counters, too: marks from rxe bring CNPs, which it ignores, and ours bring none.
func (p congestionCase) report(s *side, server bool, out string) error {
	if err := p.perfCase.report(s, server, out); err != nil || s.rxe {
		return err
	}
	var r struct{ Counters map[string]int }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("the report is not JSON: %w", err)
	}
	marked, cnps, heard := r.Counters["np_ecn_marked_roce_packets"], r.Counters["np_cnp_sent"], r.Counters["rp_cnp_handled"]+r.Counters["rp_cnp_ignored"]
	switch {
	case p.rxeSends() && (marked == 0 || cnps == 0 || cnps > marked):
		return fmt.Errorf("%d packets came marked, %d CNPs sent", marked, cnps)
	case heard > 0:
		return fmt.Errorf("%d CNPs came: rxe sends none", heard)
	}
	for _, bad := range []string{"local_ack_timeout_err", "retry_exceeded_err", "drop_icrc", "drop_ip_id"} {
		if n := r.Counters[bad]; n > 0 {
			return fmt.Errorf("%s is %d", bad, n)
		}
	}
	return nil
}
