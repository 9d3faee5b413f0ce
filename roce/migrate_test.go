package roce_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// cutter is a backend whose runs are lost as cut says.
type cutter struct {
	netio.Backend
	cut func(r *netio.Run) bool
}

func (c *cutter) Send(now time.Duration, runs []netio.Run) (int, error) {
	kept := make([]netio.Run, 0, len(runs))
	for _, r := range runs {
		if !c.cut(&r) {
			kept = append(kept, r)
		}
	}
	if _, err := c.Backend.Send(now, kept); err != nil {
		return 0, err
	}
	return len(runs), nil
}

// migrationRig is two connected manual devices, and virtual time.
type migrationRig struct {
	t    *testing.T
	now  time.Duration
	a, b *rocetest.Endpoint
}

func newMigrationRig(t *testing.T, typ roce.QPType, a, b netio.Backend) *migrationRig {
	m := &migrationRig{t: t}
	open := func(be netio.Backend) *rocetest.Endpoint {
		return rocetest.New(t, openManual(t, be), rocetest.Options{QP: roce.QPConfig{Type: typ}})
	}
	m.a, m.b = open(a), open(b)
	rocetest.Connect(t, m.a, m.b, roce.Conn{PathMTU: roce.MTU1024, AckTimeout: time.Millisecond, RetryCount: 2})
	return m
}

// write moves n bytes from a to b and says how it ended.
func (m *migrationRig) write(n int) roce.WCStatus {
	m.t.Helper()
	fill(m.a.MR.Bytes()[:n], int(m.now))
	must(m.t, m.a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{m.a.MR.SGE(0, n)}, RemoteAddr: m.b.MR.Addr(), RKey: m.b.MR.RKey()}))
	var wc [1]roce.WC
	for range 100_000 {
		next := min(m.a.Dev.Progress(m.now), m.b.Dev.Progress(m.now))
		if k, _ := m.a.CQ.Poll(wc[:]); k == 1 {
			if wc[0].Status == roce.WCSuccess && !bytes.Equal(m.a.MR.Bytes()[:n], m.b.MR.Bytes()[:n]) {
				m.t.Error("bytes differ")
			}
			return wc[0].Status
		}
		if next == roce.Never {
			m.t.Fatal("nothing is due")
		}
		m.now = max(m.now, next)
	}
	m.t.Fatal("never completes")
	return 0
}

// states compares the states of path migration.
func (m *migrationRig) states(a, b roce.MigState) {
	m.t.Helper()
	for i, e := range []*rocetest.Endpoint{m.a, m.b} {
		if attr, _ := e.QP.Query(); attr.PathMigState != []roce.MigState{a, b}[i] {
			m.t.Errorf("end %d: %v, want %v", i, attr.PathMigState, []roce.MigState{a, b}[i])
		}
	}
}

// events compares the asynchronous events of both ends since the last call.
func (m *migrationRig) events(want ...roce.EventType) {
	m.t.Helper()
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for i, e := range []*rocetest.Endpoint{m.a, m.b} {
		var got []roce.EventType
		for {
			ev, err := e.Dev.NextEvent(done)
			if errors.Is(err, context.Canceled) {
				break
			}
			must(m.t, err)
			if ev.QP != e.QP {
				m.t.Errorf("end %d: %v of another queue pair", i, ev.Type)
			}
			got = append(got, ev.Type)
		}
		if !slices.Equal(got, want) {
			m.t.Errorf("end %d: events %v, want %v", i, got, want)
		}
	}
}

func openFabric(t *testing.T, f *netio.Fabric, addr string) netio.Backend {
	be, err := f.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
	must(t, err)
	return be
}

// TestMigration: two paths that differ in the source port (IBTA 17.2.8). The ends
// arm, one migrates on request and the other follows; they arm again, the path is
// cut, and both are back on the first; without an alternate path a cut is the end.
func TestMigration(t *testing.T) {
	const port = 0xc222
	f := netio.NewFabric()
	var lost [2]bool // by path
	cut := func(r *netio.Run) bool { return lost[0] && r.SrcPort == 0 || lost[1] && r.SrcPort == port }
	m := newMigrationRig(t, roce.RC, &cutter{openFabric(t, f, "10.0.0.1"), cut}, &cutter{openFabric(t, f, "10.0.0.2"), cut})
	arm := func(port uint16) {
		t.Helper()
		must(t, m.a.QP.Arm(roce.Alternate{SourcePort: port, AckTimeout: time.Millisecond}))
		must(t, m.b.QP.Arm(roce.Alternate{SourcePort: port, AckTimeout: time.Millisecond}))
		m.states(roce.MigRearm, roce.MigRearm)
		if s := m.write(3000); s != roce.WCSuccess {
			t.Fatal(s)
		}
		m.states(roce.MigArmed, roce.MigArmed)
	}
	onPort := func(want uint16) {
		t.Helper()
		for _, e := range []*rocetest.Endpoint{m.a, m.b} {
			if a, _ := e.QP.Query(); a.AV.SourcePort != want {
				t.Errorf("sends from port %d, want %d", a.AV.SourcePort, want)
			}
		}
	}
	m.write(10)
	m.events()
	arm(port)
	must(t, m.a.QP.Migrate())
	m.states(roce.MigMigrated, roce.MigArmed)
	lost[0] = true // nobody needs it any more
	if s := m.write(100_000); s != roce.WCSuccess {
		t.Fatal(s)
	}
	m.states(roce.MigMigrated, roce.MigMigrated)
	m.events(roce.EventPathMig)
	onPort(port)
	lost[0] = false
	arm(0)
	lost[1] = true
	if s := m.write(100_000); s != roce.WCSuccess {
		t.Fatal(s)
	}
	m.states(roce.MigMigrated, roce.MigMigrated)
	m.events(roce.EventPathMig)
	onPort(0)
	for _, e := range []*rocetest.Endpoint{m.a, m.b} {
		if n := e.Dev.Counters()["path_migrations"]; n != 2 {
			t.Errorf("path_migrations is %d", n)
		}
	}
	lost[0] = true
	if s := m.write(10); s != roce.WCRetryExcErr {
		t.Errorf("both paths cut: %v", s)
	}
}

