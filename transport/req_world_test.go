package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// reqWorld is one queue pair as requester, with its memory and queues, driven by
// scripts that read like a conversation. Blocks of input lines are followed by
// all that comes of them:
//
//	set retry=1 window=4096       before anything else: attributes, see set
//	post 1 SEND 300 se fence      a request: id, operation, bytes, options
//	< ACK 1                       a packet in: ACK, NAK, RNR, RFIRST RMID RLAST RONLY AACK, SEL TWICE (selective.go)
//	at 10ms                       the clock, and Expire
//	room 2 | dereg src | modify sqd notify | kick
//	> SEND_FIRST 0 256 ack        a packet out
//	wc 1 SEND ok                  a completion
//	event send queue drained
//	state ERR, deadline 5ms, count NAME N, freed N, window N    what holds now, where it matters
//
// PSNs are relative to the first. A block must name every packet, completion and
// event that it brings, in order of their kind.
type reqWorld struct {
	t    testing.TB
	q    *QP
	base ib.PSN
	now  time.Duration
	attr Attr
	cfg  QPConfig

	tab      *mem.Table
	src, dst *mem.Region
	local    reqLocal
	sq       reqSQ
	counts   Counters

	posted  map[uint64]*reqPosted
	nextPSN int
	out     reqOutbox
	wcs     []string
	events  []string
	resv    uint8 // what the peer's packets have in their reserved field
}

// reqPosted is what the world expects of a request.
type reqPosted struct {
	first, packets int
	off, length    int // in src or dst
	op             WROpcode
	inline         []byte
	completed      int
	failed         bool
}

const (
	reqIOVA   = 0x5000_0000
	reqRemote = 0x4000_0000
	reqRKey   = 0x77
	reqSlice  = 18 << 10 // memory of request id begins at id * reqSlice
)

var reqPeer = netip.MustParseAddr("192.0.2.2")

// reqSQ is a send queue.
type reqSQ struct {
	wqe      []SendWQE
	sge      [][]mem.SGE
	inline   [][]byte
	produced uint32
	consumed uint32
	idle     uint32 // where the queue pair last found no more
	t        testing.TB
}

func newReqSQ(t testing.TB, depth int) reqSQ {
	return reqSQ{wqe: make([]SendWQE, depth), sge: make([][]mem.SGE, depth), inline: make([][]byte, depth), t: t}
}

func (s *reqSQ) at(i uint32) int { return int(i) & (len(s.wqe) - 1) }

func (s *reqSQ) Produced() uint32 { return s.produced }

func (s *reqSQ) Posted(taken uint32) bool {
	if s.produced == taken {
		s.idle = taken
	}
	return s.produced != taken
}

// tell kicks the queue pair if the entry posted last wants it.
func (s *reqSQ) tell(now time.Duration, q *QP) {
	if s.idle == s.produced-1 || q.State() != RTS {
		q.Kick(now)
	}
}

func (s *reqSQ) Entry(i uint32) *SendWQE {
	if i-s.consumed >= s.produced-s.consumed {
		s.t.Fatalf("entry %d is read outside [%d, %d)", i, s.consumed, s.produced)
	}
	return &s.wqe[s.at(i)]
}

func (s *reqSQ) SGEs(i uint32) []mem.SGE { return s.sge[s.at(i)] }
func (s *reqSQ) Inline(i uint32) []byte  { return s.inline[s.at(i)] }

func (s *reqSQ) Consume(upTo uint32) {
	if upTo-s.consumed > s.produced-s.consumed {
		s.t.Fatalf("consume %d is outside [%d, %d]", upTo, s.consumed, s.produced)
	}
	s.consumed = upTo
}

func (s *reqSQ) post(e SendWQE, sge []mem.SGE, inline []byte) bool {
	if s.produced-s.consumed == uint32(len(s.wqe)) {
		return false
	}
	i := s.at(s.produced)
	e.NumSGE, e.InlineLen = uint16(len(sge)), uint32(len(inline))
	s.wqe[i], s.sge[i], s.inline[i] = e, sge, inline
	s.produced++
	return true
}

