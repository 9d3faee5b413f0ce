package rnet

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/goroce/goroce/roce/rocetest"
)

// until waits for a condition, which changes tell of.
func until(t *testing.T, changes <-chan struct{}, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-changes:
		case <-t.Context().Done():
			t.Fatal("no change comes")
		}
	}
}

// watch returns a channel that has a token after each change.
func watch(c *Conn) <-chan struct{} {
	changes := make(chan struct{}, 1)
	c.Watch(func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	return changes
}

// An event loop: what would wait returns EAGAIN, Ready and Watch say when it would not,
// Peek leaves the bytes, and after the peer's last byte comes io.EOF.
func TestReady(t *testing.T) {
	a, b := pair(t, rocetest.Options{}, Config{})
	fromA, fromB := watch(a), watch(b)
	var buf [100]byte
	if n, err := b.TryRead(buf[:]); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("nothing to read: %d, %v", n, err)
	}
	if n, err := b.Peek(buf[:]); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("nothing to peek at: %d, %v", n, err)
	}
	if read, write := b.Ready(); read || !write {
		t.Errorf("ready to read %v, to write %v, of a new connection", read, write)
	}
	if n, err := a.TryWrite([]byte("hello")); n != 5 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	until(t, fromB, func() bool { read, _ := b.Ready(); return read })
	for range 2 {
		if n, err := b.Peek(buf[:4]); err != nil || string(buf[:n]) != "hell" {
			t.Errorf("peeked %q, %v", buf[:n], err)
		}
	}
	if n, err := b.TryRead(buf[:]); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	until(t, fromA, func() bool { read, _ := a.Ready(); return read })
	for _, f := range []func([]byte) (int, error){a.Peek, a.TryRead} {
		if n, err := f(buf[:]); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v", n, err)
		}
	}
	if _, err := b.TryWrite([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after CloseWrite: %v", err)
	}
}

// TryWrite fills the buffers of both sides, then says EAGAIN until the peer reads; all
// bytes arrive, in order, whatever wraps around.
func TestTryWrite(t *testing.T) {
	a, b := pair(t, rocetest.Options{}, Config{})
	changes := watch(a)
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i>>8 ^ i*7)
	}
	var full atomic.Int32
	got := make(chan []byte, 1)
	begin := make(chan struct{})
	go func() {
		<-begin
		all, peek := make([]byte, 0, len(sent)), make([]byte, 70000)
		for len(all) < len(sent) {
			n, err := b.Read(peek[:1]) // which waits
			if err != nil {
				break
			}
			all = append(all, peek[:n]...)
			n, _ = b.Peek(peek)
			m, _ := b.TryRead(all[len(all):min(len(all)+n, cap(all))])
			if m != n || !bytes.Equal(peek[:n], all[len(all):len(all)+m]) {
				break
			}
			all = all[:len(all)+m]
		}
		got <- all
	}()
	for rest := sent; len(rest) > 0; {
		n, err := a.TryWrite(rest)
		rest = rest[n:]
		switch {
		case errors.Is(err, syscall.EAGAIN):
			if full.Add(1) == 1 {
				close(begin)
			}
			until(t, changes, func() bool { _, write := a.Ready(); return write })
		case err != nil:
			t.Fatal(err)
		}
	}
	if all := <-got; !bytes.Equal(all, sent) {
		t.Errorf("%d bytes of %d arrived, or others", len(all), len(sent))
	}
	if full.Load() == 0 {
		t.Error("a mebibyte went into buffers that are smaller")
	}
}
