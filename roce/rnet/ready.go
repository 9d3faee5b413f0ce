package rnet

import (
	"io"
	"net"
	"syscall"
)

// Ready says whether Read would not wait, and whether Write would not wait before its
// first bytes are taken: for event loops, with Watch, TryRead and TryWrite. It takes
// what has arrived before.
func (c *Conn) Ready() (read, write bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	over := c.closed || c.s.gone
	return over || c.s.readable(), over || c.s.sendEnd || c.s.writable(lowWater)
}

// look takes all completions there are.
func (c *core) look() {
	for !c.closed && c.poll() {
	}
}

// Watch has f called after each change that Ready may tell of; nil ends that. f is
// called with the connection locked: it must not call its methods.
func (c *Conn) Watch(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch = f
}

// TryRead is Read that returns syscall.EAGAIN where that would wait.
func (c *Conn) TryRead(p []byte) (int, error) { return c.try("read", p, c.s.readable, c.s.read) }

// Peek is TryRead that leaves the bytes there, to be read again.
func (c *Conn) Peek(p []byte) (int, error) {
	return c.try("read", p, c.s.readable, func(p []byte) (int, error) {
		if c.s.unread == 0 {
			return c.s.read(p) // the end, or why
		}
		return c.s.peek(p), nil
	})
}

// try reads with f if ready says that it can.
func (c *Conn) try(op string, p []byte, ready func() bool, f func([]byte) (int, error)) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	switch {
	case c.closed:
		err = net.ErrClosed
	case !ready():
		err = syscall.EAGAIN
	default:
		n, err = f(p)
	}
	if err == io.EOF {
		return n, err
	}
	return n, c.opError(op, err)
}

// TryWrite writes as much of p as can be taken now, and returns syscall.EAGAIN if that
// is nothing, or while another Write waits.
func (c *Conn) TryWrite(p []byte) (n int, err error) {
	return c.tryWrite(p, func(p []byte) (int, error) { return c.s.write(p), nil })
}

// TryWriteAt is to WriteAt what TryWrite is to Write.
func (c *Conn) TryWriteAt(p []byte, offset int64) (n int, err error) {
	return c.tryWrite(p, func(p []byte) (int, error) { return c.s.writeAt(p, uint64(offset)) })
}

func (c *Conn) tryWrite(p []byte, put func([]byte) (int, error)) (n int, err error) {
	if !c.writing.TryLock() {
		return 0, c.opError("write", syscall.EAGAIN)
	}
	defer c.writing.Unlock()
	return c.try("write", p, func() bool { return true }, func(p []byte) (int, error) {
		if c.s.sendEnd || c.s.gone {
			return 0, c.s.lost()
		}
		n, err := put(p)
		if n == 0 && err == nil && len(p) > 0 {
			err = syscall.EAGAIN
		}
		return n, err
	})
}
