package sim

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// flow is the requests of one side as they appear on the wire, in both directions
// between it and its peer: what must hold of them whatever gets lost.
type flow struct {
	next    ib.PSN // of the next packet that was never sent before
	message int    // messages begun
	left    int    // bytes of the last message still to be sent, or asked for
	reads   []readRange
	retrans uint64 // request packets sent again

	acked    ib.PSN // the highest that the responder acknowledged
	anyAcked bool
	response ib.PSN // the last READ response, if more of the same answer follow
	open     bool
	broken   map[ib.PSN]bool // where answers go on that others have interrupted

	arrived map[delivery]int // packets of UC and UD

	marked, cnps int // packets that arrived with the mark CE, CNPs for them
}

// readRange is the PSNs of one READ REQUEST, or of an atomic or a FLUSH, which are
// answered alike.
type readRange struct {
	first, last ib.PSN
	answered    bool            // its last response was sent
	arrived     bool            // ... and received
	parts       map[ib.PSN]bool // the last responses of parts that were asked for again
}

func (r *readRange) holds(p ib.PSN) bool { return !p.Before(r.first) && !p.After(r.last) }

// again says whether the READ may be asked for again up to a response: between nodes
// that know how, up to any.
func (r *readRange) again(last ib.PSN, selective bool) bool {
	if last != r.last && selective && !last.After(r.last) {
		if r.parts == nil {
			r.parts = map[ib.PSN]bool{}
		}
		r.parts[last] = true
		return true
	}
	return last == r.last
}

// selective says whether both nodes tell each other more than the standard has.
func (s *side) selective() bool {
	return s.n.w.cfg.Plain>>s.n.i&1 == 0 && s.n.w.cfg.Plain>>s.peer.n.i&1 == 0
}

// selectiveNAK says whether a packet is one.
func selectiveNAK(p *ib.Packet) bool {
	return p.Info().Op == ib.KindAtomicAck && p.AETH().Syndrome == ib.NAKSyndrome(ib.NAKSequence)
}

// find returns the READ that has a response with this PSN, or nil.
func (f *flow) find(p ib.PSN) *readRange {
	for i := range f.reads {
		if f.reads[i].holds(p) {
			return &f.reads[i]
		}
	}
	return nil
}

// sent checks a packet that a node sends.
func (w *world) checkSent(node int, p *ib.Packet) error {
	if p.Info().Op == ib.KindCNP {
		return w.checkCNP(p)
	}
	if p.Info().DETH {
		return w.byQPN[node][p.DETH().SrcQP].checkDatagram(p)
	}
	s := w.senders[p.DestQP()]
	if s == nil || p.Info().Op == ib.KindCNP {
		return nil // a CNP answers no request
	}
	if p.Info().Request {
		return s.checkRequest(p)
	}
	return s.peer.checkResponse(p)
}