// reqOutbox keeps what is committed, up to room packets.
type reqOutbox struct {
	open []byte
	sent [][]byte
	room int // -1: no limit
	path Path
	via  []Path // of sent
}

func (o *reqOutbox) Packet(p *Path, n int) []byte {
	if o.room == 0 {
		o.open = nil
		return nil
	}
	o.path = *p
	o.open = bytes.Repeat([]byte{0xa5}, n)
	return o.open
}

func (o *reqOutbox) Commit() {
	o.via = append(o.via[:len(o.sent)], o.path)
	o.sent = append(o.sent, o.open)
	o.open = nil
	if o.room > 0 {
		o.room--
	}
}

// reqEmptyRQ is a receive queue without requests.
type reqEmptyRQ struct{}

func (reqEmptyRQ) Pop(*RecvWQE) bool { return false }

// reqPattern is what the memory of sends holds.
var reqPattern = func() []byte {
	b := make([]byte, 24*reqSlice)
	rand.NewChaCha8([32]byte{3}).Read(b)
	return b
}()

func newReqWorld(t testing.TB, base ib.PSN) *reqWorld {
	w := &reqWorld{
		t: t, base: base, tab: mem.NewTable(rand.NewChaCha8([32]byte{2})),
		posted: map[uint64]*reqPosted{}, out: reqOutbox{room: -1},
		attr: Attr{
			PathMTU: ib.MTU256, DestQPN: 0x222222, SQPSN: base, RQPSN: 7, MaxRdAtomic: 2, MaxDestRdAtomic: 1,
			Timeout: 12, RetryCnt: 2, RNRRetry: 2, MinRNRTimer: 1, PortNum: 1,
			AV: AddressVector{DGID: ib.GIDFromAddr(reqPeer), TrafficClass: 0x68},
		},
	}
	var err error
	w.src, err = w.tab.Register(bytes.Clone(reqPattern), 1, mem.LocalWrite|mem.MWBind, reqIOVA)
	if err != nil {
		t.Fatal(err)
	}
	w.dst, err = w.tab.Register(make([]byte, len(reqPattern)), 1, mem.LocalWrite, reqIOVA)
	if err != nil {
		t.Fatal(err)
	}
	w.local.init(w)
	w.cfg = QPConfig{
		Num: 0x111111, Type: RC, PD: 1, Mem: w.tab, SQ: &w.sq, RQ: reqEmptyRQ{}, SendCQ: w, RecvCQ: w, SQDepth: 64,
		Counters: &w.counts, Event: func(e Event) { w.events = append(w.events, e.String()) },
	}
	return w
}

