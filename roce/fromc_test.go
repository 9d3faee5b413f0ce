package roce_test

import (
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestFromC: who polls without yielding gets its completions all the same, and the
// peer, whose engine nobody polls, works meanwhile.
func TestFromC(t *testing.T) {
	a, b := rocetest.Pair(t)
	cq, err := a.Dev.CreateCQ(16, roce.FromC())
	must(t, err)
	q, err := a.PD.CreateQP(roce.QPConfig{SendCQ: cq})
	must(t, err)
	must(t, b.QP.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	must(t, q.Connect(roce.Remote{Addr: b.Dev.Addr(), QPN: b.QP.Num(), PSN: b.QP.PSN()}, roce.Conn{}))
	must(t, b.QP.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: q.Num(), PSN: q.PSN()}, roce.Conn{}))
	for id := range uint64(100) {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: id}))
		must(t, q.PostSend(roce.SendWR{ID: id, Opcode: roce.WRSend, Flags: roce.Signaled}))
		var wc [1]roce.WC
		for n := 0; n == 0; {
			n, err = cq.Poll(wc[:])
			must(t, err)
		}
		want(t, wc[0], id, roce.WCSend, roce.WCSuccess)
		want(t, b.Next(t), id, roce.WCRecv, roce.WCSuccess)
	}
}
