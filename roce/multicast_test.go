package roce_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

const mcastQKey = 0x01234567

// mcastEnd is an UD queue pair that is ready, with 8 receives posted.
func mcastEnd(t *testing.T, d *roce.Device) *rocetest.Endpoint {
	t.Helper()
	e := rocetest.New(t, d, rocetest.Options{QP: roce.QPConfig{Type: roce.UD, MaxInline: 64}, Memory: 8 << 10})
	must(t, e.QP.Activate(mcastQKey))
	for i := range 8 {
		must(t, e.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{e.MR.SGE(i<<10, 1<<10)}}))
	}
	return e
}

// mcastSend sends text to a group, or whatever av names.
func mcastSend(t *testing.T, e *rocetest.Endpoint, to netip.Addr, qpn ib.QPN, qkey uint32, text string) {
	t.Helper()
	ah, err := e.PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(to)})
	must(t, err)
	must(t, e.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte(text), AH: ah, RemoteQPN: qpn, QKey: qkey}))
}

// gets wants the next completion of an end to be a copy of a message, or none.
func gets(t *testing.T, e *rocetest.Endpoint, from *rocetest.Endpoint, group netip.Addr, text string) {
	t.Helper()
	patience := 10 * time.Second
	if text == "" {
		patience = 5 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]roce.WC
	_, err := e.CQ.Wait(ctx, wc[:])
	if text == "" {
		if err == nil {
			t.Errorf("received %+v", wc[0])
		}
		return
	}
	must(t, err)
	b := e.MR.Bytes()[wc[0].ID<<10:][:wc[0].ByteLen]
	grh, ok := ib.ParseGRH(b)
	if !ok || grh.Dst != group || grh.Src != from.Dev.Addr() || wc[0].SrcQP != from.QP.Num() || string(b[40:]) != text {
		t.Errorf("%+v: %q from %v to %v, want %q from %v to %v", wc[0], b[40:], grh.Src, grh.Dst, text, from.Dev.Addr(), group)
	}
	if _, err := e.PD.CreateAHFromWC(&wc[0], b); err != nil {
		t.Errorf("the way back: %v", err)
	}
}

