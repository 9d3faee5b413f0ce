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
		f := &fullSocket{Backend: fabricPort(t, fabric, addr)}
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

// TestFullSocketTimer: the ack timer and the probes wait for packets that a full
// socket holds back, and begin when they have left.
func TestFullSocketTimer(t *testing.T) {
	fabric := netio.NewFabric()
	socket := &fullSocket{Backend: fabricPort(t, fabric, "10.0.0.1")}
	devs := []*roce.Device{openManual(t, socket), openManual(t, fabricPort(t, fabric, "10.0.0.2"))}
	a, b := rocetest.New(t, devs[0], rocetest.Options{}), rocetest.New(t, devs[1], rocetest.Options{})
	const timeout = 8388608 * time.Nanosecond // code 11
	rocetest.Connect(t, a, b, roce.Conn{AckTimeout: timeout})
	now := time.Duration(0)
	write := func() {
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	}
	run := func(to time.Duration, devs ...*roce.Device) {
		for ; now < to; now += 100 * time.Microsecond {
			for _, d := range devs {
				d.Progress(now)
			}
		}
	}
	retries := func() [2]uint64 {
		c := devs[0].Counters()
		return [2]uint64{c["ack_probes"], c["local_ack_timeout_err"]}
	}
	write()
	run(time.Millisecond, devs...) // the peer's round trip is known
	want(t, a.Next(t), 0, roce.WCWrite, roce.WCSuccess)

	socket.full.Store(1 << 30)
	write()
	run(30*time.Millisecond, devs...)
	if got := retries(); got != [2]uint64{} {
		t.Errorf("in the socket's queue: %v probes and timeouts", got)
	}
	socket.full.Store(0)
	run(now+200*time.Microsecond, devs[0]) // the peer does not answer
	if got := retries(); got != [2]uint64{} {
		t.Errorf("just after it has left: %v probes and timeouts", got)
	}
	run(now+timeout, devs[0])
	if got := retries(); got[0] == 0 || got[1] != 1 {
		t.Errorf("a timeout after it has left: %v probes and timeouts", got)
	}
	run(now+time.Millisecond, devs...)
	want(t, a.Next(t), 0, roce.WCWrite, roce.WCSuccess)
}

// TestCloseFullSocket: Close does not wait for a socket that takes nothing any more,
// nor for the requests that it holds up.
func TestCloseFullSocket(t *testing.T) {
	f := &fullSocket{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1")}
	d, err := roce.Open(roce.Config{Backend: f, Spin: -1})
	must(t, err)
	a := rocetest.New(t, d, rocetest.Options{})
	must(t, a.QP.Connect(roce.Remote{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 9}, roce.Conn{AckTimeout: -1}))
	f.full.Store(1 << 30)
	for i := range uint64(10) {
		must(t, a.QP.PostSend(roce.SendWR{ID: i, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 1<<20)}}))
	}
	must(t, d.Close())
	for i := range uint64(10) {
		want(t, a.Next(t), i, 0, roce.WCWRFlushErr)
	}
}
