package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rnet"
)

// pattern is the data of rstream -T v: a byte that counts, in each direction.
type pattern struct{ sent, got byte }

func (p *pattern) format(b []byte) {
	for i := range b {
		b[i] = p.sent
		p.sent++
	}
}

func (p *pattern) verify(b []byte) error {
	for i := range b {
		if b[i] != p.got {
			return fmt.Errorf("byte %d of a transfer is %#x, want %#x", i, b[i], p.got)
		}
		p.got++
	}
	return nil
}

// syncBytes is what the two sides exchange first.
const syncBytes = 16

// turns plays exchanges: the client begins.
func (o options) turns(send, receive func() error) error {
	first, second := send, receive
	if o.to == "" {
		first, second = receive, send
	}
	for range o.iterations {
		for _, f := range []func() error{first, second} {
			for range o.count {
				if err := f(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func stream(o options) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	var p pattern
	move := func(size int) (send, receive func() error) {
		buf := make([]byte, size)
		send = func() error {
			p.format(buf)
			_, err := c.Write(buf)
			return err
		}
		receive = func() error {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			return p.verify(buf)
		}
		return send, receive
	}
	once := options{to: o.to, iterations: 1, count: 1}
	if err := once.turns(move(syncBytes)); err != nil {
		return err
	}
	if err := o.turns(move(o.size)); err != nil {
		return err
	}
	return c.Shutdown(context.Background())
}

// iostream writes into memory that the other side has mapped and watches. The last byte of it is a marker, which counts the turns.
func iostream(o options) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	if o.size%4 != 0 {
		return fmt.Errorf("-size %d is not a multiple of 4", o.size)
	}
	buf := make([]byte, o.size)
	target := make([]byte, o.size)
	buf[o.size-1], target[o.size-1] = 0xff, 0xff
	mr, err := c.Map(target, 0)
	if err != nil {
		return err
	}
	if err := handshake(c, o); err != nil {
		return err
	}
	var p pattern
	marker := byte(0)
	for range o.iterations {
		for turn := range 2 {
			if (turn == 0) == (o.to != "") {
				err = ioSend(c, o, &p, buf, marker)
			} else if err = await(mr, o.size, marker); err == nil {
				err = p.verify(target[:o.size-1])
			}
			if err != nil {
				return err
			}
			marker++
		}
	}
	return c.Shutdown(context.Background())
}

// handshake exchanges a message, after which each side knows of the other's memory. riostream receives it there: it must not end in
// the marker that comes first.
func handshake(c *rnet.Conn, o options) error {
	buf := bytes.Repeat([]byte{0xff}, syncBytes)
	send := func() error { _, err := c.Write(buf); return err }
	receive := func() error { _, err := io.ReadFull(c, buf); return err }
	return options{to: o.to, iterations: 1, count: 1}.turns(send, receive)
}

// ioSend writes count times; only the last time is announced by the marker, and has data that is checked.
func ioSend(c *rnet.Conn, o options, p *pattern, buf []byte, marker byte) error {
	for i := range o.count {
		if i == o.count-1 {
			buf[o.size-1] = marker
			p.format(buf[:o.size-1])
		}
		if _, err := c.WriteAt(buf, 0); err != nil {
			return err
		}
	}
	return nil
}

// await watches the last byte of the memory.
func await(mr *roce.MR, size int, marker byte) error {
	var last [4]byte
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Microsecond) {
		binary.NativeEndian.PutUint32(last[:], mr.LoadUint32(size-4))
		if last[3] == marker {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the marker is %d after %v, want %d", last[3], timeout, marker)
		}
	}
}
