package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// The most READ and atomic requests that a queue pair can have outstanding, as
// initiator and as responder (max_qp_init_rd_atom and max_qp_rd_atom of
// ibv_query_device): as initiator as many as Linux rxe answers, as responder, which
// keeps something of each, as many as RNICs do.
const (
	MaxRdAtomic     = 128
	MaxDestRdAtomic = 16
)

// maxMessage is the longest message, in bytes (IBTA 9.7.2).
const maxMessage = 1 << 31

// record is what the requester knows about a request that has its PSNs. The
// entry of the send queue is read once, into it.
type record struct {
	id     uint64
	raddr  uint64
	first  uint64 // sequence number of the first packet
	end    uint64 // after the last
	cum    uint64 // charge of everything before it since start
	length uint32 // bytes
	rkey   uint32
	imm    uint32
	srqn   ib.QPN // XRC: the peer's shared receive queue
	op     WROpcode
	flags  SendFlags
}

// offset is where the payload of packet seq begins.
func (c *record) offset(seq uint64, mtu uint32) uint64 { return (seq - c.first) * uint64(mtu) }

// cumAt is the charge of everything before packet seq; the responses of a READ
// are charged like the packets of a WRITE.
func (c *record) cumAt(seq uint64, mtu uint32) uint64 {
	n := seq - c.first
	if seq < c.end {
		return c.cum + n*charge(mtu)
	}
	return c.cum + (n-1)*charge(mtu) + charge(c.length-uint32(n-1)*mtu)
}

// readRequest is a READ REQUEST packet whose responses have not all come, or an
// atomic or FLUSH that was not answered (requester_atomic.go). A repetition may
// begin later but ends where the first did, unless the peer is known to answer
// parts: others refuse them (Linux hw/hfi1/rc.c), and the parts behind it have
// requests of their own.
type readRequest struct {
	first, end uint64
	rec        uint32 // the request
	fate       fate   // of the request, as the peer told
	split      bool   // parts were asked for again: their last responses look like the last of all
	sealed     sealed // of a FLUSH
}

// fate is what a selective NAK tells of a READ REQUEST.
type fate uint8

const (
	fateUnknown fate = iota
	fateKept         // the peer has it, but keeps it until something older comes
	fateLost         // it has something newer: one packet was lost, not all responses
)

// requester is the sending side of a queue pair: it makes packets of send
// requests (this file), completes them (completer.go), and sends again what was
// lost (recover.go).
//
// Requests are numbered by their send queue index: done <= cur <= begun.
// Packets are numbered by sequence: una <= nxt <= end and nxt <= top.
type requester struct {
	q   *QP
	mtu uint32

	done  uint32   // requests before it have completed
	freed uint32   // requests before it were returned to the poster
	cur   uint32   // the request that nxt belongs to
	begun uint32   // requests before it have a record
	rec   []record // ring, by index modulo its length; made when first needed

	una    uint64 // the oldest packet not acknowledged
	nxt    uint64 // the packet sent next
	top    uint64 // after the last packet ever sent
	end    uint64 // after the last packet of the last request begun
	unaCum uint64 // charge of everything before una, nxt and end
	nxtCum uint64
	endCum uint64
	asked  uint64 // nxtCum after the last packet with AckReq
	fence  uint64 // after the last packet of the last READ or atomic begun
	win    window

	acked  uint64 // everything before was acknowledged; una may stand at a READ before it
	board  board
	stop   uint64 // below top: what was sent is sent again up to here
	fixed  uint64 // what is missing before it was sent again ...
	news   uint64 // ... before this packet was first sent
	repair bool   // only what is known to be lost is sent again
	again  uint64 // charge of what was sent again since then, or since the last progress

	reads    []readRequest // ring of outstanding READ REQUESTs, a power of two; it grows when needed
	readHead int
	numReads int
	readNext int // those before it, from readHead on, were sent (again)

	room     int           // what is left of the turn, in bytes
	armed    bool          // the ack timer runs
	since    time.Duration // ... since the last progress
	probed   time.Duration // the last probe
	probing  bool          // ... has brought nothing yet: what it sends again is little
	rtt      rtt
	tried    attempt
	retries  uint8         // left
	rnrLeft  uint8         // RNR retries left
	waiting  bool          // after an RNR NAK, in which nothing is sent
	until    time.Duration // ... until then
	wentBack bool          // a NAK at una was acted upon
	parked   bool          // nothing can be sent before something happens
	draining bool          // SQD: requests are still in process

	doomed   bool // request doomedAt failed locally: it completes with doom when its turn comes
	doomedAt uint32
	doom     WCStatus

	tx, rx     mem.Cursor // memory of the request being sent, of the READ being answered
	txAt, rxAt uint32
	txOn, rxOn bool
	form       flushForm
	found      [mem.WordSize]byte // scratch, so that an atomic needs no allocation
	wc         WC                 // ... and a completion
}

