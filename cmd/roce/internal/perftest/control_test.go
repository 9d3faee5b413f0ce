package perftest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// controls returns both ends of a connection.
func controls(t *testing.T) (server, client *Control) {
	t.Helper()
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
	if err != nil {
		t.Fatal(err)
	}
	port := u.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	u.Close()
	open := func(addr string) *roce.Device {
		dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr(addr), Port: port})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		return dev
	}
	l, err := rdmacm.Listen("127.0.0.61:18515", rdmacm.ListenConfig{Device: open("127.0.0.61")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server, client = new(Control), new(Control)
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			_, err = req.Accept(ctx, server.Config(time.Second))
		}
		accepted <- err
	}()
	cfg := client.Config(time.Second)
	cfg.Device = open("127.0.0.62")
	if _, err := rdmacm.Dial(ctx, l.Addr().String(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return server, client
}

// Both sides say hello and where their queue pairs are; the one that hangs up is
// noticed.
func TestControl(t *testing.T) {
	server, client := controls(t)
	const limit = 20 * time.Second
	dests := [2]Dest{{QPN: 0x123456, PSN: 0xffffff, RKey: 1, VAddr: 1 << 63}, {OutReads: 16, QPN: 2, GID: ib.GIDFromAddr(netip.MustParseAddr("::1"))}}
	done := make(chan error, 1)
	go func() {
		s := NewSession(server, false)
		_, err := s.Hello(t.Context(), limit, ib.MTU1024, VerifyNothing)
		if err == nil {
			err = s.Close(t.Context(), limit, dests[0])
		}
		if err == nil {
			err = server.Close()
		}
		done <- err
	}()
	s := NewSession(client, true)
	if p, err := s.Hello(t.Context(), limit, ib.MTU4096, VerifyEach); err != nil || p != (Peer{version, true, VerifyNothing, CycleBuffer, ib.MTU1024}) {
		t.Fatalf("%+v, %v", p, err)
	}
	if d, err := s.Swap(t.Context(), limit, dests[1]); err != nil || d != dests[0] {
		t.Errorf("%+v, %v, want %+v", d, err, dests[0])
	}
	// There is no "done", but the end.
	client.SetDeadline(time.Now().Add(limit))
	for range 2 {
		if n, err := client.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("after the end %d bytes, %v", n, err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := s.Swap(t.Context(), limit, Dest{}); err == nil || !strings.Contains(err.Error(), "RDMA_CM exchange with 127.0.0.61:18515") {
		t.Errorf("after the end: %v", err)
	}
	client.Close()
}

// A deadline ends a wait, and so does one that is set meanwhile; a message may be read
// in parts; one that is too long is refused.
func TestControlDeadline(t *testing.T) {
	server, client := controls(t)
	defer client.Close()
	defer server.Close()
	client.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	client.SetDeadline(time.Now().Add(time.Hour))
	got := make(chan error)
	go func() {
		_, err := client.Read(make([]byte, 1))
		got <- err
	}()
	client.SetDeadline(time.Time{})
	client.SetDeadline(time.Unix(1, 0))
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	client.SetDeadline(time.Time{})
	if _, err := server.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ab", "c"} {
		b := make([]byte, 2)
		if n, err := client.Read(b); err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
	if _, err := server.Write(make([]byte, binaryLen+1)); err == nil {
		t.Error("a message that is too long went")
	}
}
