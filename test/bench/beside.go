//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// Two queue pairs between the same devices: one streams requests of a gigabyte, the
// other one writes 8 bytes and waits until that has completed, over and over. No
// program of perftest does this. Arguments: WRITE or READ, for the stream; how many
// engines each device has, so that with two each queue pair has its own. Both sides
// verify what has come.

const (
	streamBytes = 1 << 30
	wordBytes   = 8
	cmPort      = 18601
)

// area is what the server tells the client of its memory: the stream's, and the
// word's behind it.
type area struct {
	Addr uint64
	RKey uint32
}

// verdict is what the client wants to be verified.
type verdict struct {
	Written bool   // the stream's memory
	Word    uint64 // what the word has to be
}

// besideEnd is what both sides have.
type besideEnd struct {
	dev *roce.Device
	pd  *roce.PD
	mr  *roce.MR
	buf []byte
}

func newBesideEnd(control net.Conn, args []string) (e *besideEnd, err error) {
	e = &besideEnd{buf: make([]byte, streamBytes+wordBytes)}
	engines, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, err
	}
	if e.dev, err = roce.Open(roce.Config{Addr: addrOf(control.LocalAddr()), Engines: engines}); err != nil {
		return nil, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead)
	return e, err
}

// The stream's data are a number for each word, of which the server's memory has
// other ones than the client's.

func (e *besideEnd) fill(key uint64) {
	for i := 0; i < streamBytes; i += 8 {
		binary.LittleEndian.PutUint64(e.buf[i:], key^uint64(i))
	}
}

func (e *besideEnd) check(key uint64) error {
	for i := 0; i < streamBytes; i += 8 {
		if got := binary.LittleEndian.Uint64(e.buf[i:]); got != key^uint64(i) {
			return fmt.Errorf("byte %d of the stream is wrong: %#x", i, got)
		}
	}
	return nil
}

const (
	clientKey = 0x9e3779b97f4a7c15
	serverKey = 0xbf58476d1ce4e5b9
)

func besideServer(control net.Conn, args []string) error {
	e, err := newBesideEnd(control, args)
	if err != nil {
		return err
	}
	defer e.dev.Close()
	e.fill(serverKey)
	l, err := rdmacm.Listen(netip.AddrPortFrom(e.dev.Addr(), cmPort).String(), rdmacm.ListenConfig{Device: e.dev})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := json.NewEncoder(control).Encode(area{e.mr.Addr(), e.mr.RKey()}); err != nil {
		return err
	}
	for range 2 {
		req, err := l.Accept(context.Background())
		if err != nil {
			return err
		}
		c, err := req.Accept(context.Background(), rdmacm.Config{PD: e.pd, Access: roce.RemoteWrite | roce.RemoteRead})
		if err != nil {
			return err
		}
		defer c.Close()
	}
	var v verdict
	if err := json.NewDecoder(control).Decode(&v); err != nil {
		return err
	}
	if v.Written {
		if err := e.check(clientKey); err != nil {
			return err
		}
	}
	if got := e.mr.LoadUint64(streamBytes); got != v.Word {
		return fmt.Errorf("the word is %d, not %d", got, v.Word)
	}
	_, err = control.Write([]byte{0})
	return err
}

func besideClient(control net.Conn, args []string) (r roleReport, err error) {
	e, err := newBesideEnd(control, args)
	if err != nil {
		return r, err
	}
	defer e.dev.Close()
	e.fill(clientKey)
	var at area
	if err := json.NewDecoder(control).Decode(&at); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	var conns [2]*rdmacm.Conn
	for i := range conns {
		conns[i], err = rdmacm.Dial(ctx, net.JoinHostPort(addrOf(control.RemoteAddr()).String(), strconv.Itoa(cmPort)), rdmacm.Config{Device: e.dev, PD: e.pd})
		if err != nil {
			return r, err
		}
		defer conns[i].Close()
	}
	op := roce.WRWrite
	if args[0] == "READ" {
		op = roce.WRRead
	}
	stop, stopped := context.WithCancel(ctx)
	streamed := make(chan error, 1)
	go func() { streamed <- e.stream(ctx, stop, conns[0], op, at, &r) }()
	word, err := e.words(ctx, conns[1], at, &r)
	stopped()
	if err := errors.Join(<-streamed, err); err != nil {
		return r, err
	}
	if op == roce.WRRead {
		if err := e.check(serverKey); err != nil {
			return r, err
		}
	}
	if err := json.NewEncoder(control).Encode(verdict{op == roce.WRWrite, word}); err != nil {
		return r, err
	}
	if _, err := control.Read(make([]byte, 1)); err != nil {
		return r, fmt.Errorf("the server is not content: %w", err)
	}
	return r, nil
}

// stream keeps two requests under way until it is to stop, one at least.
func (e *besideEnd) stream(ctx, stop context.Context, c *rdmacm.Conn, op roce.WROpcode, at area, r *roleReport) error {
	begin := time.Now()
	post := func() error {
		return c.QP().PostSend(roce.SendWR{
			Opcode: op, Flags: roce.Signaled, SGE: []roce.SGE{e.mr.SGE(0, streamBytes)}, RemoteAddr: at.Addr, RKey: at.RKey,
		})
	}
	for range 2 {
		if err := post(); err != nil {
			return err
		}
	}
	for under := 2; under > 0; under-- {
		if err := complete(ctx, c, c.CQ().Wait); err != nil {
			return err
		}
		r.Bytes += streamBytes
		r.Took = time.Since(begin)
		if stop.Err() != nil {
			continue
		}
		if err := post(); err != nil {
			return err
		}
		under++
	}
	return nil
}

// words measures the other queue pair.
func (e *besideEnd) words(ctx context.Context, c *rdmacm.Conn, at area, r *roleReport) (word uint64, err error) {
	time.Sleep(50 * time.Millisecond) // the stream is under way
	poll := func(_ context.Context, wc []roce.WC) (int, error) { return c.CQ().Poll(wc) }
	trips, err := measureTrips(func() error {
		word++
		e.mr.StoreUint64(streamBytes, word)
		err := c.QP().PostSend(roce.SendWR{
			Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{e.mr.SGE(streamBytes, wordBytes)}, RemoteAddr: at.Addr + streamBytes, RKey: at.RKey,
		})
		if err != nil {
			return err
		}
		return complete(ctx, c, poll)
	})
	if err == nil {
		r.percentiles(trips, 1)
	}
	return word, err
}

// complete takes one completion.
func complete(ctx context.Context, c *rdmacm.Conn, take func(context.Context, []roce.WC) (int, error)) error {
	var wc [1]roce.WC
	for spins := 1; ; spins++ {
		switch n, err := take(ctx, wc[:]); {
		case err != nil:
			return err
		case n > 0 && wc[0].Status != roce.WCSuccess:
			return fmt.Errorf("a request to %v failed: %v", c.RemoteAddr(), wc[0].Status)
		case n > 0:
			return nil
		}
		if spins%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