// reset forgets all requests, those in the send queue as well.
func (r *requester) reset() {
	r.done = r.q.cfg.SQ.Produced()
	r.free()
	r.clear()
}

// clear forgets everything about packets.
func (r *requester) clear() {
	r.cur, r.begun = r.done, r.done
	r.q.cfg.SQ.Posted(r.begun) // who posts the next one kicks
	r.nxt, r.top, r.end, r.fence = r.una, r.una, r.una, r.una
	r.tried, r.probing = attempt{}, false
	r.acked, r.stop, r.fixed, r.news, r.board = r.una, r.una, r.una, r.una, board{}
	r.unaCum, r.nxtCum, r.endCum, r.asked = 0, 0, 0, 0
	r.readHead, r.numReads, r.readNext = 0, 0, 0
	r.form = flushForm{}
	r.armed, r.waiting, r.wentBack, r.parked, r.draining, r.doomed = false, false, false, false, false, false
	r.tx.Reset()
	r.rx.Reset()
	r.txOn, r.rxOn = false, false
}

// start makes the requester ready to send, at the transition to RTS.
func (r *requester) start(a *Attr) {
	r.mtu = uint32(a.PathMTU.Bytes())
	r.una = firstSeq(a.SQPSN)
	r.clear()
	r.win.reset(r.mtu, r.q.cfg.Window, r.una)
	r.rtt = rtt{}
	r.retries, r.rnrLeft = a.RetryCnt, a.RNRRetry
}

// kick says that the send queue may have new entries.
func (r *requester) kick(time.Duration) { r.parked = false }

// drain stops taking up requests, at the transition to SQD. Requests of which
// a packet was sent are finished (IBTA 10.3.1.5).
func (r *requester) drain() {
	if r.begun != r.done {
		if c := r.at(r.begun - 1); c.first >= r.top && !c.op.local() {
			r.begun--
			r.end, r.endCum = c.first, c.cum
			r.fence = min(r.fence, c.first)
		}
	}
	r.draining = true
	r.drained()
}

// drains says whether requests are still in process in SQD.
func (r *requester) drains() bool { return r.draining }

// resume takes up requests again, at the transition from SQD to RTS.
func (r *requester) resume() { r.draining, r.parked = false, false }

// live says whether the state of the queue pair lets requests be processed.
func (r *requester) live() bool { return r.q.state == RTS || r.q.state == SQD }

// wants says whether transmit has something to do. After news it may be wrong
// once; transmit then parks the requester until the next news.
func (r *requester) wants() Want {
	if r.parked || r.waiting || !r.live() {
		return 0
	}
	if r.nxt == r.end && !r.q.cfg.SQ.Posted(r.begun) {
		return 0
	}
	return WantData
}

// transmit writes packets until budget bytes are written, out has no room, or
// nothing may be sent.
func (r *requester) transmit(now time.Duration, out Outbox, budget int) (n int) {
	for n < budget {
		r.room = budget - n
		sent, more := r.step(now, out)
		n += sent
		if sent == 0 {
			r.parked = !more
			return n
		}
	}
	return n
}

// step writes one packet and returns its size; 0 if there was no room for it
// (more) or nothing may be sent now.
func (r *requester) step(now time.Duration, out Outbox) (sent int, more bool) {
	if r.waiting || !r.live() {
		return 0, false
	}
	if r.nxt < r.top {
		r.pass(now)
	}
	if r.nxt == r.end {
		e, ok := r.next()
		switch {
		case !ok:
			return 0, false
		case e.Opcode.local():
			r.local(now, &e)
			return minCharge, true // costs the turn as much as a small packet
		case !r.begin(now, &e):
			return 0, false
		}
	}
	if r.doomed && r.cur == r.doomedAt || r.holds() {
		return 0, false
	}
	switch c := r.at(r.cur); {
	case c.op == WRRead:
		return r.sendRead(now, out, c)
	case c.op.is(opAnswered):
		return r.sendAtomic(now, out, c)
	default:
		return r.sendData(now, out, c)
	}
}

