package ib

import "net/netip"

// The ICRC is CRC-32 over a pseudo header, in which every field that may change
// on the way is all ones, and the packet from BTH to pad, BTH byte 4 all ones
// (IBTA 7.8.1, Annex A16 and A17; Linux drivers/infiniband/sw/rxe/rxe_icrc.c).
// Pseudo header of RoCEv2: 8 bytes of ones, the IP header, the UDP header.
const (
	icrcOnes = 8
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8

	ipv4MaxSize = 60 // with options

	pseudo4Size = icrcOnes + ipv4Size + udpSize
	pseudo6Size = icrcOnes + ipv6Size + udpSize

	// Where the fields are that change from packet to packet of one flow.
	at4Len    = icrcOnes + 2
	at4ID     = icrcOnes + 4
	at4UDPLen = icrcOnes + ipv4Size + 4
	at6Len    = icrcOnes + 4
	at6UDPLen = icrcOnes + ipv6Size + 4
)

// What the fields add to the register at the end of the pseudo header.
var (
	add4Len    = newField16(pseudo4Size - at4Len)
	add4ID     = newField16(pseudo4Size - at4ID)
	add4UDPLen = newField16(pseudo4Size - at4UDPLen)
	add6Len    = newLen6() // payload length and UDP length are the same number
)

func newLen6() (f field16) {
	a, b := newField16(pseudo6Size-at6Len), newField16(pseudo6Size-at6UDPLen)
	for i := range 256 {
		f[0][i] = a[0][i] ^ b[0][i]
		f[1][i] = a[1][i] ^ b[1][i]
	}
	return f
}

// family is the IP version of a Flow; 0 is none.
type family uint8

const (
	family4 family = 4
	family6 family = 6
)

// Flow computes the ICRC of packets from one UDP source to one destination. It
// is a small value, cheap to make and to copy, and safe for concurrent use. The
// zero Flow, and one made from addresses that do not fit together, verifies
// nothing.
type Flow struct {
	start  uint32 // CRC register after the pseudo header with all lengths and the ID 0
	family family
	twice  bool // see SealFlushTwice
}

// NewFlow returns the Flow from src to dst. Both are IPv4 or both IPv6 addresses;
// IPv4-mapped addresses count as IPv4 and zones are ignored. Other pairs give
// a Flow that is not Valid.
func NewFlow(src, dst netip.AddrPort) Flow {
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	switch {
	case s.Is4() && d.Is4():
		return newFlow4(s.As4(), d.As4(), src.Port(), dst.Port())
	case s.Is6() && d.Is6():
		return newFlow6(s.As16(), d.As16(), src.Port(), dst.Port())
	}
	return Flow{}
}

// newFlow4 lays out the IPv4 pseudo header: version 4, header length 5, TOS, TTL
// and checksum ones, DF set, no fragment, UDP.
func newFlow4(src, dst [4]byte, sport, dport uint16) Flow {
	var p [pseudo4Size]byte
	ones(p[:icrcOnes])
	ip := p[icrcOnes:]
	ip[0] = 0x45
	ip[1] = 0xff
	ip[6] = 0x40
	ip[8] = 0xff
	ip[9] = 17
	ones(ip[10:12])
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	putUDP(ip[ipv4Size:], sport, dport)
	return Flow{start: updateShort(crcStart, p[:]), family: family4}
}

// newFlow6 lays out the IPv6 pseudo header: version 6, traffic class, flow label
// and hop limit ones, next header UDP.
func newFlow6(src, dst [16]byte, sport, dport uint16) Flow {
	var p [pseudo6Size]byte
	ones(p[:icrcOnes])
	ip := p[icrcOnes:]
	ip[0] = 0x6f
	ones(ip[1:4])
	ip[6] = 17
	ip[7] = 0xff
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	putUDP(ip[ipv6Size:], sport, dport)
	return Flow{start: updateShort(crcStart, p[:]), family: family6}
}

func putUDP(b []byte, sport, dport uint16) {
	be.PutUint16(b, sport)
	be.PutUint16(b[2:], dport)
	ones(b[6:8]) // checksum; the length at 4 is added per packet
}

