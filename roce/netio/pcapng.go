package netio

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// The three block types of a pcapng file (draft-ietf-opsawg-pcapng) that a capture
// needs, in little endian.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6

	optEnd       = 0
	optUserAppl  = 4 // of a section
	optIfName    = 2 // of an interface
	optTsResol   = 9 // of an interface
	optFlags     = 2 // of a packet
	flagInbound  = 1
	flagOutbound = 2
	linkTypeRaw  = 101 // IPv4 or IPv6, by its first four bits
	tsResolNano  = 9
)

// pcapngHeader appends the beginning of a file with one interface.
func pcapngHeader(b []byte, ifName string) []byte {
	le := binary.LittleEndian
	at := len(b)
	b = beginBlock(b, blockSection)
	b = le.AppendUint32(b, 0x1a2b3c4d) // byte order
	b = le.AppendUint32(b, 1)          // version 1.0
	b = le.AppendUint64(b, ^uint64(0)) // length unknown
	b = appendOption(b, optUserAppl, []byte("goroce"))
	b = endBlock(appendOption(b, optEnd, nil), at)
	at = len(b)
	b = beginBlock(b, blockInterface)
	b = le.AppendUint32(b, linkTypeRaw)
	b = le.AppendUint32(b, 0) // packets are not cut
	b = appendOption(b, optIfName, []byte(ifName))
	b = appendOption(b, optTsResol, []byte{tsResolNano})
	return endBlock(appendOption(b, optEnd, nil), at)
}

// appendPacketBlock appends an enhanced packet block with what data appends.
func appendPacketBlock(b []byte, t time.Time, sent bool, data func([]byte) []byte) []byte {
	le := binary.LittleEndian
	at := len(b)
	b = beginBlock(b, blockPacket)
	ns := uint64(t.UnixNano())
	b = le.AppendUint32(b, 0) // interface
	b = le.AppendUint32(b, uint32(ns>>32))
	b = le.AppendUint32(b, uint32(ns))
	sizes := len(b)
	b = le.AppendUint64(b, 0) // captured and original length, below
	start := len(b)
	b = data(b)
	n := uint32(len(b) - start)
	le.PutUint32(b[sizes:], n)
	le.PutUint32(b[sizes+4:], n)
	b = pad4(b, int(n))
	flags := uint32(flagInbound)
	if sent {
		flags = flagOutbound
	}
	b = appendOption(b, optFlags, le.AppendUint32(make([]byte, 0, 4), flags))
	return endBlock(appendOption(b, optEnd, nil), at)
}

func beginBlock(b []byte, typ uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, typ)
	return binary.LittleEndian.AppendUint32(b, 0) // length, below
}

// endBlock completes the block that begins at at: its length stands at both ends.
func endBlock(b []byte, at int) []byte {
	n := uint32(len(b) - at + 4)
	binary.LittleEndian.PutUint32(b[at+4:], n)
	return binary.LittleEndian.AppendUint32(b, n)
}

func appendOption(b []byte, code uint16, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return pad4(append(b, value...), len(value))
}

// pad4 pads n bytes to a multiple of four.
func pad4(b []byte, n int) []byte {
	return append(b, make([]byte, -n&3)...)
}

// appendIP appends payload as it is on the wire, with IP and UDP headers. The TTL,
// the flow label and, over IPv4, the UDP checksum are made up: 64, 0 and none.
func appendIP(b []byte, src, dst netip.AddrPort, tos uint8, id uint16, payload []byte) []byte {
	be := binary.BigEndian
	udp := uint16(8 + len(payload))
	if src.Addr().Is4() && dst.Addr().Is4() {
		at := len(b)
		b = append(b, 0x45, tos)
		b = be.AppendUint16(b, 20+udp)
		b = be.AppendUint16(b, id)
		b = append(b, 0x40, 0, 64, 17, 0, 0) // DF, TTL, UDP, checksum
		s, d := src.Addr().As4(), dst.Addr().As4()
		b = append(append(b, s[:]...), d[:]...)
		be.PutUint16(b[at+10:], ^fold(sum16(0, b[at:])))
		return appendUDP(b, src.Port(), dst.Port(), 0, payload)
	}
	b = append(b, 0x60|tos>>4, tos<<4, 0, 0)
	b = be.AppendUint16(b, udp)
	b = append(b, 17, 64)
	s, d := src.Addr().As16(), dst.Addr().As16()
	sum := sum16(sum16(uint32(udp)+17, s[:]), d[:])
	sum += uint32(src.Port()) + uint32(dst.Port()) + uint32(udp)
	check := ^fold(sum16(sum, payload))
	if check == 0 {
		check = 0xffff // 0 would mean none (RFC 8200 8.1)
	}
	b = append(append(b, s[:]...), d[:]...)
	return appendUDP(b, src.Port(), dst.Port(), check, payload)
}

func appendUDP(b []byte, sport, dport, check uint16, payload []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(b, sport)
	b = be.AppendUint16(b, dport)
	b = be.AppendUint16(b, uint16(8+len(payload)))
	b = be.AppendUint16(b, check)
	return append(b, payload...)
}

// sum16 adds b, in 16-bit words, to a sum (RFC 1071). 64 KiB cannot overflow it.
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
