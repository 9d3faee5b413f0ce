package roce_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
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

// Nor for ever for a program that the message has woken, and that does nothing.
func TestSleeperGoesAway(t *testing.T) {
	a, b := rocetest.Options{Device: roce.Config{Spin: -1}, Conn: roce.Conn{AckTimeout: -1, RetryCount: -1}}.Pair(t)
	for i := range uint64(20) {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: i, SGE: []roce.SGE{b.MR.SGE(0, 8)}}))
		must(t, a.QP.PostSend(roce.SendWR{ID: i, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
		want(t, b.Next(t), i, roce.WCRecv, roce.WCSuccess)
		want(t, a.Next(t), i, roce.WCSend, roce.WCSuccess)
	}
}

// The answer to a message that wakes a program waits for what that sends, and leaves with
// it; for a program that polls nothing it leaves at once.
func TestSleeperAnswers(t *testing.T) {
	for _, sleeps := range []bool{false, true} {
		f := netio.NewFabric()
		out := &countedBackend{Backend: fabricPort(t, f, "10.0.0.2")}
		devs := [2]*roce.Device{openManual(t, fabricPort(t, f, "10.0.0.1")), openManual(t, out)}
		a, b := rocetest.New(t, devs[0], rocetest.Options{}), rocetest.New(t, devs[1], rocetest.Options{})
		rocetest.Connect(t, a, b, roce.Conn{})
		if sleeps {
			b.CQ.Sleep()
		}
		sent := func(packets, runs int) {
			t.Helper()
			if out.packets != packets || out.runs != runs {
				t.Errorf("asleep %v: %d packets in %d runs, want %d in %d", sleeps, out.packets, out.runs, packets, runs)
			}
			out.packets, out.runs = 0, 0
		}
		message := func(from, to *rocetest.Endpoint) {
			must(t, to.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{to.MR.SGE(0, 8)}}))
			must(t, from.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, SGE: []roce.SGE{from.MR.SGE(0, 8)}}))
		}
		message(a, b)
		settle(devs[0], 0)
		devs[1].Serve(0)
		if sleeps {
			sent(0, 0)
		} else {
			sent(1, 1)
		}
		message(b, a)
		devs[1].Serve(0)
		if sleeps {
			sent(2, 1)
		} else {
			sent(1, 1)
		}
		message(a, b)
		settle(devs[0], 0)
		devs[1].Serve(0) // asleep: it waits
		devs[1].Serve(0) // but once
		sent(1, 1)
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
