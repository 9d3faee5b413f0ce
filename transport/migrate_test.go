package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// reqOther is the peer's other address.
var reqOther = netip.MustParseAddr("198.51.100.2")

// migrationWorld returns a queue pair of a world with an alternate path, in a state of path
// migration.
func migrationWorld(t *testing.T, alt AddressVector, state MigState) *reqWorld {
	t.Helper()
	w := newReqWorld(t, 77)
	w.attr.Access = qpAccess
	w.connect()
	a := Attr{AltAV: alt, AltPortNum: 1, AltTimeout: 5, PathMigState: MigRearm}
	mask := MaskAltPath | MaskPathMigState
	if state == MigMigrated {
		mask = MaskAltPath
	}
	if err := w.q.Modify(0, &a, mask); err != nil {
		t.Fatal(err)
	}
	if state == MigArmed {
		w.q.Receive(0, w.request(reqPeer, false, 7)) // IBTA 17.2.8: the peer is rearmed, too
	}
	if got := w.q.Query().PathMigState; got != state {
		t.Fatalf("path migration state %v, want %v", got, state)
	}
	return w
}

// request makes a WRITE without payload from an address, with or without MigReq.
func (w *reqWorld) request(src netip.Addr, migReq bool, psn ib.PSN) *Inbound {
	b := make([]byte, ib.OpRCWriteOnly.Info().HeaderLen+ib.ICRCSize)
	ib.BTH{Opcode: ib.OpRCWriteOnly, MigReq: migReq, PKey: ib.DefaultPKey, DestQP: w.cfg.Num, AckReq: true, PSN: psn}.Put(b)
	p, bad := ib.Parse(b)
	if bad != ib.OK {
		w.t.Fatal(bad)
	}
	return &Inbound{Packet: p, Src: src}
}

// The states of path migration (IBTA 17.2.8, Linux hw/hfi1/ruc.c
// hfi1_ruc_check_hdr): what each makes of a packet with and without MigReq by
// either path, and which MigReq the answer has.
func TestMigrationStates(t *testing.T) {
	other := AddressVector{DGID: ib.GIDFromAddr(reqOther), TrafficClass: 0x20}
	same := AddressVector{DGID: ib.GIDFromAddr(reqPeer), SourcePort: 0xc123}
	primary, viaOther := Path{Dst: reqPeer, TOS: 0x68}, Path{Dst: reqOther, TOS: 0x20}
	viaSame := Path{Dst: reqPeer, SrcPort: 0xc123}
	const none Event = 0xff
	cases := []struct {
		name   string
		alt    AddressVector
		from   MigState
		src    netip.Addr
		migReq bool
		to     MigState
		path   Path
		drop   Counter // or SentPkts
		event  Event
	}{
		{"nothing armed", other, MigMigrated, reqPeer, true, MigMigrated, primary, SentPkts, none},
		{"nothing armed here, but there", other, MigMigrated, reqPeer, false, MigMigrated, primary, SentPkts, none},
		{"nothing armed, by the other path", other, MigMigrated, reqOther, true, MigMigrated, primary, DropSource, none},
		{"the peer is not rearmed yet", other, MigRearm, reqPeer, true, MigRearm, primary, SentPkts, none},
		{"the peer is rearmed", other, MigRearm, reqPeer, false, MigArmed, primary, SentPkts, none},
		{"the peer was armed and has left", other, MigRearm, reqOther, true, MigMigrated, viaOther, SentPkts, EventPathMig},
		{"rearming, by the other path", other, MigRearm, reqOther, false, MigRearm, primary, DropSource, none},
		{"rearming with paths to one address", same, MigRearm, reqPeer, true, MigRearm, primary, SentPkts, none},
		{"armed, nothing happens", other, MigArmed, reqPeer, false, MigArmed, primary, SentPkts, none},
		{"the peer migrates", other, MigArmed, reqOther, true, MigMigrated, viaOther, SentPkts, EventPathMig},
		{"the peer migrates between paths to one address", same, MigArmed, reqPeer, true, MigMigrated, viaSame, SentPkts, EventPathMig},
		{"a request to migrate by the primary path", other, MigArmed, reqPeer, true, MigArmed, primary, DropMigReq, EventPathMigErr},
		{"armed, by the other path without request", other, MigArmed, reqOther, false, MigArmed, primary, DropSource, none},
		{"a stranger's request to migrate", other, MigArmed, reqOther.Next(), true, MigArmed, primary, DropSource, none},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := migrationWorld(t, c.alt, c.from)
			w.take()
			w.out.sent = nil
			psn := psnOf(w.q.rsp().expected)
			for range 2 { // the second is a duplicate; an event comes once
				w.q.Receive(0, w.request(c.src, c.migReq, psn))
			}
			var events []string
			if c.event != none {
				events = []string{c.event.String()}
			}
			if !slices.Equal(w.events, events) {
				t.Errorf("events %q, want %q", w.events, events)
			}
			if c.drop != SentPkts && w.counts.Load(c.drop) != 2 {
				t.Errorf("%v is %d, want 2", c.drop, w.counts.Load(c.drop))
			}
			if a := w.q.Query(); a.PathMigState != c.to {
				t.Errorf("state %v, want %v", a.PathMigState, c.to)
			}
			w.q.TransmitControl(0, &w.out)
			answers := len(w.out.sent)
			if c.from == MigArmed && c.drop != SentPkts {
				answers-- // that of the packet which armed it
			}
			if answered := answers > 0; answered != (c.drop == SentPkts) {
				t.Errorf("%d packets answered; dropped as %v", answers, c.drop)
			}
			for i, b := range w.out.sent {
				p, _ := ib.Parse(b)
				if p.MigReq() != (c.to == MigMigrated) || w.out.via[i] != c.path {
					t.Errorf("answered with MigReq %t by %+v, want %+v", p.MigReq(), w.out.via[i], c.path)
				}
			}
		})
	}
}

