package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// cmListen listens for requests to the connection manager at a local address, or
// at all of this machine if it is empty. close ends it.
func (a *app) cmListen(host string, port uint16, ps rdmacm.PortSpace) (l *rdmacm.Listener, close func(), err error) {
	cfg := rdmacm.ListenConfig{PortSpace: ps}
	close = func() {}
	if host != "" {
		addr, err := deviceAddr(host)
		if err != nil {
			return nil, nil, err
		}
		if cfg.Device, err = a.open(roce.Config{Addr: addr}); err != nil {
			return nil, nil, err
		}
		close = func() { cfg.Device.Close() }
	}
	l, err = rdmacm.Listen(net.JoinHostPort(host, strconv.Itoa(int(port))), cfg)
	if err != nil {
		close()
		if errors.Is(err, rdmacm.ErrAddrInUse) {
			err = fmt.Errorf("port %d has a server in this process already: choose another one with -p, on both sides", port)
		}
		return nil, nil, err
	}
	closeDevice := close
	return l, func() { l.Close(); closeDevice() }, nil
}

// cmDial connects to a server by the connection manager, from a local address or,
// if that is not given, from the one that leads there.
func (a *app) cmDial(ctx context.Context, server string, port uint16, source netip.Addr, timeout time.Duration, cfg rdmacm.Config) (*rdmacm.Conn, func(), error) {
	if !source.IsValid() {
		var err error
		if source, err = sourceFor(ctx, server); err != nil {
			return nil, nil, err
		}
	}
	dev, err := a.open(roce.Config{Addr: source})
	if err != nil {
		return nil, nil, err
	}
	a.progressf("connecting to %s, port %d", server, port)
	c, err := cmConnect(ctx, dev, net.JoinHostPort(server, strconv.Itoa(int(port))), timeout, cfg)
	if err != nil {
		dev.Close()
		return nil, nil, err
	}
	return c, func() { c.Close(); dev.Close() }, nil
}

// cmConnect connects a device to a server, within a time.
func cmConnect(ctx context.Context, dev *roce.Device, server string, timeout time.Duration, cfg rdmacm.Config) (*rdmacm.Conn, error) {
	cfg.Device = dev
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := rdmacm.Dial(limited, server, cfg)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		host, _, _ := net.SplitHostPort(server)
		peer, _ := netip.ParseAddr(host)
		err = fmt.Errorf("%s does not answer within %v: %s", host, timeout, silenceHint(peer, dev.Counters()))
	}
	return c, err
}

// addrOf returns the address of a server, the first one if it has several.
func addrOf(ctx context.Context, server string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(server); err == nil { // with its zone, which a resolver may lose
		return a.Unmap(), nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", server)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("cannot find the address of %s: %w", server, err)
	}
	return ips[0].Unmap(), nil
}

// sourceFor returns the local address that leads to a server. On loopback, where
// that would be the server's, it is a neighbour.
func sourceFor(ctx context.Context, server string) (netip.Addr, error) {
	to, err := addrOf(ctx, server)
	if err != nil {
		return netip.Addr{}, err
	}
	from, err := netio.SourceFor(to)
	if err != nil {
		return netip.Addr{}, err
	}
	return besideLoopback(from, to), nil
}
