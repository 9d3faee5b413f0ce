package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// rspWorld is one queue pair as responder, with its memory and queues, driven by
// scripts. A script is a list of blocks: what happens, then all that comes of it.
//
//	> SEND_FIRST 0 256           a packet in: opcode, PSN, payload bytes, then options
//	> SEND_LAST 1 10 ack         options: ack se imm=N len=N @N key=NAME srq=N dup=N (other payload)
//	! recv 300                   an action, see action
//	< ACK 1 msn=1                a packet out
//	wc RECV 1 266 ok             a completion: opcode, id, bytes or status
//	event ...  state ...  count NAME N  mem REGION@OFF PSN:BYTES ...
//	sync REGION@OFF BYTES        memory made persistent
//	word REGION@OFF N            a word of memory, in host order
//
// PSNs are relative to the first; a block must name every packet, completion
// and event that it brings, in order, but states, counters and memory only
// where it is about them.
type rspWorld struct {
	t    *testing.T
	q    *QP
	base ib.PSN
	now  time.Duration

	tab   *mem.Table
	reg   map[string]*mem.Region
	fresh map[string][]byte // regions as they were at first
	guard map[string][]byte // regions and what lies around them
	alias map[string]uint32 // keys of regions and of none
	next  int               // free part of region rb

	rq      []RecvWQE
	nextID  uint64
	srqs    map[ib.QPN]*SRQ // of the XRC domain
	out     rspOutbox
	wcs     []string
	events  []string
	syncs   []string
	syncErr error // of the next
	counts  Counters
	auto    bool // transmit all at the end of the block's input
}

const (
	rspIOVA  = 0x7000_0000
	rspGuard = 64 // bytes around each region that nobody may write
)

var rspGuardBytes = bytes.Repeat([]byte{0xc5}, rspGuard)

var rspPeer, rspSelf = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")

const rspTOS = 0x2a

// rspAttr are the attributes most scripts run with.
func rspAttr() Attr {
	return Attr{
		PathMTU: ib.MTU256, DestQPN: 0x222222, Access: mem.RemoteRead | mem.RemoteWrite | mem.RemoteAtomic | mem.FlushGlobal | mem.FlushPersistent,
		MaxDestRdAtomic: 2, MinRNRTimer: 12,
	}
}

func newRspWorld(t *testing.T, a Attr) *rspWorld { return newRspWorldOf(t, RC, a) }

func newRspWorldOf(t *testing.T, typ QPType, a Attr) *rspWorld {
	w := &rspWorld{t: t, base: a.RQPSN, auto: true, nextID: 1,
		tab: mem.NewTable(rand.NewChaCha8([32]byte{1})),
		reg: map[string]*mem.Region{}, fresh: map[string][]byte{}, guard: map[string][]byte{}, alias: map[string]uint32{"bad": 0xdeadbeef},
	}
	w.tab.SetSync(w.sync, nil)
	w.region("mr", 64<<10, 1, mem.LocalWrite|mem.RemoteWrite|mem.RemoteRead|mem.RemoteAtomic|mem.FlushGlobal|mem.FlushPersistent)
	w.region("ro", 4096, 1, mem.LocalWrite|mem.RemoteRead)
	w.region("wo", 4096, 1, mem.LocalWrite|mem.RemoteWrite)
	w.region("pd", 4096, 2, mem.LocalWrite|mem.RemoteWrite|mem.RemoteRead)
	w.region("rb", 64<<10, 1, mem.LocalWrite)
	w.region("wr", 4096, 1, mem.LocalWrite|mem.MWBind)
	cfg := QPConfig{
		Num: 0x111111, Type: typ, PD: 1, Mem: w.tab, RQ: w, SQ: rspNoSQ{}, SendCQ: w, RecvCQ: w, SQDepth: 1,
		Counters: &w.counts, Event: func(e Event) { w.events = append(w.events, e.String()) },
	}
	if typ == XRCRecv { // has nothing but a domain
		w.srqs = map[ib.QPN]*SRQ{1: {Num: 1, RQ: w, CQ: w, Mem: w.tab, PD: 1}}
		cfg.PD, cfg.Mem, cfg.SQ, cfg.RQ, cfg.SendCQ, cfg.RecvCQ, cfg.SRQs = 0, nil, nil, nil, nil, nil, w
	}
	w.q = NewQP(cfg)
	w.up(a, RTS)
	return w
}