func ones(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// Valid reports whether the Flow was made from two addresses of one family.
func (f *Flow) Valid() bool { return f.family != 0 }

// Seal computes the ICRC of b (BTH to ICRC, at least 16 and at most 65507 bytes)
// as it will be with the IPv4 Identification id, DF set and no IP options, and
// writes it into the last four bytes. Over IPv6 id is ignored. A Flow that is
// not Valid writes zeros. It panics when b is shorter than 16 bytes.
func (f *Flow) Seal(id uint16, b []byte) {
	s := f.sum(id, b)
	if f.twice && isFlush(b) {
		s = again(s, b)
	}
	le.PutUint32(b[len(b)-ICRCSize:], s)
}

// SealFlushTwice chooses how Seal does RC FLUSHes: by the rule, or as Linux rxe
// of 6.2 to 7.2 has it, which drops the others. Its opcode table names no payload
// offset for a FLUSH (rxe_opcode.c), so rxe_icrc.c takes the packet from the BTH
// on for payload, behind the headers. Verify and Recover take both.
func (f *Flow) SealFlushTwice(on bool) { f.twice = on }

func isFlush(b []byte) bool { return Opcode(b[0]) == OpRCFlush }

// again returns the ICRC of b whose bytes are covered once more, unmasked.
func again(icrc uint32, b []byte) uint32 { return ^update(^icrc, b[:len(b)-ICRCSize]) }

// Verify reports whether the ICRC of b (BTH to ICRC) is right for the IPv4
// Identification id, which is ignored over IPv6. Any length is safe.
func (f *Flow) Verify(id uint16, b []byte) bool {
	if !f.accepts(b) {
		return false
	}
	s, has := f.sum(id, b), le.Uint32(b[len(b)-ICRCSize:])
	return s == has || isFlush(b) && again(s, b) == has
}

// accepts reports whether b has a length for which sum is defined.
func (f *Flow) accepts(b []byte) bool {
	return f.family != 0 && len(b) >= BTHSize+ICRCSize && len(b) <= maxUDPPayload
}

// sum returns the ICRC of b, at least 16 bytes long, whatever its last four
// bytes are.
func (f *Flow) sum(id uint16, b []byte) uint32 {
	_ = b[BTHSize+ICRCSize-1]
	s := f.start
	switch f.family {
	case family4:
		s ^= add4ID.of(id) ^ add4Len.of(uint16(ipv4Size+udpSize+len(b))) ^ add4UDPLen.of(uint16(udpSize+len(b)))
	case family6:
		s ^= add6Len.of(uint16(udpSize + len(b)))
	default:
		return 0
	}
	return ^sumFromBTH(s, b[:len(b)-ICRCSize])
}

// sumFromBTH passes b, BTH to pad, through the register, BTH byte 4 as ones.
func sumFromBTH(s uint32, b []byte) uint32 {
	s = advance4(s ^ le.Uint32(b))
	s = advance4(s ^ (le.Uint32(b[4:]) | 0xff))
	s = advance4(s ^ le.Uint32(b[8:]))
	return update(s, b[BTHSize:])
}

// ICRCv1 returns the ICRC of a RoCEv1 packet, or of a native InfiniBand packet
// with a global route header: grh is the 40-byte GRH, b the packet from BTH to
// ICRC (whose last four bytes do not count). Traffic class, flow label and hop
// limit of the GRH are masked, as is what stands before it (IBTA 7.8.1, Annex
// A16). The result is as Packet.ICRC returns it; 0 when grh or b is too short.
func ICRCv1(grh, b []byte) uint32 {
	if len(grh) < GRHSize || len(b) < BTHSize+ICRCSize {
		return 0
	}
	var p [icrcOnes + GRHSize]byte
	ones(p[:icrcOnes])
	g := p[icrcOnes:]
	copy(g, grh[:GRHSize])
	g[0] |= 0x0f
	ones(g[1:4])
	g[7] = 0xff
	return ^sumFromBTH(updateShort(crcStart, p[:]), b[:len(b)-ICRCSize])
}

// ICRCNative returns the ICRC of a native InfiniBand packet without a global
// route header: lrh is the 8-byte LRH, whose virtual lane is masked, b the
// packet from BTH to ICRC (IBTA 7.8.1). 0 when lrh or b is too short.
func ICRCNative(lrh, b []byte) uint32 {
	if len(lrh) < LRHSize || len(b) < BTHSize+ICRCSize {
		return 0
	}
	var p [LRHSize]byte
	copy(p[:], lrh)
	p[0] |= 0xf0
	return ^sumFromBTH(updateShort(crcStart, p[:]), b[:len(b)-ICRCSize])
}

// VerifyWire reports whether the ICRC of b (BTH to ICRC) is right behind the
// headers that it had on the wire: ip is the whole IPv4 header, with its options,
// or the 40 bytes of the IPv6 header, udp the 8 bytes of the UDP header. Unlike a
// Flow it takes any flags of IPv4. It is for those who see packets whole, such as
// readers of captures. Any length is safe.
func VerifyWire(ip, udp, b []byte) bool {
	if len(ip) < ipv4Size || len(ip) > ipv4MaxSize || len(udp) != udpSize || len(b) < BTHSize+ICRCSize {
		return false
	}
	var p [icrcOnes + ipv4MaxSize + udpSize]byte
	ones(p[:icrcOnes])
	h := p[icrcOnes:]
	copy(h, ip)
	switch {
	case ip[0]>>4 == 4:
		h[1], h[8] = 0xff, 0xff
		ones(h[10:12])
	case ip[0]>>4 == 6 && len(ip) == ipv6Size:
		h[0] |= 0x0f
		ones(h[1:4])
		h[7] = 0xff
	default:
		return false
	}
	copy(h[len(ip):], udp)
	ones(h[len(ip)+6 : len(ip)+udpSize])
	s, has := ^sumFromBTH(updateShort(crcStart, p[:icrcOnes+len(ip)+udpSize]), b[:len(b)-ICRCSize]), le.Uint32(b[len(b)-ICRCSize:])
	return s == has || isFlush(b) && again(s, b) == has
}
