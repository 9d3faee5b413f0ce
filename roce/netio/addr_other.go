//go:build !linux

package netio

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

func listenUDP(cfg UDPConfig) (Backend, error) { return openPortable(cfg) }

// listenQueues opens one socket for all: how sockets of one address share what comes
// differs from system to system.
func listenQueues(cfg UDPConfig, n int) ([]Backend, error) {
	b, err := listenUDP(cfg)
	if err != nil {
		return nil, err
	}
	return Queues(b, n), nil
}

// explainListen turns an error of bind into one that says what is in the way.
func explainListen(addr netip.AddrPort, err error) error {
	e := &ListenError{Addr: addr, Err: err, Why: err.Error()}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Why = "the address is not one of this machine's"
	case errors.Is(err, syscall.EADDRINUSE):
		e.Why = "the port is in use by this or another process; a second user needs an address of its own"
	case errors.Is(err, os.ErrPermission):
		e.Why = "permission denied"
	}
	return e
}

// SourceFor returns the local address that packets to dst come from. It sends
// nothing.
func SourceFor(dst netip.Addr) (netip.Addr, error) {
	dst = dst.Unmap()
	if !dst.IsValid() || dst.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("netio: no route to %v: not an address to send to", dst)
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, Port)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("netio: no route to %v: %w", dst, err)
	}
	defer conn.Close()
	a, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("netio: the route to %v names no source address", dst)
	}
	return a.AddrPort().Addr().Unmap(), nil
}

// PortOf returns the interface that has a local address: its name, index, MTU in
// bytes of an IP packet, and whether it is up.
func PortOf(addr netip.Addr) (name string, index, mtu int, up bool, err error) {
	addr = addr.Unmap()
	ifis, err := net.Interfaces()
	if err != nil {
		return "", 0, 0, false, fmt.Errorf("netio: list of interfaces: %w", err)
	}
	for _, ifi := range ifis {
		for _, a := range unicast(&ifi) {
			if a.WithZone("") == addr.WithZone("") && (addr.Zone() == "" || addr.Zone() == ifi.Name) {
				return ifi.Name, ifi.Index, ifi.MTU, ifi.Flags&net.FlagRunning != 0, nil
			}
		}
	}
	return "", 0, 0, false, fmt.Errorf("netio: no interface has the address %v", addr)
}

// LocalAddrs returns the unicast addresses of all interfaces that are up,
// loopback included, in the system's order. Link-local ones carry their zone.
func LocalAddrs() ([]netip.Addr, error) {
	ifis, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("netio: list of interfaces: %w", err)
	}
	var out []netip.Addr
	for _, ifi := range ifis {
		if ifi.Flags&net.FlagUp != 0 {
			out = append(out, unicast(&ifi)...)
		}
	}
	return out, nil
}

func unicast(ifi *net.Interface) (out []netip.Addr) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(ifi.Name)
		}
		out = append(out, ip)
	}
	return out
}
