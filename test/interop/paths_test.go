//go:build linux

package interop

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/lab"
	"github.com/goroce/goroce/test/interop/wire"
)

// paths has every queue pair send from a source port of its own, as rxe always does, and lets our side change to another in mid-connection.
func (s *session) paths(t *testing.T) {
	t.Run("paths", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				l := link{family: family, mtu: 1024, weRequest: we, spread: true}
				for _, verb := range []string{"SEND", "WRITE", "READ"} {
					if s.mode != full && (verb == "SEND" || (verb == "READ") != (family == ipv6)) {
						continue // the subset: one of them per role and family
					}
					s.run(t, "paths", fmt.Sprintf("%s %s %s from a port of the queue pair's own", l.role(), verb, family), func(c *testCase) {
						b := c.newBatch(l, verb, 100_000, 3)
						b.transfer(0, 30000)
						b.states("RTS", "RTS")
						b.checkPorts()
					})
				}
				if s.mode != reference { // rxe has no path migration of its own
					s.run(t, "paths", fmt.Sprintf("%s WRITE %s while we migrate to another source port", l.role(), family), func(c *testCase) { c.migrate(l) })
				}
			}
		}
	})
}

// migrate arms our side, which rxe answers as one that is always rearmed, and changes the path between two transfers.
func (c *testCase) migrate(l link) {
	l.spread = false
	b := c.newBatch(l, "WRITE", 100_000, 3)
	us, qp := b.req, b.reqQP
	if !l.weRequest {
		us, qp = b.rsp, b.rspQP
	}
	want := func(state string) {
		c.Helper()
		if got := us.do(c, wire.Request{Op: "state", QP: qp}).PathMigState; got != state {
			c.Errorf("path migration state %s, want %s", got, state)
		}
	}
	us.do(c, wire.Request{Op: "arm", QP: qp, SrcPort: 0xc444})
	want("REARM")
	b.transfer(0, 30000)
	want("ARMED")
	us.do(c, wire.Request{Op: "migrate", QP: qp})
	want("MIGRATED")
	b.transfer(1, 30000)
	b.states("RTS", "RTS")
	if got := us.do(c, wire.Request{Op: "events", N: 1, TimeoutMS: 1000}).Events; len(got) != 1 || got[0] != "PATH_MIG" {
		c.Errorf("events %v", got)
	}
	seen := map[uint16]int{}
	if err := lab.ReadRoCE(c.packets(), func(d *lab.Datagram) error {
		if d.Src.Addr() == netip.MustParseAddr(us.side.addr(l.family)) {
			seen[d.Src.Port()]++
		}
		return nil
	}); err != nil {
		c.Fatal(err)
	}
	if len(seen) != 2 || seen[4791] == 0 || seen[0xc444] == 0 {
		c.Errorf("our packets by source port: %v, want 4791 and then %d", seen, 0xc444)
	}
}

// checkPorts compares the source ports of all packets with those that belong to the queue pairs, ours by our choice, rxe's by its habit.
func (n *conn) checkPorts() {
	n.c.Helper()
	want := ib.SourcePort(ib.QPN(n.reqQPN), ib.QPN(n.rspQPN))
	seen := map[netip.AddrPort]int{}
	if err := lab.ReadRoCE(n.c.packets(), func(d *lab.Datagram) error { seen[d.Src]++; return nil }); err != nil {
		n.c.Fatal(err)
	}
	if len(seen) != 2 {
		n.c.Errorf("packets came from %v", seen)
	}
	for src := range seen {
		if src.Port() != want {
			n.c.Errorf("packets came from %v, want port %d", src, want)
		}
	}
}
