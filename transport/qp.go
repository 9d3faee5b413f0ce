package transport

import (
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport/cc"
)

// Never is the deadline of a queue pair that waits for nothing.
const Never = time.Duration(math.MaxInt64)

// Path is where packets of a queue pair go.
type Path struct {
	Dst     netip.Addr
	SrcPort uint16 // UDP source port; 0 means the device's own, 4791
	TOS     uint8  // IPv4 TOS or IPv6 traffic class, DSCP and ECN

	// FlushTwice says that FLUSHes are sealed as Linux rxe wants it, see
	// ib.Flow.SealFlushTwice.
	FlushTwice bool
}

// Outbox is where packets are written: the engine's staging buffer.
type Outbox interface {
	// Packet returns n bytes for one packet, from the BTH to the last byte
	// of the ICRC (which the outbox fills in at Commit), or nil when there is
	// no room in this turn. The contents of the bytes are undefined.
	Packet(path *Path, n int) []byte
	// Commit hands over the packet that Packet returned last. A packet that
	// is not committed before the next call of Packet is forgotten.
	Commit()
}

// Inbound is one received packet: validated, its ICRC right.
type Inbound struct {
	ib.Packet
	Src, Dst netip.Addr
	TOS      uint8 // IPv4 TOS or IPv6 traffic class
	CE       bool  // congestion experienced (ECN)
	Overflow bool  // the receive socket has dropped packets before it
}

// Want says what a queue pair would transmit now if it were asked.
type Want uint8

const (
	WantControl Want = 1 << iota // ACK, NAK, CNP: always first
	WantData                     // requests or READ responses
)

// QPConfig is what a queue pair is made of. All fields but Event, Stash and those of
// congestion control are needed.
type QPConfig struct {
	Num            ib.QPN
	Type           QPType
	PD             mem.PD
	Mem            *mem.Table
	SQ             SQ
	RQ             RQ
	SendCQ, RecvCQ CQ
	SQDepth        uint32 // entries of the send queue, a power of two
	SigAll         bool   // every send request is signaled
	// ECN says that packets are ECT(0), where the traffic class has no ECN codepoint.
	ECN bool
	// SharedRQ says that RQ belongs to other queue pairs as well: what is in it
	// is not flushed with this one, which tells EventQPLastWQE instead.
	SharedRQ bool
	Counters *Counters
	// Event is told of asynchronous events, from inside any method of QP: it
	// must only queue them.
	Event func(Event)
	// Became, if not nil, is told each change of the state, as Event is told.
	Became func(from, to State)
	// Window is the most bytes of packets, ICRC and headers included, that may
	// be unacknowledged; 0 means 1 MiB. The window in use adapts below it.
	Window int
	// SRQs has the receive queues of an XRC target, which needs neither PD and
	// Mem nor any queue of its own.
	SRQs SRQs
	// Stash keeps request packets that come before their turn; nil keeps none. Only
	// RC and XRC targets need it.
	Stash *Stash
	// NoSelective keeps to the standard: neither side of the connection tells more
	// than IBTA 9.7 has.
	NoSelective bool
	// AHs resolves address handles, and MTU is the most payload of a datagram
	// in bytes. Only UD needs them.
	AHs AHs
	MTU int
	// Seen, if not nil, is told the state as well, for those who post without a call.
	// It changes before anything is flushed because of it, and not after Destroy.
	Seen *atomic.Uint32
	// Congestion says how fast to send; nil: as the window lets. Its New is called
	// when the queue pair first sends. Traced is told when the rate changes, and of
	// the reason, as Event is told.
	Congestion cc.Algorithm
	Traced     func(now time.Duration, why string, s cc.State)
	// Notifier has senders told of packets that a switch has marked; nil: they
	// are only counted.
	Notifier *Notifier
}

// noEvent is given to fail when no asynchronous event goes with the error:
// what completes with an error status needs none (IBTA 10.10.2.3, 11.6.3).
const noEvent Event = 0xff

// QP is one queue pair as a pure state machine. Its methods belong to the owner
// of its engine: one at a time, in any goroutine, never from inside Outbox, CQ,
// SQ, RQ or Event callbacks. Nothing in it reads a clock, waits or locks, and
// after NewQP and Modify the packet path allocates nothing.
type QP struct {
	cfg    QPConfig
	own    SRQ           // the receive queue in cfg
	state  State         // written by become alone
	seen   atomic.Uint32 // state, for anybody
	attr   Attr
	path   Path // to the peer, from RTR on
	alt    alternate
	left   netip.Addr // where the peer comes from until it has followed a migration
	snd    sender
	rcv    receiver
	pace   *pacer   // see paced
	cnps   *notices // or nil
	turn   bool     // whose turn it is in Transmit: the receiver's
	shared bool     // others send to the peer, see Share
	beside bool     // ... one of them little at a time
	full   bool     // ... and leave no room
	held   bool     // for which requests wait
	est    bool     // EventCommEst was given
	resv   uint8    // what the reserved field of packets says, see selective.go
	kin    bool     // the peer understands it
}