// What Modify takes for path migration (ibv_modify_qp(3), Linux
// sw/rdmavt/qp.c rvt_modify_qp): REARM and MIGRATED only; REARM with an alternate
// path; MIGRATED from ARMED migrates, from REARM it only disarms.
func TestMigrationModify(t *testing.T) {
	alt := AddressVector{DGID: ib.GIDFromAddr(reqOther), SourcePort: 0xc111}
	refused := func(w *reqWorld, field string, a Attr, mask AttrMask) {
		t.Helper()
		before := w.q.Query()
		var ae *AttrError
		if err := w.q.Modify(0, &a, mask); !errors.As(err, &ae) || ae.Field != field {
			t.Errorf("%v, want an error that names %s", err, field)
		}
		if w.q.Query() != before {
			t.Errorf("refused, but %+v", w.q.Query())
		}
	}
	set := func(w *reqWorld, s MigState) {
		t.Helper()
		if err := w.q.Modify(0, &Attr{PathMigState: s}, MaskPathMigState); err != nil {
			t.Error(err)
		}
	}
	w := newReqWorld(t, 77)
	w.connect()
	good := Attr{AltAV: alt, AltPortNum: 1, AltTimeout: 5, PathMigState: MigRearm}
	for field, change := range map[string]func(a *Attr){
		"AltAV.DGID":      func(a *Attr) { a.AltAV.DGID = ib.GID{} },
		"AltAV.FlowLabel": func(a *Attr) { a.AltAV.FlowLabel = 1 << 20 },
		"AltPKeyIndex":    func(a *Attr) { a.AltPKeyIndex = 1 },
		"AltPortNum":      func(a *Attr) { a.AltPortNum = 2 },
		"AltTimeout":      func(a *Attr) { a.AltTimeout = 32 },
		"PathMigState":    func(a *Attr) { a.PathMigState = MigArmed },
	} {
		a := good
		change(&a)
		refused(w, field, a, MaskAltPath|MaskPathMigState)
	}
	refused(w, "PathMigState", Attr{PathMigState: 3}, MaskPathMigState)
	refused(w, "PathMigState", Attr{PathMigState: MigRearm}, MaskPathMigState)
	set(w, MigMigrated)

	w = migrationWorld(t, alt, MigRearm)
	set(w, MigMigrated)
	if a := w.q.Query(); a.PathMigState != MigMigrated || a.AV != w.attr.AV || a.AltAV != alt || len(w.events) > 0 {
		t.Errorf("disarmed: %+v, events %v", a, w.events)
	}
	set(w, MigRearm) // the alternate path is still there

	w = migrationWorld(t, alt, MigArmed)
	set(w, MigMigrated)
	a := w.q.Query()
	if a.PathMigState != MigMigrated || a.AV != alt || a.Timeout != 5 || a.AltAV != (AddressVector{}) || !slices.Equal(w.events, []string{EventPathMig.String()}) {
		t.Errorf("migrated: %+v, events %v", a, w.events)
	}
	if want := [3]netip.Addr{reqOther, {}, reqPeer}; w.q.path != (Path{Dst: reqOther, SrcPort: 0xc111}) || w.q.Peers() != want {
		t.Errorf("migrated: path %+v, peers %v", w.q.path, w.q.Peers())
	}
	if w.counts.Load(PathMigrations) != 1 {
		t.Errorf("path_migrations is %d", w.counts.Load(PathMigrations))
	}
	refused(w, "PathMigState", Attr{PathMigState: MigRearm}, MaskPathMigState) // to where?
	// The peer may come by the old path until it has followed (IBTA 9.6.1.2).
	for i, src := range []netip.Addr{reqPeer, reqPeer, reqOther, reqPeer} {
		w.q.Receive(0, w.request(src, i == 2, ib.PSN(8+i)))
		if dropped := w.counts.Load(DropSource) > 0; dropped != (i == 3) {
			t.Errorf("packet %d, from %v: dropped %t", i, src, dropped)
		}
	}
	if err := w.q.Modify(0, &Attr{State: Reset}, MaskState); err != nil {
		t.Fatal(err)
	}
	if w.q.Query() != (Attr{}) || w.q.Peers() != [3]netip.Addr{} {
		t.Errorf("RESET: %+v, %v", w.q.Query(), w.q.Peers())
	}
}

