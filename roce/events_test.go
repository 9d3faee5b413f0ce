package roce_test

import (
	"context"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestDrain: SQD finishes what was begun, tells when it has, and RTS goes on with
// the rest (IBTA 10.3.1.5).
func TestDrain(t *testing.T) {
	w := newWatched(t)
	write := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{w.a.MR.SGE(0, 100000)},
		RemoteAddr: w.b.MR.Addr(), RKey: w.b.MR.RKey()}
	must(t, w.qb.Modify(&roce.Attr{Access: roce.RemoteWrite}, roce.MaskAccess))
	must(t, w.qa.PostSend(write, write))
	w.a.Dev.Progress(w.now) // some of the first
	must(t, w.qa.Modify(&roce.Attr{State: roce.StateSQD, SQDrainNotify: true}, roce.MaskState|roce.MaskSQDNotify))
	if a, _ := w.qa.Query(); !a.SQDraining || a.State != roce.StateSQD {
		t.Errorf("queried %v, draining %v", a.State, a.SQDraining)
	}
	none(t, w.a.Dev)
	w.progress()
	if ev := next(t, w.a.Dev, roce.EventSQDrained); ev.QP != w.qa {
		t.Error("event of another queue pair")
	}
	if a, _ := w.qa.Query(); a.SQDraining {
		t.Error("draining after the event")
	}
	wc := make([]roce.WC, 4)
	if n, _ := w.a.CQ.Poll(wc); n != 1 || wc[0].Status != roce.WCSuccess {
		t.Errorf("%d completions in SQD, want that of the request that was begun", n)
	}
	must(t, w.qa.Modify(&roce.Attr{State: roce.StateRTS}, roce.MaskState))
	w.progress()
	if n, _ := w.a.CQ.Poll(wc); n != 1 || wc[0].Status != roce.WCSuccess {
		t.Errorf("%d completions after SQD, want the other", n)
	}
}

// TestCommunicationEstablished: the event comes once, when the first message comes
// while the queue pair is in RTR (IBTA 11.6.3.1).
func TestCommunicationEstablished(t *testing.T) {
	a, b := rocetest.Pair(t)
	q, err := b.PD.CreateQP(roce.QPConfig{SendCQ: b.CQ})
	must(t, err)
	must(t, a.QP.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	must(t, q.Init(0))
	must(t, q.PostRecv(roce.RecvWR{}, roce.RecvWR{}))
	must(t, q.RTR(roce.Remote{Addr: a.Dev.Addr(), QPN: a.QP.Num(), PSN: a.QP.PSN()}, roce.Conn{}))
	must(t, a.QP.Connect(roce.Remote{Addr: b.Dev.Addr(), QPN: q.Num(), PSN: q.PSN()}, roce.Conn{}))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for i := range 2 {
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		want(t, b.Next(t), 0, roce.WCRecv, roce.WCSuccess)
		if i > 0 {
			continue
		}
		if ev, err := b.Dev.NextEvent(ctx); err != nil || ev.Type != roce.EventCommEst || ev.QP != q {
			t.Errorf("event %+v, %v", ev, err)
		}
		must(t, q.RTS(roce.Conn{}))
	}
	over, end := context.WithCancel(ctx)
	end()
	if ev, err := b.Dev.NextEvent(over); err == nil {
		t.Errorf("another event: %v", ev.Type)
	}
}
