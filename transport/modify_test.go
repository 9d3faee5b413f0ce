package transport

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// goodAttr has a valid value in every field.
func goodAttr() Attr {
	return Attr{
		PathMTU: ib.MTU1024, QKey: 1, RQPSN: 0xffffff, SQPSN: 0xfffffe, DestQPN: 2, Access: mem.RemoteRead,
		PortNum: 1, AV: AddressVector{DGID: ib.GIDFromAddr(reqPeer), TrafficClass: 0x68, FlowLabel: 0xfffff},
		MaxRdAtomic: 128, MaxDestRdAtomic: 16, MinRNRTimer: 31, Timeout: 31, RetryCnt: 7, RNRRetry: 7,
		AltAV: AddressVector{DGID: ib.GIDFromAddr(reqPeer), SourcePort: 0xc000}, AltPortNum: 1, AltTimeout: 31,
	}
}

func modifyQP(t *testing.T, typ QPType, s State) *QP {
	w := newReqWorld(t, 1)
	w.cfg.Type = typ
	w.sq = newReqSQ(t, 64)
	w.q = NewQP(w.cfg)
	w.q.become(s)
	w.q.attr = goodAttr()
	w.q.path = w.q.attr.AV.Path()
	return w.q
}

// The transitions of IBTA 10.3.1 and Linux drivers/infiniband/core/verbs.c
// (qp_state_table), written down apart from the code: per type, from each state,
// the states that can be reached.
func TestModifyTransitions(t *testing.T) {
	reach := map[QPType][7]string{
		RC: {"RESET INIT", "RESET INIT RTR ERR", "RESET RTS ERR", "RESET RTS SQD ERR", "RESET RTS SQD ERR", "RESET ERR", "RESET ERR"},
		UC: {"RESET INIT", "RESET INIT RTR ERR", "RESET RTS ERR", "RESET RTS SQD ERR", "RESET RTS SQD ERR", "RESET RTS ERR", "RESET ERR"},
		UD: {"RESET INIT", "RESET INIT RTR ERR", "RESET RTS ERR", "RESET RTS SQD ERR", "RESET RTS SQD ERR", "RESET RTS ERR", "RESET ERR"},

		XRCSend: {"RESET INIT", "RESET INIT RTR ERR", "RESET RTS ERR", "RESET RTS SQD ERR", "RESET RTS SQD ERR", "RESET ERR", "RESET ERR"},
		XRCRecv: {"RESET INIT", "RESET INIT RTR ERR", "RESET RTS ERR", "RESET RTS SQD ERR", "RESET RTS SQD ERR", "RESET ERR", "RESET ERR"},
	}
	for typ, rows := range reach {
		for from := Reset; from <= Err; from++ {
			var got []string
			for to := Reset; to <= Err; to++ {
				if _, _, ok := findTransition(typ, from, to); ok {
					got = append(got, to.String())
				}
			}
			if s := strings.Join(got, " "); s != rows[from] {
				t.Errorf("%v from %v: %s, want %s", typ, from, s, rows[from])
			}
		}
	}
	q := modifyQP(t, RC, RTS)
	err := q.Modify(0, &Attr{State: Init}, MaskState)
	var ae *AttrError
	if !errors.As(err, &ae) || ae.Field != "State" || ae.From != RTS || ae.To != Init || q.State() != RTS {
		t.Errorf("RTS -> INIT: %#v", err)
	}
	if want := "transport: modify RC queue pair RTS -> INIT: State: no such transition; possible: RESET, RTS, SQD, ERR"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

// Attributes that ibv_modify_qp(3) lists per transition: each required one is
// missed, each optional one may be there, all others are refused, and an error
// changes nothing.
func TestModifyMasks(t *testing.T) {
	const (
		a, i, p, k, v, m = MaskAccess, MaskPKeyIndex, MaskPort, MaskQKey, MaskAV, MaskPathMTU
		d, rq, sq        = MaskDestQPN, MaskRQPSN, MaskSQPSN
		rd, dr, rnr      = MaskMaxRdAtomic, MaskMaxDestRdAtomic, MaskMinRNRTimer
		to, rc, rr       = MaskTimeout, MaskRetryCnt, MaskRNRRetry
		cur, ntf         = MaskCurState, MaskSQDNotify
		alt              = MaskAltPath
		mig              = MaskPathMigState
	)
	rows := []struct {
		typ       QPType
		from, to  State
		need, opt AttrMask
	}{
		{RC, Reset, Init, i | p | a, 0}, {UC, Reset, Init, i | p | a, 0}, {UD, Reset, Init, i | p | k, 0},
		{RC, Init, Init, 0, i | p | a}, {UD, Init, Init, 0, i | p | k},
		{RC, Init, RTR, v | m | d | rq | dr | rnr, alt | a | i}, {UC, Init, RTR, v | m | d | rq, alt | a | i}, {UD, Init, RTR, 0, i | k},
		{RC, RTR, RTS, sq | to | rc | rr | rd, cur | alt | a | rnr | mig}, {UC, RTR, RTS, sq, cur | alt | a | mig}, {UD, RTR, RTS, sq, cur | k},
		{RC, RTS, RTS, 0, cur | a | alt | mig | rnr}, {UC, RTS, RTS, 0, cur | a | alt | mig}, {UD, RTS, RTS, 0, cur | k},
		{RC, RTS, SQD, 0, ntf}, {UC, RTS, SQD, 0, ntf}, {UD, RTS, SQD, 0, ntf},
		{RC, SQD, RTS, 0, cur | alt | a | rnr | mig}, {UD, SQD, RTS, 0, cur | k},
		{RC, SQD, SQD, 0, p | v | to | rc | rr | rd | dr | alt | a | i | rnr | mig}, {UC, SQD, SQD, 0, v | alt | a | i | mig}, {UD, SQD, SQD, 0, i | k},
		{UC, SQE, RTS, 0, cur | a}, {UD, SQE, RTS, 0, cur | k},
		{XRCSend, Reset, Init, i | p | a, 0}, {XRCSend, Init, RTR, v | m | d | rq, alt | a | i},
		{XRCSend, RTR, RTS, sq | to | rc | rr | rd, cur | alt | a | mig}, {XRCSend, RTS, RTS, 0, cur | a | alt | mig}, {XRCSend, RTS, SQD, 0, ntf},
		{XRCSend, SQD, RTS, 0, cur | alt | a | mig}, {XRCSend, SQD, SQD, 0, p | v | to | rc | rr | rd | alt | a | i | mig},
		{XRCRecv, Reset, Init, i | p | a, 0}, {XRCRecv, Init, Init, 0, i | p | a}, {XRCRecv, Init, RTR, v | m | d | rq | dr | rnr, alt | a | i},
		{XRCRecv, RTR, RTS, sq | to, cur | alt | a | rnr | mig}, {XRCRecv, RTS, RTS, 0, cur | a | alt | mig | rnr}, {XRCRecv, RTS, SQD, 0, ntf},
		{XRCRecv, SQD, RTS, 0, cur | alt | a | rnr | mig}, {XRCRecv, SQD, SQD, 0, p | v | to | dr | alt | a | i | rnr | mig},
		{RC, RTS, Err, 0, 0}, {RC, SQD, Reset, 0, 0}, {RC, Err, Reset, 0, 0}, {RC, Reset, Reset, 0, 0},
	}
	for _, r := range rows {
		need, opt, ok := findTransition(r.typ, r.from, r.to)
		if !ok || need != r.need || opt&^need != r.opt {
			t.Errorf("%v %v -> %v: need %v, allowed %v; want %v, %v", r.typ, r.from, r.to, need, opt, r.need, r.opt)
		}
		if r.typ != RC {
			continue
		}
		for bit := MaskCurState; bit <= MaskDestQPN; bit <<= 1 {
			attr := goodAttr()
			attr.State, attr.CurState = r.to, r.from
			mask := r.need&^bit | MaskState
			wantErr := r.need&bit != 0
			if !wantErr {
				mask |= bit
				wantErr = r.opt&bit == 0
			}
			q := modifyQP(t, r.typ, r.from)
			before := q.Query()
			err := q.Modify(0, &attr, mask)
			var ae *AttrError
			switch {
			case (err != nil) != wantErr:
				t.Errorf("%v -> %v with %v: %v", r.from, r.to, mask, err)
			case err != nil && (!errors.As(err, &ae) || ae.Field != bit.String()):
				t.Errorf("%v -> %v with %v: %v names the wrong field", r.from, r.to, mask, err)
			case err != nil && q.Query() != before:
				t.Errorf("%v -> %v with %v: refused, but %+v", r.from, r.to, mask, q.Query())
			case err == nil && q.State() != r.to:
				t.Errorf("%v -> %v with %v: state %v", r.from, r.to, mask, q.State())
			}
		}
	}
}

// Values out of range are refused with the field and the limit (IBTA 11.2.5.2,
// ibv_modify_qp(3)).
func TestModifyValues(t *testing.T) {
	gid := func(s string) ib.GID {
		var g ib.GID
		fmt.Sscanf(strings.ReplaceAll(s, ":", ""), "%32x", new([]byte))
		for i := range g {
			fmt.Sscanf(s[2*i:2*i+2], "%02x", &g[i])
		}
		return g
	}
	cases := []struct {
		from, to State
		field    string
		set      func(a *Attr)
	}{
		{Reset, Init, "PKeyIndex", func(a *Attr) { a.PKeyIndex = 1 }},
		{Reset, Init, "PortNum", func(a *Attr) { a.PortNum = 0 }},
		{Reset, Init, "PortNum", func(a *Attr) { a.PortNum = 2 }},
		{Reset, Init, "Access", func(a *Attr) { a.Access = 1 << 31 }},
		{Init, RTR, "PathMTU", func(a *Attr) { a.PathMTU = 0 }},
		{Init, RTR, "PathMTU", func(a *Attr) { a.PathMTU = 6 }},
		{Init, RTR, "DestQPN", func(a *Attr) { a.DestQPN = 0 }},
		{Init, RTR, "DestQPN", func(a *Attr) { a.DestQPN = 1 }},
		{Init, RTR, "DestQPN", func(a *Attr) { a.DestQPN = 0xffffff }},
		{Init, RTR, "DestQPN", func(a *Attr) { a.DestQPN = 0x1000002 }},
		{Init, RTR, "RQPSN", func(a *Attr) { a.RQPSN = 1 << 24 }},
		{Init, RTR, "MaxDestRdAtomic", func(a *Attr) { a.MaxDestRdAtomic = 17 }},
		{Init, RTR, "MinRNRTimer", func(a *Attr) { a.MinRNRTimer = 32 }},
		{Init, RTR, "AV.DGID", func(a *Attr) { a.AV.DGID = ib.GID{} }},
		{Init, RTR, "AV.DGID", func(a *Attr) { a.AV.DGID = gid("00000000000000000000ffff00000000") }},
		{Init, RTR, "AV.DGID", func(a *Attr) { a.AV.DGID = gid("00000000000000000000ffffe0000001") }},
		{Init, RTR, "AV.DGID", func(a *Attr) { a.AV.DGID = gid("ff020000000000000000000000000001") }},
		{Init, RTR, "AV.FlowLabel", func(a *Attr) { a.AV.FlowLabel = 1 << 20 }},
		{RTR, RTS, "SQPSN", func(a *Attr) { a.SQPSN = 1 << 24 }},
		{RTR, RTS, "Timeout", func(a *Attr) { a.Timeout = 32 }},
		{RTR, RTS, "RetryCnt", func(a *Attr) { a.RetryCnt = 8 }},
		{RTR, RTS, "RNRRetry", func(a *Attr) { a.RNRRetry = 8 }},
		{RTR, RTS, "MaxRdAtomic", func(a *Attr) { a.MaxRdAtomic = 129 }},
	}
	for _, c := range cases {
		a := goodAttr()
		a.State = c.to
		c.set(&a)
		q := modifyQP(t, RC, c.from)
		need, _, _ := findTransition(RC, c.from, c.to)
		err := q.Modify(0, &a, need|MaskState)
		var ae *AttrError
		if !errors.As(err, &ae) || ae.Field != c.field || q.State() != c.from {
			t.Errorf("%s %+v: %v, state %v", c.field, a, err, q.State())
		}
	}
	q := modifyQP(t, RC, RTS)
	if err := q.Modify(0, &Attr{State: RTS, CurState: SQD}, MaskState|MaskCurState); err == nil || !strings.Contains(err.Error(), "CurState: SQD, but the state is RTS") {
		t.Error(err)
	}
}

// What Modify sets, Query returns; RESET clears it (ibv_query_qp(3)).
func TestModifyQuery(t *testing.T) {
	w := newReqWorld(t, 0xffffff)
	w.connect()
	got := w.q.Query()
	want := w.attr
	want.State, want.CurState = RTS, RTS
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	w.run(`
		post 1 SEND 1
		> SEND_ONLY 0 1 ack
		modify sqd notify`)
	if a := w.q.Query(); a.State != SQD || !a.SQDraining || !a.SQDrainNotify {
		t.Errorf("draining: %+v", a)
	}
	a := w.attr
	a.MaxRdAtomic, a.AV.DGID = 9, ib.GIDFromAddr(reqPeer.Next())
	if err := w.q.Modify(0, &a, MaskMaxRdAtomic|MaskAV); err != nil {
		t.Fatal(err)
	}
	if a := w.q.Query(); !a.SQDraining || a.MaxRdAtomic != 9 || w.q.path.Dst != reqPeer.Next() {
		t.Errorf("SQD -> SQD: %+v, path %v", a, w.q.path)
	}
	if err := w.q.Modify(0, &w.attr, MaskAV); err != nil {
		t.Fatal(err)
	}
	w.run(`
		< ACK 0
		wc 1 SEND ok
		event send queue drained`)
	if a := w.q.Query(); a.SQDraining {
		t.Errorf("drained: %+v", a)
	}
	w.run("modify rts\nmodify sqd\nmodify reset")
	if a := w.q.Query(); a != (Attr{}) {
		t.Errorf("RESET: %+v", a)
	}
}

// A queue pair can be used again after ERR and RESET, with new PSNs (IBTA
// 10.3.1.1).
func TestModifyReuse(t *testing.T) {
	w := newReqWorld(t, 100)
	w.run(`
		post 1 SEND 300
		post 2 READ 300
		> SEND_FIRST 0 256
		> SEND_LAST 1 44 ack
		> READ 2 va=0 len=300 ack
		< NAK 0 acc
		wc 1 remote access error
		wc 2 Work Request Flushed Error
		modify reset`)
	w.attr.SQPSN, w.base, w.nextPSN = 0xfffffe, 0xfffffe, 0
	clear(w.posted)
	for _, s := range []struct {
		to   State
		mask AttrMask
	}{{Init, initMask}, {RTR, rtrRCMask}, {RTS, rtsRCMask}} {
		a := w.attr
		a.State = s.to
		if err := w.q.Modify(0, &a, s.mask|MaskState); err != nil {
			t.Fatal(err)
		}
	}
	w.run(`
		post 3 SEND 300
		post 4 READ 300
		> SEND_FIRST 0 256
		> SEND_LAST 1 44 ack
		> READ 2 va=0 len=300 ack
		< RFIRST 2 256
		wc 3 SEND ok
		< RLAST 3 44
		wc 4 READ 300 ok`)
}

// SQD -> SQD changes resources and depth at once, for what is in process too
// (ibv_modify_qp(3)).
func TestModifyDepth(t *testing.T) {
	w := newReqWorld(t, 100)
	w.run(`
		set rd=1 window=1264           // four full packets
		post 1 READ 2000
		> READ 0 va=0 len=1024 ack
		modify sqd
		< RFIRST 0 256
		< RMID 1 256`)
	a := w.attr
	a.MaxRdAtomic, a.MaxDestRdAtomic = 4, 5
	if err := w.q.Modify(0, &a, MaskMaxRdAtomic|MaskMaxDestRdAtomic); err != nil {
		t.Fatal(err)
	}
	if n := w.q.rsp().reads.most; n != 5 {
		t.Errorf("%d READ resources, want 5", n)
	}
	w.pump()
	if got := w.take(); !slices.Equal(got, []string{"> READ 4 va=1024 len=256 ack", "> READ 5 va=1280 len=256 ack"}) {
		t.Errorf("sent %q", got)
	}
}
