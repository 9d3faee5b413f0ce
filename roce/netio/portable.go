package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goroce/goroce/ib"
)

const portableQueue = 512 // packets read ahead

// portable is the backend over package net: a goroutine reads into a bounded
// queue, and runs are sent packet by packet. Unlike the others its Send may block
// for a moment, while the socket's buffer is full.
type portable struct {
	local netip.AddrPort
	conn  *net.UDPConn
	opt   sockOptions
	caps  Caps
	c     counters
	w     waiter
	done  chan struct{} // the reader has ended

	mu     sync.Mutex
	closed bool
	q      []portableEntry // a ring; the buffers stay with their entries
	first  int
	n      int // entries in use
	lent   int // of these, handed out by the last Recv

	sendMu sync.Mutex // the sender's, against Close
	tos    map[*net.UDPConn]uint8
	ports  portSet[*net.UDPConn]
	part   partialRun
}

type portableEntry struct {
	src netip.AddrPort
	tos uint8
	buf [maxPacket]byte
	n   int
}

func listenPortable(cfg UDPConfig) (Backend, error) {
	return openPortable(cfg)
}

func openPortable(cfg UDPConfig) (*portable, error) {
	p := &portable{
		local: netip.AddrPortFrom(cfg.Addr.Addr().WithZone(""), cfg.Addr.Port()),
		w:     newWaiter(),
		done:  make(chan struct{}),
		q:     make([]portableEntry, portableQueue),
		tos:   make(map[*net.UDPConn]uint8),
	}
	p.ports.open, p.ports.close = p.openPort, p.closePort
	var err error
	if p.conn, p.opt, err = listenConn(cfg.Addr); err != nil {
		return nil, explainListen(cfg.Addr, err)
	}
	p.conn.SetReadBuffer(cfg.RecvBuffer)
	p.conn.SetWriteBuffer(cfg.SendBuffer)
	p.caps = Caps{MaxSegments: 1, MaxRun: maxRun, ECN: p.opt.recvTOS, RecvBuffer: p.opt.recvBuffer(p.conn), Name: "udp " + p.local.String() + " portable"}
	if _, _, mtu, _, err := PortOf(p.local.Addr()); err == nil {
		p.caps.MTU = mtu
	}
	go p.read()
	return p, nil
}

// listenConn opens an unconnected socket, with what the system has of the options
// that matter.
func listenConn(addr netip.AddrPort) (*net.UDPConn, sockOptions, error) {
	network := "udp4"
	if addr.Addr().Is6() {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, sockOptions{}, err
	}
	opt, err := setSockOptions(conn, addr.Addr().Is6())
	if err != nil {
		conn.Close()
		return nil, sockOptions{}, err
	}
	return conn, opt, nil
}

func (p *portable) Caps() Caps                { return p.caps }
func (p *portable) LocalAddr() netip.AddrPort { return p.local }
func (p *portable) Deadline() time.Duration   { return Never }
func (p *portable) Wake()                     { p.w.wake() }

func (p *portable) Stats() (s Stats) {
	p.c.addTo(&s)
	return s
}

// read fills the queue until the socket is closed.
func (p *portable) read() {
	defer close(p.done)
	var buf [maxPacket + 1]byte // one more, to see what is too long
	var oob [128]byte
	for errs := 0; ; {
		n, oobn, _, src, err := p.conn.ReadMsgUDPAddrPort(buf[:], oob[:])
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Windows reports a datagram that does not fit, and every system
			// may report what became of packets sent earlier.
			p.c.add(RxError, 1)
			if errs++; errs > 16 {
				time.Sleep(10 * time.Millisecond) // do not spin on an error that stays
			}
			continue
		}
		errs = 0
		wireReceive()
		if n > maxPacket {
			p.c.add(RxTruncated, 1)
			continue
		}
		p.enqueue(buf[:n], src, p.opt.parseTOS(oob[:oobn]))
	}
}

func (p *portable) enqueue(b []byte, src netip.AddrPort, tos uint8) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == len(p.q) {
		p.c.add(RxOverflow, 1)
		return
	}
	e := &p.q[(p.first+p.n)%len(p.q)]
	e.src = netip.AddrPortFrom(src.Addr().Unmap().WithZone(""), src.Port())
	e.tos = tos
	e.n = copy(e.buf[:], b)
	p.n++
	p.c.add(RxPackets, 1)
	p.c.add(RxBytes, len(b))
	if p.n-p.lent == 1 {
		p.w.signal()
	}
}

func (p *portable) Recv(_ time.Duration, dst []Received) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, errClosed(p.local)
	}
	p.first = (p.first + p.lent) % len(p.q)
	p.n -= p.lent
	p.lent = min(len(dst), p.n)
	for i := range p.lent {
		e := &p.q[(p.first+i)%len(p.q)]
		dst[i] = Received{Src: e.src, Dst: p.local, TOS: e.tos, Buf: e.buf[:e.n:e.n]}
	}
	if p.lent > 0 {
		wireReceive()
		p.c.add(RxCalls, 1)
	}
	return p.lent, nil
}

