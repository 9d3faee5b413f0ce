package ib

import "net/netip"

// GID is a global identifier in network byte order: on RoCEv2 an IPv6 address,
// or an IPv4 address as ::ffff:a.b.c.d (IBTA Annex A17).
type GID [16]byte

// GIDFromAddr returns the GID of an IP address; its zone is dropped. The invalid
// netip.Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return a.As16()
}

// Addr returns the IP address, IPv4 when the GID maps one. It carries no zone.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether no address is set.
func (g GID) IsZero() bool { return g == GID{} }

// String returns the IPv6 text form, "::ffff:10.0.0.1" for IPv4.
func (g GID) String() string { return netip.AddrFrom16(g).String() }
