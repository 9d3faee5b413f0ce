//go:build linux

package main

import (
	"encoding/binary"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

const ipHeader = 20 // bytes, without options: RoCE has none

// mark sets "congestion experienced" in an IPv4 packet that is ECN-capable, and says
// whether it was (RFC 3168, section 5). The ICRC does not cover the TOS.
func mark(p []byte) bool {
	if len(p) < ipHeader || p[0]>>4 != 4 || p[1]&3 == 0 || p[1]&3 == 3 {
		return false
	}
	old := binary.BigEndian.Uint16(p)
	p[1] |= 3
	// RFC 1624, equation 3.
	sum := uint32(^binary.BigEndian.Uint16(p[10:])) + uint32(^old) + uint32(binary.BigEndian.Uint16(p))
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
	return true
}

// isCNP says whether an IPv4 packet is a congestion notification packet.
func isCNP(p []byte) bool {
	const udp = 17
	return len(p) >= ipHeader+8+ib.BTHSize && p[0] == 0x45 && p[9] == udp &&
		binary.BigEndian.Uint16(p[ipHeader+2:]) == netio.Port && ib.Opcode(p[ipHeader+8]) == ib.OpCNP
}

// source is the address that an IPv4 packet comes from.
func source(p []byte) (a [4]byte) {
	if len(p) >= ipHeader {
		copy(a[:], p[12:])
	}
	return a
}