// Wait never has to wait for room: package net hides a full send buffer by
// blocking for a moment in Send.
func (p *portable) Wait(timeout time.Duration, write bool) error {
	if write {
		timeout = 0
	}
	p.w.wait(timeout, p)
	if p.isClosed() {
		return errClosed(p.local)
	}
	return nil
}

func (p *portable) waitOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed || p.n > p.lent
}

func (p *portable) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

func (p *portable) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return errClosed(p.local)
	}
	err := p.conn.Close() // ends a Send and the reader
	<-p.done
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	err = errors.Join(err, p.ports.closeAll())
	p.w.wake()
	return err
}

// Send sends each packet of the runs by itself, sealed for the Identification 0.
func (p *portable) Send(now time.Duration, runs []Run) (int, error) {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if p.isClosed() {
		return 0, errClosed(p.local)
	}
	wireSend()
	for i := range runs {
		if !p.sendRun(now, &runs[i]) {
			if p.isClosed() {
				return i, errClosed(p.local)
			}
			p.c.add(TxWouldBlock, 1)
			return i, ErrWouldBlock
		}
	}
	return len(runs), nil
}

// sendRun reports false when the rest of the run has to wait.
func (p *portable) sendRun(now time.Duration, r *Run) bool {
	conn, src := p.connFor(now, r)
	flow := r.Flow(src)
	if !p.setTOS(conn, r.TOS) {
		p.c.add(TxError, r.Segments())
		return true
	}
	for i := p.part.resume(r); i < r.Segments(); i++ {
		b := r.Segment(i)
		if (i > 0 || r.SrcPort != 0) && len(b) >= ib.BTHSize+ib.ICRCSize {
			flow.Seal(0, b)
			p.c.add(TxResealed, 1)
		}
		_, err := conn.WriteToUDPAddrPort(b, p.destination(r.Dst))
		if err == nil {
			p.c.add(TxCalls, 1)
			p.c.add(TxPackets, 1)
			p.c.add(TxBytes, len(b))
			continue
		}
		if errors.Is(err, net.ErrClosed) || isNoBufs(err) {
			p.part.stop(r, i)
			return false
		}
		p.countLost(err)
	}
	p.c.add(TxRuns, 1)
	return true
}

func (p *portable) countLost(err error) {
	switch {
	case errors.Is(err, os.ErrPermission):
		p.c.add(TxRefused, 1)
	case isTooBig(err):
		p.c.add(TxTooBig, 1)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ECONNREFUSED):
		p.c.add(TxUnreachable, 1)
	default:
		p.c.add(TxError, 1)
	}
}

// destination adds the zone that a link-local address needs.
func (p *portable) destination(a netip.AddrPort) netip.AddrPort {
	if ip := a.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() && ip.Zone() == "" {
		return netip.AddrPortFrom(ip.WithZone(p.opt.zone), a.Port())
	}
	return a
}

// setTOS makes the socket send with a TOS. Package net has no control messages for
// that, so it is an option of the socket, set when it changes.
func (p *portable) setTOS(conn *net.UDPConn, tos uint8) bool {
	if p.tos[conn] == tos {
		return true
	}
	if err := p.opt.setTOS(conn, tos); err != nil {
		return false
	}
	p.tos[conn] = tos
	return true
}

// connFor returns the socket that sends from the run's source port, or the own one
// where that port cannot be had, and the address it sends from.
func (p *portable) connFor(now time.Duration, r *Run) (*net.UDPConn, netip.AddrPort) {
	if r.SrcPort == 0 || r.SrcPort == p.local.Port() {
		return p.conn, p.local
	}
	conn, ok := p.ports.get(now, r.SrcPort)
	if !ok {
		p.c.add(TxPortFailed, r.Segments())
		return p.conn, p.local
	}
	return conn, netip.AddrPortFrom(p.local.Addr(), r.SrcPort)
}

// openPort opens a socket that only sends, from another port of the address.
func (p *portable) openPort(port uint16) (*net.UDPConn, error) {
	conn, _, err := listenConn(p.destination(netip.AddrPortFrom(p.local.Addr(), port)))
	return conn, err
}

func (p *portable) closePort(conn *net.UDPConn) error {
	delete(p.tos, conn)
	return conn.Close()
}

// Join implements Backend: package net cannot bind to a group on an interface.
func (p *portable) Join(group netip.Addr) error {
	if err := checkGroup(p.local.Addr(), group); err != nil {
		return err
	}
	return &ListenError{Addr: netip.AddrPortFrom(group, p.local.Port()), Why: "this system's backend has no multicast", Err: errors.ErrUnsupported}
}

// Leave implements Backend.
func (p *portable) Leave(group netip.Addr) error { return errNotJoined(group) }
