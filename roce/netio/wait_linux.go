package netio

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller blocks a goroutine until its socket is ready, a timer has run out or
// somebody wakes it. The three descriptors are in an epoll set, and that set is
// what Go's own poller watches: the goroutine parks without holding a thread, and
// the timerfd keeps deadlines below a millisecond, which Go's timers do not.
//
// The socket is in the set only while somebody waits. Otherwise each packet would wake
// the thread that waits in Go's poller: whoever sends the packet pays for that, and while
// a program polls it is for nothing. A member that is watched for nothing costs them
// 0.07 us, too.
type poller struct {
	set  *os.File // the epoll set
	conn syscall.RawConn
	try  func(fd uintptr) bool // bound once, so that waiting allocates nothing

	state atomic.Uint32 // pollIdle, pollWaiting, pollWoken

	// Used by the waiting goroutine alone, between begin and end of a wait.
	poll    bool // do not block
	sockErr bool // the socket has an error to collect

	mu     sync.Mutex // the descriptors below, against Close
	closed bool
	ep     int
	sock   int
	event  int
	timer  int
	sees   bool // the socket is in the set
	armed  bool // the timer runs
	events [4]unix.EpollEvent
	drain  [8]byte
}

const (
	pollIdle uint32 = iota
	pollWaiting
	pollWoken
)

func newPoller(sock int) (*poller, error) {
	p := &poller{ep: -1, sock: sock, event: -1, timer: -1}
	if err := p.open(); err != nil {
		p.closeFDs()
		return nil, err
	}
	p.try = p.ready
	return p, nil
}

func (p *poller) open() (err error) {
	if p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	if p.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for _, w := range []unix.EpollEvent{{Fd: int32(p.event), Events: unix.EPOLLIN}, {Fd: int32(p.timer), Events: unix.EPOLLIN}} {
		if err := unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, int(w.Fd), &w); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	if err := unix.SetNonblock(p.ep, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	p.set = os.NewFile(uintptr(p.ep), "epoll")
	if err := p.set.SetReadDeadline(time.Time{}); err != nil {
		return err // Go's poller does not take it
	}
	p.conn, err = p.set.SyscallConn()
	return err
}

// watch ends waits also for what arrives at another socket, until that is closed.
func (p *poller) watch(fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, fd, &ev))
}

// wait blocks as Backend.Wait says. sockErr tells that the socket has an error to
// collect.
func (p *poller) wait(timeout time.Duration, write bool) (sockErr bool, err error) {
	if !p.state.CompareAndSwap(pollIdle, pollWaiting) {
		p.state.Store(pollIdle)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return false, net.ErrClosed
		}
		return false, nil
	}
	err = p.begin(timeout, write)
	if err == nil {
		err = p.conn.Read(p.try)
		p.lookAway()
	}
	p.state.Store(pollIdle)
	if err != nil {
		return false, net.ErrClosed
	}
	return p.sockErr, nil
}

// begin makes the set watch what this wait is about.
func (p *poller) begin(timeout time.Duration, write bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	p.poll, p.sockErr = timeout == 0, false
	events := uint32(unix.EPOLLIN | unix.EPOLLONESHOT)
	if write {
		events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, p.sock, &unix.EpollEvent{Events: events, Fd: int32(p.sock)}); err != nil {
		return err
	}
	p.sees = true
	if timeout <= 0 && !p.armed {
		return nil
	}
	var its unix.ItimerSpec
	if timeout > 0 {
		its.Value = unix.NsecToTimespec(int64(timeout))
	}
	p.armed = timeout > 0
	return unix.TimerfdSettime(p.timer, 0, &its, nil)
}

// lookAway takes the socket out of the set when a wait has ended.
func (p *poller) lookAway() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sees && !p.closed {
		unix.EpollCtl(p.ep, unix.EPOLL_CTL_DEL, p.sock, nil)
		p.sees = false
	}
}

// ready reports whether the wait is over. Go's poller calls it first, and again
// each time that something happened in the set.
func (p *poller) ready(uintptr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return true
	}
	n, err := unix.EpollWait(p.ep, p.events[:], 0)
	if err == unix.EINTR {
		n, err = unix.EpollWait(p.ep, p.events[:], 0)
	}
	if err != nil {
		return true // cannot be; an early return is allowed
	}
	for i := range n {
		switch ev := &p.events[i]; int(ev.Fd) {
		case p.sock:
			p.sockErr = p.sockErr || ev.Events&unix.EPOLLERR != 0
		case p.event:
			unix.Read(p.event, p.drain[:])
		case p.timer:
			unix.Read(p.timer, p.drain[:])
			p.armed = false
		}
	}
	return n > 0 || p.poll
}

func (p *poller) wake() {
	if p.state.Swap(pollWoken) != pollWaiting {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // not zero in either byte order
		unix.Write(p.event, one[:])
	}
}

// close ends a running wait. The socket stays open.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeFDs()
}

func (p *poller) closeFDs() {
	if p.set != nil {
		p.set.Close() // returns when nobody waits in it any more
	} else if p.ep >= 0 {
		unix.Close(p.ep)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fd := range []int{p.event, p.timer} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
