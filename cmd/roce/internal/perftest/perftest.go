// Package perftest is the conversation of the perftest programs (ib_send_bw,
// ib_write_lat and their relatives): over TCP, the default, or over a queue pair of
// its own that rdma_cm connects ([Control]), with their -R.
//
// It is a sequence of swaps: the client writes a record and the server answers
// with one of the same length. The records are, in this order,
//
//	version        16 bytes, a decimal number as text and zero bytes
//	cycle buffer    4 bytes, big-endian: how much of a buffer small messages use
//	cache line      4 bytes, big-endian
//	path MTU        2 bytes, the digit of its code and a zero byte
//	addresses     108 bytes each, see [Dest]; also used as a mere rendezvous. With
//	              -R 56 bytes, and one more record before and after the queue pairs
//	              are connected, which come before all other addresses then
//	results         8 bytes each, see [Report]; WRITE, READ and atomic bandwidth
//
// and at the end each side writes "done" over TCP without waiting. Each record is
// one write, because the originals read with one call.
//
// Sources: the bytes that perftest 4.5-0.17 (Debian 12) and 25.01 (Debian 13)
// exchange over TCP, recorded in the tests; perftest_communication.c of
// linux-rdma/perftest for their meaning and for -R.
package perftest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
)

// Port is the port of the perftest programs.
const Port = 18515

// version is what we say to be. Programs since 5.70 (2018) speak as written
// above; they refuse older ones.
const (
	version    = "6.06"
	oldest     = 5.70
	versionLen = 16
)

const (
	// CycleBuffer is the least length of a buffer in bytes: requesters of small
	// messages walk through that much of it.
	CycleBuffer = 4096
	cacheLine   = 64
)

// mark follows the zero byte of our version, where perftest does not look, and
// says that this program is roce. The byte after it holds flags.
const mark = "goroce"

// Verify says which data roce perf verifies: it is the byte of flags.
type Verify uint8

const (
	VerifyNothing Verify = iota
	VerifyEach           // of each message, while time is measured
	VerifyLast           // what is in each place at the end
)

// Peer is what the other side says of itself.
type Peer struct {
	Version     string
	Ours        bool // it is roce perf
	Verify      Verify
	CycleBuffer int // bytes
	MTU         ib.MTU
}

// Session is the conversation with one peer. Its methods are called one at a
// time; they end with ctx, and with an error after timeout (0 means never).
type Session struct {
	conn   exchange.Conn
	in     *bufio.Reader // of conn
	client bool
	binary bool // the form of addresses
}

// NewSession returns the conversation on conn, which it does not close.
func NewSession(conn exchange.Conn, client bool) *Session {
	_, control := conn.(*Control)
	return &Session{conn, bufio.NewReader(conn), client, control}
}

// Hello exchanges versions, sizes of caches and path MTUs: mtu is ours, and the
// smaller one is to be used. The error is exchange.ErrSilent when the peer closed
// the connection before it said anything.
func (s *Session) Hello(ctx context.Context, timeout time.Duration, mtu ib.MTU, verify Verify) (p Peer, err error) {
	defer exchange.Bound(ctx, s.conn, timeout)()
	var hello, theirs [versionLen]byte
	copy(hello[:], version+"\x00"+mark)
	hello[len(version)+1+len(mark)] = byte(verify)
	if err := s.swap(ctx, "versions", hello[:], theirs[:]); err != nil {
		return p, err
	}
	if err := p.setVersion(theirs[:]); err != nil {
		return p, err
	}
	cycle, err := s.swapInt(ctx, "sizes of pages", CycleBuffer)
	if err != nil {
		return p, err
	}
	if p.CycleBuffer = int(cycle); cycle < 1 || cycle > 1<<30 {
		return p, fmt.Errorf("the peer says that its pages have %d bytes", cycle)
	}
	if _, err := s.swapInt(ctx, "sizes of cache lines", cacheLine); err != nil {
		return p, err
	}
	var code [2]byte
	if err := s.swap(ctx, "path MTUs", []byte{'0' + byte(mtu), 0}, code[:]); err != nil {
		return p, err
	}
	if p.MTU = ib.MTU(code[0] - '0'); p.MTU < ib.MTU256 || p.MTU > ib.MTU4096 || code[1] != 0 {
		return p, fmt.Errorf("the peer sent %q, which is not the code of a path MTU", code)
	}
	return p, nil
}

// setVersion reads the version record.
func (p *Peer) setVersion(b []byte) error {
	text, rest, _ := bytes.Cut(b, []byte{0})
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(v > 0 && v < 1000) {
		return fmt.Errorf("the peer sent %q, which is not a version of perftest: is it an ib_*_bw or ib_*_lat, without -z?", text)
	}
	if v < oldest {
		return fmt.Errorf("the peer speaks version %s of perftest's exchange, at least %.2f is needed: install a newer perftest there", text, oldest)
	}
	p.Version = string(text)
	if flags, ours := bytes.CutPrefix(rest, []byte(mark)); ours && len(flags) > 0 {
		p.Ours, p.Verify = true, Verify(flags[0])
	}
	return nil
}

