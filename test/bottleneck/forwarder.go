//go:build linux

package main

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tun is a network interface whose other end is this process.
type tun struct {
	name string
	fd   int
}

// newTUN makes one. The kernel hands over packets one by one, those of a segmented send
// too: each with the Identification that its ICRC covers.
func newTUN(name string) (*tun, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return &tun{name, fd}, nil
}

// forwarder carries packets between two interfaces, through a queue each way.
type forwarder struct {
	tuns   [2]*tun
	mu     sync.Mutex
	queues [2]*queue // of what comes from tuns[i]
	begin  time.Time
	stop   int // an eventfd
	done   chan error
}

func newForwarder(a, b *tun, c queueConfig) (*forwarder, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	f := &forwarder{tuns: [2]*tun{a, b}, queues: [2]*queue{newQueue(c, 1), newQueue(c, 2)}, begin: time.Now(), stop: stop, done: make(chan error, 1)}
	if err != nil {
		return nil, err
	}
	go func() { f.done <- f.loop() }()
	return f, nil
}

// close ends the forwarder and returns what it failed with.
func (f *forwarder) close() error {
	one := uint64(1)
	unix.Write(f.stop, (*[8]byte)(unsafe.Pointer(&one))[:])
	err := <-f.done
	unix.Close(f.stop)
	return err
}

// seen returns what the queue of one direction has seen.
func (f *forwarder) seen(way int) counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.queues[way].counts
	c.from = maps.Clone(c.from)
	return c
}

func (f *forwarder) loop() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, 1<<16)
	for {
		until, err := f.turn(buf)
		if err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(f.tuns[0].fd), Events: unix.POLLIN}, {Fd: int32(f.tuns[1].fd), Events: unix.POLLIN}, {Fd: int32(f.stop), Events: unix.POLLIN}}
		timeout := unix.NsecToTimespec(int64(max(until-time.Since(f.begin), 0)))
		if _, err := unix.Ppoll(fds, &timeout, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("ppoll: %w", err)
		}
		if fds[2].Revents != 0 {
			return nil
		}
	}
}

// turn takes what has come and sends what is due; it returns when the next packet is.
func (f *forwarder) turn(buf []byte) (until time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	until = time.Since(f.begin) + time.Second
	for i, q := range f.queues {
		for {
			n, err := unix.Read(f.tuns[i].fd, buf)
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				return 0, fmt.Errorf("read from %s: %w", f.tuns[i].name, err)
			}
			q.push(time.Since(f.begin), buf[:n])
		}
		out := f.tuns[1-i]
		for p := q.pop(time.Since(f.begin)); p != nil; p = q.pop(time.Since(f.begin)) {
			if _, err := unix.Write(out.fd, p); err != nil {
				return 0, fmt.Errorf("write to %s: %w", out.name, err)
			}
		}
		if at, ok := q.due(); ok {
			until = min(until, at)
		}
	}
	return until, nil
}