// The alternate path has retries and a timeout of its own; when they are exhausted
// too, the request fails (IBTA 17.2.8, 9.7.6.1.3). Only ARMED escapes.
func TestMigrationExhausted(t *testing.T) {
	alt := AddressVector{DGID: ib.GIDFromAddr(reqOther)}
	for state, want := range map[MigState][]Path{
		MigRearm: {{Dst: reqPeer, TOS: 0x68}, {Dst: reqPeer, TOS: 0x68}, {Dst: reqPeer, TOS: 0x68}},
		MigArmed: {{Dst: reqPeer, TOS: 0x68}, {Dst: reqPeer, TOS: 0x68}, {Dst: reqPeer, TOS: 0x68},
			{Dst: reqOther}, {Dst: reqOther}, {Dst: reqOther}},
	} {
		w := migrationWorld(t, alt, state)
		w.q.TransmitControl(0, &w.out)
		w.out.sent = nil
		w.post([]string{"1", "WRITE", "1"})
		w.q.Kick(0)
		var at []time.Duration
		for w.q.State() == RTS {
			w.q.Transmit(w.now, &w.out, 1<<16)
			at = append(at, w.now)
			w.now = w.q.Deadline()
			w.q.Expire(w.now)
		}
		if !slices.Equal(w.out.via, want) {
			t.Errorf("%v: sent by %v, want %v", state, w.out.via, want)
		}
		if got := w.wcs; len(got) != 1 || got[0] != "wc 1 "+WCRetryExcErr.String() {
			t.Errorf("%v: completions %q", state, got)
		}
		if n := len(at); state == MigArmed && (n != 6 || at[5]-at[4] != ib.AckTimeout(5).Duration() || at[2]-at[1] != ib.AckTimeout(12).Duration()) {
			t.Errorf("sent at %v, want first the timeout of the primary, then that of the alternate path", at)
		}
	}
}