func (r *requester) at(i uint32) *record { return &r.rec[i&uint32(len(r.rec)-1)] }

// next returns the next request of the send queue, if there is one that may
// start. The entry is read here, once.
func (r *requester) next() (e SendWQE, ok bool) {
	sq := r.q.cfg.SQ
	if r.q.state != RTS || r.doomed || !sq.Posted(r.begun) {
		return e, false
	}
	e = *sq.Entry(r.begun)
	switch {
	case e.Flags&Fence != 0 && r.una < r.fence:
		return e, false // IBTA 10.8.3.3: wait for earlier READs and atomics
	case e.Opcode == WRLocalInv && r.una < r.end:
		return e, false // the local invalidate fence, see localops.go
	}
	return e, true
}

// newRecord returns the record of the request that begins.
func (r *requester) newRecord() *record {
	if r.rec == nil {
		r.rec = make([]record, r.q.cfg.SQDepth)
	}
	return r.at(r.begun)
}

// begin takes up the next request: its memory is checked and it gets its PSNs.
func (r *requester) begin(now time.Duration, e *SendWQE) bool {
	c := r.newRecord()
	*c = record{
		id: e.ID, raddr: e.RemoteAddr, rkey: e.RKey, imm: e.Imm, srqn: e.SRQN, op: e.Opcode, flags: e.Flags,
		first: r.end, cum: r.endCum,
	}
	status := r.open(&r.tx, r.begun, c)
	r.txAt, r.txOn = r.begun, status == WCSuccess
	if status == WCSuccess && !e.Opcode.fits(r.tx.Len()) {
		status = WCLocLenErr
	}
	if status != WCSuccess {
		r.condemn(now, r.begun, status)
		return false
	}
	c.length = uint32(r.tx.Len())
	c.end = c.first + max(1, (uint64(c.length)+uint64(r.mtu)-1)/uint64(r.mtu))
	if c.op.is(opAnswered) {
		r.fence = c.end
	}
	r.begun++
	r.end, r.endCum = c.end, c.cumAt(c.end, r.mtu)
	return true
}

// open points a cursor to the memory of request i. The regions are checked each
// time, as they may go away between two uses.
func (r *requester) open(m *mem.Cursor, i uint32, c *record) WCStatus {
	cfg := &r.q.cfg
	var need mem.Access
	switch {
	case !cfg.Type.Sends(c.op), c.op.is(opFetches) && c.flags&Inline != 0, c.op.is(opDepth) && r.q.attr.MaxRdAtomic == 0:
		return WCLocQPOpErr
	case c.flags&Inline != 0:
		m.Inline(cfg.SQ.Inline(i))
		return WCSuccess
	case c.op.is(opFetches):
		need = mem.LocalWrite
	}
	if m.Local(cfg.Mem, cfg.PD, cfg.SQ.SGEs(i), need) != mem.OK {
		return WCLocProtErr
	}
	return WCSuccess
}

// condemn gives request i, which cannot go on, its status. It completes when
// those before it have (IBTA 10.8.5: in order).
func (r *requester) condemn(now time.Duration, i uint32, s WCStatus) {
	r.doomed, r.doomedAt, r.doom = true, i, s
	r.settle(now)
}

// opcodes of the requests that carry data, by WROpcode and by position: middle,
// first, last, only.
var dataOpcodes = [...][4]ib.Opcode{
	WRWrite:        {ib.OpRCWriteMiddle, ib.OpRCWriteFirst, ib.OpRCWriteLast, ib.OpRCWriteOnly},
	WRWriteWithImm: {ib.OpRCWriteMiddle, ib.OpRCWriteFirst, ib.OpRCWriteLastImm, ib.OpRCWriteOnlyImm},
	WRSend:         {ib.OpRCSendMiddle, ib.OpRCSendFirst, ib.OpRCSendLast, ib.OpRCSendOnly},
	WRSendWithImm:  {ib.OpRCSendMiddle, ib.OpRCSendFirst, ib.OpRCSendLastImm, ib.OpRCSendOnlyImm},
	WRSendWithInv:  {ib.OpRCSendMiddle, ib.OpRCSendFirst, ib.OpRCSendLastInv, ib.OpRCSendOnlyInv},
}

