package rdmacm_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/goroce/goroce/roce/rocetest"
)

// ask sends a REQ by hand; what it does not say is as Linux has it.
func ask(g *roce.GSI, from, to netip.AddrPort, req mad.REQ) error {
	var b, private [mad.Size]byte
	n := mad.IPHeader{SrcPort: from.Port(), Src: from.Addr(), Dst: to.Addr()}.Put(private[:])
	req.ServiceID, req.PrivateData = rdmacm.TCP.ServiceID(to.Port()), private[:n]
	req.ResponderResources, req.InitiatorDepth, req.RetryCount, req.RNRRetryCount = 1, 1, 7, 7
	req.RemoteCMResponseTimeout, req.LocalCMResponseTimeout, req.MaxCMRetries = 18, 18, 15
	req.PKey, req.PathMTU = 0xffff, roce.MTU1024
	req.Primary = mad.Path{
		LocalLID: mad.PermissiveLID, RemoteLID: mad.PermissiveLID, LocalGID: ib.GIDFromAddr(from.Addr()), RemoteGID: ib.GIDFromAddr(to.Addr()),
		HopLimit: 64, LocalACKTimeout: 16,
	}
	mad.EncodeCM(b[:], 1, &req)
	return g.Send(roce.MADAddr{Addr: to.Addr()}, b[:])
}

// byHand asks for a connection to a listener with a queue pair that is connected
// without rdmacm, and returns the answer.
func byHand(t *testing.T, e *rocetest.Endpoint, to netip.AddrPort, req mad.REQ) (rep mad.REP) {
	t.Helper()
	g, err := e.Dev.GSI()
	must(t, err)
	answers := make(chan []byte, 16)
	must(t, g.Handle(mad.ClassCM, func(_ roce.MADAddr, b []byte) { answers <- bytes.Clone(b) }))
	req.LocalCommID, req.LocalCAGUID, req.LocalQPN = 77, g.GUID(), e.QP.Num()
	must(t, ask(g, netip.AddrPortFrom(e.Dev.Addr(), 5), to, req))
	select {
	case b := <-answers:
		if h, _ := mad.Parse(b); h.Attr != mad.AttrREP {
			t.Fatalf("answer %+v", h)
		}
		mad.Decode(b, &rep)
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
	}
	return rep
}

// TestStartingPSN: a REQ or REP says with which PSN its receiver begins (Linux
// drivers/infiniband/core/cm.c: sq_psn is that of the peer's message, rq_psn that of
// our own). And a connection whose RTU is lost is established when the first packet
// comes.
func TestStartingPSN(t *testing.T) {
	a, b := pair(t)
	e := rocetest.New(t, a, rocetest.Options{})
	l := listen(t, b, rdmacm.TCP)
	accepted := accept(t, l, rdmacm.Config{Prepare: func(c *rdmacm.Conn) error { return c.QP().PostRecv(roce.RecvWR{ID: 3}) }})
	rep := byHand(t, e, l.Addr(), mad.REQ{StartingPSN: 0x123456})
	e.QP.SetPSN(rep.StartingPSN)
	must(t, e.QP.Connect(roce.Remote{Addr: b.Addr(), QPN: rep.LocalQPN, PSN: 0x123456}, roce.Conn{PathMTU: roce.MTU1024}))
	must(t, e.QP.PostSend(roce.SendWR{ID: 2, Opcode: roce.WRSend, Flags: roce.Signaled}))
	if wc := e.Next(t); wc.ID != 2 || wc.Status != roce.WCSuccess {
		t.Fatalf("our first message: %+v", wc)
	}
	r := <-accepted
	must(t, r.err)
	if wc := next(t, r.c.CQ()); wc.ID != 3 {
		t.Errorf("received %+v", wc)
	}
	must(t, e.QP.PostRecv(roce.RecvWR{ID: 4}))
	must(t, r.c.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
	if wc := e.Next(t); wc.ID != 4 || wc.Status != roce.WCSuccess {
		t.Errorf("their first message: %+v", wc)
	}
	must(t, r.c.Close())
}