// up puts the queue pair into a state as Modify would.
func (w *rspWorld) up(a Attr, s State) {
	w.q.attr, w.q.path = a, Path{Dst: rspPeer}
	w.q.become(s)
	w.q.rcv.start(&w.q.attr)
}

// Pop makes the world its receive queue.
func (w *rspWorld) Pop(dst *RecvWQE) bool {
	if len(w.rq) == 0 {
		return false
	}
	dst.ID = w.rq[0].ID
	dst.SGE = append(dst.SGE[:0], w.rq[0].SGE...)
	w.rq = w.rq[1:]
	return true
}

// SRQ makes the world its XRC domain.
func (w *rspWorld) SRQ(num ib.QPN) *SRQ { return w.srqs[num] }

// Push makes the world its completion queues.
func (w *rspWorld) Push(wc *WC) {
	s := fmt.Sprintf("%v %d ", wc.Opcode, wc.ID)
	if wc.Status != WCSuccess {
		if w.q.State() != Err {
			w.t.Errorf("%v completes in state %v, before others can see where it leads", wc.Status, w.q.State())
		}
		w.wcs = append(w.wcs, s+wc.Status.String())
		return
	}
	s += strconv.Itoa(int(wc.ByteLen))
	if wc.Flags&WCWithImm != 0 {
		s += fmt.Sprintf(" imm=%d", wc.Imm)
	}
	if wc.Flags&WCWithInv != 0 {
		for name, key := range w.alias {
			if key == wc.Imm {
				s += " inv=" + name
			}
		}
	}
	if wc.Solicited {
		s += " se"
	}
	if wc.Flags&WCGRH != 0 {
		s += fmt.Sprintf(" grh src=%d", wc.SrcQP)
	}
	if wc.QPN != w.q.Num() {
		s += " wrong QPN"
	}
	w.wcs = append(w.wcs, s)
}

type rspNoSQ struct{}

func (rspNoSQ) Produced() uint32      { return 0 }
func (rspNoSQ) Posted(t uint32) bool  { return t != 0 }
func (rspNoSQ) Entry(uint32) *SendWQE { return nil }
func (rspNoSQ) SGEs(uint32) []mem.SGE { return nil }
func (rspNoSQ) Inline(uint32) []byte  { return nil }
func (rspNoSQ) Consume(uint32)        {}

// rspOutbox keeps what is committed, up to room packets.
type rspOutbox struct {
	pkts [][]byte
	cur  []byte
	room int // packets that still fit; negative: any number
}

func (o *rspOutbox) Packet(p *Path, n int) []byte {
	if o.room == 0 {
		return nil
	}
	o.cur = bytes.Repeat([]byte{0xee}, n) // undefined contents
	return o.cur
}

func (o *rspOutbox) Commit() {
	if o.cur == nil {
		panic("Commit without Packet")
	}
	o.room--
	o.pkts = append(o.pkts, o.cur)
	o.cur = nil
}

// rspPayload is what a packet with PSN psn (relative) carries by default.
func rspPayload(psn, n, variant int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(psn*59 + i*7 + i>>8 + variant*101)
	}
	return p
}

