package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	gsoSegments = 64 // UDP_MAX_SEGMENTS of every kernel that has UDP_SEGMENT
	sendBatch   = 16 // runs per sendmmsg
	recvBatch   = 32 // datagrams per recvmmsg
	groBatch    = 16 // the same where each may have 64 KiB
)

// udp is the backend over a Linux UDP socket. Its calls are raw and never block;
// mu keeps the descriptor open while one runs.
type udp struct {
	cfg   UDPConfig
	local netip.AddrPort // without zone
	scope uint32         // interface of a link-local address
	index int            // of the interface, 0 if unknown
	c     counters
	p     *poller

	sockErr atomic.Bool // Wait saw an error of the socket
	noBufs  atomic.Bool // the last Send met a full device queue

	sendmmsg, recvmmsg msgCall

	mu       sync.Mutex
	fd       int // -1 when closed
	gso, gro bool
	name     string
	tx       sender
	rx       receiver
	mtu      int
	rcvbuf   int
}

func listenUDP(cfg UDPConfig) (Backend, error) {
	return openUDP(cfg)
}

func openUDP(cfg UDPConfig) (*udp, error) {
	u := &udp{
		cfg: cfg, fd: -1,
		local:    netip.AddrPortFrom(cfg.Addr.Addr().WithZone(""), cfg.Addr.Port()),
		sendmmsg: sysSendmmsg, recvmmsg: sysRecvmmsg,
	}
	var err error
	if u.scope, err = scopeOf(cfg.Addr.Addr()); err != nil {
		return nil, &ListenError{Addr: cfg.Addr, Why: "its zone is no interface of this machine", Err: err}
	}
	if _, index, mtu, _, err := PortOf(cfg.Addr.Addr()); err == nil {
		u.index, u.mtu = index, mtu
	}
	if u.fd, err = u.socket(cfg.Addr.Port()); err != nil {
		return nil, explainListen(cfg.Addr, err)
	}
	u.setBuffers(u.fd)
	u.rcvbuf, _ = unix.GetsockoptInt(u.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	u.gro = !cfg.NoGRO && unix.SetsockoptInt(u.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	_, err = unix.GetsockoptInt(u.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	u.setGSO(err == nil && !cfg.NoGSO)
	u.tx.init(u)
	u.rx.init(u)
	if u.p, err = newPoller(u.fd); err != nil {
		unix.Close(u.fd)
		return nil, &ListenError{Addr: cfg.Addr, Why: err.Error(), Err: err}
	}
	return u, nil
}

// scopeOf returns the interface index that an address' zone names, or 0.
func scopeOf(a netip.Addr) (uint32, error) {
	if a.Zone() == "" {
		return 0, nil
	}
	ifi, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return 0, err
	}
	return uint32(ifi.Index), nil
}

// socket opens an unconnected socket bound to a port of the backend's address,
// with everything that sending needs.
func (u *udp) socket(port uint16) (int, error) {
	v6 := u.local.Addr().Is6()
	family, level := unix.AF_INET, unix.IPPROTO_IP
	if v6 {
		family, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	type option struct{ level, name, value int }
	options := []option{
		// PROBE: DF set and, unconnected, the Identification 0; a path MTU that
		// some ICMP message claims is ignored.
		{level, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		// Without RECVERR the kernel reports a drop in the device queue as success.
		{level, unix.IP_RECVERR, 1},
		{level, unix.IP_RECVTOS, 1},
	}
	if v6 {
		options = []option{
			{level, unix.IPV6_V6ONLY, 1},
			{level, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{level, unix.IPV6_RECVERR, 1},
			{level, unix.IPV6_RECVTCLASS, 1},
			// NICs and rxe send the UDP checksum 0.
			{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	if u.cfg.joins {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := u.setMulticast(fd); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(port), Addr: as4(u.local.Addr())}
	if v6 {
		sa = &unix.SockaddrInet6{Port: int(port), Addr: u.local.Addr().As16(), ZoneId: u.scope}
	}
	if err := unix.Bind(fd, sa); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

// setBuffers asks for the buffers of the configuration: with privileges beyond
// the system's limits, else as far as they go.
func (u *udp) setBuffers(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, u.cfg.RecvBuffer) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, u.cfg.RecvBuffer)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, u.cfg.SendBuffer) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, u.cfg.SendBuffer)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
}

func (u *udp) LocalAddr() netip.AddrPort { return u.local }
func (u *udp) Deadline() time.Duration   { return Never }
func (u *udp) Wake()                     { u.p.wake() }

func (u *udp) Stats() (s Stats) {
	u.c.addTo(&s)
	return s
}

func (u *udp) Caps() Caps {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := Caps{MaxSegments: 1, MaxRun: maxRun, ECN: true, RecvBuffer: u.rcvbuf, MTU: u.mtu, Name: u.name}
	if u.gso {
		c.MaxSegments = gsoSegments
	}
	return c
}

// setGSO switches the use of UDP_SEGMENT.
func (u *udp) setGSO(on bool) {
	u.gso = on
	u.name = "udp " + u.local.String()
	if u.gso {
		u.name += " gso"
	}
	if u.gro {
		u.name += " gro"
	}
}

// queueRetry is how long to wait when a device queue is full: the kernel does not
// tell when it has room again.
const queueRetry = 100 * time.Microsecond

func (u *udp) Wait(timeout time.Duration, write bool) error {
	if write && u.noBufs.Load() {
		write = false // the socket itself has room
		if timeout < 0 || timeout > queueRetry {
			timeout = queueRetry
		}
	}
	sockErr, err := u.p.wait(timeout, write)
	if err != nil {
		return errClosed(u.local)
	}
	if sockErr {
		u.sockErr.Store(true)
	}
	return nil
}

func (u *udp) Close() error {
	u.mu.Lock()
	fd, socks := u.fd, u.rx.socks
	u.fd, u.rx = -1, receiver{} // its buffers are a megabyte
	u.mu.Unlock()
	if fd < 0 {
		return errClosed(u.local)
	}
	u.p.close() // before the socket, whose number the poller uses
	err := unix.Close(fd)
	for _, s := range socks[1:] {
		err = errors.Join(err, unix.Close(s.fd))
	}
	return errors.Join(err, u.tx.ports.closeAll())
}

// drainErrors empties the socket's error queue: ICMP messages and local errors
// about packets sent earlier. It reports whether there was anything.
func (u *udp) drainErrors(fd int) bool {
	var oob [512]byte
	for i := range 1024 {
		if _, _, _, _, err := unix.Recvmsg(fd, nil, oob[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err != nil {
			return i > 0
		}
		u.c.add(ICMPErrors, 1)
	}
	return true
}