// NewQP returns a queue pair in state Reset. It trusts cfg.
func NewQP(cfg QPConfig) *QP {
	if cfg.Window == 0 {
		cfg.Window = defaultWindow
	}
	q := &QP{cfg: cfg, own: SRQ{RQ: cfg.RQ, CQ: cfg.RecvCQ, Mem: cfg.Mem, PD: cfg.PD}}
	common := receives{q: q, srq: &q.own}
	if cfg.Type.reliable() && !cfg.NoSelective {
		q.resv = bitSelective
	}
	switch cfg.Type {
	case UC:
		q.snd, q.rcv = &unreliable{q: q}, &ucReceiver{receives: common}
	case UD:
		q.snd, q.rcv = &unreliable{q: q}, &udReceiver{receives: common}
	case XRCSend:
		q.snd, q.rcv = &requester{q: q}, noReceiver{}
	case XRCRecv:
		q.snd, q.rcv = noSender{q: q}, &responder{receives: common}
	default:
		q.snd, q.rcv = &requester{q: q}, &responder{receives: common}
	}
	q.snd.reset()
	q.rcv.reset()
	return q
}

// sender is the half of a queue pair that takes send requests. A transport
// service is made of one sender and one receiver; what they have in common is in
// QP. Like QP's own methods theirs belong to the owner of the engine.
type sender interface {
	// reset forgets all requests, without completions, and drops references to
	// memory.
	reset()
	// start makes it ready to send, from RTR to RTS.
	start(a *Attr)
	// resume takes up requests again, at each transition to RTS.
	resume()
	// drain stops taking up requests, from RTS to SQD. It tells EventSQDrained
	// when those that were begun are finished, if the attributes ask for it.
	drain()
	// drains says whether drain still waits for requests that were begun.
	drains() bool
	// kick says that the send queue may have new entries, or that attributes
	// have changed.
	kick(now time.Duration)
	// left says that what transmit wrote before has left only now.
	left(now time.Duration)
	// inFlight is how much of the window is in use.
	inFlight() uint64
	// repeats says whether what comes next was sent before.
	repeats() bool
	// moved says that packets take another path to the peer from now on.
	moved(now time.Duration)
	// wants and transmit do the sender's part of Wants and Transmit.
	wants() Want
	transmit(now time.Duration, out Outbox, budget int) int
	// receive takes a response of the peer.
	receive(now time.Duration, in *Inbound)
	// deadline and expire are QP's Deadline and Expire.
	deadline() time.Duration
	expire(now time.Duration)
	// flush completes all requests with WCWRFlushErr. It may be called again,
	// for requests that came later.
	flush()
}

// receiver is the half of a queue pair that takes what the peer sends of its own
// accord.
type receiver interface {
	// reset forgets everything and drops references to memory.
	reset()
	// start makes it ready to receive, from INIT to RTR. It may allocate.
	start(a *Attr)
	// resize adapts to changed attributes in SQD. It may allocate.
	resize()
	// wants, control and transmit do the receiver's part of Wants,
	// TransmitControl and Transmit.
	wants() Want
	control(now time.Duration, out Outbox)
	transmit(now time.Duration, out Outbox, budget int) int
	// receive takes a request of the peer.
	receive(now time.Duration, in *Inbound)
	// flush completes all receives with WCWRFlushErr. It may be called again.
	flush()
}

// Num returns the number of the queue pair.
func (q *QP) Num() ib.QPN { return q.cfg.Num }

// State returns the state. Unlike the other methods it may be called by anybody:
// who has seen a completion with an error sees the state that it led to, and who
// posts a receive and then sees any other state than Err has posted it before the
// flush.
func (q *QP) State() State { return State(q.seen.Load()) }

// become sets the state, before anything is flushed because of it.
func (q *QP) become(s State) {
	if q.cfg.Became != nil && s != q.state {
		q.cfg.Became(q.state, s)
	}
	q.state = s
	q.announce(s)
}

// announce lets others see a state that is about to begin, before the completion
// with the error that leads to it.
func (q *QP) announce(s State) {
	q.seen.Store(uint32(s))
	if q.cfg.Seen != nil {
		q.cfg.Seen.Store(uint32(s))
	}
}

// Query returns the attributes, as ibv_query_qp does.
func (q *QP) Query() Attr {
	a := q.attr
	a.State, a.CurState = q.state, q.state
	a.SQDraining = q.state == SQD && q.snd.drains()
	return a
}