// rspBuild makes the packet that a script line describes.
func (w *rspWorld) build(line string) []byte {
	f := strings.Fields(line)
	op := rspOpcode(w.t, f[0])
	info := op.Info()
	psn, _ := strconv.Atoi(f[1])
	h := ib.BTH{Opcode: op, MigReq: true, PKey: ib.DefaultPKey, DestQP: w.q.Num(), PSN: w.base.Add(psn)}
	reth := ib.RETH{VA: rspIOVA, RKey: w.alias["mr"]}
	n, imm, variant, srq := 0, 0, 0, 1
	deth := ib.DETH{QKey: w.q.attr.QKey, SrcQP: 17}
	var atomic ib.AtomicETH
	var flush ib.FETH
	for _, o := range f[2:] {
		name, val, _ := strings.Cut(o, "=")
		v, err := strconv.ParseUint(val, 0, 64)
		switch {
		case o == "ack":
			h.AckReq = true
		case o == "se":
			h.Solicited = true
		case o == "kin":
			h.Resv7 = bitSelective
		case name == "imm":
			imm = int(v)
		case name == "add", name == "swap":
			atomic.SwapAdd = v
		case name == "cmp":
			atomic.Compare = v
		case o == "global":
			flush.Global = true
		case o == "persistent":
			flush.Persistent = true
		case name == "level":
			flush.Level = uint8(v)
		case name == "len":
			reth.Length = uint32(v)
		case name == "dup":
			variant = int(v)
		case name == "srq":
			srq = int(v)
		case name == "pkey":
			h.PKey = ib.PKey(v)
		case name == "va":
			reth.VA = v
		case name == "qkey":
			deth.QKey = uint32(v)
		case name == "src":
			deth.SrcQP = ib.QPN(v)
		case name == "key":
			k, ok := w.alias[val]
			if err = nil; !ok {
				w.t.Fatalf("%q: no region %q", line, val)
			}
			reth.RKey = k
		case o[0] == '@':
			at, _ := strconv.Atoi(o[1:])
			reth.VA = rspIOVA + uint64(at)
		default:
			n, err = strconv.Atoi(o)
			if reth.Length == 0 && info.Pos == ib.PosOnly {
				reth.Length = uint32(n)
			}
		}
		if val != "" && err != nil || val == "" && o[0] >= '0' && o[0] <= '9' && err != nil {
			w.t.Fatalf("%q: %q: %v", line, o, err)
		}
	}
	switch info.Payload {
	case ib.PayloadNone:
		n = 0
	case ib.PayloadExact:
		n = info.PayloadLen
	}
	h.Pad = uint8(-n & 3)
	b := make([]byte, info.HeaderLen, info.HeaderLen+n+3+ib.ICRCSize)
	h.Put(b)
	at := ib.BTHSize
	if info.XRCETH {
		at += ib.XRCETH(srq).Put(b[at:])
	}
	if info.FETH {
		at += flush.Put(b[at:])
	}
	if info.DETH {
		at += deth.Put(b[at:])
	}
	if info.RETH {
		at += reth.Put(b[at:])
	}
	if info.AtomicETH {
		atomic.VA, atomic.RKey = reth.VA, reth.RKey
		at += atomic.Put(b[at:])
	}
	if info.Imm {
		at += ib.ImmDt(imm).Put(b[at:])
	}
	if info.IETH {
		ib.IETH(reth.RKey).Put(b[at:])
	}
	b = append(b, rspPayload(psn, n, variant)...)
	return append(b, make([]byte, int(h.Pad)+ib.ICRCSize)...)
}

func rspOpcode(t *testing.T, name string) ib.Opcode {
	for o := range 0x100 { // without a prefix it is one of RC
		if info := ib.Opcode(o).Info(); info != nil && (info.Name == "RC_"+name || info.Name == name) {
			return ib.Opcode(o)
		}
	}
	t.Fatalf("no opcode %q", name)
	return 0
}

// in gives a packet to the queue pair.
func (w *rspWorld) in(b []byte) {
	p, bad := ib.Parse(b)
	if bad != ib.OK {
		w.t.Fatalf("malformed packet in script: %v", bad)
	}
	w.q.Receive(w.now, &Inbound{Packet: p, Src: rspPeer, Dst: rspSelf, TOS: rspTOS})
}

// transmit lets the queue pair write all it has.
func (w *rspWorld) transmit() {
	w.out.room = -1
	for n := 0; w.q.Wants() != 0; n++ {
		if n > 1<<16 {
			w.t.Fatal("the queue pair never stops wanting to transmit")
		}
		before := len(w.out.pkts)
		want := w.q.Wants()
		w.q.TransmitControl(w.now, &w.out)
		w.q.Transmit(w.now, &w.out, 1<<12)
		if len(w.out.pkts) == before && w.q.Wants() == want && w.q.State() != Err {
			w.t.Fatalf("wants %v, but transmits nothing", want)
		}
	}
}

