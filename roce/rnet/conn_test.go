package rnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
	"golang.org/x/net/nettest"
)

var small = Config{SendBuffer: 4096, RecvBuffer: 4096, SendQueue: 16, RecvQueue: 16}

// What every net.Conn has to do, by the test of the Go project.
func TestConnIsNetConn(t *testing.T) {
	for name, cfg := range map[string]Config{"default": {}, "small": small} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := rocetest.Pair(t)
				ends, err := connect(a.Dev, b.Dev, cfg)
				if err != nil {
					return nil, nil, nil, err
				}
				return ends[0], ends[1], func() { shut(t, ends[:]...) }, nil
			})
		})
	}
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// Both ends write more than all buffers take, and then read: in each of them one
// goroutine writes, another one reads. With and without loss.
func TestBothWays(t *testing.T) {
	for name, o := range map[string]rocetest.Options{
		"clean": {},
		"lossy": {Faults: &netio.FaultConfig{Seed: 1, Tx: netio.Faults{Loss: 0.01, Duplicate: 0.02, Reorder: 0.02}}},
	} {
		for size, cfg := range map[string]Config{"default": {}, "small": small} {
			t.Run(name+"/"+size, func(t *testing.T) {
				a, b := pair(t, o, cfg)
				errs := make(chan error, 2)
				for i, c := range []*Conn{a, b} {
					go func() {
						_, err := c.Write(random(1<<20, uint64(i)))
						errs <- errors.Join(err, c.CloseWrite())
					}()
				}
				for i, c := range []*Conn{b, a} {
					got, err := io.ReadAll(c)
					if err != nil || !bytes.Equal(got, random(1<<20, uint64(i))) {
						t.Errorf("end %d: %d bytes, %v", i, len(got), err)
					}
				}
				if err := errors.Join(<-errs, <-errs); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Close delivers what was written; the reader sees all of it, then io.EOF, and can
// write no more.
func TestCloseDelivers(t *testing.T) {
	a, b := pair(t, rocetest.Options{}, Config{})
	if _, err := a.Write(random(60000, 3)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, random(60000, 3)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := b.Write([]byte{1}); !errors.Is(err, syscall.EPIPE) {
		t.Error("Write after the peer has closed:", err)
	}
	for name, err := range map[string]error{
		"Close": a.Close(), "CloseWrite": a.CloseWrite(), "SetDeadline": a.SetDeadline(time.Time{}),
		"SetKeepAlive": a.SetKeepAlive(true), "SetKeepAlivePeriod": a.SetKeepAlivePeriod(time.Hour),
		"Read": second(a.Read(make([]byte, 1))), "Write": second(a.Write(nil)), "WriteAt": second(a.WriteAt([]byte{1}, 0)),
		"Map": mapError(a, make([]byte, 1), 0),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

func mapError(c *Conn, buf []byte, offset int64) error { _, err := c.Map(buf, offset); return err }

func second(_ int, err error) error { return err }

// The half that is not closed goes on.
func TestCloseWrite(t *testing.T) {
	a, b := pair(t, rocetest.Options{}, Config{})
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, syscall.EPIPE) {
		t.Error("Write after CloseWrite:", err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatal(n, err)
	}
	for range 100 {
		if _, err := b.Write(make([]byte, 5000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(a, make([]byte, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatal(n, err)
	}
}

// A reader and a writer that wait learn that the connection below has ended, or that
// the device was closed.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		cut  func(*Conn, *roce.Device)
		want error
	}{
		"peer gone":     {func(c *Conn, _ *roce.Device) { c.link.Disconnect(context.Background(), nil) }, syscall.ECONNRESET},
		"device closed": {func(_ *Conn, d *roce.Device) { d.Close() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := rocetest.Pair(t)
			ends, err := connect(x.Dev, y.Dev, small)
			if err != nil {
				t.Fatal(err)
			}
			defer shut(t, ends[:]...)
			a, b := ends[0], ends[1]
			errs := make(chan error, 2)
			go func() { _, err := a.Read(make([]byte, 1)); errs <- err }()
			go func() { _, err := a.Write(make([]byte, 1<<20)); errs <- err }()
			if _, err := io.ReadFull(b, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			c.cut(a, x.Dev)
			for range 2 {
				if err := <-errs; err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Error(err)
				}
			}
		})
	}
}

// A peer whose adapter has gone is noticed by keep-alives, with the connection idle;
// one that lives is not bothered.
func TestKeepAlive(t *testing.T) {
	x, y := rocetest.Pair(t)
	ends, err := connect(x.Dev, y.Dev, Config{Linger: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, ends[:]...)
	a := ends[0]
	if err := errors.Join(a.SetKeepAlive(true), a.SetKeepAlivePeriod(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := a.SetKeepAlivePeriod(0); err == nil || !strings.Contains(err.Error(), "at least 1ms") {
		t.Error(err)
	}
	asked := func() uint64 { return y.Dev.Counters()["rcvd_pkts"] }
	for n, end := asked(), time.Now().Add(10*time.Second); asked() < n+20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no keep-alive in 10 s")
		}
	}
	y.Dev.Close()
	a.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := a.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "retry counter exceeded") {
		t.Error(err)
	}
}

// Memory that one end maps and the other writes to.
func TestMap(t *testing.T) {
	a, b := pair(t, rocetest.Options{}, Config{Maps: 2})
	target := make([]byte, 100000)
	first, err := a.Map(target[:50000], 1000)
	if err := errors.Join(err, mapError(a, target[50000:], 51000)); err != nil {
		t.Fatal(err)
	}
	if err := mapError(a, make([]byte, 1), 0); err == nil || !strings.Contains(err.Error(), "takes 2 areas") {
		t.Error(err)
	}
	go a.Write([]byte("go"))
	if _, err := io.ReadFull(b, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	if n, err := b.WriteAt(random(100000, 5), 1000); n != 100000 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := b.WriteAt([]byte{1, 2}, 100999); n != 1 || !errors.Is(err, errNoMap) {
		t.Error(n, err)
	}
	go b.Write([]byte("done"))
	if _, err := io.ReadFull(a, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	want := random(100000, 5)
	want[99999] = 1
	if !bytes.Equal(target, want) {
		t.Error("other bytes")
	}
	if err := a.Unmap(first); err != nil {
		t.Error(err)
	}
	if err := a.Unmap(first); !errors.Is(err, errNotMapped) {
		t.Error("unmapped twice:", err)
	}
	if err := mapError(a, target[:50], 0); err != nil {
		t.Error("Map after Unmap:", err)
	}
	for field, err := range map[string]error{"offset": mapError(a, target, -1), "len(buf)": mapError(a, nil, 0)} {
		var e *roce.ConfigError
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Errors are those of package net.
func TestDeadlineError(t *testing.T) {
	a, _ := pair(t, rocetest.Options{}, Config{})
	a.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := a.Read(make([]byte, 1))
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "read" || !op.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// Configurations that are refused name the field.
func TestConfigErrors(t *testing.T) {
	for field, cfg := range map[string]Config{
		"SendBuffer": {SendBuffer: 4095}, "RecvBuffer": {RecvBuffer: 1<<30 + 1}, "SendQueue": {SendQueue: 15},
		"RecvQueue": {RecvQueue: 1<<15 - 3}, "Maps": {Maps: maxMaps + 1}, "Linger": {Linger: -1},
	} {
		var e *roce.ConfigError
		if err := cfg.fill(); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A message is read and written without an allocation.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := pair(t, rocetest.Options{}, Config{})
	buf := random(10000, 1)
	round := func() {
		for _, size := range []int{1, 10000} {
			if _, err := a.Write(buf[:size]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(b, buf[:size]); err != nil {
				t.Fatal(err)
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("%v allocations for 2 messages", n)
	}
}
