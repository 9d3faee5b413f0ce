package rdmacm_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// withoutRTU is a backend that gets no RTU.
type withoutRTU struct{ netio.Backend }

func (b withoutRTU) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := b.Backend.Recv(now, dst)
	kept := dst[:0]
	for _, r := range dst[:n] {
		const attr = ib.BTHSize + ib.DETHSize + 16 // of the MAD header (IBTA 13.4.3)
		if ib.Opcode(r.Buf[0]) != ib.OpUDSendOnly || len(r.Buf) < attr+2 || mad.Attr(binary.BigEndian.Uint16(r.Buf[attr:])) != mad.AttrRTU {
			kept = append(kept, r)
		}
	}
	return len(kept), err
}

// A client whose RTU is lost and whose first request is wrong has a connection all the
// same, on both sides: the server's queue pair is in the error state before it has
// been in RTS, its requests are flushed, and the client learns of its end.
func TestWrongRequestBeforeRTU(t *testing.T) {
	fabric := netio.NewFabric()
	var devs [2]*roce.Device
	for i, a := range []string{"10.0.0.1", "10.0.0.2"} {
		be, err := fabric.Open(addrPort(a))
		must(t, err)
		if i == 1 {
			be = withoutRTU{be}
		}
		devs[i], err = roce.Open(roce.Config{Backend: be, Spin: -1})
		must(t, err)
		t.Cleanup(func() { devs[i].Close() })
	}
	l := listen(t, devs[1], rdmacm.TCP)
	accepted := accept(t, l, rdmacm.Config{Access: roce.RemoteWrite, Prepare: func(c *rdmacm.Conn) error {
		return c.QP().PostRecv(roce.RecvWR{ID: 7, SGE: []roce.SGE{memory(t, c, 8).SGE(0, 8)}})
	}})
	client, err := dial(t, devs[0], l.Addr(), rdmacm.Config{})
	must(t, err)
	must(t, client.QP().PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{memory(t, client, 8).SGE(0, 8)}, RKey: 0xbad}))
	if wc := next(t, client.CQ()); wc.Status != roce.WCRemAccessErr {
		t.Errorf("the wrong request: %v", wc.Status)
	}
	server := <-accepted
	must(t, server.err)
	if wc := next(t, server.c.CQ()); wc.ID != 7 || wc.Status != roce.WCWRFlushErr {
		t.Errorf("the receive: %+v", wc)
	}
	if ev, err := devs[1].NextEvent(ctx(t)); err != nil || ev.Type != roce.EventCommEst {
		t.Errorf("%v %v", ev.Type, err)
	}
	if ev, err := devs[1].NextEvent(ctx(t)); err != nil || ev.Type != roce.EventQPAccessErr || ev.QP != server.c.QP() {
		t.Errorf("%v %v", ev.Type, err)
	}
	must(t, server.c.Disconnect(ctx(t), nil))
	if err := ended(t, client); !errors.Is(err, rdmacm.ErrDisconnected) {
		t.Errorf("the client's connection ended with %v", err)
	}
}