// action executes a line that begins with "!".
func (w *rspWorld) action(line string) {
	f := strings.Fields(line)
	num := func(i int) int {
		n, err := strconv.Atoi(f[i])
		if err != nil {
			w.t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	switch f[0] {
	case "recv": // post a receive with one buffer per number
		wqe := RecvWQE{ID: w.nextID}
		for i := range f[1:] {
			n := num(i + 1)
			wqe.SGE = append(wqe.SGE, mem.SGE{Addr: rspIOVA + uint64(w.next), Length: uint32(n), LKey: w.alias["rb"]})
			w.next += n
		}
		w.nextID++
		w.rq = append(w.rq, wqe)
		w.q.Kick(w.now)
	case "recvbad", "recvgone": // post a receive whose key is unknown, whose memory has gone
		w.rq = append(w.rq, RecvWQE{ID: w.nextID, SGE: []mem.SGE{{Addr: rspIOVA, Length: 4096, LKey: w.alias[f[0][4:]]}}})
		w.nextID++
	case "dereg":
		if err := w.tab.Deregister(w.reg[f[1]]); err != nil {
			w.t.Fatal(err)
		}
	case "access": // rights of the QP
		w.q.attr.Access = 0
		for _, a := range f[1:] {
			w.q.attr.Access |= map[string]mem.Access{
				"read": mem.RemoteRead, "write": mem.RemoteWrite, "atomic": mem.RemoteAtomic, "global": mem.FlushGlobal, "persistent": mem.FlushPersistent,
			}[a]
		}
	case "bind": // a window of that type, open for all of region wr, to another queue pair with "other"
		w.bind(f[1], len(f) > 2)
	case "close": // the window, by a local invalidation
		if s := w.tab.Invalidate(w.q.self(), w.alias[f[1]], false); s != mem.OK {
			w.t.Fatal(s)
		}
	case "hold": // this block transmits only what it says
		w.auto = false
	case "control":
		w.out.room = -1
		w.q.TransmitControl(w.now, &w.out)
	case "data": // transmit about n bytes of READ responses
		w.out.room = -1
		w.q.Transmit(w.now, &w.out, num(1))
	case "room": // transmit into an outbox of n packets
		w.out.room = num(1)
		w.q.TransmitControl(w.now, &w.out)
		w.q.Transmit(w.now, &w.out, 1<<20)
	case "close-srq": // destroy the shared receive queue of XRC with that number
		w.srqs[ib.QPN(num(1))].Closed = true
		delete(w.srqs, ib.QPN(num(1)))
	case "state": // of that name, without what Modify does
		for s := Reset; s <= Err; s++ {
			if s.String() == f[1] {
				w.q.become(s)
			}
		}
	case "err": // as Modify to ERR
		w.q.fail(w.now, noEvent)
	case "word": // the application sets a word
		r, at := w.word(f[1])
		v, _ := strconv.ParseUint(f[2], 0, 64)
		r.StoreUint64(at, v)
		binary.NativeEndian.PutUint64(w.fresh[strings.Split(f[1], "@")[0]][at:], v)
	case "big": // a region of 3 MiB
		w.region("big", 3<<20, 1, mem.LocalWrite|mem.FlushPersistent)
	case "syncfails":
		w.syncErr = errors.New("cannot")
	case "store": // the application changes a region
		r := w.reg[f[1]]
		for i := range r.Bytes() {
			r.Bytes()[i] ^= 0x5a
		}
		w.fresh[f[1]] = slices.Clone(r.Bytes())
	default:
		w.t.Fatalf("no action %q", line)
	}
}

// show renders a packet that was transmitted.
func (w *rspWorld) show(b []byte) string {
	p, bad := ib.Parse(b)
	if bad != ib.OK {
		return "malformed: " + bad.String()
	}
	if p.DestQP() != w.q.attr.DestQPN || p.PKey() != ib.DefaultPKey || !p.MigReq() || p.AckReq() || p.Solicited() {
		return fmt.Sprintf("bad BTH %+v", p.BTH())
	}
	if xrc := w.q.cfg.Type == XRCRecv; xrc != (p.Info().Transport == ib.TransportXRC) {
		return "opcode of another transport: " + p.Info().Name
	}
	psn := p.PSN().Sub(w.base)
	if p.Info().Op == ib.KindAck {
		s := p.AETH().Syndrome
		switch s.Kind() {
		case ib.SynAck:
			if s.Credits() != ib.CreditsInvalid {
				return "ACK with credits"
			}
			if p.Resv7()&bitTwice != 0 {
				return fmt.Sprintf("ACK %d msn=%d twice", psn, p.AETH().MSN)
			}
			return fmt.Sprintf("ACK %d msn=%d", psn, p.AETH().MSN)
		case ib.SynRNR:
			return fmt.Sprintf("RNR %d %v", psn, s.RNRTimer().Duration())
		}
		return fmt.Sprintf("NAK %d %v", psn, s.NAK())
	}
	if p.Info().Op == ib.KindAtomicAck && p.AETH().Syndrome == ib.NAKSyndrome(ib.NAKSequence) {
		s := fmt.Sprintf("SEL %d", psn)
		for i := range selectiveBits {
			if p.AtomicAck()>>i&1 != 0 {
				s += fmt.Sprintf(" %d", psn+1+int(p.AETH().MSN)+i)
			}
		}
		return s
	}
	if p.Info().Op == ib.KindAtomicAck {
		if p.AETH().Syndrome != ib.AckSyndrome(ib.CreditsInvalid) {
			return "ATOMIC ACK with a syndrome that is no ACK"
		}
		return fmt.Sprintf("AACK %d found=%d msn=%d", psn, p.AtomicAck(), p.AETH().MSN)
	}
	s := fmt.Sprintf("%s %d %d", strings.TrimPrefix(strings.TrimPrefix(p.Info().Name, "X"), "RC_RDMA_READ_RESPONSE_"), psn, len(p.Payload()))
	if p.Info().AETH {
		s += fmt.Sprintf(" msn=%d", p.AETH().MSN)
	}
	if len(p.Payload()) >= 4 {
		at := -1
		for _, name := range []string{"mr", "ro", "wr"} {
			if i := bytes.Index(w.reg[name].Bytes(), p.Payload()); i >= 0 {
				at = i
			}
		}
		s += fmt.Sprintf(" @%d", at)
	}
	for _, c := range b[len(b)-ib.ICRCSize-int(p.Pad()) : len(b)-ib.ICRCSize] {
		if c != 0 {
			return "pad not zero"
		}
	}
	return s
}

// run executes a script.
func (w *rspWorld) run(script string) {
	w.t.Helper()
	var input, want []string
	for _, line := range strings.Split(script, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == '>' || line[0] == '!' {
			if len(want) > 0 {
				w.block(input, want)
				input, want = nil, nil
			}
			input = append(input, line)
		} else {
			want = append(want, line)
		}
	}
	w.block(input, want)
}

func (w *rspWorld) block(input, want []string) {
	w.t.Helper()
	var before [NumCounters]uint64
	for c := range NumCounters {
		before[c] = w.counts.Load(c)
	}
	w.auto, w.out.pkts, w.wcs, w.events, w.syncs = true, nil, nil, nil, nil
	for _, line := range input {
		if line[0] == '>' {
			w.in(w.build(line[1:]))
		} else {
			w.action(line[1:])
		}
	}
	if w.auto {
		w.transmit()
	}
	var got, expect []string
	for _, b := range w.out.pkts {
		got = append(got, "< "+w.show(b))
	}
	for _, s := range w.wcs {
		got = append(got, "wc "+s)
	}
	for _, s := range w.events {
		got = append(got, "event "+s)
	}
	for _, s := range w.syncs {
		got = append(got, "sync "+s)
	}
	for _, kind := range []string{"<", "wc", "event", "sync"} {
		for _, line := range want {
			if strings.Fields(line)[0] == kind {
				expect = append(expect, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	if !slices.Equal(got, expect) {
		w.t.Fatalf("after\n\t%s\ngot\n\t%s\nwant\n\t%s", strings.Join(input, "\n\t"), strings.Join(got, "\n\t"), strings.Join(expect, "\n\t"))
	}
	for _, line := range want {
		f := strings.Fields(line)
		switch f[0] {
		case "<", "wc", "event", "sync", "nothing":
		case "word":
			r, at := w.word(f[1])
			v, _ := strconv.ParseUint(f[2], 0, 64)
			if got := r.LoadUint64(at); got != v {
				w.t.Fatalf("after %q: word %s is %d, want %d", input, f[1], got, v)
			}
			binary.NativeEndian.PutUint64(w.fresh[strings.Split(f[1], "@")[0]][at:], v)
		case "state":
			if s := w.q.State().String(); s != f[1] {
				w.t.Fatalf("after %q: state %s, want %s", input, s, f[1])
			}
		case "count":
			for c := range NumCounters {
				if c.String() == f[1] {
					if n := w.counts.Load(c) - before[c]; strconv.Itoa(int(n)) != f[2] {
						w.t.Fatalf("after %q: %s counted %d, want %s", input, f[1], n, f[2])
					}
					f[1] = ""
				}
			}
			if f[1] != "" {
				w.t.Fatalf("no counter %q", f[1])
			}
		case "mem":
			w.checkMemory(f[1:])
		default:
			w.t.Fatalf("cannot read %q", line)
		}
	}
}
