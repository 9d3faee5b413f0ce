package netio

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	Hdr unix.Msghdr
	Len uint32
}

// msgCall is sendmmsg or recvmmsg without waiting: it returns the number of
// messages moved, or an error. Tests put their own in its place.
type msgCall func(fd int, h []mmsghdr) (int, unix.Errno)

// The calls never block and are short, so they do not tell the Go scheduler.
func sysSendmmsg(fd int, h []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), uintptr(len(h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), e
}

func sysRecvmmsg(fd int, h []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), uintptr(len(h)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

// sockaddr has room for either family.
type sockaddr struct{ in6 unix.RawSockaddrInet6 }

func (s *sockaddr) in4() *unix.RawSockaddrInet4 {
	return (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.in6))
}

// set writes an address and returns its length. scope is used for link-local
// IPv6 addresses.
func (s *sockaddr) set(a netip.AddrPort, scope uint32) uint32 {
	ip := a.Addr()
	if ip.Is4() {
		p := s.in4()
		p.Family = unix.AF_INET
		p.Port = swap16(a.Port())
		p.Addr = ip.As4()
		return unix.SizeofSockaddrInet4
	}
	s.in6.Family = unix.AF_INET6
	s.in6.Port = swap16(a.Port())
	s.in6.Flowinfo = 0
	s.in6.Addr = ip.As16()
	s.in6.Scope_id = 0
	if ip.IsLinkLocalUnicast() {
		s.in6.Scope_id = scope
	}
	return unix.SizeofSockaddrInet6
}

// get reads an address that the kernel wrote, without its zone.
func (s *sockaddr) get(n uint32) netip.AddrPort {
	switch {
	case n >= unix.SizeofSockaddrInet4 && s.in6.Family == unix.AF_INET:
		p := s.in4()
		return netip.AddrPortFrom(netip.AddrFrom4(p.Addr), swap16(p.Port))
	case n >= unix.SizeofSockaddrInet6 && s.in6.Family == unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.in6.Addr).Unmap(), swap16(s.in6.Port))
	}
	return netip.AddrPort{}
}

// swap16 converts between a port and its bytes in network order.
func swap16(v uint16) uint16 {
	var b [2]byte
	b[0], b[1] = byte(v>>8), byte(v)
	return *(*uint16)(unsafe.Pointer(&b))
}

// Sizes of control messages: all we send or receive carry at most 4 bytes.
var (
	cmsgSlot = unix.CmsgSpace(4)
	cmsgHead = unix.CmsgLen(0)
)

// control is the ancillary data of one message, aligned as the kernel wants.
type control [16]uint64

// put writes a control message with n bytes of value (2 or 4) at offset at.
func (c *control) put(at int, level, typ int32, value uint32, n int) {
	base := unsafe.Pointer(c)
	h := (*unix.Cmsghdr)(unsafe.Add(base, at))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(n))
	if data := unsafe.Add(base, at+cmsgHead); n == 2 {
		*(*uint16)(data) = uint16(value)
	} else {
		*(*uint32)(data) = value
	}
}

// ancillary is what the kernel tells about a received datagram.
type ancillary struct {
	tos      uint8
	segSize  int
	overflow uint32
	hasOvfl  bool
}

// parse reads the first n bytes of the control messages.
func (c *control) parse(n int) (a ancillary) {
	base := unsafe.Pointer(c)
	for at := 0; at+cmsgHead <= n; {
		h := (*unix.Cmsghdr)(unsafe.Add(base, at))
		size := int(h.Len) - cmsgHead
		if size < 0 || at+cmsgHead+size > n {
			return a
		}
		data := unsafe.Add(base, at+cmsgHead)
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && size >= 1:
			a.tos = *(*uint8)(data)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && size >= 4:
			a.tos = uint8(*(*int32)(data))
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && size >= 4:
			a.segSize = int(*(*int32)(data))
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && size >= 2:
			a.segSize = int(*(*uint16)(data))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && size >= 4:
			a.overflow, a.hasOvfl = *(*uint32)(data), true
		}
		at += unix.CmsgSpace(size)
	}
	return a
}
