package rnet

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/goroce/goroce/roce"
)

// resolve returns the address that a string means. Networks are those of package net:
// kind, or with 4 or 6 behind it for one IP version. An empty host is the unspecified
// address.
func resolve(ctx context.Context, kind, network, address string) (netip.AddrPort, error) {
	version := strings.TrimPrefix(network, kind)
	if network == version || version != "" && version != "4" && version != "6" {
		return netip.AddrPort{}, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, network, service)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		addr := netip.IPv6Unspecified()
		if version == "4" {
			addr = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(addr, uint16(port)), nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() != "" && version != "4" {
		return netip.AddrPortFrom(a, uint16(port)), nil // the resolver forgets the zone
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip"+version, host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range addrs {
		if a.Unmap().Is4() { // preferred, as by package net
			return netip.AddrPortFrom(a.Unmap(), uint16(port)), nil
		}
	}
	return netip.AddrPortFrom(addrs[0], uint16(port)), nil
}

// needPeer checks that an address is that of a peer.
func needPeer(a netip.AddrPort, text string) error {
	if a.Addr().IsUnspecified() || a.Port() == 0 {
		return &roce.ConfigError{Field: "address", Value: text, Allowed: "the peer's IP address and port are needed"}
	}
	return nil
}

// ListenPacket is Config.ListenPacket with the zero Config.
func ListenPacket(network, address string) (*PacketConn, error) {
	return Config{}.ListenPacket(context.Background(), network, address)
}

// DialPacket is Config.DialPacket with the zero Config.
func DialPacket(network, address string) (*PacketConn, error) {
	return Config{}.DialPacket(context.Background(), network, address)
}

// ListenPacket opens a PacketConn at a local address. network is udp, udp4 or udp6. The
// port 0 is one that is free.
func (c Config) ListenPacket(ctx context.Context, network, address string) (*PacketConn, error) {
	at, err := resolve(ctx, "udp", network, address)
	if err == nil && at.Addr().IsUnspecified() {
		err = &roce.ConfigError{Field: "address", Value: address, Allowed: "an IP address of this host is needed"}
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return c.openPacket(network, "listen", at, netip.AddrPort{})
}

// DialPacket opens a PacketConn for one peer. It does not wait for it. network is as
// for ListenPacket.
func (c Config) DialPacket(ctx context.Context, network, address string) (*PacketConn, error) {
	to, err := resolve(ctx, "udp", network, address)
	if err == nil {
		err = needPeer(to, address)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return c.openPacket(network, "dial", c.LocalAddr, to)
}

func (c Config) openPacket(network, op string, at, to netip.AddrPort) (*PacketConn, error) {
	p, err := c.newPacketConn(at, to)
	if err != nil {
		return nil, &net.OpError{Op: op, Net: network, Err: err}
	}
	return p, nil
}

func (c Config) newPacketConn(at, to netip.AddrPort) (*PacketConn, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	dev, release, err := c.device(at.Addr(), to.Addr())
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dev.Addr(), at.Port())))
	if err != nil {
		release()
		return nil, err
	}
	return newPacketConn(dev, release, udp, netip.AddrPortFrom(to.Addr().WithZone(""), to.Port()), c)
}
