package ib

import "strconv"

// psnMask covers the 24 bits of a PSN, a QPN or an MSN.
const psnMask = 1<<24 - 1

// PSN is a packet sequence number: 24 bits, counting packets of one queue pair
// modulo 2^24 (IBTA 9.7.1). Values above 24 bits never come out of this
// package; Add and Sub reduce what they are given.
type PSN uint32

// Add returns the PSN n packets later (earlier for a negative n), modulo 2^24.
func (p PSN) Add(n int) PSN { return PSN(int64(p)+int64(n)) & psnMask }

// Sub returns the signed distance p-q in packets, from -2^23 to 2^23-1: the
// shorter way around the 24-bit circle. Half a circle is negative, that is
// a PSN exactly 2^23 away counts as old (IBTA 9.7.1: the valid region is half
// of the PSN space).
func (p PSN) Sub(q PSN) int { return int(int32(uint32(p-q)<<8) >> 8) }

// Before reports whether p lies before q: p.Sub(q) < 0.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After reports whether p lies after q: p.Sub(q) > 0.
func (p PSN) After(q PSN) bool { return p.Sub(q) > 0 }

// String returns the decimal number.
func (p PSN) String() string { return strconv.FormatUint(uint64(p), 10) }

// QPN is a queue pair number: 24 bits. 0 is the subnet management QP, which
// RoCE does not have, 1 the connection manager's (IBTA chapter 13, Annex A16).
type QPN uint32

const (
	// GSIQPN is the general services QP, where connection manager datagrams go.
	GSIQPN QPN = 1
	// MulticastQPN is the destination QPN of every multicast datagram (IBTA 10.5).
	MulticastQPN QPN = 0xffffff
)

// SourcePort returns the UDP source port that gives the packets between two queue
// pairs a flow of their own in networks that spread flows by ports (ECMP; IBTA annex
// A17): a hash of both numbers, the same for both ends, into the ephemeral ports
// from 0xc000 on. It is the one of Linux include/rdma/ib_verbs.h
// (rdma_get_udp_sport without a flow label), which rxe and mlx5 use.
func SourcePort(local, remote QPN) uint16 {
	v := uint64(local) * uint64(remote)
	v ^= v >> 20
	v ^= v >> 40
	label := uint32(v & 0xfffff) // an IPv6 flow label, 20 bits
	return 0xc000 | uint16(label&0x3fff^label>>14)
}

// String returns the number as six hexadecimal digits, as libibverbs' tools print it.
func (q QPN) String() string {
	const digits = "0123456789abcdef"
	b := [8]byte{'0', 'x'}
	for i := range 6 {
		b[2+i] = digits[q>>(20-4*i)&15]
	}
	return string(b[:])
}

// PKey is a partition key: bit 15 is full membership, the low 15 bits name the
// partition (IBTA 10.9).
type PKey uint16

// DefaultPKey is full membership in the default partition, the only one RoCE uses.
const DefaultPKey PKey = 0xffff

// Matches reports whether a packet with the key other may be received by
// a holder of k: the same partition, not the invalid partition 0, and at least
// one of the two a full member (IBTA 10.9.3).
func (k PKey) Matches(other PKey) bool {
	return (k^other)&0x7fff == 0 && k&0x7fff != 0 && (k|other)&0x8000 != 0
}
