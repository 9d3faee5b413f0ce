package roce_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// Answers that wait for a poller do not wait for ever: who has polled a message and
// does not come again has it acknowledged by the device's own goroutine.
func TestPollerGoesAway(t *testing.T) {
	a, b := rocetest.Options{Conn: roce.Conn{AckTimeout: -1, RetryCount: -1}}.Pair(t) // no timer of the sender helps
	for i := range 20 {
		must(t, b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 8)}}))
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
		var wc [1]roce.WC
		deadline := time.Now().Add(20 * time.Second)
		for n := 0; n == 0; {
			var err error
			n, err = b.CQ.Poll(wc[:])
			must(t, err)
			if time.Now().After(deadline) {
				t.Fatalf("message %d has not come", i)
			}
		}
		if c := a.Next(t); c.Status != roce.WCSuccess {
			t.Fatal(c.Status)
		}
	}
}

// Nor do they end with their queue pair: who has polled a message and destroys it, moves
// it to RESET or closes the device has acknowledged it, as a NIC has by then.
func TestPollerEndsQueuePair(t *testing.T) {
	for name, end := range map[string]func(b *rocetest.Endpoint) error{
		"destroy": func(b *rocetest.Endpoint) error { return b.QP.Destroy() },
		"reset": func(b *rocetest.Endpoint) error {
			return b.QP.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState)
		},
		"close": func(b *rocetest.Endpoint) error { return b.Dev.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				a, b := rocetest.Options{Conn: roce.Conn{AckTimeout: -1, RetryCount: -1}}.Pair(t)
				must(t, b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 8)}}))
				must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
				var wc [1]roce.WC
				for n := 0; n == 0; {
					var err error
					n, err = b.CQ.Poll(wc[:])
					must(t, err)
				}
				must(t, end(b))
				want(t, a.Next(t), 0, 0, roce.WCSuccess)
			}
		})
	}
}
