package mad

import (
	"fmt"
	"net/netip"
)

// ServiceID names what a REQ or SIDR_REQ wants to reach (IBTA 12.6.5).
type ServiceID uint64

// PortSpace is a port space of rdma_cm: what its port numbers are relative to
// (Linux include/uapi/rdma/rdma_user_cm.h).
type PortSpace uint16

// The port spaces.
const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106 // reliable connections
	PortSpaceUDP   PortSpace = 0x0111 // datagrams
	PortSpaceIB    PortSpace = 0x013f // any service, addressed natively
)

// String returns the name that librdmacm gives it.
func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "RDMA_PS_IPOIB"
	case PortSpaceTCP:
		return "RDMA_PS_TCP"
	case PortSpaceUDP:
		return "RDMA_PS_UDP"
	case PortSpaceIB:
		return "RDMA_PS_IB"
	}
	return fmt.Sprintf("port space 0x%04x", uint16(p))
}

// ServiceID returns the service that rdma_cm makes of a port (rdma_get_service_id
// of Linux drivers/infiniband/core/cma.c; IBTA Annex A11).
func (p PortSpace) ServiceID(port uint16) ServiceID {
	return ServiceID(p)<<16 | ServiceID(port)
}

// Port takes a service of rdma_cm apart; false when it is none.
func (s ServiceID) Port() (PortSpace, uint16, bool) {
	switch p := PortSpace(s >> 16); {
	case s>>32 != 0:
		return 0, 0, false
	case p == PortSpaceIPoIB, p == PortSpaceTCP, p == PortSpaceUDP, p == PortSpaceIB:
		return p, uint16(s), true
	}
	return 0, 0, false
}

// String returns "RDMA_PS_TCP port 7471" for a service of rdma_cm and 16
// hexadecimal digits for others.
func (s ServiceID) String() string {
	if p, port, ok := s.Port(); ok {
		return fmt.Sprintf("%v port %d", p, port)
	}
	return fmt.Sprintf("0x%016x", uint64(s))
}

// IPHeaderSize is the size of an IPHeader in bytes.
const IPHeaderSize = 36

// IPHeader is how rdma_cm says in the private data of REQ and SIDR_REQ which
// addresses the service of port spaces TCP and UDP is about (IBTA Annex A11;
// struct cma_hdr of Linux drivers/infiniband/core/cma.c). What the program adds
// follows. Requests of programs that use native addresses (AF_IB) have none.
type IPHeader struct {
	SrcPort  uint16
	Src, Dst netip.Addr // both IPv4 or both IPv6; no zones
}

// Put writes the header to b, which holds at least IPHeaderSize bytes, and
// returns IPHeaderSize. The addresses must be valid.
func (h IPHeader) Put(b []byte) int {
	b = b[:IPHeaderSize]
	clear(b)
	be.PutUint16(b[2:], h.SrcPort)
	if h.Src.Is4() && h.Dst.Is4() {
		b[1] = 4 << 4
		src, dst := h.Src.As4(), h.Dst.As4()
		copy(b[16:], src[:])
		copy(b[32:], dst[:])
		return IPHeaderSize
	}
	b[1] = 6 << 4
	src, dst := h.Src.As16(), h.Dst.As16()
	copy(b[4:], src[:])
	copy(b[20:], dst[:])
	return IPHeaderSize
}

// ParseIPHeader reads the header in front of private data; what follows it is
// the program's. It reports false when there is none of a known version.
// Whether the addresses make sense is for the caller to judge.
func ParseIPHeader(b []byte) (IPHeader, bool) {
	if len(b) < IPHeaderSize || b[0] != 0 {
		return IPHeader{}, false
	}
	h := IPHeader{SrcPort: be.Uint16(b[2:])}
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:20])), netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:20])), netip.AddrFrom16([16]byte(b[20:36]))
	default:
		return IPHeader{}, false
	}
	return h, true
}