// checkRequest checks a request packet of s.
func (s *side) checkRequest(p *ib.Packet) error {
	f, info, psn := &s.flow, p.Info(), p.PSN()
	n := 1
	if info.Op == ib.KindReadRequest {
		n = max(1, (int(p.RETH().Length)+s.mtu.Bytes()-1)/s.mtu.Bytes())
	}
	switch {
	case psn.After(f.next):
		return fmt.Errorf("PSN %06x is sent before %06x", uint32(psn), uint32(f.next))
	case psn.Before(f.next) && s.lossy():
		return fmt.Errorf("UC sends PSN %06x once more", uint32(psn))
	case psn.Before(f.next):
		f.retrans++
		if r := f.find(psn); answered(info.Op) && !(r != nil && r.again(psn.Add(n-1), s.selective())) {
			return fmt.Errorf("READ of %d responses from %06x is not the rest of one before", n, uint32(psn))
		}
		return nil
	case s.drain == drained && !s.lossy(): // UC is done with what waits for room in the socket
		return fmt.Errorf("a new request from a drained send queue")
	}
	f.next = psn.Add(n)
	if f.left == 0 {
		f.message++
		r := s.sent[f.message-1]
		if f.left = r.size; r.isAtomic() {
			f.left = len(p.Payload())
		}
		if r.flags&roce.Fence != 0 {
			for i := range f.reads {
				if !f.reads[i].arrived {
					return fmt.Errorf("%v has a fence, and READ %06x has no answer (IBTA 10.8.3.3)", r, uint32(f.reads[i].first))
				}
			}
		}
	}
	r := s.sent[f.message-1]
	if info.RETH && !s.doomed && !r.isAtomic() {
		h := p.RETH()
		if at := r.va + uint64(r.size-f.left); h.VA != at || h.RKey != r.rkey {
			return fmt.Errorf("%v: address %#x, key %#x", r, h.VA, h.RKey)
		}
		if info.Op == ib.KindWrite && int(h.Length) != r.size {
			return fmt.Errorf("%v: length %d in the RETH", r, h.Length)
		}
	}
	if answered(info.Op) {
		f.reads = append(f.reads, readRange{first: psn, last: psn.Add(n - 1)})
	}
	if info.Op == ib.KindReadRequest {
		f.left -= int(p.RETH().Length)
	} else {
		f.left -= len(p.Payload())
	}
	end := info.Pos.Ends()
	r.last = psn
	solicited := end && r.flags&roce.Solicited != 0 && r.consumes()
	switch {
	case f.left < 0 || end != (f.left == 0) && info.Op != ib.KindReadRequest:
		return fmt.Errorf("%v: %d bytes left after %s", r, f.left, info.Name)
	case end && !p.AckReq() && !s.lossy():
		return fmt.Errorf("%v: its last packet asks for no acknowledgement", r)
	case p.Solicited() != solicited:
		return fmt.Errorf("%v: solicited event bit %v in %s", r, p.Solicited(), info.Name)
	}
	return nil
}

// answered says whether requests of a kind have answers of their own.
func answered(k ib.OpKind) bool {
	switch k {
	case ib.KindReadRequest, ib.KindFetchAdd, ib.KindCmpSwap, ib.KindAtomicWrite, ib.KindFlush:
		return true
	}
	return false
}

// checkResponse checks a packet that answers requests of s.
func (s *side) checkResponse(p *ib.Packet) error {
	f, info, psn := &s.flow, p.Info(), p.PSN()
	r := f.find(psn)
	if tells := selectiveNAK(p); tells && !s.selective() {
		return fmt.Errorf("a selective NAK %06x between nodes of which one keeps to the standard", uint32(psn))
	} else if !tells && (info.Op == ib.KindReadResponse || info.Op == ib.KindAtomicAck) {
		if r == nil {
			return fmt.Errorf("READ response %06x answers no READ", uint32(psn))
		}
		next := f.response.Add(1)
		switch follows := f.open && psn == next; {
		case !info.Pos.Starts() && !follows && !f.broken[psn]:
			return fmt.Errorf("READ response %06x is a %s, but does not follow another", uint32(psn), info.Name)
		case f.open && !follows: // another READ was asked for again; this one goes on later
			f.broken[next] = true
		}
		last := info.Pos.Ends()
		if last != (psn == r.last) && !(last && r.parts[psn]) {
			return fmt.Errorf("READ response %06x is a %s, the READ ends at %06x", uint32(psn), info.Name, uint32(r.last))
		}
		if psn == r.last { // nothing of it is left to go on with
			maps.DeleteFunc(f.broken, func(p ib.PSN, _ bool) bool { return r.holds(p) })
			r.answered = true
		}
		f.response, f.open = psn, !last
		return nil
	}
	f.open = false
	kind := p.AETH().Syndrome.Kind()
	fatal := kind == ib.SynNAK && p.AETH().Syndrome.NAK() != ib.NAKSequence
	for i := range f.reads {
		if x := &f.reads[i]; x.last.Before(psn) && !x.answered && !fatal {
			return fmt.Errorf("acknowledged up to %06x, but READ %06x is not answered", uint32(psn), uint32(x.first))
		}
	}
	switch {
	case kind == ib.SynAck && r != nil:
		return fmt.Errorf("an ACK has the PSN %06x of a READ: rxe would complete it without data", uint32(psn))
	case !psn.Before(f.next):
		return fmt.Errorf("ACK or NAK %06x, but %06x was never sent", uint32(psn), uint32(f.next))
	case kind == ib.SynAck && (!f.anyAcked || psn.After(f.acked)):
		f.acked, f.anyAcked = psn, true
	case kind != ib.SynAck && !fatal && f.anyAcked && !psn.After(f.acked):
		return fmt.Errorf("NAK %06x, but %06x was acknowledged", uint32(psn), uint32(f.acked))
	}
	return nil
}