// Receive takes a packet whose destination is this queue pair. Packets that a
// check refuses are dropped and counted (IBTA 9.6.1): wrong transport service,
// state, P_Key or source address.
func (q *QP) Receive(now time.Duration, in *Inbound) {
	q.count(RcvdPkts)
	info := in.Info()
	switch {
	case q.state < RTR || q.state == Err:
		q.count(DropState) // IBTA 10.3.1: only RTR, RTS, SQD and SQE process packets
	case !q.fromPeer(in):
		q.count(DropSource)
	case info.Op == ib.KindCNP:
		q.cnp(now, in)
	case !ib.DefaultPKey.Matches(in.PKey()):
		q.count(DropPKey)
	case !q.cfg.Type.accepts(info):
		q.count(DropTransport)
	case !q.migration(now, in):
		// counted there
	case info.Response:
		if q.state != RTS && q.state != SQD {
			q.count(DropState) // IBTA 10.3.1.3: nothing was sent yet
			return
		}
		q.congestion(now, in)
		q.snd.receive(now, in)
	default:
		q.congestion(now, in)
		if q.state == RTR && !q.est && q.cfg.Type != UD {
			q.est = true
			q.event(EventCommEst) // IBTA 11.6.3.1: the first packet may overtake the connection's set-up
		}
		q.rcv.receive(now, in)
	}
}

// reliable says whether requests are acknowledged.
func (t QPType) reliable() bool { return t == RC || t == XRCSend || t == XRCRecv }

// accepts says whether packets with an opcode are for queue pairs of type t.
func (t QPType) accepts(op *ib.OpcodeInfo) bool {
	switch t {
	case RC:
		return op.Transport == ib.TransportRC
	case UC:
		return op.Transport == ib.TransportUC
	case UD:
		return op.Transport == ib.TransportUD
	case XRCSend:
		return op.Transport == ib.TransportXRC && op.Response
	case XRCRecv:
		return op.Transport == ib.TransportXRC && op.Request
	}
	return false
}

// Kick says that the send or receive queue has new entries. In state Err they
// complete at once, flushed, and send requests in state SQE, too (IBTA 10.3.1.6,
// 10.3.1.7).
func (q *QP) Kick(now time.Duration) {
	switch q.state {
	case Err:
		q.snd.flush()
		q.rcv.flush()
	case SQE:
		q.snd.flush()
	default:
		q.snd.kick(now)
	}
}

// Wants says what Transmit and TransmitControl would do now. It is cheap, and
// exact but for one case: after news it may promise data that the window then
// forbids, once.
func (q *QP) Wants() Want {
	w := q.rcv.wants() | q.snd.wants()
	if q.pace.holds() {
		w &^= WantData
	}
	if q.owesCNPs() {
		w |= WantControl
	}
	return w
}

// TransmitControl writes the CNPs and the acknowledgements that are due. WantControl
// stays set when out had no room.
func (q *QP) TransmitControl(now time.Duration, out Outbox) {
	q.putCNPs(out)
	q.rcv.control(now, out)
}

// Transmit writes packets of requests or of READ responses, in turn, until
// about budget bytes are written, out has no room, or the rate of the queue pair
// lets no more leave. It returns the bytes.
func (q *QP) Transmit(now time.Duration, out Outbox, budget int) (n int) {
	p := q.paced(now)
	if budget = p.allow(now, budget, q.snd.inFlight() > 0 || q.snd.repeats()); budget == 0 {
		return 0
	}
	n = q.take(now, out, budget)
	p.sent(now)
	return n
}

// take lets the receiver or the sender write, whose turn it is, or else the other.
func (q *QP) take(now time.Duration, out Outbox, budget int) (n int) {
	q.turn = !q.turn
	if q.turn {
		if n = q.rcv.transmit(now, out, budget); n == 0 {
			n = q.snd.transmit(now, out, budget)
		}
		return n
	}
	if n = q.snd.transmit(now, out, budget); n == 0 {
		n = q.rcv.transmit(now, out, budget)
	}
	return n
}

// Deadline returns when Expire wants to be called, Never for not at all.
func (q *QP) Deadline() time.Duration { return min(q.snd.deadline(), q.pace.deadline()) }

// Expire runs the timers that are due. It is harmless at any other time.
func (q *QP) Expire(now time.Duration) {
	q.pace.expire(now)
	q.snd.expire(now)
}

// Congestion returns what the controller shows; Unlimited while there is none.
func (q *QP) Congestion() cc.State {
	if q.pace == nil {
		return cc.State{Rate: cc.Unlimited, Target: cc.Unlimited}
	}
	return q.pace.ctl.State()
}

// Left says that packets written before had to wait for a full socket, and have left
// only now: the time they waited is not the peer's.
func (q *QP) Left(now time.Duration) { q.snd.left(now) }

