package roce_test

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// fullSocket is a backend whose socket is full for some Sends.
type fullSocket struct {
	netio.Backend
	full atomic.Int32
}

func (f *fullSocket) Send(now time.Duration, runs []netio.Run) (int, error) {
	if len(runs) > 0 && f.full.Add(-1) >= 0 {
		return 0, netio.ErrWouldBlock
	}
	return f.Backend.Send(now, runs)
}

// TestFullSocket: what a poster could not send goes out as soon as the socket takes
// it, though nobody polls and no timer runs.
func TestFullSocket(t *testing.T) {
	fabric := netio.NewFabric()
	open := func(addr string) (*rocetest.Endpoint, *fullSocket) {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
		must(t, err)
		f := &fullSocket{Backend: be}
		d, err := roce.Open(roce.Config{Backend: f, Spin: -1})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return rocetest.New(t, d, rocetest.Options{}), f
	}
	a, socket := open("10.0.0.1")
	b, _ := open("10.0.0.2")
	rocetest.Connect(t, a, b, roce.Conn{AckTimeout: -1})
	for i := range 20 {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 8)}}))
		time.Sleep(time.Millisecond) // let the goroutines wait; right either way
		socket.full.Store(2)
		must(t, a.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRSend, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
		want(t, b.Next(t), uint64(i), roce.WCRecv, roce.WCSuccess)
	}
}