// checkCNP checks a congestion notification: each is for a packet that came with a
// mark.
func (w *world) checkCNP(p *ib.Packet) error {
	w.res.CNPs++
	s := w.owner(p.DestQP())
	if s == nil {
		return fmt.Errorf("a CNP to a queue pair that nobody has had")
	}
	if s.flow.cnps++; s.flow.cnps > s.flow.marked {
		return fmt.Errorf("CNP %d, but %d packets came marked", s.flow.cnps, s.flow.marked)
	}
	return nil
}

// owner returns whose queue pair this is, or, on a device that was restarted, was.
func (w *world) owner(num ib.QPN) *side {
	for _, sides := range w.byQPN {
		if s := sides[num]; s != nil {
			return s
		}
	}
	if s := w.senders[num]; s != nil {
		return s.peer
	}
	return nil
}

// checkDatagram checks a datagram of s.
func (s *side) checkDatagram(p *ib.Packet) error {
	f, psn := &s.flow, p.PSN()
	f.message++
	r, dest := s.sent[f.message-1], s.peer.qp.Num()
	if r.group {
		dest = ib.MulticastQPN
	}
	switch solicited := r.flags&roce.Solicited != 0; {
	case psn != f.next:
		return fmt.Errorf("datagram with PSN %06x, next is %06x", uint32(psn), uint32(f.next))
	case p.DestQP() != dest || p.DETH().QKey != qkey:
		return fmt.Errorf("%v goes to queue pair %06x, Q_Key %#x", r, uint32(p.DestQP()), p.DETH().QKey)
	case len(p.Payload()) != r.size || p.Solicited() != solicited:
		return fmt.Errorf("%v: %d bytes, solicited event bit %v", r, len(p.Payload()), p.Solicited())
	}
	r.last, f.next = psn, psn.Add(1)
	return nil
}

// noteReceived looks at a packet that arrives at a node.
func (w *world) noteReceived(node int, src netip.Addr, tos uint8, seg []byte) {
	p, why := ib.Parse(seg)
	if why != ib.OK {
		return
	}
	from := w.senders[p.DestQP()]
	if p.Info().DETH {
		for _, n := range w.nodes {
			if n.addr == src {
				from = w.byQPN[n.i][p.DETH().SrcQP]
			}
		}
	}
	if from != nil && tos&3 == 3 {
		from.flow.marked++
	}
	if from != nil && from.lossy() {
		if from.flow.arrived == nil {
			from.flow.arrived = map[delivery]int{}
		}
		from.flow.arrived[delivery{node, p.PSN()}]++
	}
	if p.Info().Op != ib.KindReadResponse && p.Info().Op != ib.KindAtomicAck || selectiveNAK(&p) {
		return
	}
	if peer := w.senders[p.DestQP()]; peer != nil {
		if r := peer.peer.flow.find(p.PSN()); r != nil && p.PSN() == r.last {
			r.arrived = true
		}
	}
}
