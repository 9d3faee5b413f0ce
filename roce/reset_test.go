package roce_test

import (
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestResetForgets: a queue pair that is reset takes its completions along, those of
// others in the same queue stay, in order.
func TestResetForgets(t *testing.T) {
	a, _ := rocetest.Pair(t)
	cq, err := a.Dev.CreateCQ(16)
	must(t, err)
	var qps [2]*roce.QP
	for i := range qps {
		qps[i], err = a.PD.CreateQP(roce.QPConfig{SendCQ: cq})
		must(t, err)
		must(t, qps[i].Init(0))
	}
	for id := range uint64(6) {
		must(t, qps[id%2].PostRecv(roce.RecvWR{ID: id}))
	}
	for _, q := range qps { // which flushes
		must(t, q.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	}
	must(t, qps[0].Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	wc := make([]roce.WC, 16)
	n, err := cq.Poll(wc)
	must(t, err)
	if n != 3 {
		t.Fatalf("%d completions, want the 3 of the other queue pair", n)
	}
	for i := range n {
		if w := &wc[i]; w.ID != uint64(2*i+1) || w.QPN != qps[1].Num() || w.Status != roce.WCWRFlushErr {
			t.Errorf("completion %d: ID %d of %v, %v", i, w.ID, w.QPN, w.Status)
		}
	}
	must(t, qps[0].Init(0))
	must(t, qps[0].PostRecv(roce.RecvWR{ID: 100}))
	must(t, qps[0].Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	if n, err := cq.Poll(wc); err != nil || n != 1 || wc[0].ID != 100 {
		t.Errorf("%d completions after the reset, %v: %+v", n, err, wc[0])
	}
}
