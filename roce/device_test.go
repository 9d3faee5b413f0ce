package roce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// fill writes bytes that depend on their position and on n.
func fill(b []byte, n int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + n*31)
	}
}

func want(t *testing.T, wc roce.WC, id uint64, op roce.WCOpcode, status roce.WCStatus) {
	t.Helper()
	if wc.ID != id || wc.Status != status || (status == roce.WCSuccess && wc.Opcode != op) {
		t.Fatalf("completion %d %v %v, want %d %v %v", wc.ID, wc.Opcode, wc.Status, id, op, status)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOperations: each RC operation arrives, completes on both sides as verbs say,
// and leaves every byte in place.
func TestOperations(t *testing.T) {
	for _, size := range []int{0, 1, 1023, 1024, 1025, 70000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a, b := rocetest.Options{Conn: roce.Conn{PathMTU: roce.MTU1024}}.Pair(t)
			src, dst := a.MR.Bytes()[:size], b.MR.Bytes()[100:][:size]
			send := func(op roce.WROpcode, recv bool) {
				t.Helper()
				fill(src, int(op))
				clear(dst)
				if recv {
					must(t, b.QP.PostRecv(roce.RecvWR{ID: 9, SGE: []roce.SGE{b.MR.SGE(100, size)}}))
				}
				must(t, a.QP.PostSend(roce.SendWR{ID: uint64(op), Opcode: op, Flags: roce.Signaled, Imm: 0xabcdef01,
					SGE: []roce.SGE{a.MR.SGE(0, size)}, RemoteAddr: b.MR.Addr() + 100, RKey: b.MR.RKey()}))
			}
			send(roce.WRSend, true)
			want(t, a.Next(t), uint64(roce.WRSend), roce.WCSend, roce.WCSuccess)
			wc := b.Next(t)
			want(t, wc, 9, roce.WCRecv, roce.WCSuccess)
			if int(wc.ByteLen) != size || wc.Flags&roce.WCWithImm != 0 || !bytes.Equal(src, dst) {
				t.Errorf("SEND: %d bytes, flags %v, equal %v", wc.ByteLen, wc.Flags, bytes.Equal(src, dst))
			}
			send(roce.WRSendWithImm, true)
			want(t, a.Next(t), uint64(roce.WRSendWithImm), roce.WCSend, roce.WCSuccess)
			wc = b.Next(t)
			if wc.Imm != 0xabcdef01 || wc.Flags&roce.WCWithImm == 0 || int(wc.ByteLen) != size || !bytes.Equal(src, dst) {
				t.Errorf("SEND with immediate: %+v", wc)
			}
			send(roce.WRWrite, false)
			want(t, a.Next(t), uint64(roce.WRWrite), roce.WCWrite, roce.WCSuccess)
			if !bytes.Equal(src, dst) {
				t.Error("WRITE: bytes differ")
			}
			send(roce.WRWriteWithImm, true)
			want(t, a.Next(t), uint64(roce.WRWriteWithImm), roce.WCWrite, roce.WCSuccess)
			wc = b.Next(t)
			want(t, wc, 9, roce.WCRecvRDMAWithImm, roce.WCSuccess)
			if wc.Imm != 0xabcdef01 || int(wc.ByteLen) != size || !bytes.Equal(src, dst) {
				t.Errorf("WRITE with immediate: %+v", wc)
			}
			fill(dst, 77)
			clear(src)
			must(t, a.QP.PostSend(roce.SendWR{ID: 4, Opcode: roce.WRRead, Flags: roce.Signaled,
				SGE: []roce.SGE{a.MR.SGE(0, size)}, RemoteAddr: b.MR.Addr() + 100, RKey: b.MR.RKey()}))
			wc = a.Next(t)
			want(t, wc, 4, roce.WCRead, roce.WCSuccess)
			if int(wc.ByteLen) != size || !bytes.Equal(src, dst) {
				t.Errorf("READ: %d bytes, equal %v", wc.ByteLen, bytes.Equal(src, dst))
			}
		})
	}
}

