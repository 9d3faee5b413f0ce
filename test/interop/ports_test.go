//go:build linux

package interop

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/lab"
)

// ports has every queue pair send from a source port of its own, as rxe always does.
func (s *session) ports(t *testing.T) {
	t.Run("ports", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				l := link{family: family, mtu: 1024, weRequest: we, spread: true}
				for _, verb := range []string{"SEND", "WRITE", "READ"} {
					if s.mode != full && (verb == "SEND" || (verb == "READ") != (family == ipv6)) {
						continue // the subset: one of them per role and family
					}
					s.run(t, "ports", fmt.Sprintf("%s %s %s from a port of the queue pair's own", l.role(), verb, family), func(c *testCase) {
						b := c.newBatch(l, verb, 100_000, 3)
						b.transfer(0, 30000)
						b.states("RTS", "RTS")
						b.checkPorts()
					})
				}
			}
		}
	})
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