// twoPaths gives both ends of a pair an alternate path, to another address or from
// another port, and returns the switch that cuts each.
func (p *pair) twoPaths(otherAddr bool) (load func(e *pairEnd), cut *[2]bool) {
	cut = new([2]bool)
	addrs := [2][2]netip.Addr{}
	for i, e := range p.end {
		addrs[i] = [2]netip.Addr{e.addr, netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", i+1))}
	}
	index := func(from int, via Path) int {
		if otherAddr && via.Dst == addrs[1-from][1] || !otherAddr && via.SrcPort != 0 {
			return 1
		}
		return 0
	}
	p.route = func(from int, via Path) (netip.Addr, bool) {
		i := index(from, via)
		if otherAddr {
			return addrs[from][i], cut[i]
		}
		return addrs[from][0], cut[i]
	}
	load = func(e *pairEnd) {
		p.t.Helper()
		to := 1 - index(e.side, e.q.path)
		av := AddressVector{DGID: ib.GIDFromAddr(addrs[1-e.side][0])}
		if otherAddr {
			av.DGID = ib.GIDFromAddr(addrs[1-e.side][to])
		} else {
			av.SourcePort = uint16(0xc000 * to)
		}
		a := Attr{AltAV: av, AltPortNum: 1, AltTimeout: 6, PathMigState: MigRearm}
		if err := e.q.Modify(p.now, &a, MaskAltPath|MaskPathMigState); err != nil {
			p.t.Fatal(err)
		}
	}
	return load, cut
}

// One path is cut for good in the midst of traffic in all directions: both ends
// change to the other, once, and every request completes (IBTA 17.2.8).
func TestMigrationPathCut(t *testing.T) {
	for _, c := range []struct {
		types     [2]QPType
		otherAddr bool
	}{{bothRC, true}, {bothRC, false}, {xrcPair, true}, {xrcPair, false}} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("%v other address %t seed %d", c.types[0], c.otherAddr, seed), func(t *testing.T) {
				p := newPairOf(t, c.types, seed, ib.MTU256, 0)
				load, cut := p.twoPaths(c.otherAddr)
				load(p.end[0])
				load(p.end[1])
				p.also = func() {
					cut[0] = cut[0] || p.sent > 200 // all of them armed by then
				}
				for _, e := range p.end {
					e.left = 150
				}
				p.run(10 * time.Second)
				p.finish()
				for i, e := range p.end {
					var mig int
					for _, ev := range e.events {
						if ev == EventPathMig {
							mig++
						}
					}
					if a := e.q.Query(); mig != 1 || a.PathMigState != MigMigrated || a.AltAV != (AddressVector{}) {
						t.Errorf("end %d: %d times migrated, %+v", i, mig, a)
					}
				}
			})
		}
	}
}

// Programs that arm and migrate to another address again and again, at any time, over
// a network that loses, repeats and reorders packets: no request fails and every byte
// is right. test/sim does the same with other ports of one address.
func TestMigrationRandom(t *testing.T) {
	total := 0
	for seed := range uint64(15) {
		p := newPair(t, seed, ib.MTU256, 0)
		load, _ := p.twoPaths(true)
		p.fate = p.random(0.02, 0.02, 0.05)
		p.also = func() {
			a, b := p.end[0].q.attr.PathMigState, p.end[1].q.attr.PathMigState
			switch e := p.end[p.rng.IntN(2)]; {
			case p.rng.IntN(4) > 0:
			case a == MigMigrated && b == MigMigrated: // both ends have told each other
				load(p.end[0])
				load(p.end[1])
			case e.q.attr.PathMigState == MigArmed:
				if err := e.q.Modify(p.now, &Attr{PathMigState: MigMigrated}, MaskPathMigState); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, e := range p.end {
			e.left = 100
		}
		p.run(10 * time.Second)
		p.finish()
		total += int(p.end[0].counts.Load(PathMigrations))
	}
	if total < 30 {
		t.Errorf("only %d migrations", total)
	}
}
