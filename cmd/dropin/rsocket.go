//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/goroce/goroce/roce/rnet"
	"golang.org/x/sys/unix"
)

// socket is an rsocket of type SOCK_STREAM.
type socket struct {
	mu       sync.Mutex
	change   *sync.Cond
	conn     *rnet.Conn
	listener *rdmacm.Listener
	requests []*rdmacm.Request // for raccept
	err      C.int             // why the attempt to connect has failed
	over     bool              // listening has ended, or the attempt has failed
	closed   bool
	watchers []C.int // eventfds of those who wait in rpoll
	maps     map[unsafe.Pointer]*roce.MR
}

var sockets table[socket]

func newSocket(c *rnet.Conn) *socket {
	s := &socket{conn: c, maps: map[unsafe.Pointer]*roce.MR{}}
	s.change = sync.NewCond(&s.mu)
	if c != nil {
		c.Watch(s.tell)
	}
	return s
}

// tell wakes who waits.
func (s *socket) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed()
}

// changed is tell with the mutex held.
func (s *socket) changed() {
	s.change.Broadcast()
	for _, fd := range s.watchers {
		unix.Write(int(fd), binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// connection returns what is read and written, or an errno.
func (s *socket) connection() (*rnet.Conn, C.int) {
	if s == nil {
		return nil, C.EBADF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil, C.ENOTCONN
	}
	return s.conn, 0
}

// socketErrno returns what socket calls answer for an error, 0 for none and the end of
// what there is to read.
func socketErrno(err error) C.int {
	var unreachable *rdmacm.UnreachableError
	switch {
	case err == nil, err == io.EOF:
		return 0
	case errors.Is(err, unix.ECONNREFUSED):
		return C.ECONNREFUSED
	case errors.As(err, &unreachable):
		return C.ETIMEDOUT
	case errors.Is(err, net.ErrClosed):
		return C.EBADF
	}
	return errnoOf(err)
}

// configFor returns how the connections of a socket are made.
func configFor(d *device, c *C.struct_goroce_rconfig) rnet.Config {
	maps := int(c.maps)
	if maps == 0 {
		maps = -1
	}
	return rnet.Config{
		Device: d.Device, SendBuffer: int(c.send_buffer), RecvBuffer: int(c.recv_buffer),
		SendQueue: int(c.send_queue), RecvQueue: int(c.recv_queue), Maps: maps,
	}
}

//export goroceRSocket
func goroceRSocket() C.uint32_t { return sockets.add(newSocket(nil)) }

// goroceRListen takes connections to an address and port of the device; *at is where
// then.
//
//export goroceRListen
func goroceRListen(h, dev C.uint32_t, at *C.struct_goroce_addr, backlog C.int) C.int {
	s, d := sockets.get(h), devices.get(dev)
	if s == nil || d == nil {
		return C.EBADF
	}
	to := netip.AddrPortFrom(d.Addr(), uint16(at.port))
	l, err := rdmacm.Listen(to.String(), rdmacm.ListenConfig{Device: d.Device, Backlog: max(0, int(backlog))})
	if err != nil {
		return socketErrno(err)
	}
	at.port = C.uint16_t(l.Addr().Port())
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	go s.listen(l)
	return 0
}

// listen keeps requests for raccept: how they are answered the program may still say.
func (s *socket) listen(l *rdmacm.Listener) {
	for {
		r, err := l.Accept(context.Background())
		s.mu.Lock()
		if err != nil {
			s.over = true
		} else {
			s.requests = append(s.requests, r)
		}
		s.changed()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// handshake is how long raccept waits for a peer that has asked for a connection, and
// then confirms none.
const handshake = 10 * time.Second

// goroceRAccept makes a connection of a request, and waits for one if wait is not 0.
//
//export goroceRAccept
func goroceRAccept(h, dev C.uint32_t, c *C.struct_goroce_rconfig, wait C.int, child *C.uint32_t) C.int {
	s, d := sockets.get(h), devices.get(dev)
	if s == nil || d == nil {
		return C.EBADF
	}
	r, errno := s.request(wait != 0)
	if errno != 0 {
		return errno
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshake)
	defer cancel()
	conn, err := configFor(d, c).Accept(ctx, r)
	if err != nil {
		return C.ECONNABORTED
	}
	conn.SetKeepAlive(c.keepalive != 0) // it fails on a closed connection only
	*child = sockets.add(newSocket(conn))
	return 0
}

// request takes the next request.
func (s *socket) request(wait bool) (*rdmacm.Request, C.int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.requests) == 0 {
		switch {
		case s.closed:
			return nil, C.EBADF
		case s.listener == nil || s.over:
			return nil, C.EINVAL
		case !wait:
			return nil, C.EAGAIN
		}
		s.change.Wait()
	}
	r := s.requests[0]
	s.requests = slices.Delete(s.requests, 0, 1)
	return r, 0
}

// goroceRConnect connects, and waits for that if wait is not 0; else it returns
// EINPROGRESS.
//
//export goroceRConnect
func goroceRConnect(h, dev C.uint32_t, from, to *C.struct_goroce_addr, c *C.struct_goroce_rconfig, wait C.int) C.int {
	s, d := sockets.get(h), devices.get(dev)
	if s == nil || d == nil {
		return C.EBADF
	}
	cfg := configFor(d, c)
	cfg.LocalAddr = netip.AddrPortFrom(d.Addr(), uint16(from.port))
	peer, keep := addrOf(to).String(), c.keepalive != 0
	if wait != 0 {
		return s.connect(cfg, peer, keep)
	}
	go s.connect(cfg, peer, keep)
	return C.EINPROGRESS
}

func (s *socket) connect(cfg rnet.Config, peer string, keep bool) C.int {
	c, err := cfg.Dial(context.Background(), "tcp", peer)
	if err == nil {
		c.SetKeepAlive(keep) // it fails on a closed connection only
		c.Watch(s.tell)
	}
	s.mu.Lock()
	late := err == nil && s.closed
	switch {
	case late:
	case err != nil:
		s.err, s.over = socketErrno(err), true
	default:
		s.conn = c
	}
	s.changed()
	s.mu.Unlock()
	if late {
		c.Close() // not with the mutex: it calls tell
		return C.EBADF
	}
	return socketErrno(err)
}

// goroceRError returns and forgets why connecting has failed.
//
//export goroceRError
func goroceRError(h C.uint32_t) C.int {
	s := sockets.get(h)
	if s == nil {
		return C.EBADF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = 0
	return err
}

// goroceRNames tells both addresses of a connection.
//
//export goroceRNames
func goroceRNames(h C.uint32_t, local, peer *C.struct_goroce_addr) C.int {
	c, errno := sockets.get(h).connection()
	if errno != 0 {
		return errno
	}
	putAddr(local, c.LocalAddr().(rnet.Addr).AddrPort)
	putAddr(peer, c.RemoteAddr().(rnet.Addr).AddrPort)
	return 0
}

// result is what reading and writing return: how many bytes, or a negative errno.
func result(n int, err error) C.int64_t {
	if errno := socketErrno(err); errno != 0 && n == 0 {
		return -C.int64_t(errno)
	}
	return C.int64_t(n)
}

//export goroceRRecv
func goroceRRecv(h C.uint32_t, buf unsafe.Pointer, n C.size_t, wait, peek C.int) C.int64_t {
	s := sockets.get(h)
	c, errno := s.connection()
	if errno != 0 {
		return -C.int64_t(errno)
	}
	p := unsafe.Slice((*byte)(buf), n)
	switch {
	case peek == 0 && wait != 0:
		return result(c.Read(p))
	case peek == 0:
		return result(c.TryRead(p))
	}
	for {
		got, err := c.Peek(p)
		if wait == 0 || !errors.Is(err, unix.EAGAIN) {
			return result(got, err)
		}
		s.await(func() bool { read, _ := c.Ready(); return read })
	}
}

// await waits until ready says so, after a change at the latest.
func (s *socket) await(ready func() bool) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		time.Sleep(time.Millisecond) // no descriptor left: look again soon
		return
	}
	defer unix.Close(bell)
	s.watch(C.int(bell))
	defer s.unwatch(C.int(bell))
	if !ready() {
		unix.Read(bell, make([]byte, 8))
	}
}

//export goroceRSend
func goroceRSend(h C.uint32_t, buf unsafe.Pointer, n C.size_t, wait C.int) C.int64_t {
	c, errno := sockets.get(h).connection()
	if errno != 0 {
		return -C.int64_t(errno)
	}
	p := unsafe.Slice((*byte)(buf), n)
	if wait != 0 {
		return result(c.Write(p))
	}
	return result(c.TryWrite(p))
}

// goroceRWriteAt writes into memory that the peer has mapped.
//
//export goroceRWriteAt
func goroceRWriteAt(h C.uint32_t, buf unsafe.Pointer, n C.size_t, offset C.int64_t, wait C.int) C.int64_t {
	c, errno := sockets.get(h).connection()
	if errno != 0 {
		return -C.int64_t(errno)
	}
	p := unsafe.Slice((*byte)(buf), n)
	if wait != 0 {
		return result(c.WriteAt(p, int64(offset)))
	}
	return result(c.TryWriteAt(p, int64(offset)))
}

// goroceRMap lets the peer write to memory.
//
//export goroceRMap
func goroceRMap(h C.uint32_t, buf unsafe.Pointer, n C.size_t, offset C.int64_t) C.int {
	s := sockets.get(h)
	c, errno := s.connection()
	if errno != 0 {
		return errno
	}
	mr, err := c.Map(unsafe.Slice((*byte)(buf), n), int64(offset))
	if err != nil {
		return socketErrno(err)
	}
	s.mu.Lock()
	s.maps[buf] = mr
	s.mu.Unlock()
	return 0
}

//export goroceRUnmap
func goroceRUnmap(h C.uint32_t, buf unsafe.Pointer) C.int {
	s := sockets.get(h)
	c, errno := s.connection()
	if errno != 0 {
		return errno
	}
	s.mu.Lock()
	mr := s.maps[buf]
	delete(s.maps, buf)
	s.mu.Unlock()
	if mr == nil {
		return C.EINVAL
	}
	return socketErrno(c.Unmap(mr))
}

// goroceRShutdown ends what is sent.
//
//export goroceRShutdown
func goroceRShutdown(h C.uint32_t) C.int {
	c, errno := sockets.get(h).connection()
	if errno != 0 {
		return errno
	}
	return socketErrno(c.CloseWrite())
}

// goroceRClose ends a socket. What was sent is delivered, for which it waits up to
// linger seconds, so that the program may end after it.
//
//export goroceRClose
func goroceRClose(h C.uint32_t, linger C.int) C.int {
	s := sockets.get(h)
	if s == nil {
		return C.EBADF
	}
	sockets.remove(h)
	s.mu.Lock()
	s.closed = true
	conn, listener, requests := s.conn, s.listener, s.requests
	s.requests = nil
	s.changed()
	s.mu.Unlock()
	if listener != nil {
		listener.Close()
	}
	for _, r := range requests {
		r.Reject(nil) // it fails when the peer has gone
	}
	if conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(linger)*time.Second)
		defer cancel()
		conn.Shutdown(ctx) // or the rest of it goes on in the background
	}
	return 0
}

// goroceRReady returns what poll(2) would.
//
//export goroceRReady
func goroceRReady(h C.uint32_t) C.short {
	s := sockets.get(h)
	if s == nil {
		return unix.POLLNVAL
	}
	s.mu.Lock()
	c, over, in := s.conn, s.over, len(s.requests) > 0
	s.mu.Unlock()
	var events C.short
	out := false
	if c != nil {
		in, out = c.Ready()
	} else if over {
		events = unix.POLLERR | unix.POLLHUP
		in, out = true, true
	}
	if in {
		events |= unix.POLLIN
	}
	if out {
		events |= unix.POLLOUT
	}
	return events
}

// goroceRWatch has an eventfd written to after each change of what goroceRReady says,
// until goroceRUnwatch.
//
//export goroceRWatch
func goroceRWatch(h C.uint32_t, fd C.int) {
	if s := sockets.get(h); s != nil {
		s.watch(fd)
	}
}

//export goroceRUnwatch
func goroceRUnwatch(h C.uint32_t, fd C.int) {
	if s := sockets.get(h); s != nil {
		s.unwatch(fd)
	}
}

func (s *socket) watch(fd C.int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, fd)
}

func (s *socket) unwatch(fd C.int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.watchers, fd); i >= 0 {
		s.watchers = slices.Delete(s.watchers, i, i+1)
	}
}