// Share says, before Transmit, that other queue pairs send to the same peer, and
// whether they leave no room there. Each turn has an acknowledgement asked for then, so
// that who waits for the others waits for nothing else. Without room, nothing leaves
// that is sent for the first time, but a packet if nothing is in flight: who has
// little to send does not wait.
//
// Beside one who waits for what he has sent before he goes on, little is in flight: it
// would be before him in the peer's socket.
func (q *QP) Share(with, full, beside bool) {
	q.shared, q.full, q.held, q.beside = with, full, q.held && full, beside
}

// Held says whether requests wait for room, as Share said. They go on after Resume.
func (q *QP) Held() bool { return q.held }

// Resume has Wants tell of requests that were held.
func (q *QP) Resume() { q.snd.kick(0) }

// Urgent says whether there is something to transmit that needs no room.
func (q *QP) Urgent() bool { return q.rcv.wants()&WantData != 0 || q.snd.repeats() }

// InFlight returns the bytes of packets under way to the peer, or from it where they
// were asked for, as QPConfig.Window counts them; 0 where nothing is acknowledged.
func (q *QP) InFlight() uint64 { return q.snd.inFlight() }

// Destroy forgets all requests without completions and drops all references to
// memory, as ibv_destroy_qp does.
func (q *QP) Destroy() {
	q.become(Reset)
	q.cfg.Seen = nil
	q.snd.reset()
	q.rcv.reset()
}

// fail moves the queue pair to state Err: what is queued is flushed, ev is told
// unless it is noEvent. A NAK that is already due still goes out.
func (q *QP) fail(_ time.Duration, ev Event) {
	if q.state == Err || q.state == Reset {
		return
	}
	q.become(Err)
	q.snd.flush()
	q.rcv.flush()
	if ev != noEvent {
		q.event(ev)
	}
	if q.sharesRQ() {
		q.event(EventQPLastWQE) // IBTA 11.6.3.1: no receive of the shared queue completes here any more
	}
}

// sharesRQ says whether its receives belong to other queue pairs as well.
func (q *QP) sharesRQ() bool { return q.cfg.SharedRQ || q.cfg.Type == XRCRecv }

func (q *QP) event(ev Event) {
	if q.cfg.Event != nil {
		q.cfg.Event(ev)
	}
}

func (q *QP) count(c Counter) { q.cfg.Counters.Inc(c) }

// newPacket asks out for a packet to the peer with the headers of op and n bytes
// of payload, and writes what all packets have: the base header, pad bytes. The
// caller writes extension headers from ib.BTHSize on, the payload behind them, and
// calls commit. It returns nil when out has no room. XRC has the operation codes
// of RC, which the caller gives, under its own prefix (IBTA A14).
func (q *QP) newPacket(out Outbox, op ib.Opcode, n int, seq uint64, ackReq, solicited bool) []byte {
	return q.packetTo(out, &q.path, q.attr.DestQPN, op, n, seq, ackReq, solicited)
}

// packetTo is newPacket for a packet to any queue pair by any path.
func (q *QP) packetTo(out Outbox, path *Path, dest ib.QPN, op ib.Opcode, n int, seq uint64, ackReq, solicited bool) []byte {
	if q.cfg.Type == XRCSend || q.cfg.Type == XRCRecv {
		op |= ib.OpXRCSendFirst
	}
	pad := -n & 3
	end := op.Info().HeaderLen + n
	b := out.Packet(path, end+pad+ib.ICRCSize)
	if b == nil {
		return nil
	}
	if q.pace != nil {
		q.pace.size = len(b) + ipOverhead(path)
	}
	ib.BTH{
		Opcode: op, Solicited: solicited, MigReq: q.attr.PathMigState == MigMigrated, Pad: uint8(pad), PKey: ib.DefaultPKey,
		DestQP: dest, AckReq: ackReq, PSN: psnOf(seq), Resv7: q.resv,
	}.Put(b)
	for i := range pad {
		b[end+i] = 0
	}
	return b
}

// ipOverhead is the size of the IP and UDP headers.
func ipOverhead(p *Path) int {
	if p.Dst.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

func (q *QP) commit(out Outbox) {
	out.Commit()
	if q.pace != nil {
		q.pace.bytes += q.pace.size
	}
	q.count(SentPkts)
}

// Inside a queue pair PSNs are 64-bit sequence numbers that never wrap; headers
// carry their low 24 bits.

// seqBase keeps sequence numbers away from 0, so that "one before" is no
// special case.
const seqBase = 1 << 24

// firstSeq is the sequence number of the first PSN of a connection.
func firstSeq(p ib.PSN) uint64 { return seqBase + uint64(p&0xffffff) }

func psnOf(seq uint64) ib.PSN { return ib.PSN(seq & 0xffffff) }

// extend returns the sequence number with PSN p that is next to near.
func extend(p ib.PSN, near uint64) uint64 { return near + uint64(int64(p.Sub(psnOf(near)))) }