// TestInline: inline data is copied when the request is posted.
func TestInline(t *testing.T) {
	a, b := rocetest.Options{QP: roce.QPConfig{MaxInline: 64}}.Pair(t)
	must(t, b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 64)}}))
	data := []byte("inline")
	must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled | roce.Inline, Data: data}))
	clear(data)
	if wc := b.Next(t); string(b.MR.Bytes()[:wc.ByteLen]) != "inline" {
		t.Errorf("received %q", b.MR.Bytes()[:wc.ByteLen])
	}
}

// TestRNRRecovers: a SEND that finds no receive request waits and goes through
// when one is posted (IBTA 9.7.5.2.8).
func TestRNRRecovers(t *testing.T) {
	a, b := rocetest.Pair(t)
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 10)}}))
	for b.Dev.Counters()["send_rnr_err"] == 0 {
		a.CQ.Poll(make([]roce.WC, 1))
		b.CQ.Poll(make([]roce.WC, 1))
	}
	must(t, b.QP.PostRecv(roce.RecvWR{ID: 2, SGE: []roce.SGE{b.MR.SGE(0, 10)}}))
	want(t, a.Next(t), 1, roce.WCSend, roce.WCSuccess)
	want(t, b.Next(t), 2, roce.WCRecv, roce.WCSuccess)
}

// TestRemoteAccessError: a wrong rkey ends both queue pairs, with the event on the
// responder's device and everything else flushed (IBTA 10.2.3, 11.5.2).
func TestRemoteAccessError(t *testing.T) {
	a, b := rocetest.Pair(t)
	must(t, b.QP.PostRecv(roce.RecvWR{ID: 50}))
	must(t, a.QP.PostSend(
		roce.SendWR{ID: 1, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 10)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey() + 1},
		roce.SendWR{ID: 2, Opcode: roce.WRSend, SGE: []roce.SGE{a.MR.SGE(0, 10)}}))
	want(t, a.Next(t), 1, 0, roce.WCRemAccessErr)
	want(t, a.Next(t), 2, 0, roce.WCWRFlushErr)
	want(t, b.Next(t), 50, 0, roce.WCWRFlushErr)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for { // communication established comes first
		ev, err := b.Dev.NextEvent(ctx)
		must(t, err)
		if ev.Type == roce.EventQPAccessErr && ev.QP == b.QP {
			break
		}
	}
	if a.QP.State() != roce.StateErr || b.QP.State() != roce.StateErr {
		t.Errorf("states %v and %v, want ERR", a.QP.State(), b.QP.State())
	}
	// Posted afterwards: flushed too.
	must(t, a.QP.PostSend(roce.SendWR{ID: 3, Opcode: roce.WRSend}))
	must(t, a.QP.PostRecv(roce.RecvWR{ID: 4}))
	want(t, a.Next(t), 3, 0, roce.WCWRFlushErr)
	want(t, a.Next(t), 4, 0, roce.WCWRFlushErr)
}

