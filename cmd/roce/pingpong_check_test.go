package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// original is ibv_rc_pingpong: one buffer, sent as it was received.
type original struct {
	buf          []byte
	server, chkd bool
}

func newOriginal(size int, server, chk bool) *original {
	o := &original{buf: bytes.Repeat([]byte{plainByte}, size), server: server, chkd: chk}
	if chk && !server {
		for i := 0; i < size; i += pageSize {
			o.buf[i] = 0
		}
	}
	return o
}

func (o *original) message() ([]byte, error) { return o.buf, nil }

func (o *original) receive(b []byte) { copy(o.buf, b) }

// verdict is what its server prints at the end.
func (o *original) verdict() error {
	for i := 0; o.server && o.chkd && i < len(o.buf); i += pageSize {
		if o.buf[i] != 0 {
			return fmt.Errorf("invalid data in page %d", i/pageSize)
		}
	}
	return nil
}

// ours is our side with --chk.
type ours struct{ c checker }

func newOurs(size int, server bool) *ours {
	return &ours{checker{send: make([]byte, size), recv: make([]byte, size), server: server}}
}

func (o *ours) message() ([]byte, error) { err := o.c.next(); return o.c.send, err }
func (o *ours) receive(b []byte)         { copy(o.c.recv, b) }
func (o *ours) verdict() error {
	if o.c.server {
		return nil
	}
	return o.c.next()
}

type player interface {
	message() ([]byte, error)
	receive([]byte)
	verdict() error
}

// play plays n rounds; damage may change what is under way.
func play(client, server player, n int, damage func(round int, fromClient bool, b []byte)) error {
	for round := range n {
		for _, d := range []struct {
			from, to   player
			fromClient bool
		}{{client, server, true}, {server, client, false}} {
			b, err := d.from.message()
			if err != nil {
				return err
			}
			b = bytes.Clone(b)
			if damage != nil {
				damage(round, d.fromClient, b)
			}
			d.to.receive(b)
		}
	}
	for _, p := range []player{client, server} {
		if err := p.verdict(); err != nil {
			return err
		}
	}
	return nil
}

var checkSizes = []int{0, 1, 2, 3, 7, 8, 100, 4096, 4097, 8192, 65537}

// Whoever plays with whom, with or without -c: no false alarm.
func TestCheckerIsCompatible(t *testing.T) {
	for _, size := range checkSizes {
		for name, players := range map[string][2]player{
			"ours with ours":               {newOurs(size, false), newOurs(size, true)},
			"ours with original":           {newOurs(size, false), newOriginal(size, true, false)},
			"ours with original -c":        {newOurs(size, false), newOriginal(size, true, true)},
			"original with ours":           {newOriginal(size, false, false), newOurs(size, true)},
			"original -c with ours":        {newOriginal(size, false, true), newOurs(size, true)},
			"ours without check with ours": {newOriginal(size, false, false), newOurs(size, true)},
		} {
			if err := play(players[0], players[1], 5, nil); err != nil {
				t.Errorf("size %d, %s: %v", size, name, err)
			}
		}
	}
}

// Every pairing with one of ours finds a wrong byte that the peer's side
// could have caused: in what our client gets back, in what our server receives.
func TestCheckerFindsDamage(t *testing.T) {
	const size = 4097
	for _, tt := range []struct {
		name           string
		client, server func() player
		fromClient     bool
	}{
		{"our client gets wrong data from ours", func() player { return newOurs(size, false) }, func() player { return newOurs(size, true) }, false},
		{"our client gets wrong data from the original", func() player { return newOurs(size, false) }, func() player { return newOriginal(size, true, false) }, false},
		{"our server gets wrong data from ours", func() player { return newOurs(size, false) }, func() player { return newOurs(size, true) }, true},
		{"our server gets wrong data from the original", func() player { return newOriginal(size, false, true) }, func() player { return newOurs(size, true) }, true},
		{"the original gets wrong data from our server", func() player { return newOriginal(size, false, true) }, func() player { return newOurs(size, true) }, false},
	} {
		for _, pos := range []int{1, 2, 4095, 4096} {
			err := play(tt.client(), tt.server(), 5, func(round int, fromClient bool, b []byte) {
				if round == 2 && fromClient == tt.fromClient {
					b[pos] ^= 1
				}
			})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("byte %d of %d", pos, size)) {
				t.Errorf("%s, position %d: error %v", tt.name, pos, err)
			}
		}
	}
}

// A message of an earlier round is found: the data depends on the iteration.
func TestCheckerFindsStaleData(t *testing.T) {
	var old []byte
	err := play(newOurs(64, false), newOurs(64, true), 5, func(round int, fromClient bool, b []byte) {
		if !fromClient {
			return
		}
		if round == 3 {
			copy(b, old)
		}
		old = bytes.Clone(b)
	})
	if err == nil || !strings.Contains(err.Error(), "message 4:") {
		t.Errorf("error %v", err)
	}
}

// An unknown client's data is refused at once.
func TestCheckerUnknownClient(t *testing.T) {
	o := newOurs(64, true)
	o.receive(bytes.Repeat([]byte{0x55}, 64))
	if _, err := o.message(); err == nil {
		t.Error("accepted")
	}
}
