package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// responder is the half of an RC queue pair, and the whole of an XRC target, that
// takes requests: it checks
// them, moves their payload straight into memory, completes receives and notes
// which ACK, NAK or READ responses are due. Nothing is queued but READs and
// FLUSHes, and what came before its turn (stash.go): the expected request is
// executed or refused when it arrives.
//
// Order of execution. SENDs and WRITEs are executed in PSN order. A READ is
// accepted in PSN order, but its memory is read when its responses are written,
// possibly after later SENDs and WRITEs: IBTA 9.5 lets a responder do so, and
// the ordering table of IBTA 10.8.3.3 promises a READ followed by a SEND or
// WRITE no order unless the later request is fenced. Atomics and ATOMIC_WRITEs
// are executed when they arrive, FLUSHes when their answer is due. Answers keep
// PSN order: no ACK or NAK leaves before the answers with lower PSNs.
//
// All work per packet is bounded and allocates nothing.
type responder struct {
	receives
	respState
	target mem.Cursor // where the payload of the message goes
	reads  readQueue
	early  early
	kept   Inbound // scratch: the packet at work that was kept
	// flushes are the FLUSHes whose answers are due, in PSN order.
	flushes []flushRequest
}

// respState is what a reset clears as a whole.
type respState struct {
	mtu      int      // path MTU in bytes
	expected uint64   // sequence number of the next request packet
	msn      uint32   // messages completed, 24 bits (IBTA 9.7.7.1)
	last     ackPoint // the last SEND or WRITE packet executed

	ack    ackPoint // valid with ackDue
	nak    nakPoint // valid with nakDue
	ackDue bool     // an ACK up to ack is due
	nakDue bool
	// refused says that expected was NAKed, for a gap or for want of a
	// receive, and has not come (again) since: what lies beyond it is dropped.
	refused bool
	failed  bool // a NAK that ends the connection was issued
	twice   bool // a request came again since the last acknowledgement

	// The SEND or WRITE message being received.
	inMessage bool
	kind      ib.OpKind // KindSend or KindWrite
	offset    uint64    // bytes received
	length    uint64    // bytes announced by the RETH (WRITE)
}

// ackPoint is an executed packet and the MSN to show with its ACK.
type ackPoint struct {
	seq uint64
	msn uint32
}

// nakPoint is a NAK or RNR NAK.
type nakPoint struct {
	syndrome ib.Syndrome
	seq      uint64
	msn      uint32
}

// reset forgets everything (state RESET) and keeps the storage.
func (r *responder) reset() {
	r.target.Reset()
	r.forget()
	r.early.clear(r.expected)
	r.srq, r.haveWQE, r.respState = &r.q.own, false, respState{}
}

// start makes the responder ready to receive (INIT to RTR). Besides it only the
// first READ or atomic and the first packet to be stashed allocate: an idle queue pair
// stays small.
func (r *responder) start(a *Attr) {
	r.reset()
	r.mtu = a.PathMTU.Bytes()
	r.early.from, r.early.mtu = r.q.cfg.Stash, a.PathMTU
	r.expected = firstSeq(a.RQPSN)
	r.last.seq = r.expected - 1
	r.grow()
	r.reads.resize(int(a.MaxDestRdAtomic))
	r.target.Serve(uint32(r.q.cfg.Num))
	r.reads.source.Serve(uint32(r.q.cfg.Num))
}

// resize adapts the READ resources to a changed MaxDestRdAtomic. The youngest
// are kept.
func (r *responder) resize() { r.reads.resize(int(r.q.attr.MaxDestRdAtomic)) }

// receive takes one request packet. The order of the checks is that of IBTA
// 9.7.4 and Linux drivers/infiniband/sw/rxe/rxe_resp.c: PSN, opcode sequence,
// rights of the QP, resources, length, key and range.
func (r *responder) receive(now time.Duration, in *Inbound) {
	switch seq := extend(in.PSN(), r.expected); {
	case seq < r.expected:
		r.duplicate(in, seq)
	case seq > r.expected:
		r.gap(in, seq)
	default:
		// What was refused has come: a NAK for it that has not left yet (the
		// packet was only overtaken) is pointless.
		r.refused, r.nakDue = false, false
		r.q.listens(in)
		r.execute(now, in)
		r.early.drop(seq, r.expected)
		r.catchUp(now)
	}
}

// catchUp executes the packets that were kept, up to the next that is missing, and
// acknowledges them at once: a requester that has gone back may skip them. One that
// finds no receive, or no room for its answer, is dropped; it will come again.
func (r *responder) catchUp(now time.Duration) {
	last := r.last
	for !r.refused {
		seq := r.expected
		p, ok := r.early.take(seq)
		if !ok {
			break
		}
		r.kept.Packet = p
		r.execute(now, &r.kept)
		r.early.release(p)
		if r.expected == seq {
			break
		}
		r.early.drop(seq, r.expected)
	}
	if r.last != last {
		r.noteAck(r.last)
	}
	if r.early.n > 0 && r.q.kin && !r.refused && !r.failed {
		r.missed() // another hole, of which the peer may know nothing yet
	}
}

// execute takes the packet with the expected PSN.
func (r *responder) execute(now time.Duration, in *Inbound) {
	info := in.Info()
	switch {
	case !r.inSequence(info):
		r.invalid(now)
	case !r.reach(in):
		r.unreachable(now)
	case info.Op == ib.KindSend:
		r.send(now, in)
	case info.Op == ib.KindWrite:
		r.write(now, in)
	case info.Op == ib.KindReadRequest:
		r.read(now, in)
	case info.Op == ib.KindFetchAdd, info.Op == ib.KindCmpSwap:
		r.atomic(now, in)
	case info.Op == ib.KindAtomicWrite:
		r.atomicWrite(now, in)
	case info.Op == ib.KindFlush:
		r.takeFlush(now, in)
	default:
		r.invalid(now) // not supported (IBTA 9.7.5.2)
	}
}