// TestMigrationUC: an unreliable connection migrates on request and follows (IBTA
// 17.2.8 is for RC and UC); nothing tells it that a path is cut.
func TestMigrationUC(t *testing.T) {
	f := netio.NewFabric()
	m := newMigrationRig(t, roce.UC, openFabric(t, f, "10.0.0.1"), openFabric(t, f, "10.0.0.2"))
	turn := func(from, to *rocetest.Endpoint) { // a packet each way, as nobody acknowledges
		m.a, m.b = from, to
		if s := m.write(3000); s != roce.WCSuccess {
			t.Fatal(s)
		}
	}
	a, b := m.a, m.b
	must(t, a.QP.Arm(roce.Alternate{SourcePort: 0xc333}))
	must(t, b.QP.Arm(roce.Alternate{SourcePort: 0xc333}))
	turn(a, b)
	turn(b, a)
	m.states(roce.MigArmed, roce.MigArmed)
	must(t, a.QP.Migrate())
	turn(a, b)
	m.states(roce.MigMigrated, roce.MigMigrated)
	m.events(roce.EventPathMig)
}

// twoHomed is a host with two addresses behind a device that knows the first only:
// packets to the second are handed over, and once they have come what the device
// sends leaves from there.
type twoHomed struct {
	netio.Backend
	second netio.Backend
	moved  bool
}

func (h *twoHomed) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := h.Backend.Recv(now, dst[:len(dst)/2])
	if err != nil {
		return n, err
	}
	k, err := h.second.Recv(now, dst[n:])
	for i := range k {
		r := &dst[n+i]
		h.moved = true
		r.Dst = h.LocalAddr()
		flow := ib.NewFlow(r.Src, r.Dst)
		for s := range r.Segments() {
			flow.Seal(uint16(s), r.Segment(s))
		}
	}
	return n + k, err
}

func (h *twoHomed) Send(now time.Duration, runs []netio.Run) (int, error) {
	if !h.moved {
		return h.Backend.Send(now, runs)
	}
	for i := range runs {
		flow := ib.NewFlow(h.second.LocalAddr(), runs[i].Dst)
		for s := range runs[i].Segments() {
			flow.Seal(uint16(s), runs[i].Segment(s))
		}
	}
	return h.second.Send(now, runs)
}

// TestMigrationOtherAddress: the alternate path leads to another address of the
// peer, whose packets are refused before it is loaded and come from there after the
// first address has died (IBTA 9.6.1.2, 17.2.8).
func TestMigrationOtherAddress(t *testing.T) {
	f := netio.NewFabric()
	dead := false
	first, second := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.1.2")
	home := &twoHomed{Backend: openFabric(t, f, first.String()), second: openFabric(t, f, second.String())}
	m := newMigrationRig(t, roce.RC, &cutter{openFabric(t, f, "10.0.0.1"), func(r *netio.Run) bool { return dead && r.Dst.Addr() == first }}, home)
	m.write(10)
	home.moved = true
	if s := m.write(10); s != roce.WCRetryExcErr || m.a.Dev.Counters()["drop_source_address"] == 0 {
		t.Errorf("an answer from another address: %v", s)
	}

	home.moved = false
	f2 := netio.NewFabric()
	home = &twoHomed{Backend: openFabric(t, f2, first.String()), second: openFabric(t, f2, second.String())}
	m = newMigrationRig(t, roce.RC, &cutter{openFabric(t, f2, "10.0.0.1"), func(r *netio.Run) bool { return dead && r.Dst.Addr() == first }}, home)
	must(t, m.a.QP.Arm(roce.Alternate{Addr: second, AckTimeout: time.Millisecond}))
	must(t, m.b.QP.Arm(roce.Alternate{}))
	m.write(10)
	m.states(roce.MigArmed, roce.MigArmed)
	dead = true
	for range 3 {
		if s := m.write(50_000); s != roce.WCSuccess {
			t.Fatal(s)
		}
	}
	m.states(roce.MigMigrated, roce.MigMigrated)
	m.events(roce.EventPathMig)
	if a, _ := m.a.QP.Query(); a.AV.DGID.Addr() != second {
		t.Errorf("the path leads to %v", a.AV.DGID.Addr())
	}
	// What was known of the peer's addresses goes with the queue pair.
	must(t, m.a.QP.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	must(t, m.a.QP.Destroy())
}

// TestArmErrors: the field at fault is named.
func TestArmErrors(t *testing.T) {
	a, _ := rocetest.Pair(t)
	var ce *roce.ConfigError
	if err := a.QP.Arm(roce.Alternate{Addr: netip.MustParseAddr("fd00::1")}); !errors.As(err, &ce) || ce.Field != "AltAV.DGID" {
		t.Errorf("an alternate path of another IP version: %v", err)
	}
	var ae *roce.AttrError
	if err := a.QP.Modify(&roce.Attr{PathMigState: roce.MigRearm}, roce.MaskPathMigState); !errors.As(err, &ae) || ae.Field != "PathMigState" {
		t.Errorf("REARM without an alternate path: %v", err)
	}
	if err := a.QP.Modify(&roce.Attr{PathMigState: roce.MigArmed}, roce.MaskPathMigState); !errors.As(err, &ae) || ae.Field != "PathMigState" {
		t.Errorf("ARMED: %v", err)
	}
}