// sendData writes packet nxt of a SEND or WRITE.
func (r *requester) sendData(now time.Duration, out Outbox, c *record) (sent int, more bool) {
	off := c.offset(r.nxt, r.mtu)
	n := min(r.mtu, c.length-uint32(off))
	cost := charge(n)
	if !r.fits(cost) {
		return 0, false
	}
	first, last := r.nxt == c.first, r.nxt+1 == c.end
	pos := 0
	if first {
		pos++
	}
	if last {
		pos += 2
	}
	op := dataOpcodes[c.op][pos]
	ask := last || r.mustAsk(cost) || r.nxt < r.top && (r.repair || r.probing)
	b, at := r.newPacket(out, op, c, int(n), ask, last && c.solicits())
	if b == nil {
		return 0, true
	}
	info := op.Info()
	if info.RETH {
		at += ib.RETH{VA: c.raddr, RKey: c.rkey, Length: c.length}.Put(b[at:])
	}
	if info.Imm {
		at += ib.ImmDt(c.imm).Put(b[at:])
	}
	if info.IETH {
		at += ib.IETH(c.imm).Put(b[at:])
	}
	if s := r.copyOut(b[at:at+int(n)], off, c); s != WCSuccess {
		r.condemn(now, r.cur, s)
		return 0, false
	}
	r.q.commit(out)
	r.sent(now, c, 1, cost, cost, ask)
	return len(b), true
}

// newPacket asks out for packet nxt, of request c, with n bytes of payload. What
// all requests of the service begin with is written; further extension headers
// and the payload go to at. It returns nil when out has no room.
func (r *requester) newPacket(out Outbox, op ib.Opcode, c *record, n int, ackReq, solicited bool) (b []byte, at int) {
	b = r.q.packetTo(out, r.pathOf(c.op), r.q.attr.DestQPN, op, n, r.nxt, ackReq, solicited)
	at = ib.BTHSize
	if b != nil && r.q.cfg.Type == XRCSend {
		at += ib.XRCETH(c.srqn).Put(b[at:]) // IBTA A14: in all packets of a request
	}
	return b, at
}

// solicits says whether the last packet of the request has the solicited event
// bit: only requests that consume a receive request may (IBTA 9.2.3).
func (c *record) solicits() bool { return c.flags&Solicited != 0 && c.op != WRWrite }

// copyOut copies payload of request cur to a packet.
func (r *requester) copyOut(dst []byte, off uint64, c *record) WCStatus {
	if len(dst) == 0 {
		return WCSuccess
	}
	if !r.txOn || r.txAt != r.cur {
		r.txOn = false
		if s := r.open(&r.tx, r.cur, c); s != WCSuccess {
			return s
		}
		if r.tx.Len() != uint64(c.length) {
			return WCLocQPOpErr // the entry was changed after it was posted
		}
		r.txAt, r.txOn = r.cur, true
	}
	if r.tx.CopyOut(dst, off) != mem.OK {
		return WCLocProtErr
	}
	return WCSuccess
}

// sendRead writes a READ REQUEST: again, if responses to one are missing, or for
// the next part of the READ. A READ larger than the window is asked for in
// parts, as nothing else keeps the peer from overrunning us.
func (r *requester) sendRead(now time.Duration, out Outbox, c *record) (sent int, more bool) {
	again := r.readNext < r.numReads
	var end uint64
	switch {
	case again:
		end = r.untilThere(r.read(r.readNext))
	case r.numReads >= int(r.q.attr.MaxRdAtomic):
		return 0, false // IBTA 9.7.3.1: initiator depth
	default:
		end = min(c.end, r.nxt+r.readPart())
	}
	cost := c.cumAt(end, r.mtu) - c.cumAt(r.nxt, r.mtu)
	if !r.fits(cost) {
		return 0, false
	}
	b, at := r.newPacket(out, ib.OpRCReadRequest, c, 0, true, false)
	if b == nil {
		return 0, true
	}
	off := c.offset(r.nxt, r.mtu)
	n := min(uint64(c.length)-off, (end-r.nxt)*uint64(r.mtu))
	ib.RETH{VA: c.raddr + off, RKey: c.rkey, Length: uint32(n)}.Put(b[at:])
	r.q.commit(out)
	if !again {
		r.addRead(readRequest{first: r.nxt, end: end, rec: r.cur})
	}
	hurt := cost
	if req := r.read(r.readNext); req.fate == fateLost {
		hurt, req.fate = charge(0), fateUnknown
	}
	if r.read(r.readNext).end == end {
		r.readNext++
	}
	r.sent(now, c, end-r.nxt, cost, hurt, true)
	return len(b), true
}

