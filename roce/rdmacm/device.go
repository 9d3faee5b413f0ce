package rdmacm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// shared are the devices that connections without one of their own use, by
// address.
var shared = struct {
	sync.Mutex
	byAddr map[netip.Addr]*sharedDevice
}{byAddr: map[netip.Addr]*sharedDevice{}}

type sharedDevice struct {
	*roce.Device
	refs int // below shared
}

// OpenDevice returns the device at a local address or, if that is not given or
// unspecified, at the source address of the route to peer. It is the one that Dial
// and Listen use when Config.Device is nil: opened when it is first needed, and
// closed when all who have it have called release, once each.
func OpenDevice(local, peer netip.Addr) (dev *roce.Device, release func(), err error) {
	local = local.Unmap()
	if !concrete(local) {
		if local, err = netio.SourceFor(peer); err != nil {
			return nil, nil, err
		}
	}
	shared.Lock()
	defer shared.Unlock()
	s := shared.byAddr[local]
	if s == nil {
		d, err := roce.Open(roce.Config{Addr: local})
		if err != nil {
			return nil, nil, err
		}
		s = &sharedDevice{Device: d}
		shared.byAddr[local] = s
	}
	s.refs++
	return s.Device, sync.OnceFunc(func() {
		shared.Lock()
		defer shared.Unlock()
		if s.refs--; s.refs == 0 {
			delete(shared.byAddr, local)
			s.Close()
		}
	}), nil
}

// deviceFor returns the device by which a peer is reached.
func (c *Config) deviceFor(peer netip.Addr) (*roce.Device, func(), error) {
	if c.Device != nil {
		if local := c.LocalAddr.Addr(); concrete(local) && local.Unmap() != c.Device.Addr() {
			return nil, nil, &roce.ConfigError{Field: "LocalAddr", Value: local, Allowed: fmt.Sprintf("the device has the address %v", c.Device.Addr())}
		}
		return c.Device, func() {}, nil
	}
	return OpenDevice(c.LocalAddr.Addr(), peer)
}

// concrete says whether an address is one, and not any.
func concrete(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() }

// resolve returns the addresses that "host:port" names; without a host it is ::.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("rdmacm: %w", err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, fmt.Errorf("rdmacm: %w", err)
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("rdmacm: %w", err)
	}
	var list []netip.AddrPort
	for _, ip := range ips {
		list = append(list, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return list, nil
}

// ephemeral returns a port of the range that systems give out (RFC 6335).
func ephemeral() uint16 { return uint16(49152 + rand.N(65536-49152)) }
