package roce

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
)

// peer is a host that queue pairs are connected to. Its IPv4 Identifications are
// one sequence, whatever the queue pair, and it has one socket to receive with: what
// may be under way to it is shared by its queue pairs. Were it a whole window for
// each, they would overrun that socket.
type peer struct {
	addr     netip.Addr
	refs     int
	ids      ib.IDTracker
	inFlight uint64        // bytes, of all its queue pairs
	brief    time.Duration // until then somebody is taken for one who sends little at a time
	waiting  fifo          // queue pairs with data that wait until less is in flight
}

// peers are the hosts that an engine's queue pairs are connected to.
type peers map[netip.Addr]*peer

// get returns the peer at addr, with one reference more.
func (ps peers) get(addr netip.Addr) *peer {
	p := ps[addr]
	if p == nil {
		p = &peer{addr: addr}
		ps[addr] = p
	}
	p.refs++
	return p
}

// put drops a reference.
func (ps peers) put(p *peer) {
	if p == nil {
		return
	}
	if p.refs--; p.refs == 0 {
		delete(ps, p.addr)
	}
}

// shares says whether other queue pairs have something in flight to the peer of q.
func (q *QP) shares() bool { return q.peers[0] != nil && q.peers[0].inFlight > q.inFlight }

// peerWindows is how many windows of a queue pair may be in flight to one host: a
// whole turn each of 64 queue pairs, and half of what the receive buffer of a device
// holds by default. Engines have parts of it, one window at least.
const peerWindows = 4

// full says whether so much is in flight to the peer of q that q has to wait: a turn
// more would be beyond what may be. Alone it has its own window. What nobody has asked
// to be acknowledged yet is a quarter of a window at most, and fills nothing.
func (q *QP) full() bool {
	window := uint64(max(q.dev.cfg.Window, 0))
	window = max(peerWindows*window/uint64(len(q.e.port.engines)), window)
	return q.shares() && q.peers[0].inFlight+min(turnBudget, window/2) > window
}

// A queue pair that sends briefBytes at most, with nothing else in flight and nothing more
// to send, waits for the answer: for briefTime others leave it room.
const (
	briefBytes = 4 << 10
	briefTime  = 5 * time.Millisecond
)

// beside says whether another queue pair than q sends little at a time to its peer.
func (q *QP) beside(now time.Duration) bool {
	p := q.peers[0]
	return p != nil && now < p.brief && q.inFlight > briefBytes
}

// waitsForEach looks at what q has sent that had nothing in flight.
func (q *QP) waitsForEach(now time.Duration) {
	n := q.t.InFlight()
	if n > 0 && n <= briefBytes && q.shares() && q.t.Wants()&transport.WantData == 0 {
		q.peers[0].brief = now + briefTime
	}
}

// account notes what q has in flight, and lets the next one that waits for room have
// its turn. The engine is locked.
func (e *engine) account(q *QP) {
	p := q.peers[0]
	if p == nil {
		return
	}
	n := q.t.InFlight()
	p.inFlight += n - q.inFlight
	q.inFlight = n
	if w := p.waiting.head; w != nil && !w.full() {
		e.resume(p)
	}
}

// resume lets the first of those that wait have its turn.
func (e *engine) resume(p *peer) {
	q := p.waiting.pop(waitQueue)
	q.t.Resume()
	e.data.push(q, dataQueue)
}

// depart takes q's share from a peer that it is no longer connected to. Who waits
// there looks again.
func (e *engine) depart(q *QP, p *peer) {
	if p == nil {
		return
	}
	p.inFlight -= q.inFlight
	q.inFlight = 0
	for p.waiting.head != nil {
		e.resume(p)
	}
}
