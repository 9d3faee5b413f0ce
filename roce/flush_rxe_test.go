package roce_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// towardsRxe loses the FLUSHes that Linux rxe drops: those sealed by the rule.
type towardsRxe struct {
	netio.Backend
	lost int
}

func (r *towardsRxe) Send(now time.Duration, runs []netio.Run) (int, error) {
	for i := range runs {
		if run := &runs[i]; !r.drops(run) {
			if _, err := r.Backend.Send(now, runs[i:i+1]); err != nil {
				return i, err
			}
		}
	}
	return len(runs), nil
}

func (r *towardsRxe) drops(run *netio.Run) bool {
	flow := ib.NewFlow(r.LocalAddr(), run.Dst)
	lost := 0
	for i := range run.Segments() {
		byRule := slices.Clone(run.Segment(i))
		flow.Seal(uint16(i), byRule)
		if ib.Opcode(byRule[0]) == ib.OpRCFlush && bytes.Equal(byRule, run.Segment(i)) {
			lost++
		}
	}
	r.lost += lost
	return lost > 0
}

// TestFlushToRxe: the first FLUSH to rxe is lost, and repeated in rxe's form, which is used from then on; what rxe sends is taken.
func TestFlushToRxe(t *testing.T) {
	fabric := netio.NewFabric()
	open := func(addr string) (*rocetest.Endpoint, *towardsRxe) {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
		must(t, err)
		rxe := &towardsRxe{Backend: be}
		d, err := roce.Open(roce.Config{Backend: rxe})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return rocetest.New(t, d, rocetest.Options{}), rxe
	}
	a, out := open("10.0.0.1")
	b, _ := open("10.0.0.2")
	rocetest.Connect(t, a, b, roce.Conn{})
	flush := roce.SendWR{Opcode: roce.WRFlush, Flags: roce.Signaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Flush: roce.Flush{Placement: roce.PlaceGlobal, Length: 8}}
	for id := uint64(1); id <= 5; id++ {
		flush.ID = id
		must(t, a.QP.PostSend(flush))
		want(t, a.Next(t), id, roce.WCFlush, roce.WCSuccess)
	}
	must(t, a.Dev.Close())
	if out.lost != 1 {
		t.Errorf("%d FLUSHes were lost, want 1", out.lost)
	}
}
