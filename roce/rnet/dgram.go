package rnet

import (
	"encoding/binary"
	"net/netip"

	"github.com/goroce/goroce/ib"
)

// The formats of datagrams are those of librdmacm, rsocket.c, in network byte order.
//
// A datagram of a queue pair begins with the address of the sender's socket (struct
// ds_header). One who does not know the queue pair of an address sends the datagram to
// the UDP socket there, behind the number of its own queue pair (struct
// ds_udp_header), and gets the one of the other side by the same socket.

const (
	datagramQKey = 0x01234567 // RDMA_UDP_QKEY of Linux rdma_cma.h
	datagramSize = 2048       // of a datagram with its header, at most (RS_SNDLOWAT)

	head4, head6   = 8, 24
	hello4, hello6 = 16, 28
	helloTag       = 0x55555555
)

// headSize and helloSize are the sizes of the two headers for an address.
func headSize(a netip.Addr) int {
	if a.Is4() {
		return head4
	}
	return head6
}

func helloSize(a netip.Addr) int {
	if a.Is4() {
		return hello4
	}
	return hello6
}

// appendHead appends the header of a datagram from a socket.
func appendHead(b []byte, from netip.AddrPort) []byte {
	a := from.Addr()
	version := byte(6)
	if a.Is4() {
		version = 4
	}
	b = append(b, version, byte(headSize(a)))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	if !a.Is4() {
		b = append(b, 0, 0, 0, 0) // flow information
	}
	return append(b, a.AsSlice()...)
}

// parseHead returns who has sent a datagram, and what.
func parseHead(b []byte) (from netip.AddrPort, data []byte, ok bool) {
	if len(b) < head4 || len(b) < int(b[1]) {
		return from, nil, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch [2]byte(b) {
	case [2]byte{4, head4}:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), b[head4:], true
	case [2]byte{6, head6}:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), port), b[head6:], true
	}
	return from, nil, false
}

// appendHello appends the header of a datagram to a UDP socket. op is opData, or
// opCtrl for an answer without data.
func appendHello(b []byte, local netip.Addr, op byte, qpn ib.QPN) []byte {
	version := byte(6)
	if local.Is4() {
		version = 4
	}
	b = binary.BigEndian.AppendUint32(b, helloTag)
	b = append(b, version, op, byte(helloSize(local)), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(qpn))
	return append(b, local.AsSlice()...)
}

// parseHello returns what a datagram to the UDP socket says; local is the socket's
// address.
func parseHello(b []byte, local netip.Addr) (op byte, qpn ib.QPN, data []byte, ok bool) {
	want := appendHello(nil, local, 0, 0)
	if len(b) < len(want) || string(b[:5]) != string(want[:5]) || b[6] != want[6] {
		return 0, 0, nil, false
	}
	qpn = ib.QPN(binary.BigEndian.Uint32(b[8:]) & 0xffffff)
	return b[5], qpn, b[len(want):], (b[5] == opData || b[5] == opCtrl) && qpn > 1 && qpn != ib.MulticastQPN
}