// Swap exchanges one address record.
func (s *Session) Swap(ctx context.Context, timeout time.Duration, mine Dest) (Dest, error) {
	defer exchange.Bound(ctx, s.conn, timeout)()
	return s.swapDest(ctx, mine)
}

// Order says where a test has the records that are a mere rendezvous, which is
// visible with several queue pairs only: the original repeats its first address.
type Order struct {
	Early   bool // one more, before all
	Between bool // the last one of the connection between the two rounds, not after them
}

// Connect exchanges the addresses of all queue pairs, has ready connect them, and
// exchanges them once more: the original shows those. It returns when the peer is
// connected too.
func (s *Session) Connect(ctx context.Context, timeout time.Duration, o Order, mine []Dest, ready func(peer []Dest) error) error {
	defer exchange.Bound(ctx, s.conn, timeout)()
	meet := func(wanted bool) error {
		if !wanted {
			return nil
		}
		_, err := s.swapDest(ctx, mine[0])
		return err
	}
	if err := meet(o.Early); err != nil {
		return err
	}
	peer := make([]Dest, len(mine))
	for i := range mine {
		var err error
		if peer[i], err = s.swapDest(ctx, mine[i]); err != nil {
			return err
		}
	}
	if err := ready(peer); err != nil {
		return err
	}
	if err := meet(o.Between); err != nil {
		return err
	}
	for i := range mine {
		again, err := s.swapDest(ctx, mine[i])
		if err != nil {
			return err
		}
		if again != peer[i] {
			return fmt.Errorf("the peer named queue pair %d of %d differently the second time: do both sides use the same test and the same -q?", i+1, len(mine))
		}
	}
	return meet(!o.Between)
}

// SwapReport exchanges the results of a one-sided bandwidth test. The server has
// none of its own: what it sends means nothing.
func (s *Session) SwapReport(ctx context.Context, timeout time.Duration, mine Report) (theirs Report, err error) {
	defer exchange.Bound(ctx, s.conn, timeout)()
	a, b := mine.words(), [reportWords]uint64{}
	for i := range a {
		var out, in [8]byte
		binary.BigEndian.PutUint64(out[:], a[i])
		if err := s.swap(ctx, "results", out[:], in[:]); err != nil {
			return theirs, err
		}
		b[i] = binary.BigEndian.Uint64(in[:])
	}
	theirs.setWords(b)
	return theirs, nil
}

// Close meets the peer for the last time and says "done", over TCP.
func (s *Session) Close(ctx context.Context, timeout time.Duration, mine Dest) error {
	defer exchange.Bound(ctx, s.conn, timeout)()
	if _, err := s.swapDest(ctx, mine); err != nil {
		return err
	}
	if s.binary {
		return nil
	}
	s.conn.Write([]byte("done\x00")) // perftest may be gone already
	return nil
}

// Await waits until the peer says something, without reading it.
func (s *Session) Await(ctx context.Context) error {
	defer exchange.Bound(ctx, s.conn, 0)()
	if _, err := s.in.Peek(1); err != nil {
		return exchange.Explain(ctx, s.conn, "waiting for the end of the test", err)
	}
	return nil
}

func (s *Session) swapDest(ctx context.Context, mine Dest) (Dest, error) {
	if s.binary {
		var b [binaryLen]byte
		if err := s.swap(ctx, "addresses", mine.appendBinary(nil), b[:]); err != nil {
			return Dest{}, err
		}
		return parseBinary(b[:])
	}
	var b [destLen]byte
	if err := s.swap(ctx, "addresses", mine.append(nil), b[:]); err != nil {
		return Dest{}, err
	}
	return ParseDest(b[:])
}

func (s *Session) swapInt(ctx context.Context, what string, mine uint32) (uint32, error) {
	var in [4]byte
	err := s.swap(ctx, what, binary.BigEndian.AppendUint32(nil, mine), in[:])
	return binary.BigEndian.Uint32(in[:]), err
}

// swap is what the whole conversation is made of.
func (s *Session) swap(ctx context.Context, what string, mine, theirs []byte) error {
	write := func() error {
		if _, err := s.conn.Write(mine); err != nil {
			return exchange.Explain(ctx, s.conn, "sending "+what, err)
		}
		return nil
	}
	if s.client {
		if err := write(); err != nil {
			return err
		}
	}
	n, err := io.ReadFull(s.in, theirs)
	switch {
	case n == 0 && errors.Is(err, io.EOF) && what == "versions" && !s.client:
		return exchange.ErrSilent
	case err != nil:
		return exchange.Explain(ctx, s.conn, fmt.Sprintf("exchanging %s (%d of %d bytes came)", what, n, len(theirs)), err)
	}
	if !s.client {
		return write()
	}
	return nil
}
