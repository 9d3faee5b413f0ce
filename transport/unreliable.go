package transport

import (
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// unreliable is the sender of UC and UD. Nobody acknowledges its packets: a
// request completes when its last packet is handed over, and what is lost later
// is lost (IBTA 9.8.2, 9.8.3). There is nothing to wait for and no timer.
type unreliable struct {
	q    *QP
	mtu  uint32 // most payload of a packet
	next uint64 // sequence number of the next packet
	done uint32 // requests before it have completed
	unreliableState
	src mem.Cursor // memory of the request

	recent [4]netip.Addr // where datagrams went last, for CNPs
	oldest int           // of them
	wc     WC            // scratch, so that a completion needs no allocation
}

// unreliableState is the request that packets are made of.
type unreliableState struct {
	begun    bool    // there is one
	waiting  bool    // in SQD: EventSQDrained is due when it ends
	e        SendWQE // its entry, read once
	length   uint32  // bytes of the message
	off      uint32  // ... handed over
	path     Path    // where it goes: the peer of UC, the address handle's of UD
	dest     ib.QPN
	deth     ib.DETH // UD
	datagram bool
}

// reset forgets all requests, those in the send queue as well.
func (s *unreliable) reset() {
	s.done = s.q.cfg.SQ.Produced()
	s.q.cfg.SQ.Consume(s.done)
	s.clear()
}

// clear forgets the request that was begun.
func (s *unreliable) clear() {
	s.unreliableState = unreliableState{datagram: s.q.cfg.Type == UD}
	s.src.Reset()
	s.q.cfg.SQ.Posted(s.done) // who posts the next one kicks
}

func (s *unreliable) start(a *Attr) {
	s.mtu = uint32(s.q.cfg.MTU)
	if !s.datagram {
		s.mtu = uint32(a.PathMTU.Bytes())
	}
	s.next = firstSeq(a.SQPSN)
}

func (s *unreliable) resume() { s.waiting = false }

// drain lets the message that was begun go out.
func (s *unreliable) drain() {
	s.waiting = true
	s.drained()
}

func (s *unreliable) drains() bool { return s.waiting }

// drained tells that a queue pair in SQD has finished what it had begun.
func (s *unreliable) drained() {
	if s.waiting && !s.begun {
		s.waiting = false
		if s.q.attr.SQDrainNotify {
			s.q.event(EventSQDrained)
		}
	}
}

// Nothing comes back for requests, and nothing is waited for.

func (s *unreliable) kick(time.Duration)                  {}
func (s *unreliable) receive(_ time.Duration, _ *Inbound) { s.q.count(DropBadResponse) }
func (s *unreliable) deadline() time.Duration             { return Never }
func (s *unreliable) expire(time.Duration)                {}
func (s *unreliable) left(time.Duration)                  {}
func (s *unreliable) inFlight() uint64                    { return 0 }
func (s *unreliable) repeats() bool                       { return false }

// moved sends the rest of the message that was begun by the new path.
func (s *unreliable) moved(time.Duration) {
	if s.begun && !s.datagram {
		s.path = s.q.path
	}
}

func (s *unreliable) wants() Want {
	if s.begun && (s.q.state == RTS || s.q.state == SQD) || s.q.state == RTS && s.q.cfg.SQ.Posted(s.done) {
		return WantData
	}
	return 0
}

// transmit writes packets until budget bytes are written, out has no room or all
// requests have completed.
func (s *unreliable) transmit(_ time.Duration, out Outbox, budget int) (n int) {
	for n < budget && s.wants() != 0 {
		if !s.begun && !s.begin() {
			break
		}
		if s.e.Opcode.local() {
			s.complete()
			n += minCharge
			continue
		}
		size := s.put(out)
		if size == 0 {
			break
		}
		n += size
	}
	return n
}

// begin takes up the next request of the send queue, and executes it if it is a
// local operation. It reports false when that failed.
func (s *unreliable) begin() bool {
	s.e = *s.q.cfg.SQ.Entry(s.done)
	if status := s.open(); status != WCSuccess {
		s.fail(status)
		return false
	}
	s.begun, s.off, s.length = true, 0, uint32(s.src.Len())
	return true
}

// open checks the request and points src to its memory.
func (s *unreliable) open() WCStatus {
	cfg := &s.q.cfg
	switch {
	case !cfg.Type.Sends(s.e.Opcode):
		return WCLocQPOpErr
	case s.e.Opcode.local():
		return s.q.execute(&s.e)
	case s.e.Flags&Inline != 0:
		s.src.Inline(cfg.SQ.Inline(s.done))
	case s.src.Local(cfg.Mem, cfg.PD, cfg.SQ.SGEs(s.done), 0) != mem.OK:
		return WCLocProtErr
	}
	if !s.datagram {
		s.path, s.dest = s.q.path, s.q.attr.DestQPN
		if s.src.Len() > maxMessage {
			return WCLocLenErr
		}
		return WCSuccess
	}
	if s.src.Len() > uint64(s.mtu) {
		return WCLocLenErr // IBTA 9.8.3: a datagram is one packet
	}
	return s.address()
}

// address resolves where a datagram goes.
func (s *unreliable) address() WCStatus {
	var ok bool
	s.path, ok = s.q.cfg.AHs.Path(s.e.AH, s.q.cfg.PD)
	if s.dest = s.e.RemoteQPN; !ok || s.dest == 0 || s.dest > ib.MulticastQPN {
		return WCLocQPOpErr
	}
	s.path = s.q.ecn(s.path)
	s.remember(s.path.Dst)
	s.deth = ib.DETH{QKey: s.e.QKey, SrcQP: s.q.cfg.Num}
	if s.e.QKey&ControlledQKey != 0 {
		s.deth.QKey = s.q.attr.QKey
	}
	return WCSuccess
}

// remember notes where a datagram goes.
func (s *unreliable) remember(dst netip.Addr) {
	if !s.knows(dst) {
		s.recent[s.oldest] = dst
		s.oldest = (s.oldest + 1) % len(s.recent)
	}
}

// knows says whether a datagram went there of late.
func (s *unreliable) knows(dst netip.Addr) bool { return slices.Contains(s.recent[:], dst) }

// put writes the next packet of the request and returns its size; 0 if there was
// no room or the request failed.
func (s *unreliable) put(out Outbox) int {
	n := min(s.mtu, s.length-s.off)
	last := s.off+n == s.length
	op := s.opcode(s.off == 0, last)
	b := s.q.packetTo(out, &s.path, s.dest, op, int(n), s.next, false, last && s.solicits())
	if b == nil {
		return 0
	}
	info := op.Info()
	at := ib.BTHSize
	if info.DETH {
		at += s.deth.Put(b[at:])
	}
	if info.RETH {
		at += ib.RETH{VA: s.e.RemoteAddr, RKey: s.e.RKey, Length: s.length}.Put(b[at:])
	}
	if info.Imm {
		at += ib.ImmDt(s.e.Imm).Put(b[at:])
	}
	if n > 0 && s.src.CopyOut(b[at:at+int(n)], uint64(s.off)) != mem.OK {
		s.fail(WCLocProtErr)
		return 0
	}
	s.q.commit(out)
	s.next++
	s.off += n
	if last {
		s.complete()
	}
	return len(b)
}

// opcode returns the opcode of a packet by its position.
func (s *unreliable) opcode(first, last bool) ib.Opcode {
	if s.datagram {
		if s.e.Opcode == WRSendWithImm {
			return ib.OpUDSendOnlyImm
		}
		return ib.OpUDSendOnly
	}
	pos := 0
	if first {
		pos++
	}
	if last {
		pos += 2
	}
	// UC has the operation codes of RC under its own prefix (IBTA 9.2.1).
	return dataOpcodes[s.e.Opcode][pos] | ib.OpUCSendFirst
}

// solicits says whether the last packet has the solicited event bit: only
// requests that consume a receive request may (IBTA 9.2.3).
func (s *unreliable) solicits() bool { return s.e.Flags&Solicited != 0 && s.e.Opcode != WRWrite }

// complete ends the request with success.
func (s *unreliable) complete() {
	s.begun = false
	s.src.Reset()
	op := s.e.Opcode.completion()
	if op == WCSend {
		s.q.count(RDMASends)
	}
	silent := s.e.Flags&Signaled == 0 && !s.q.cfg.SigAll
	s.retire(WC{ID: s.e.ID, Opcode: op}, silent)
	s.drained()
}

// retire returns the entry of the request to the poster and then delivers its
// completion, whose reader may post at once.
func (s *unreliable) retire(wc WC, silent bool) {
	s.done++
	s.q.cfg.SQ.Consume(s.done)
	if silent {
		return
	}
	s.wc = wc
	s.wc.QPN = s.q.cfg.Num
	s.q.cfg.SendCQ.Push(&s.wc)
}

// fail ends the request with an error, and sending until the queue pair is moved
// from SQE to RTS; receiving goes on (IBTA 10.3.1.6).
func (s *unreliable) fail(status WCStatus) {
	s.begun = false
	s.q.count(ReqCQEErr)
	s.q.become(SQE)
	s.retire(WC{ID: s.e.ID, Status: status}, false)
	s.flush()
}

// flush completes all requests that are left with WCWRFlushErr, in SQE and Err.
func (s *unreliable) flush() {
	sq := s.q.cfg.SQ
	for produced := sq.Produced(); s.done != produced; {
		s.q.count(ReqCQEFlush)
		s.retire(WC{ID: sq.Entry(s.done).ID, Status: WCWRFlushErr}, false)
	}
	s.clear()
}