// inSequence reports whether a packet may follow the one before it (IBTA
// 9.7.4.1.3, table of valid opcode sequences).
func (r *responder) inSequence(info *ib.OpcodeInfo) bool {
	if r.inMessage {
		return info.Op == r.kind && !info.Pos.Starts()
	}
	return info.Pos.Starts()
}

// send takes a packet of a SEND.
func (r *responder) send(now time.Duration, in *Inbound) {
	p, pos := in.Payload(), in.Info().Pos
	if pos.Starts() && !r.takeWQE() {
		r.notReady()
		return
	}
	if !fitsMTU(pos, len(p), r.mtu) {
		r.invalid(now)
		return
	}
	if pos.Starts() {
		r.offset = 0
		if s := r.openReceive(pos, len(p)); s != mem.OK {
			r.failReceive(now, WCLocProtErr)
			return
		}
	}
	if uint64(len(p)) > r.target.Len()-r.offset {
		r.failReceive(now, WCLocLenErr)
		return
	}
	if s := r.target.CopyIn(r.offset, p); s != mem.OK {
		r.failReceive(now, WCLocProtErr)
		return
	}
	r.advance(in, len(p))
	if in.Info().IETH && !r.invalidate(now, uint32(in.IETH())) {
		return
	}
	if pos.Ends() {
		r.completeReceive(in, WCRecv, r.offset, r.q.attr.DestQPN, 0)
	}
}

// openReceive makes the buffers of the receive the target of a SEND. A SEND
// without payload touches no memory, so no key is looked at.
func (r *responder) openReceive(pos ib.Position, n int) mem.Status {
	sges := r.wqe.SGE
	if pos == ib.PosOnly && n == 0 {
		sges = nil
	}
	return r.target.Local(r.srq.Mem, r.srq.PD, sges, mem.LocalWrite)
}

// write takes a packet of an RDMA WRITE.
func (r *responder) write(now time.Duration, in *Inbound) {
	p, info := in.Payload(), in.Info()
	if r.q.attr.Access&mem.RemoteWrite == 0 {
		r.invalid(now)
		return
	}
	// Immediate data consumes a receive, at the last packet (IBTA 9.4.3).
	if info.Imm && !r.takeWQE() {
		r.notReady()
		return
	}
	if !fitsMTU(info.Pos, len(p), r.mtu) {
		r.invalid(now)
		return
	}
	if info.Pos.Starts() && !r.openWrite(now, in.RETH()) {
		return
	}
	// All packets but the last leave something to come, the last one nothing.
	if left := r.length - r.offset; info.Pos.Ends() != (uint64(len(p)) == left) || uint64(len(p)) > left {
		r.invalid(now)
		return
	}
	if s := r.target.CopyIn(r.offset, p); s != mem.OK {
		r.denied(now, s, r.expected)
		return
	}
	r.advance(in, len(p))
	if info.Imm {
		r.completeReceive(in, WCRecvRDMAWithImm, r.length, r.q.attr.DestQPN, 0)
	}
}

// openWrite checks the range of a WRITE, all of it at its first packet (IBTA
// 9.7.4.1.5), and makes it the target.
func (r *responder) openWrite(now time.Duration, h ib.RETH) bool {
	if h.Length > maxMessage {
		r.invalid(now)
		return false
	}
	r.offset, r.length = 0, uint64(h.Length)
	if s := r.target.Remote(r.srq.Mem, r.srq.PD, h.RKey, h.VA, r.length, mem.RemoteWrite); s != mem.OK {
		r.denied(now, s, r.expected)
		return false
	}
	return true
}

// advance counts an executed packet of n payload bytes.
func (r *responder) advance(in *Inbound, n int) {
	info := in.Info()
	r.inMessage, r.kind = !info.Pos.Ends(), info.Op
	r.offset += uint64(n)
	if info.Pos.Ends() {
		r.target.Reset()
		r.countMessage()
	}
	r.last = ackPoint{r.expected, r.msn}
	r.expected++
	if in.AckReq() {
		r.noteAck(r.last)
	}
}

func (r *responder) countMessage() { r.msn = (r.msn + 1) & 0xffffff }

// failReceive completes the receive of the message with an error of its own
// buffers and ends the connection (IBTA 9.9.3, responder class A): a message
// that is too long is the requester's fault, a bad buffer ours.
func (r *responder) failReceive(now time.Duration, s WCStatus) {
	r.errorReceive(s)
	r.q.count(RespCQEErr)
	code := ib.NAKRemoteOperational
	if s == WCLocLenErr {
		r.q.count(RespLocalLengthErr)
		code = ib.NAKInvalidRequest
	}
	r.fail(now, code, r.expected, noEvent)
}

// flush completes all receives with WCWRFlushErr: the QP has gone to ERR, or was
// there and has got new receives. What is due because of a fatal NAK still is
// transmitted; otherwise READs are forgotten and only an ACK that was due
// stays, for it is true.
func (r *responder) flush() {
	r.inMessage = false
	r.target.Reset()
	r.early.clear(r.expected)
	r.flushReceives()
	if !r.failed {
		r.nakDue = false
		r.ackDue = r.ackDue && !r.blocked(r.ack.seq)
		r.forget()
	}
}
