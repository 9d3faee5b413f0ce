package roce_test

import (
	"bytes"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestSRQOfUC: UC queue pairs take from a shared receive queue as RC ones do (IBTA
// 10.2.9; rxe allows it, too), but a message that finds it empty is lost, and its
// sender knows nothing of it (IBTA 9.8.2).
func TestSRQOfUC(t *testing.T) {
	a, b := rocetest.Pair(t)
	srq, err := b.PD.CreateSRQ(roce.SRQConfig{})
	must(t, err)
	var qps [2][2]*roce.QP
	for i := range qps {
		send, err := a.PD.CreateQP(roce.QPConfig{Type: roce.UC, SendCQ: a.CQ})
		must(t, err)
		recv, err := b.PD.CreateQP(roce.QPConfig{Type: roce.UC, SendCQ: b.CQ, SRQ: srq})
		must(t, err)
		conn := roce.Conn{Access: roce.RemoteWrite}
		must(t, send.Connect(roce.Remote{Addr: b.Dev.Addr(), QPN: recv.Num(), PSN: recv.PSN()}, conn))
		must(t, recv.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: send.Num(), PSN: send.PSN()}, conn))
		qps[i] = [2]*roce.QP{send, recv}
	}
	for i := range 6 {
		q, size := qps[i%2], 5000*i
		fill(a.MR.Bytes()[:size], i)
		must(t, q[0].PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled})) // finds nothing
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		for b.Dev.Counters()["drop_no_receive"] != uint64(i+1) {
			if n, err := b.CQ.Poll(make([]roce.WC, 1)); n != 0 || err != nil {
				t.Fatalf("%d completions, %v", n, err)
			}
		}
		must(t, srq.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 100), b.MR.SGE(100, 30000)}}))
		wr := roce.SendWR{ID: 9, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, size)}}
		op, got := roce.WCSend, roce.WCRecv
		if i >= 4 { // immediate data takes a receive, too
			wr.Opcode, wr.RemoteAddr, wr.RKey = roce.WRWriteWithImm, b.MR.Addr(), b.MR.RKey()
			op, got = roce.WCWrite, roce.WCRecvRDMAWithImm
		}
		must(t, q[0].PostSend(wr))
		want(t, a.Next(t), 9, op, roce.WCSuccess)
		wc := b.Next(t)
		want(t, wc, uint64(i), got, roce.WCSuccess)
		if wc.QPN != q[1].Num() || int(wc.ByteLen) != size || !bytes.Equal(a.MR.Bytes()[:size], b.MR.Bytes()[:size]) {
			t.Errorf("message %d: %+v, or wrong bytes", i, wc)
		}
	}
	must(t, qps[0][1].Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	if ev := next(t, b.Dev, roce.EventQPLastWQE); ev.QP != qps[0][1] {
		t.Errorf("the last WQE of %p", ev.QP)
	}
}

// TestSRQOfUD: UD queue pairs share receives; each has the 40 bytes before the
// payload and completes with the number of the queue pair that took it.
func TestSRQOfUD(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{}, nil)
	a, b := ends[0], ends[1]
	srq, err := b.PD.CreateSRQ(roce.SRQConfig{Limit: 1})
	must(t, err)
	ah := handle(t, a, b)
	for i := range 4 {
		q, err := b.PD.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: b.CQ, SRQ: srq})
		must(t, err)
		must(t, q.Activate(7))
		must(t, srq.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 40), b.MR.SGE(1000, 4096)}}))
		fill(a.MR.Bytes()[:1000], i)
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 1000)}, AH: ah, RemoteQPN: q.Num(), QKey: 7}))
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		wc := b.Next(t)
		want(t, wc, uint64(i), roce.WCRecv, roce.WCSuccess)
		if wc.QPN != q.Num() || wc.SrcQP != a.QP.Num() || wc.ByteLen != 1040 || wc.Flags&roce.WCGRH == 0 ||
			!bytes.Equal(b.MR.Bytes()[1000:2000], a.MR.Bytes()[:1000]) {
			t.Errorf("datagram %d: %+v, or wrong bytes", i, wc)
		}
	}
	next(t, b.Dev, roce.EventSRQLimit)
	if q := srq.Query(); q.Limit != 0 {
		t.Errorf("%+v", q)
	}
}
