package roce

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// ecnCE is the codepoint "congestion experienced" (RFC 3168, section 5).
const ecnCE = 3

// receive takes one batch from the backend and hands its packets to their queue
// pairs. It returns how many super-packets there were, and the time: they may have
// come after now, and what is timed from them must not begin before.
func (e *engine) receive(now time.Duration) (int, time.Duration) {
	n, err := e.be.Recv(now, e.rx[:])
	if err != nil {
		return 0, now // closed: the next Wait says so
	}
	if n > 0 && !e.manual {
		now = e.clock()
		e.pause = e.silence(now)
		e.heard, e.sending = now, 0
	}
	e.crowded = e.heeds && n > 0 && e.overran()
	for i := range n {
		r := &e.rx[i]
		if allow := e.port.allow; len(allow) > 0 && !allow.has(r.Src.Addr().Unmap().WithZone("")) {
			e.drops.reasons[dropNotAllowed].Add(uint64(r.Segments()))
			continue
		}
		for s := range r.Segments() {
			e.packet(now, r, s)
		}
	}
	return n, now
}

// overran says whether the receive socket has dropped packets since the last time.
func (e *engine) overran() bool {
	before := e.overflow
	e.overflow = e.be.Stats()[netio.RxOverflow]
	return e.overflow != before
}

// packet judges one packet and hands it to its queue pair: well formed, for a
// queue pair of ours, from its peer, its ICRC right; that peers may be where it
// comes from is known. In this order, so that what
// a stranger sends costs little.
func (e *engine) packet(now time.Duration, r *netio.Received, segment int) {
	p, bad := ib.Parse(r.Segment(segment))
	if bad != ib.OK {
		e.drops.malformed(bad)
		return
	}
	src := netip.AddrPortFrom(r.Src.Addr().Unmap().WithZone(""), r.Src.Port())
	if p.DestQP() == ib.MulticastQPN || r.Dst.Addr().IsMulticast() {
		e.multicast(now, src, r, segment, &p)
		return
	}
	q := e.qps[p.DestQP()]
	if q == nil {
		e.unknownQP(now, src, r, segment, &p)
		return
	}
	switch {
	case q.typ == UD: // from anybody; its Q_Key is checked later
	case q.peers[0] == nil:
		q.dev.counters.Inc(transport.DropState)
		return
	case q.from(src.Addr()) == nil:
		q.dev.counters.Inc(transport.DropSource)
		return
	}
	if e.intact(now, q, &q.rx, src, r, segment, &p) {
		q.deliver(now, src.Addr(), r, &p)
	}
}

// deliver hands a packet that may be trusted to its queue pair.
func (q *QP) deliver(now time.Duration, src netip.Addr, r *netio.Received, p *ib.Packet) {
	in := &q.in // field by field: a whole Inbound would be made elsewhere and copied
	in.Packet, in.Src, in.Dst = *p, src, r.Dst.Addr().WithZone("")
	in.TOS, in.CE, in.Overflow = r.TOS, r.TOS&3 == ecnCE, q.e.crowded
	q.t.Receive(now, in)
	q.e.touch(q)
}

// inflow is the flow of packets last received, kept because the next one is most
// often of the same.
type inflow struct {
	flow     ib.Flow
	from, to netip.AddrPort
}

func (f *inflow) get(from, to netip.AddrPort) *ib.Flow {
	if f.from != from || f.to != to || !f.flow.Valid() {
		f.from, f.to, f.flow = from, to, ib.NewFlow(from, to)
	}
	return &f.flow
}

// sealed checks the ICRC by itself, and returns the IPv4 Identification that it
// covers; likely is one that the packet may well have.
func (f *inflow) sealed(src netip.AddrPort, r *netio.Received, segment int, likely uint16, p *ib.Packet) (id uint16, ok bool) {
	flow := f.get(src, r.Dst)
	if !r.IDKnown {
		return flow.RecoverNear(likely, p.Bytes())
	}
	id = r.ID + uint16(segment)
	return id, flow.Verify(id, p.Bytes())
}

// likelyID is the IPv4 Identification that a packet to q most likely has, whose peers
// are known: others are told apart by their ICRC first.
func (q *QP) likelyID(segment int) uint16 {
	if q == nil || q.peers[0] == nil {
		return uint16(segment)
	}
	return q.peers[0].ids.Likely(uint16(segment))
}

// intact checks the ICRC. Where the IPv4 Identification that it covers is not
// known, it is recovered and then has to fit what the sender sent before. q is nil
// for multicast.
func (e *engine) intact(now time.Duration, q *QP, f *inflow, src netip.AddrPort, r *netio.Received, segment int, p *ib.Packet) bool {
	id, ok := f.sealed(src, r, segment, q.likelyID(segment), p)
	if !ok {
		e.count(dropICRC)
		return false
	}
	if !r.IDKnown && src.Addr().Is4() && !e.ids(now, q, src.Addr()).Accept(now, id) {
		e.count(dropIPID)
		return false
	}
	return true
}

// ids returns the tracker of the Identifications of the IPv4 host that sent a
// packet to q.
func (e *engine) ids(now time.Duration, q *QP, src netip.Addr) *ib.IDTracker {
	var p *peer
	if q != nil {
		p = q.from(src)
	}
	if p == nil {
		p = e.peers[src]
	}
	if p == nil {
		return e.strangers.ids(now, src)
	}
	return &p.ids
}