// connect makes the queue pair and takes it to RTS by the rules of Modify.
func (w *reqWorld) connect() {
	w.t.Helper()
	w.sq = newReqSQ(w.t, int(w.cfg.SQDepth))
	w.q = NewQP(w.cfg)
	for to := Init; to <= RTS; to++ {
		a := w.attr
		a.State = to
		need, _, _ := findTransition(w.cfg.Type, to-1, to)
		if err := w.q.Modify(w.now, &a, need|MaskState); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Push makes the world its completion queues.
func (w *reqWorld) Push(wc *WC) {
	if wc.QPN != w.cfg.Num {
		w.t.Errorf("completion of QP %v", wc.QPN)
	}
	if wc.Status != WCSuccess && w.q.State() != Err && w.q.State() != SQE {
		w.t.Errorf("%v completes in state %v, before others can see where it leads", wc.Status, w.q.State())
	}
	p := w.posted[wc.ID]
	if p == nil {
		w.t.Fatalf("completion of request %d, which was never posted", wc.ID)
	}
	if p.completed++; p.completed > 1 {
		w.t.Fatalf("request %d completes twice", wc.ID)
	}
	if p.failed = wc.Status != WCSuccess; p.failed {
		w.wcs = append(w.wcs, fmt.Sprintf("wc %d %v", wc.ID, wc.Status))
		return
	}
	s := fmt.Sprintf("wc %d %v", wc.ID, strings.TrimPrefix(wc.Opcode.String(), "RDMA_"))
	switch wc.Opcode {
	case WCRead:
		s += fmt.Sprintf(" %d", wc.ByteLen)
		w.checkLanding(p)
	case WCFetchAdd, WCCompSwap:
		s += fmt.Sprintf(" %d found=%d", wc.ByteLen, binary.NativeEndian.Uint64(w.dst.Bytes()[p.off:]))
	}
	w.wcs = append(w.wcs, s+" ok")
}

// readByte is byte i of the payload of the READ response with a PSN.
func readByte(psn, i int) byte { return byte(psn*31 + i*5 + 1) }

func (w *reqWorld) checkLanding(p *reqPosted) {
	mtu := w.attr.PathMTU.Bytes()
	for i, b := range w.dst.Bytes()[p.off:][:p.length] {
		if want := readByte(p.first+i/mtu, i%mtu); b != want {
			w.t.Fatalf("READ of PSN %d: byte %d is %#x, want %#x", p.first, i, b, want)
		}
	}
}

var reqOps = map[string]WROpcode{
	"SEND": WRSend, "SENDI": WRSendWithImm, "WRITE": WRWrite, "WRITEI": WRWriteWithImm, "READ": WRRead,
	"CAS": WRAtomicCmpSwp, "FADD": WRAtomicFetAdd, "AWRITE": WRAtomicWrite, "FLUSH": WRFlush, "SENDINV": WRSendWithInv,
	"NONE": WRFlush - 1,
}

// post: id op length [uns] [fence] [se] [inline] [imm=N] [sges=N] [key=N]
// [a=N b=N] (operands of atomics, length of a FLUSH)
func (w *reqWorld) post(f []string) {
	if w.postLocal(f) {
		return
	}
	id, _ := strconv.Atoi(f[0])
	n, err := strconv.Atoi(f[2])
	op, ok := reqOps[f[1]]
	if err != nil || !ok {
		w.t.Fatalf("bad post %v", f)
	}
	mtu := w.attr.PathMTU.Bytes()
	p := &reqPosted{first: w.nextPSN, packets: max(1, (n+mtu-1)/mtu), off: id * reqSlice, length: n, op: op}
	e := SendWQE{ID: uint64(id), Opcode: op, Flags: Signaled, RemoteAddr: reqRemote, RKey: reqRKey}
	reg := w.src
	if op.is(opFetches) {
		reg = w.dst
	}
	key, sges := reg.Key(), 1
	for _, o := range f[3:] {
		name, val, _ := strings.Cut(o, "=")
		v, _ := strconv.Atoi(val)
		switch name {
		case "uns":
			e.Flags &^= Signaled
		case "fence":
			e.Flags |= Fence
		case "se":
			e.Flags |= Solicited
		case "inline":
			e.Flags |= Inline
			p.inline = bytes.Repeat([]byte{0x42}, n)
		case "imm":
			e.Imm = uint32(v)
		case "sges":
			sges = v
		case "key":
			key = uint32(v)
		case "va":
			e.RemoteAddr += uint64(v)
		case "psn": // those of requests that failed are used again
			p.first, w.nextPSN = v, v
		case "ah":
			e.AH = uint32(v)
		case "srq":
			v, err := strconv.ParseUint(val, 0, 24)
			if err != nil {
				w.t.Fatal(err)
			}
			e.SRQN = ib.QPN(v)
		case "qp":
			e.RemoteQPN = ib.QPN(v)
		case "qkey":
			v, err := strconv.ParseUint(val, 0, 32)
			if err != nil {
				w.t.Fatal(err)
			}
			e.QKey = uint32(v)
		case "a":
			e.CompareAdd = uint64(v)
		case "b":
			e.Swap = uint64(v)
		default:
			w.t.Fatalf("bad option %q", o)
		}
	}
	var list []mem.SGE
	for i, at := 0, p.off; n > 0 && p.inline == nil && i < sges; i++ {
		l := n / sges
		if i == sges-1 {
			l = p.off + n - at
		}
		list = append(list, mem.SGE{Addr: reg.Addr() + uint64(at), Length: uint32(l), LKey: key})
		at += l
	}
	if w.posted[e.ID] != nil {
		w.t.Fatalf("id %d twice", id)
	}
	w.posted[e.ID] = p
	w.nextPSN += p.packets
	if !w.sq.post(e, list, p.inline) {
		w.t.Fatalf("send queue is full at %d", id)
	}
	w.sq.tell(w.now, w.q)
}

// show names a packet that went out by a path and checks what is the same in all.
func (w *reqWorld) show(b []byte, via Path) string {
	p, bad := ib.Parse(b)
	if bad != ib.OK {
		w.t.Fatalf("malformed packet: %v: %x", bad, b)
	}
	info := p.Info()
	psn := p.PSN().Sub(w.base)
	if psn < 0 {
		psn += 1 << 24
	}
	s := info.Name
	for _, prefix := range []string{"RC_", "UC_", "XRC_", "RDMA_"} {
		s = strings.TrimPrefix(s, prefix)
	}
	s = strings.Replace(s, "_WITH_IMMEDIATE", "_IMM", 1)
	s = strings.Replace(s, "_WITH_INVALIDATE", "_INV", 1)
	s = strings.TrimSuffix(s, "_REQUEST")
	s = fmt.Sprintf("> %s %d", s, psn)
	if info.Payload != ib.PayloadNone {
		s += fmt.Sprintf(" %d", len(p.Payload()))
	}
	if info.XRCETH {
		s += fmt.Sprintf(" srq=%#x", uint32(p.XRCSRQ()))
	}
	if xrc := w.cfg.Type == XRCSend; xrc != (info.Transport == ib.TransportXRC) {
		s += " of another transport"
	}
	if info.FETH {
		s += fmt.Sprintf(" %+v", p.FETH())
	}
	if info.RETH {
		h := p.RETH()
		s += fmt.Sprintf(" va=%d len=%d", h.VA-reqRemote, h.Length)
		if h.RKey != reqRKey {
			s += " wrong rkey"
		}
	}
	if info.AtomicETH {
		h := p.AtomicETH()
		s += fmt.Sprintf(" va=%d", h.VA-reqRemote)
		if info.Op == ib.KindCmpSwap {
			s += fmt.Sprintf(" cmp=%d swap=%d", h.Compare, h.SwapAdd)
		} else {
			s += fmt.Sprintf(" add=%d", h.SwapAdd)
		}
		if h.RKey != reqRKey || h.Compare != 0 && info.Op == ib.KindFetchAdd {
			s += " wrong header"
		}
	}
	if info.Imm {
		s += fmt.Sprintf(" imm=%d", p.Imm())
	}
	if info.IETH {
		s += fmt.Sprintf(" inv=%d", p.IETH())
	}
	if p.AckReq() {
		s += " ack"
	}
	if p.Solicited() {
		s += " se"
	}
	dest, path := w.attr.DestQPN, Path{Dst: reqPeer, TOS: 0x68}
	if via.FlushTwice {
		s += " twice"
		path.FlushTwice = true
	}
	if info.DETH {
		s += fmt.Sprintf(" to %v qp=%d qkey=%#x src=%#x", via, p.DestQP(), p.DETH().QKey, uint32(p.DETH().SrcQP))
		dest, path = p.DestQP(), via
	}
	if p.DestQP() != dest || p.PKey() != ib.DefaultPKey || !p.MigReq() || p.BECN() || p.FECN() || p.Resv7() != w.q.resv {
		s += " wrong header"
	}
	if via != path {
		s += fmt.Sprintf(" wrong path %v", via)
	}
	for i := range int(p.Pad()) {
		if b[len(b)-ib.ICRCSize-1-i] != 0 {
			s += " pad not zero"
		}
	}
	w.checkPayload(psn, p.Payload())
	return s
}

func (w *reqWorld) checkPayload(psn int, data []byte) {
	for id, p := range w.posted {
		if psn < p.first || psn >= p.first+p.packets || p.op.is(opFetches) || p.failed {
			continue
		}
		off := (psn - p.first) * w.attr.PathMTU.Bytes()
		want := w.src.Bytes()[p.off:][:p.length]
		if p.inline != nil {
			want = p.inline
		}
		if !bytes.Equal(data, want[off:][:len(data)]) {
			w.t.Errorf("payload of request %d at %d is wrong", id, off)
		}
	}
}

// packet makes a response: KIND psn [detail].
func (w *reqWorld) packet(f []string) *Inbound {
	psn, err := strconv.Atoi(f[1])
	if err != nil {
		w.t.Fatalf("bad packet %v", f)
	}
	h := ib.BTH{PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: w.base.Add(psn), Resv7: w.resv}
	syn, n, aeth, msn, found := ib.AckSyndrome(ib.CreditsInvalid), 0, true, uint32(0x123456), uint64(0)
	num := func(i int) int {
		v, err := strconv.Atoi(f[i])
		if err != nil {
			w.t.Fatalf("bad packet %v", f)
		}
		return v
	}
	switch f[0] {
	case "ACK":
		h.Opcode = ib.OpRCAck
		if len(f) > 2 {
			syn = ib.AckSyndrome(uint8(num(2)))
		}
	case "NAK":
		h.Opcode = ib.OpRCAck
		codes := map[string]ib.NAKCode{
			"seq": ib.NAKSequence, "inv": ib.NAKInvalidRequest, "acc": ib.NAKRemoteAccess, "op": ib.NAKRemoteOperational,
			"rd": ib.NAKInvalidRD, "9": 9,
		}
		syn = ib.NAKSyndrome(codes[f[2]])
	case "RNR":
		h.Opcode = ib.OpRCAck
		syn = ib.RNRSyndrome(ib.RNRTimer(num(2)))
	case "RESERVED":
		h.Opcode = ib.OpRCAck
		syn = 0x40
	case "AACK": // psn, what was found
		h.Opcode = ib.OpRCAtomicAck
		if len(f) > 2 {
			found = uint64(num(2))
		}
	case "SEL": // psn, the packets that are kept: a selective NAK, its first bit a multiple of 64 behind psn
		h.Opcode, syn = ib.OpRCAtomicAck, ib.NAKSyndrome(ib.NAKSequence)
		msn = uint32(num(2)-psn-1) / selectiveBits * selectiveBits
		for i := range f[2:] {
			found |= 1 << (num(i+2) - psn - 1 - int(msn))
		}
	case "TWICE": // an ACK
		h.Opcode, h.Resv7 = ib.OpRCAck, w.resv|bitTwice
	case "AACKNAK":
		h.Opcode = ib.OpRCAtomicAck
		syn = ib.NAKSyndrome(ib.NAKRemoteAccess)
	case "RFIRST", "RLAST", "RONLY", "RMID", "RNAK":
		h.Opcode = map[string]ib.Opcode{
			"RFIRST": ib.OpRCReadResponseFirst, "RMID": ib.OpRCReadResponseMiddle,
			"RLAST": ib.OpRCReadResponseLast, "RONLY": ib.OpRCReadResponseOnly, "RNAK": ib.OpRCReadResponseOnly,
		}[f[0]]
		n = num(2)
		aeth = f[0] != "RMID"
		if f[0] == "RNAK" {
			syn = ib.NAKSyndrome(ib.NAKRemoteAccess)
		}
	default:
		w.t.Fatalf("bad packet %v", f)
	}
	h.Pad = uint8(-n & 3)
	if w.cfg.Type == XRCSend {
		h.Opcode |= ib.OpXRCSendFirst
	}
	info := h.Opcode.Info()
	b := make([]byte, info.HeaderLen+n+int(h.Pad)+ib.ICRCSize)
	h.Put(b)
	if aeth {
		ib.AETH{Syndrome: syn, MSN: msn}.Put(b[ib.BTHSize:])
	}
	if info.AtomicAckETH {
		ib.AtomicAckETH(found).Put(b[ib.BTHSize+ib.AETHSize:])
	}
	for i := range n {
		b[info.HeaderLen+i] = readByte(psn, i)
	}
	p, bad := ib.Parse(b)
	if bad != ib.OK {
		w.t.Fatalf("%v makes a malformed packet: %v", f, bad)
	}
	return &Inbound{Packet: p, Src: reqPeer}
}