// TestDeregisterInFlight: after Deregister nothing touches the memory, and requests
// that use it fail.
func TestDeregisterInFlight(t *testing.T) {
	a, b := rocetest.Options{Memory: 16 << 20}.Pair(t)
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{a.MR.SGE(0, 16<<20)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	must(t, b.MR.Deregister())
	before := bytes.Clone(b.MR.Bytes())
	if wc := a.Next(t); wc.Status != roce.WCRemAccessErr && wc.Status != roce.WCSuccess && wc.Status != roce.WCRemOpErr {
		t.Errorf("completed with %v", wc.Status)
	}
	if !bytes.Equal(before, b.MR.Bytes()) {
		t.Error("memory changed after Deregister")
	}
	if err := b.MR.Deregister(); err == nil {
		t.Error("second Deregister succeeded")
	}
}

// TestCQOverflow: what the queue holds is delivered, then the error; the queue pair
// is in error and the event is there (IBTA 11.6.3.1).
func TestCQOverflow(t *testing.T) {
	a, b := rocetest.Options{CQEntries: 4}.Pair(t)
	for i := range 8 {
		must(t, a.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRWrite, Flags: roce.Signaled,
			SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	}
	deadline := time.Now().Add(10 * time.Second)
	for a.QP.State() != roce.StateErr && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	var got []uint64
	for {
		var wc [3]roce.WC
		n, err := a.CQ.Poll(wc[:])
		if err != nil {
			if !errors.Is(err, roce.ErrCQOverflow) {
				t.Fatal(err)
			}
			break
		}
		for _, c := range wc[:n] {
			got = append(got, c.ID)
		}
	}
	if fmt.Sprint(got) != "[0 1 2 3]" {
		t.Errorf("delivered %v, want the first 4", got)
	}
	if n := a.Dev.Counters()["drop_cq_overflow"]; n != 4 {
		t.Errorf("drop_cq_overflow = %d, want 4", n)
	}
}

// TestCloseFlushes: Close completes what is posted, and everything that waits ends.
func TestCloseFlushes(t *testing.T) {
	a, b := rocetest.Pair(t)
	must(t, a.QP.PostRecv(roce.RecvWR{ID: 1}, roce.RecvWR{ID: 2}))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := a.Dev.NextEvent(context.Background()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("NextEvent: %v", err)
		}
	})
	wg.Go(func() {
		wc := make([]roce.WC, 2)
		for n := 0; n < 2; {
			k, err := a.CQ.Wait(context.Background(), wc[n:])
			if err != nil {
				t.Error(err)
				return
			}
			n += k
		}
		for i, c := range wc {
			if c.ID != uint64(i+1) || c.Status != roce.WCWRFlushErr {
				t.Errorf("completion %+v", c)
			}
		}
		if _, err := a.CQ.Wait(context.Background(), wc); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Wait after Close: %v", err)
		}
	})
	time.Sleep(5 * time.Millisecond) // let them wait; right either way
	must(t, a.Dev.Close())
	wg.Wait()
	if err := a.Dev.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if err := a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend}); err == nil {
		t.Error("PostSend after Close succeeded")
	}
	if _, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CreateQP after Close: %v", err)
	}
	// The other side notices by itself: its next request runs out of retries.
	_ = b
}

// TestBusy: objects in use are not freed.
func TestBusy(t *testing.T) {
	a, _ := rocetest.Pair(t)
	if err := a.PD.Dealloc(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("PD: %v", err)
	}
	if err := a.CQ.Destroy(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("CQ: %v", err)
	}
	must(t, a.QP.Destroy())
	must(t, a.CQ.Destroy())
	must(t, a.MR.Deregister())
	must(t, a.PD.Dealloc())
	if _, err := a.CQ.Wait(context.Background(), make([]roce.WC, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Wait on a destroyed queue: %v", err)
	}
}

// TestPostErrors: what cannot be posted is refused with its index and field; what
// stood before it in the list was posted.
func TestPostErrors(t *testing.T) {
	a, b := rocetest.Options{QP: roce.QPConfig{MaxSendWR: 4, MaxRecvWR: 2, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 16}}.Pair(t)
	must(t, b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 1)}}))
	ok := roce.SendWR{Opcode: roce.WRSend, SGE: []roce.SGE{a.MR.SGE(0, 1)}}
	for _, c := range []struct {
		name, field string
		index       int
		wrs         []roce.SendWR
	}{
		{"too many segments", "SGE", 1, []roce.SendWR{ok, {Opcode: roce.WRSend, SGE: make([]roce.SGE, 3)}}},
		{"longer than 2^31", "SGE", 0, []roce.SendWR{{Opcode: roce.WRSend, SGE: []roce.SGE{{Length: 1 << 31}, {Length: 1}}}}},
		{"unknown operation", "Opcode", 0, []roce.SendWR{{Opcode: 200}}},
		{"too much inline data", "Data", 0, []roce.SendWR{{Opcode: roce.WRSend, Flags: roce.Inline, Data: make([]byte, 17)}}},
		{"data without Inline", "Data", 0, []roce.SendWR{{Opcode: roce.WRSend, Data: make([]byte, 1)}}},
		{"inline with segments", "SGE", 0, []roce.SendWR{{Opcode: roce.WRSend, Flags: roce.Inline, SGE: make([]roce.SGE, 1)}}},
		{"inline READ", "Flags", 0, []roce.SendWR{{Opcode: roce.WRRead, Flags: roce.Inline}}},
	} {
		var pe *roce.PostError
		if err := a.QP.PostSend(c.wrs...); !errors.As(err, &pe) || pe.Index != c.index || pe.Field != c.field {
			t.Errorf("%s: %v, want index %d, field %s", c.name, err, c.index, c.field)
		}
	}
	if wc := b.Next(t); wc.Status != roce.WCSuccess {
		t.Errorf("the request before the bad one: %v", wc.Status)
	}
	var pe *roce.PostError
	if err := a.QP.PostRecv(roce.RecvWR{}, roce.RecvWR{}, roce.RecvWR{}); !errors.As(err, &pe) || pe.Index != 2 || !errors.Is(err, roce.ErrQueueFull) {
		t.Errorf("full receive queue: %v", err)
	}
	q, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ})
	must(t, err)
	if err := q.PostSend(ok); !errors.As(err, &pe) {
		t.Errorf("PostSend in RESET: %v", err)
	}
	if err := q.PostRecv(roce.RecvWR{}); !errors.As(err, &pe) {
		t.Errorf("PostRecv in RESET: %v", err)
	}
}

