package main

import (
	"bytes"
	"fmt"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
)

// The data of `pingpong --chk`, compatible with peers that know nothing of it.
//
// ibv_rc_pingpong has one buffer, filled with 0x7b, for sending and receiving.
// Its client sends it, its server sends back what came, its client sends back
// what the server sent. With -c its client clears the first byte of each page,
// and its server looks at these bytes at the end.
//
// So a client of ours sends other data each time, with the first byte of each
// page clear, and any server returns it. A server of ours sees by the first
// message whom it plays with: our client's data, which it knows and returns;
// or the original's, which carries no information: then it sends data of its
// own, which the original's client returns with its next message.

const (
	plainByte = 0x7b
	pageSize  = 4096
)

// checker makes and checks the messages of one side.
type checker struct {
	send, recv []byte // of one message
	server     bool
	own        bool // server: the client only returns what we send
	turns      uint64
}

// next checks the message that came, unless it is a client's first turn, and
// makes the next one to send. It is called when the last send has completed as
// well, and once more at the end.
func (c *checker) next() error {
	defer func() { c.turns++ }()
	if !c.server {
		if c.turns > 0 && !bytes.Equal(c.send, c.recv) {
			return c.wrong(c.turns-1, c.send)
		}
		fillPages(c.send, c.turns)
		return nil
	}
	if c.own && c.turns > 0 {
		if !bytes.Equal(c.send, c.recv) {
			return c.wrong(c.turns, c.send)
		}
		fillPages(c.send, c.turns)
		return nil
	}
	fillPages(c.send, c.turns)
	if bytes.Equal(c.send, c.recv) {
		return nil
	}
	if c.turns == 0 && plain(c.recv) {
		c.own = true
		return nil
	}
	return c.wrong(c.turns, c.send)
}

func (c *checker) wrong(message uint64, want []byte) error {
	i := 0
	for want[i] == c.recv[i] {
		i++
	}
	return fmt.Errorf("wrong data in message %d: byte %d of %d is %#02x, expected %#02x", message+1, i, len(want), c.recv[i], want[i])
}

// fillPages makes message number k: the original's server wants the first byte
// of each page to be zero.
func fillPages(b []byte, k uint64) {
	pattern.Fill(b, pattern.Key(plainByte, k))
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}

// plain reports whether b is what ibv_rc_pingpong sends first, with or without -c.
func plain(b []byte) bool {
	for i, v := range b {
		if v != plainByte && !(v == 0 && i%pageSize == 0) {
			return false
		}
	}
	return true
}