// readPart is how many responses the next READ REQUEST may ask for: four requests share
// the window, so that responses keep coming while the next one travels. Not more, as each
// costs a datagram, and its answer two runs of packets that are not full.
func (r *requester) readPart() uint64 {
	share := uint64(min(4, r.q.attr.MaxRdAtomic))
	return max(1, r.window()/share/charge(r.mtu))
}

// read returns the i-th outstanding READ REQUEST.
func (r *requester) read(i int) *readRequest { return &r.reads[(r.readHead+i)&(len(r.reads)-1)] }

// addRead appends one.
func (r *requester) addRead(req readRequest) {
	if r.numReads == len(r.reads) {
		grown := make([]readRequest, max(4, 2*r.numReads))
		for i := range r.numReads {
			grown[i] = *r.read(i)
		}
		r.reads, r.readHead = grown, 0
	}
	r.numReads++
	*r.read(r.numReads - 1) = req
}

// fits says whether the window has room; one packet may always be in flight. What
// has a mark is not; its share is taken as that of the average packet.
func (r *requester) fits(cost uint64) bool {
	out := r.nxtCum - r.unaCum
	switch {
	case r.nxt < r.top && r.repair:
		out = r.again // what is sent again now was lost
	case r.nxt == r.top && r.board.n > 0:
		if out+cost > r.win.max || r.nxt-r.una >= boardSize {
			return false
		}
		out -= out * uint64(r.board.n) / (r.nxt - r.una)
	}
	size := r.window()
	if r.probing {
		size = min(size, r.win.min)
	}
	return out == 0 || out+cost <= size
}

// window is how much may be in flight. Beside somebody who waits for each request it is
// what the path holds without a queue and half of that: the rest would wait before his
// requests, in the peer's socket mostly.
func (r *requester) window() uint64 {
	if !r.q.beside {
		return r.win.size
	}
	return min(r.win.size, max(besideWindow, r.rtt.path+r.rtt.path/2))
}

// delivered is the charge of what the peer has, as far as is known, since clear.
func (r *requester) delivered() uint64 { return r.unaCum + uint64(r.board.n)*r.win.step }

// holds says whether a packet that was never sent has to wait for room at the peer.
func (r *requester) holds() bool {
	q := r.q
	q.held = q.held || q.full && r.nxt == r.top && r.nxt > r.una
	return q.held && r.nxt == r.top
}

// mustAsk says whether a packet that ends no message asks for an acknowledgement
// all the same: each quarter of the window, when it fills the window, each burst of a
// queue pair that is held to a rate, and at the end of a turn after which others may
// have theirs. rxe acknowledges nothing else (Linux rxe_resp.c).
func (r *requester) mustAsk(cost uint64) bool {
	after, window := r.nxtCum+cost, r.window()
	return r.q.shared && cost >= uint64(r.room) || after-r.asked >= window/4 || r.q.pace.asks(after-r.asked) || after-r.unaCum+r.win.step > window
}

// sent takes note of a packet that went out and stands for n PSNs. If it is sent again,
// what was lost is worth hurt.
func (r *requester) sent(now time.Duration, c *record, n, cost, hurt uint64, asked bool) {
	if r.nxt < r.top {
		r.q.count(RetransPkts)
		r.tried.sent(now, r.nxt)
		r.again += cost
		r.rtt.repeated(r.nxt, r.nxt+n)
		if r.repair {
			r.win.lost(hurt, r.una, r.top, r.rtt.crowded(now))
		}
	} else if asked {
		r.rtt.start(now, r.nxt, r.una >= r.fixed, r.delivered())
	}
	r.nxt += n
	r.nxtCum += cost
	r.top = max(r.top, r.nxt)
	if asked {
		r.asked = r.nxtCum
	}
	if r.nxt == c.end {
		r.cur++
		r.skip()
	}
	if !r.armed {
		r.armed, r.since = true, now
	}
}
