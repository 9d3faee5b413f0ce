// Package echo asks a host what it sees of packets that are sent to it: from which
// address and port, with which ECN bits, and whether the ICRC is right. The answer
// comes even when it is not, as behind address translation, where RoCE itself is
// silent.
//
// A probe is a RoCEv2 datagram to a queue pair that does not exist. The answer is as
// long as the probe, so that it tests the way back, and nobody gains by forging one.
package echo

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// Size is that of the shortest probe in bytes, BTH to ICRC; all are multiples of 4.
const Size = headers + body + ib.ICRCSize

const (
	headers = ib.BTHSize + ib.DETHSize
	body    = 68
	magic   = "goroce echo 1   "

	// noQP is where probes go. Queue pair numbers are random: one that has it by
	// chance drops probes for their Q_Key.
	noQP = 0xfffffe

	ask, answer = 1, 2

	perSecond = 1000 // answers of one backend
)

// Seen is what a host saw of a probe.
type Seen struct {
	Number   uint16         // of the probe
	Src, Dst netip.AddrPort // as they arrived
	TOS      uint8
	ICRC     bool   // right for these addresses
	ID       uint16 // the IPv4 Identification that the ICRC tells, if it is right
}

// Put writes probe number n of those with the nonce into b, and seals it for the
// flow and the IPv4 Identification. b has Size bytes or more.
func Put(b []byte, nonce uint64, n uint16, flow ib.Flow, id uint16) {
	put(b, ask, nonce, Seen{Number: n})
	flow.Seal(id, b)
}

func put(b []byte, kind byte, nonce uint64, s Seen) {
	be := binary.BigEndian
	clear(b)
	ib.BTH{Opcode: ib.OpUDSendOnly, MigReq: true, PKey: ib.DefaultPKey, DestQP: noQP}.Put(b)
	ib.DETH{SrcQP: noQP}.Put(b[ib.BTHSize:])
	p := b[headers:]
	copy(p, magic)
	p[16], p[17], p[18] = kind, s.TOS, 0
	if s.ICRC {
		p[18] = 1
	}
	be.PutUint16(p[20:], s.Number)
	be.PutUint16(p[22:], s.ID)
	be.PutUint64(p[24:], nonce)
	putAddr(p[32:], s.Src)
	putAddr(p[50:], s.Dst)
}

func putAddr(b []byte, a netip.AddrPort) {
	if a.IsValid() {
		ip := a.Addr().As16()
		copy(b, ip[:])
		binary.BigEndian.PutUint16(b[16:], a.Port())
	}
}

func addr(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[:16])).Unmap(), binary.BigEndian.Uint16(b[16:]))
}

// parse reads a probe or an answer.
func parse(b []byte) (kind byte, nonce uint64, s Seen, ok bool) {
	if len(b) < Size || ib.Opcode(b[0]) != ib.OpUDSendOnly || string(b[headers:headers+len(magic)]) != magic {
		return 0, 0, s, false
	}
	be := binary.BigEndian
	p := b[headers:]
	s = Seen{Number: be.Uint16(p[20:]), TOS: p[17], ICRC: p[18] != 0, ID: be.Uint16(p[22:]), Src: addr(p[32:]), Dst: addr(p[50:])}
	return p[16], be.Uint64(p[24:]), s, true
}

// Answer returns what the answer to a probe with the nonce says; false if b is none.
func Answer(b []byte, nonce uint64) (Seen, bool) {
	kind, n, s, ok := parse(b)
	return s, ok && kind == answer && n == nonce
}

// server is a backend that answers probes.
type server struct {
	netio.Backend
	allow []netip.Prefix
	until time.Duration // when left is filled up again
	left  int
	reply []byte
}

// Serve wraps a backend: it answers probes, at most 1000 per second, of hosts in the
// networks of allow, or of all if there are none, and hands on everything as it came.
func Serve(b netio.Backend, allow []netip.Prefix) netio.Backend {
	return &server{Backend: b, allow: allow}
}

// Recv implements netio.Backend.
func (s *server) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := s.Backend.Recv(now, dst)
	for i := range n {
		for k := range dst[i].Segments() {
			s.answer(now, &dst[i], dst[i].Segment(k))
		}
	}
	return n, err
}

func (s *server) answer(now time.Duration, r *netio.Received, b []byte) {
	kind, nonce, seen, ok := parse(b)
	from := r.Src.Addr().Unmap().WithZone("")
	if !ok || kind != ask || len(s.allow) > 0 && !slices.ContainsFunc(s.allow, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return
	}
	if now >= s.until {
		s.until, s.left = now+time.Second, perSecond
	}
	if s.left--; s.left < 0 {
		return
	}
	flow := ib.NewFlow(r.Src, r.Dst)
	seen.Src, seen.Dst, seen.TOS = r.Src, r.Dst, r.TOS
	seen.ID, seen.ICRC = flow.Recover(b)
	if cap(s.reply) < len(b) {
		s.reply = make([]byte, len(b))
	}
	s.reply = s.reply[:len(b)]
	put(s.reply, answer, nonce, seen)
	back := ib.NewFlow(r.Dst, r.Src)
	back.Seal(0, s.reply)
	s.Backend.Send(now, []netio.Run{{Dst: r.Src, TOS: r.TOS, Buf: s.reply}}) // or it is lost
}
