package ib

import "net/netip"

// PutGRH writes the 40 bytes that stand before the payload of a datagram in its
// receive buffer (IBTA Annex A17; Linux drivers/infiniband/sw/rxe/rxe_resp.c):
// the IPv6 header, or 20 zero bytes and the IPv4 header. It makes them up from
// what a UDP socket knows: the addresses, the TOS or traffic class and n, the
// bytes from the BTH to the ICRC. The hop limit is 64; flow label and IPv4
// Identification are 0. b holds at least GRHSize bytes; it returns GRHSize.
//
// Both addresses are of the same IP version. Programs tell the versions apart by
// the IPv4 header's checksum, so it is right.
func PutGRH(b []byte, src, dst netip.Addr, tos uint8, n int) int {
	const udpSize, hopLimit, udp = 8, 64, 17
	b = b[:GRHSize]
	clear(b)
	if !src.Is4() || !dst.Is4() {
		be.PutUint32(b, 6<<28|uint32(tos)<<20)
		be.PutUint16(b[4:], uint16(udpSize+n))
		b[6], b[7] = udp, hopLimit
		s, d := src.As16(), dst.As16()
		copy(b[8:], s[:])
		copy(b[24:], d[:])
		return GRHSize
	}
	ip := b[GRHSize-ipv4Size:]
	ip[0], ip[1] = 0x45, tos
	be.PutUint16(ip[2:], uint16(ipv4Size+udpSize+n))
	ip[6] = 0x40 // don't fragment
	ip[8], ip[9] = hopLimit, udp
	s, d := src.As4(), dst.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	be.PutUint16(ip[10:], ipv4Checksum(ip))
	return GRHSize
}

// GRH is what the 40 bytes before a datagram say about where it came from.
type GRH struct {
	Src, Dst     netip.Addr
	TrafficClass uint8
	FlowLabel    uint32
	HopLimit     uint8 // left when it arrived
}

// ParseGRH reads the 40 bytes before the payload of a datagram, as PutGRH, rxe
// and network cards write them. It reports false for anything else.
func ParseGRH(b []byte) (h GRH, ok bool) {
	if len(b) < GRHSize {
		return GRH{}, false
	}
	// As libibverbs does: version 4 behind 20 bytes of whatever, and not 6 in
	// front, unless the checksum decides it.
	if ip := b[GRHSize-ipv4Size : GRHSize]; ip[0] == 0x45 && ipv4Checksum(ip) == 0 {
		return GRH{
			Src: netip.AddrFrom4([4]byte(ip[12:16])), Dst: netip.AddrFrom4([4]byte(ip[16:20])),
			TrafficClass: ip[1], HopLimit: ip[8],
		}, true
	}
	if b[0]>>4 != 6 {
		return GRH{}, false
	}
	first := be.Uint32(b)
	return GRH{
		Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])),
		TrafficClass: uint8(first >> 20), FlowLabel: first & 0xfffff, HopLimit: b[7],
	}, true
}

// ipv4Checksum is the checksum of an IPv4 header without options: what belongs
// in its checksum field while that is 0, and 0 when the field is right.
func ipv4Checksum(ip []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < ipv4Size; i += 2 {
		sum += uint32(be.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