// TestMulticast: each attached queue pair gets its copy, several of one device, that
// of the sender too; what is not attached, has another Q_Key or does not name the
// group and its queue pair number together gets nothing (IBTA 10.5, 9.6.1.2).
func TestMulticast(t *testing.T) {
	fabric := netio.NewFabric()
	dev := func(addr string) *roce.Device {
		d, err := roce.Open(roce.Config{Backend: openFabric(t, fabric, addr)})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	for _, c := range [][4]string{{"10.0.0.1", "10.0.0.2", "239.1.2.3", "239.1.2.4"}, {"fd00::1", "fd00::2", "ff15::1", "ff15::2"}} {
		group, other := netip.MustParseAddr(c[2]), netip.MustParseAddr(c[3])
		da, db := dev(c[0]), dev(c[1])
		a, b1, b2, b3 := mcastEnd(t, da), mcastEnd(t, db), mcastEnd(t, db), mcastEnd(t, db)
		send := func(text string) { t.Helper(); mcastSend(t, a, group, ib.MulticastQPN, mcastQKey, text) }
		send("nobody is there")
		for _, e := range []*rocetest.Endpoint{b1, b1, b2} { // once more is no more
			must(t, e.QP.AttachMulticast(group))
		}
		must(t, b3.QP.AttachMulticast(other))
		send("two")
		gets(t, b1, a, group, "two")
		gets(t, b2, a, group, "two")
		must(t, a.QP.AttachMulticast(group))
		send("the sender as well")
		for _, e := range []*rocetest.Endpoint{a, b1, b2} {
			gets(t, e, a, group, "the sender as well")
		}
		mcastSend(t, b1, other, ib.MulticastQPN, mcastQKey, "among ourselves")
		gets(t, b3, b1, other, "among ourselves")

		mcastSend(t, a, group, ib.MulticastQPN, mcastQKey+1, "another Q_Key")
		mcastSend(t, a, group, b1.QP.Num(), mcastQKey, "one of the group")
		mcastSend(t, a, db.Addr(), ib.MulticastQPN, mcastQKey, "all of the host")
		for _, e := range []*rocetest.Endpoint{a, b1, b2, b3} {
			gets(t, e, nil, group, "")
		}
		if n := db.Counters()["drop_unknown_qp"]; n != 2 {
			t.Errorf("drop_unknown_qp is %d", n)
		}
		if n := db.Counters()["drop_qkey"]; n != 2 {
			t.Errorf("drop_qkey is %d", n)
		}
		must(t, b1.QP.DetachMulticast(group))
		if err := b1.QP.DetachMulticast(group); !errors.Is(err, roce.ErrNotAttached) {
			t.Errorf("detached again: %v", err)
		}
		must(t, a.QP.Destroy()) // detaches
		mcastSend(t, b3, group, ib.MulticastQPN, mcastQKey, "one is left")
		gets(t, b2, b3, group, "one is left")
		gets(t, b1, nil, group, "")
		must(t, b2.QP.Destroy())
		mcastSend(t, b3, group, ib.MulticastQPN, mcastQKey, "nobody is left")
		gets(t, b1, nil, group, "")
		if n := db.Counters()["drop_unknown_qp"]; n != 2 {
			t.Errorf("the host is still in the group: drop_unknown_qp is %d", n)
		}
	}
}

// TestMulticastErrors: the field at fault is named.
func TestMulticastErrors(t *testing.T) {
	a, _ := rocetest.Pair(t)
	var ce *roce.ConfigError
	if err := a.QP.AttachMulticast(netip.MustParseAddr("239.1.1.1")); !errors.As(err, &ce) || ce.Field != "Type" {
		t.Errorf("RC: %v", err)
	}
	e := mcastEnd(t, a.Dev)
	var le *netio.ListenError
	for _, g := range []string{"10.0.0.1", "ff15::1"} {
		if err := e.QP.AttachMulticast(netip.MustParseAddr(g)); !errors.As(err, &le) {
			t.Errorf("%s: %v", g, err)
		}
	}
	must(t, a.Dev.Close())
	if err := e.QP.AttachMulticast(netip.MustParseAddr("239.1.1.1")); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestMulticastUDP: the same over sockets, and a copy costs no allocation.
func TestMulticastUDP(t *testing.T) {
	da, db := openUDP(t, "127.0.0.1", roce.Config{}), openUDP(t, "127.0.0.2", roce.Config{})
	group := netip.MustParseAddr("239.77.0.1")
	a, b1, b2 := mcastEnd(t, da), mcastEnd(t, db), mcastEnd(t, db)
	for _, e := range []*rocetest.Endpoint{b1, b2} {
		if err := e.QP.AttachMulticast(group); errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		} else {
			must(t, err)
		}
	}
	mcastSend(t, a, group, ib.MulticastQPN, mcastQKey, "hello")
	gets(t, b1, a, group, "hello")
	gets(t, b2, a, group, "hello")
	if raceEnabled {
		return // the race detector allocates
	}
	ah, err := a.PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(group)})
	must(t, err)
	send := []roce.SendWR{{Opcode: roce.WRSend, Flags: roce.Inline, Data: bytes.Repeat([]byte{7}, 50), AH: ah, RemoteQPN: ib.MulticastQPN, QKey: mcastQKey}}
	recv := []roce.RecvWR{{SGE: []roce.SGE{b1.MR.SGE(0, 1<<10)}}}
	recv2 := []roce.RecvWR{{SGE: []roce.SGE{b2.MR.SGE(0, 1<<10)}}}
	wc := make([]roce.WC, 1)
	if n := testing.AllocsPerRun(100, func() {
		a.QP.PostSend(send...)
		b1.QP.PostRecv(recv...)
		b2.QP.PostRecv(recv2...)
		for _, e := range []*rocetest.Endpoint{b1, b2} {
			for n := 0; n == 0; {
				n, _ = e.CQ.Poll(wc)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations for a message to two queue pairs", n)
	}
}
