package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// tcpServer is where a client finds its server.
type tcpServer struct {
	host    string
	port    uint16
	timeout time.Duration
	start   string // the command line of a server, for humans
}

// dial connects to the server over TCP.
func dial(ctx context.Context, o tcpServer) (net.Conn, error) {
	network := "tcp"
	if ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", o.host); err == nil && loopback4(ips) {
		network = "tcp4" // 127.0.0.1 has neighbours for the second endpoint, ::1 has none
	}
	d := net.Dialer{Timeout: o.timeout}
	conn, err := d.DialContext(ctx, network, net.JoinHostPort(o.host, strconv.Itoa(int(o.port))))
	var dns *net.DNSError
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &dns):
		return nil, fmt.Errorf("cannot find the address of %s: %s", o.host, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, &refusedError{fmt.Sprintf("nobody listens on TCP port %d of %s: start a server there first (%s)", o.port, o.host, o.start)}
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return nil, fmt.Errorf("%s does not answer on TCP port %d within %v: is the address right, and does no firewall block it?", o.host, o.port, o.timeout)
	}
	return nil, fmt.Errorf("cannot connect to %s, TCP port %d: %w", o.host, o.port, rootCause(err))
}

// refusedError says that nobody listens.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return syscall.ECONNREFUSED }

// loopback4 reports whether all addresses are loopback ones and one is IPv4.
func loopback4(ips []netip.Addr) bool {
	four := false
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return false
		}
		four = four || ip.Unmap().Is4()
	}
	return four
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// rootCause strips what package net puts around the system's error.
func rootCause(err error) error {
	var sys syscall.Errno
	if errors.As(err, &sys) {
		return sys
	}
	return err
}

// clientAddr returns the local address for the RDMA side of a client: the one of
// its TCP connection, unless that is the server's own loopback address.
func clientAddr(conn net.Conn) netip.Addr {
	return besideLoopback(tcpAddr(conn.LocalAddr()), tcpAddr(conn.RemoteAddr()))
}

// besideLoopback returns local, unless that is the server's own loopback address:
// then it is a neighbour of it.
func besideLoopback(local, server netip.Addr) netip.Addr {
	if local != server || !local.IsLoopback() || !local.Is4() {
		return local
	}
	if two := netip.AddrFrom4([4]byte{127, 0, 0, 2}); local != two {
		return two
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// serverAddr returns the local address for the RDMA side of a server: the one of
// the TCP connection or, when the client's GID is of the other IP version,
// the one by route to that.
func serverAddr(conn net.Conn, peer ib.GID) (netip.Addr, error) {
	local := tcpAddr(conn.LocalAddr())
	if gid := peer.Addr(); local.Is4() != gid.Is4() {
		src, err := netio.SourceFor(gid)
		if err != nil {
			return src, fmt.Errorf("no local address leads to the client's GID %v: %w", gid, err)
		}
		return src, nil
	}
	return local, nil
}

func tcpAddr(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr().Unmap()
}

// listen opens the server's TCP port on all addresses.
func listen(ctx context.Context, port uint16) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("TCP port %d is in use: is another server still waiting? Choose another port with -p, on both sides", port)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on TCP port %d: %w", port, rootCause(err))
	}
	return l, nil
}

// accept waits for a connection.
func accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { l.(*net.TCPListener).SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := l.Accept()
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return conn, err
}

// checkPeer refuses an address of the other side that cannot work with ours. flag
// is what gives program, if it is the other side, its GID's index.
func checkPeer(local netip.Addr, peerGID ib.GID, qpn ib.QPN, program, flag string) error {
	gid := peerGID.Addr()
	switch {
	case peerGID.IsZero():
		return fmt.Errorf("the other side sent no GID: start %s with %s INDEX, the index of a GID that is an IP address (see ibv_devinfo -v)", program, flag)
	case gid.Is4() != local.Is4():
		return fmt.Errorf("the other side's GID %v and our address %v are of different IP versions: choose ours with --addr or the other side's with %s", gid, local, flag)
	case gid.IsUnspecified(), gid.IsMulticast():
		return fmt.Errorf("the other side's GID %v is not the address of a host", gid)
	case qpn == 0:
		return errors.New("the other side sent queue pair number 0")
	case gid.IsLinkLocalUnicast() && !local.IsLinkLocalUnicast():
		return fmt.Errorf("the other side's GID %v is link-local: choose another one there with %s (see ibv_devinfo -v), or our link-local address with --addr", gid, flag)
	case gid.IsLoopback() != local.IsLoopback():
		return fmt.Errorf("the other side's GID %v and our address %v do not reach each other: choose ours with --addr", gid, local)
	}
	return nil
}
