package rnet

import "github.com/goroce/goroce/roce"

// inline is how many bytes go into a request itself.
const inline = 64

// sender is the half of a stream that sends data.
type sender struct {
	buf       region // of the bytes under way, a ring
	off, free int    // where the next go; bytes not in use
	slots     int    // requests with data that may be posted
	busy      int    // requests with data under way
	maxInline int

	place     [places]segment // what is left of where we may write
	at        int             // the one in use
	nextPlace int             // the one that the peer fills next
	sent      uint16          // messages with data
	credit    uint16          // sent stops here
}

// writable says whether at least some of n bytes can be sent. Less than lowWater of a
// longer write wait for more room, lest a slow reader gets many small messages.
func (s *stream) writable(n int) bool {
	return s.slots > 0 && s.free >= min(n, lowWater, len(s.buf.buf)) && s.sent != s.credit && s.place[s.at].length > 0
}

// write posts as much of p as can be sent now and returns how much it was.
func (s *stream) write(p []byte) (n int) {
	for n < len(p) && !s.gone && s.writable(len(p)-n) {
		to := &s.place[s.at]
		wr := roce.SendWR{Opcode: roce.WRWriteWithImm, RemoteAddr: to.addr, RKey: to.key}
		size := s.load(&wr, piece(p[n:], to.length))
		wr.Imm = message(opData, uint32(size))
		to.addr += uint64(size)
		to.length -= uint32(size)
		if to.length == 0 {
			s.at = (s.at + 1) % places
		}
		s.sent++
		s.send(wr)
		n += size
	}
	return n
}

// piece returns the beginning of p that goes into one message, and a place of size.
func piece(p []byte, size uint32) []byte { return p[:min(len(p), int(min(size, maxMessage)))] }

// load gives wr a payload: p as far as the send buffer has room for it in one
// piece. It takes a slot, and returns the bytes taken.
func (s *stream) load(wr *roce.SendWR, p []byte) int {
	s.slots--
	s.busy++
	if len(p) <= s.maxInline {
		wr.Flags, wr.Data, wr.ID = roce.Inline, p, sentData
		return len(p)
	}
	size := copy(s.buf.buf[s.off:], p[:min(len(p), s.free)])
	s.sge[0] = roce.SGE{Addr: s.buf.addr + uint64(s.off), Length: uint32(size), LKey: s.buf.key}
	wr.SGE, wr.ID = s.sge[:], sentData|uint64(size)
	s.free -= size
	if s.off += size; s.off == len(s.buf.buf) {
		s.off = 0
	}
	return size
}

// granted takes a new place, which the peer has written into our list.
func (s *stream) granted(size uint32) {
	entry := &s.place[s.nextPlace]
	if size != segmentSize || entry.length != 0 {
		s.broken("a place for data in %d bytes while %d bytes are left of the one before", size, entry.length)
		return
	}
	*entry = parseSegment(s.shared.buf[s.size+s.nextPlace*segmentSize:], ours)
	s.nextPlace = (s.nextPlace + 1) % places
}