// TestConfigErrors: a bad field is named with what is allowed.
func TestConfigErrors(t *testing.T) {
	a, _ := rocetest.Pair(t)
	var ce *roce.ConfigError
	field := func(name string, err error) {
		t.Helper()
		if !errors.As(err, &ce) || ce.Field != name {
			t.Errorf("%v, want a ConfigError of %s", err, name)
		}
	}
	_, err := roce.Open(roce.Config{})
	field("Addr", err)
	_, err = a.Dev.CreateCQ(0)
	field("cqe", err)
	_, err = a.PD.CreateQP(roce.QPConfig{})
	field("SendCQ", err)
	_, err = a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ, Type: roce.UD + 1})
	field("Type", err)
	_, err = a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ, MaxSendSGE: 33})
	field("MaxSendSGE", err)
	q, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ})
	must(t, err)
	must(t, q.Init(0))
	field("AV.DGID", q.RTR(roce.Remote{Addr: netip.MustParseAddr("fd00::1")}, roce.Conn{}))
	field("Remote.Addr", q.RTR(roce.Remote{}, roce.Conn{}))
	field("MaxDestRdAtomic", q.RTR(roce.Remote{Addr: netip.MustParseAddr("10.0.0.9")}, roce.Conn{MaxDestRdAtomic: 17}))
	var ae *roce.AttrError
	if err := q.RTS(roce.Conn{}); !errors.As(err, &ae) {
		t.Errorf("INIT to RTS: %v, want an AttrError", err)
	}
}

// TestManual: a manual device moves only in Progress, and tells when it wants to
// be called again: the exact end of the ack timeout.
func TestManual(t *testing.T) {
	fabric := netio.NewFabric()
	da, db := openManual(t, fabricPort(t, fabric, "10.0.0.1")), openManual(t, fabricPort(t, fabric, "10.0.0.2"))
	a, b := rocetest.New(t, da, rocetest.Options{}), rocetest.New(t, db, rocetest.Options{})
	rocetest.Connect(t, a, b, roce.Conn{AckTimeout: 67 * time.Millisecond})
	now := time.Millisecond
	if next := da.Progress(now); next != roce.Never {
		t.Fatalf("idle device wants to be called at %v", next)
	}
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	wc := make([]roce.WC, 1)
	if n, err := a.CQ.Poll(wc); n != 0 || err != nil {
		t.Fatalf("Poll moved something: %d, %v", n, err)
	}
	if next, want := settle(da, now), now+4096<<14*time.Nanosecond; next != want {
		t.Errorf("after the request: next %v, want the ack timeout %v", next, want)
	}
	settle(db, now)
	if next := settle(da, now); next < now+67*time.Millisecond {
		t.Errorf("after the acknowledgement: next %v", next)
	}
	if n, err := a.CQ.Poll(wc); n != 1 || err != nil || wc[0].Status != roce.WCSuccess {
		t.Errorf("Poll: %d, %v, %+v", n, err, wc[0])
	}
}

// fabricPort opens an address of a fabric.
func fabricPort(t testing.TB, f *netio.Fabric, addr string) netio.Backend {
	be, err := f.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
	must(t, err)
	return be
}

// openManual opens a manual device, closed at the end of the test.
func openManual(t testing.TB, be netio.Backend) *roce.Device {
	d, err := roce.Open(roce.Config{Backend: be, Manual: true})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// settle calls Progress until there is nothing more to do at now.
func settle(d *roce.Device, now time.Duration) (next time.Duration) {
	for next = now; next == now; {
		next = d.Progress(now)
	}
	return next
}
