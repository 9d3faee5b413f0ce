package netio

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SourceFor returns the local address that packets to dst come from, by the
// routing table. It opens no UDP socket and sends nothing.
func SourceFor(dst netip.Addr) (netip.Addr, error) {
	dst = dst.Unmap()
	if !dst.IsValid() || dst.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("netio: no route to %v: not an address to send to", dst)
	}
	scope, err := scopeOf(dst)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("netio: no route to %v: %w", dst, err)
	}
	var opt *netlink.RouteGetOptions
	if scope != 0 {
		opt = &netlink.RouteGetOptions{OifIndex: int(scope)}
	}
	routes, err := netlink.RouteGetWithOptions(net.IP(dst.WithZone("").AsSlice()), opt)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("netio: no route to %v: %w", dst, err)
	}
	for _, r := range routes {
		if a, ok := netip.AddrFromSlice(r.Src); ok {
			a = a.Unmap()
			if a.IsLinkLocalUnicast() && a.Is6() {
				a = a.WithZone(dst.Zone())
			}
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("netio: the route to %v names no source address", dst)
}

// PortOf returns the interface that has a local address: its name, index, MTU in
// bytes of an IP packet, and whether it is up. Addresses that are local without
// being listed, such as 127.0.0.2, belong to the loopback interface.
func PortOf(addr netip.Addr) (name string, index, mtu int, up bool, err error) {
	link, err := linkOf(&netlink.Handle{}, addr.Unmap())
	if err != nil {
		return "", 0, 0, false, err
	}
	a := link.Attrs()
	return a.Name, a.Index, a.MTU, isUp(a), nil
}

// isUp says whether a link carries packets. One without carrier detection does
// when it is up administratively.
func isUp(a *netlink.LinkAttrs) bool {
	return a.Flags&net.FlagUp != 0 && (a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown)
}

// linkOf returns the interface that has a local address; an empty handle asks in
// the network namespace of the thread.
func linkOf(h *netlink.Handle, addr netip.Addr) (netlink.Link, error) {
	link, err := listedLink(h, addr)
	if link != nil || err != nil {
		return link, err
	}
	routes, err := h.RouteGet(net.IP(addr.WithZone("").AsSlice()))
	if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
		return h.LinkByIndex(routes[0].LinkIndex)
	}
	return nil, fmt.Errorf("netio: no interface has the address %v", addr)
}

// listedLink returns the interface in whose list an address is, or nil.
func listedLink(h *netlink.Handle, addr netip.Addr) (netlink.Link, error) {
	addrs, err := h.AddrList(nil, family(addr))
	if err != nil {
		return nil, fmt.Errorf("netio: interface of %v: %w", addr, err)
	}
	scope, err := scopeOf(addr)
	if err != nil {
		return nil, fmt.Errorf("netio: interface of %v: %w", addr, err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ok && ip.Unmap() == addr.WithZone("") && (scope == 0 || int(scope) == a.LinkIndex) {
			return h.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// LocalAddrs returns the unicast addresses of all interfaces that are up,
// loopback included, in the system's order. Link-local ones carry their zone.
func LocalAddrs() ([]netip.Addr, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("netio: list of addresses: %w", err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("netio: list of interfaces: %w", err)
	}
	up := make(map[int]string)
	for _, l := range links {
		if a := l.Attrs(); a.Flags&net.FlagUp != 0 {
			up[a.Index] = a.Name
		}
	}
	var out []netip.Addr
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		name, isUp := up[a.LinkIndex]
		if !ok || !isUp {
			continue
		}
		if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(name)
		}
		out = append(out, ip)
	}
	return out, nil
}
