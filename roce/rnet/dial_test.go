package rnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/goroce/goroce/roce/rocetest"
	"golang.org/x/net/nettest"
)

// hosts are two devices, and what connects them: a listener at the first, and the
// configuration of the second.
type hosts struct {
	t      *testing.T
	l      *Listener
	client Config
}

func newHosts(t *testing.T) *hosts {
	a, b := rocetest.Pair(t)
	l, err := Config{Device: a.Dev}.Listen(context.Background(), "tcp", "10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &hosts{t: t, l: l, client: Config{Device: b.Dev}}
}

func (h *hosts) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	h.t.Cleanup(cancel)
	return ctx
}

// connect returns both ends of a connection, closed when the test is over.
func (h *hosts) connect() (client, server *Conn) {
	h.t.Helper()
	client, err := h.client.Dial(h.ctx(), "tcp", h.l.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	if server, err = h.l.AcceptConn(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { shut(h.t, client, server) })
	return client, server
}

// A connection made by address is a net.Conn like one made by hand, and both ends
// know each other's address.
func TestDial(t *testing.T) {
	h := newHosts(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		client, server := h.connect()
		if client.RemoteAddr() != h.l.Addr() || server.LocalAddr() != h.l.Addr() || server.RemoteAddr() != client.LocalAddr() {
			t.Errorf("%v -> %v, seen as %v -> %v", client.LocalAddr(), client.RemoteAddr(), server.RemoteAddr(), server.LocalAddr())
		}
		return client, server, func() { client.Close(); server.Close() }, nil
	})
}

// Shutdown returns when the peer has everything, and nothing is left.
func TestShutdown(t *testing.T) {
	h := newHosts(t)
	client, server := h.connect()
	got := make(chan []byte)
	go func() {
		b, err := io.ReadAll(server)
		if err != nil {
			t.Error(err)
		}
		server.Close()
		got <- b
	}()
	if _, err := client.Write(random(300000, 1)); err != nil {
		t.Fatal(err)
	}
	if err := client.Shutdown(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(<-got, random(300000, 1)) {
		t.Error("other bytes")
	}
	if err := client.pd.Dealloc(); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	other, _ := h.connect()
	if err := other.Shutdown(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A web server, several clients at a time, connections that are kept and such that are
// not.
func TestHTTP(t *testing.T) {
	h := newHosts(t)
	body := string(random(200000, 9))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != int64(len(body)) {
			t.Error(n, err)
		}
		io.WriteString(w, body)
	})}
	done := make(chan error)
	go func() { done <- server.Serve(h.l) }()
	for _, keep := range []bool{true, false} {
		client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: !keep,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return h.client.Dial(ctx, network, address)
			},
		}}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for range 3 {
					r, err := client.Post("http://10.0.0.1/", "text/plain", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					b, err := io.ReadAll(r.Body)
					r.Body.Close()
					if err != nil || string(b) != body {
						t.Errorf("%d bytes, %v", len(b), err)
					}
				}
			})
		}
		all.Wait()
		client.CloseIdleConnections()
	}
	if err := server.Shutdown(h.ctx()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// Attempts that fail say why.
func TestDialErrors(t *testing.T) {
	h := newHosts(t)
	dial := func(network, address string) error {
		c, err := h.client.Dial(h.ctx(), network, address)
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{dial("tcp", "10.0.0.1:81"), "nobody listens on this port"},
		{dial("udp", "10.0.0.1:80"), "unknown network udp"},
		{dial("tcp", ":80"), "peer's IP address and port are needed"},
		{dial("tcp6", "10.0.0.1:80"), "no suitable address"},
		{dial("tcp", "10.0.0.1"), "missing port"},
		{second2(Config{SendQueue: 1}.Dial(h.ctx(), "tcp", "10.0.0.1:80")), "SendQueue is 1"},
		{second2(Config{SendQueue: 1}.Listen(h.ctx(), "tcp", "10.0.0.1:80")), "SendQueue is 1"},
		{second2(h.client.Listen(h.ctx(), "tcp", "10.0.0.1:80")), "the device has the address"},
		{second2(h.client.Listen(h.ctx(), "tcp", "nowhere")), "missing port"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, c.err)
		}
	}
	if err := dial("tcp", "10.0.0.1:81"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := h.client.Dial(ctx, "tcp", "10.0.0.9:80"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func second2[T any](_ T, err error) error { return err }

// A peer with another protocol is refused, whichever side it is.
func TestOtherProtocol(t *testing.T) {
	h := newHosts(t)
	_, err := rdmacm.Dial(h.ctx(), h.l.Addr().String(), rdmacm.Config{Device: h.client.Device, PrivateData: []byte("something else")})
	var rejected *rdmacm.RejectedError
	if !errors.As(err, &rejected) {
		t.Error(err)
	}

	other, err := rdmacm.Listen("10.0.0.2:7", rdmacm.ListenConfig{Device: h.client.Device})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		if r, err := other.Accept(h.ctx()); err == nil {
			r.Accept(h.ctx(), rdmacm.Config{PrivateData: []byte("something else")})
		}
	}()
	_, err = Config{Device: h.l.cfg.Device}.Dial(h.ctx(), "tcp", "10.0.0.2:7")
	if err == nil || !strings.Contains(err.Error(), "another protocol") {
		t.Error(err)
	}
}

// Close ends Accept, and the connections that wait for it; what was accepted stays.
func TestListenerClose(t *testing.T) {
	h := newHosts(t)
	client, server := h.connect()
	waiting, err := h.client.Dial(h.ctx(), "tcp", h.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, waiting)
	if err := h.l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := h.l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	waiting.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := waiting.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Error("a connection that waited for Accept:", err)
	}
	go client.Write([]byte{1})
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if _, err := h.client.Dial(h.ctx(), "tcp", h.l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// Connections come and go; nothing of them is left on the devices.
func TestManyConnections(t *testing.T) {
	h := newHosts(t)
	go func() {
		for {
			c, err := h.l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 4 {
				c, err := h.client.Dial(h.ctx(), "tcp", h.l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(20 * time.Second))
				if _, err := c.Write([]byte("hello")); err != nil {
					t.Error(err)
				}
				b := make([]byte, 5)
				if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
					t.Error(string(b), err)
				}
				if err := c.Shutdown(h.ctx()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// Names, services and networks are those of package net.
func TestResolve(t *testing.T) {
	for _, c := range []struct{ network, address, want string }{
		{"tcp", "10.1.2.3:http", "10.1.2.3:80"},
		{"tcp4", ":7", "0.0.0.0:7"},
		{"tcp", ":7", "[::]:7"},
		{"tcp6", "[fe80::1%lo]:7", "[fe80::1%lo]:7"},
		{"tcp", "localhost:7", "127.0.0.1:7"},
	} {
		got, err := resolve(context.Background(), "tcp", c.network, c.address)
		if err != nil || got.String() != c.want {
			t.Errorf("%s %s: %v, %v, want %s", c.network, c.address, got, err, c.want)
		}
	}
}

// Without a device one is opened for as long as it is needed, over a real socket.
func TestOwnDevice(t *testing.T) {
	l, err := Listen("tcp", "127.0.7.1:0")
	if err != nil {
		if runtime.GOOS == "linux" {
			t.Fatal(err)
		}
		t.Skip("no such address: ", err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.Copy(c, c)
		c.Close()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := Config{LocalAddr: netip.MustParseAddrPort("127.0.7.2:0")}.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		c.Write(random(300000, 1))
		c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, random(300000, 1)) {
		t.Error(len(got), err)
	}
	if err := c.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
