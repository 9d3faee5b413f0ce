package rnet

import (
	"encoding/binary"

	"github.com/goroce/goroce/roce"
)

// ours is the byte order of our lists.
var ours = binary.LittleEndian

// receiver is the half of a stream that receives data.
type receiver struct {
	shared region // receive buffer, list of places, table of mapped memory
	size   int    // of the receive buffer
	pos    int    // where the next byte is read
	unread int    // bytes that have arrived
	freed  int    // bytes read, or never used, that the peer may not write to
	next   int    // the half that is granted next

	lengths     []uint32 // what is left of each message that has arrived, a ring
	head, count int
	reads       uint16 // messages read to their end
	renew       uint16 // credits are due when reads gets here

	list      segment // where the peer has its list of places
	nextEntry uint32  // ... whose entry to write next

	repost []roce.RecvWR
	taken  int // receives to be posted again
}

// data takes a message with n bytes of data.
func (s *stream) data(n, written uint32) {
	switch {
	case n != written:
		s.broken("%d bytes written, %d announced", written, n)
	case int(n) > s.size-s.freed-s.unread:
		s.broken("%d bytes where %d may be written", n, s.size-s.freed-s.unread)
	case s.count == len(s.lengths):
		s.broken("more than %d messages", s.count)
	case !s.readEnd:
		s.lengths[(s.head+s.count)%len(s.lengths)] = n
		s.count++
		s.unread += int(n)
	}
}

// take copies what has arrived to p and frees its place.
func (s *stream) take(p []byte) (n int) {
	for n < len(p) && s.count > 0 {
		left := &s.lengths[s.head]
		size := copy(p[n:], s.shared.buf[s.pos:min(s.size, s.pos+int(*left))])
		n += size
		*left -= uint32(size)
		s.pos = (s.pos + size) % s.size
		if *left == 0 {
			s.head = (s.head + 1) % len(s.lengths)
			s.count--
			s.reads++
		}
	}
	s.unread -= n
	s.freed += n
	return n
}

// peek is take that frees nothing.
func (s *stream) peek(p []byte) (n int) {
	pos := s.pos
	for i := 0; i < s.count && n < len(p); i++ {
		left := int(s.lengths[(s.head+i)%len(s.lengths)])
		for left > 0 && n < len(p) {
			size := copy(p[n:], s.shared.buf[pos:min(s.size, pos+left)])
			n, left, pos = n+size, left-size, (pos+size)%s.size
		}
	}
	return n
}

// due says whether the peer should get a place, or credits.
func (s *stream) due() bool { return s.freed >= s.size/2 || int16(s.reads-s.renew) >= 0 }

// grant tells the peer of credits, and of a half of the buffer if one is free.
func (s *stream) grant() {
	s.renew = s.reads + uint16(len(s.lengths)/2)
	wr := roce.SendWR{ID: sentCtrl, Opcode: roce.WRWriteWithImm, Imm: message(opSGL, uint32(s.reads+uint16(len(s.lengths))))}
	if half := s.size / 2; s.freed >= half {
		wr.Flags, wr.Data = roce.Inline, s.shared.part(s.next, half).append(s.ctl[:0], s.ord)
		wr.RemoteAddr, wr.RKey = s.list.addr+segmentSize*uint64(s.nextEntry), s.list.key
		s.freed -= half
		s.next = (s.next + half) % s.size
		s.nextEntry = (s.nextEntry + 1) % s.list.length
	}
	s.ctrls++
	s.send(wr)
}
