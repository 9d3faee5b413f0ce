package rocetest_test

import (
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestPair: what the package's users write first.
func TestPair(t *testing.T) {
	a, b := rocetest.Pair(t)
	b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 64)}})
	a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 5)}})
	if wc := b.Next(t); wc.Status != roce.WCSuccess || wc.ByteLen != 5 {
		t.Errorf("received %+v", wc)
	}
}

// TestFaults: the same over a network that loses every fifth packet.
func TestFaults(t *testing.T) {
	loss := netio.Faults{Loss: 0.2}
	a, b := rocetest.Options{Faults: &netio.FaultConfig{Seed: 1, Tx: loss, Rx: loss}}.Pair(t)
	for i := range 20 {
		b.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 64)}})
		a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, SGE: []roce.SGE{a.MR.SGE(0, 5)}})
		if wc := b.Next(t); wc.Status != roce.WCSuccess || wc.ID != uint64(i) {
			t.Errorf("received %+v", wc)
		}
	}
	if a.Dev.Counters()["fault_drop"]+b.Dev.Counters()["fault_drop"] == 0 {
		t.Error("nothing was lost")
	}
}
