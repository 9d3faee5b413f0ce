package rdmacm_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// TestListenErrors: what cannot be listened to is named.
func TestListenErrors(t *testing.T) {
	a, _ := pair(t)
	l := listen(t, a, rdmacm.TCP)
	if _, err := rdmacm.Listen(l.Addr().String(), rdmacm.ListenConfig{Device: a}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	other, err := rdmacm.Listen(l.Addr().String(), rdmacm.ListenConfig{Device: a, PortSpace: rdmacm.IB})
	must(t, err) // another port space
	must(t, other.Close())
	for _, tt := range []struct {
		field, addr string
		cfg         rdmacm.ListenConfig
	}{
		{"addr", "10.0.0.7:1", rdmacm.ListenConfig{Device: a}},
		{"PortSpace", ":1", rdmacm.ListenConfig{Device: a, PortSpace: 5}},
	} {
		var bad *roce.ConfigError
		if _, err := rdmacm.Listen(tt.addr, tt.cfg); !errors.As(err, &bad) || bad.Field != tt.field {
			t.Errorf("%s: %v", tt.field, err)
		}
	}
	for _, addr := range []string{"10.0.0.1", "10.0.0.1:nonsense", "no such host:1"} {
		if _, err := rdmacm.Listen(addr, rdmacm.ListenConfig{Device: a}); err == nil {
			t.Errorf("%q is taken for an address", addr)
		}
	}
	must(t, l.Close())
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
	l, err = rdmacm.Listen(l.Addr().String(), rdmacm.ListenConfig{Device: a})
	must(t, err) // the port is free again
	must(t, l.Close())
}

// TestDialErrors: a configuration that cannot be is refused, and names its field.
func TestDialErrors(t *testing.T) {
	a, b := pair(t)
	for _, tt := range []struct {
		field string
		cfg   rdmacm.Config
	}{
		{"PortSpace", rdmacm.Config{PortSpace: 5}},
		{"PrivateData", rdmacm.Config{PrivateData: make([]byte, 57)}},
		{"PrivateData", rdmacm.Config{PortSpace: rdmacm.UDP, PrivateData: make([]byte, 181)}},
		{"ResponderResources", rdmacm.Config{ResponderResources: 17}},
		{"InitiatorDepth", rdmacm.Config{InitiatorDepth: 129}},
		{"RetryCount", rdmacm.Config{RetryCount: 8}},
		{"RNRRetryCount", rdmacm.Config{RNRRetryCount: 8}},
		{"Retries", rdmacm.Config{Retries: 16}},
		{"QP.Type", rdmacm.Config{QP: roce.QPConfig{Type: roce.UD}}},
		{"QP.Type", rdmacm.Config{PortSpace: rdmacm.UDP, QP: roce.QPConfig{Type: roce.RC}}},
		{"LocalAddr", rdmacm.Config{LocalAddr: addrPort("10.0.0.9")}},
	} {
		var bad *roce.ConfigError
		if _, err := dial(t, a, addrPort("10.0.0.2"), tt.cfg); !errors.As(err, &bad) || bad.Field != tt.field {
			t.Errorf("%s: %v", tt.field, err)
		}
	}
	l := listen(t, b, rdmacm.TCP)
	accepted := accept(t, l, rdmacm.Config{PrivateData: make([]byte, 197)})
	if _, err := dial(t, a, l.Addr(), rdmacm.Config{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial to a server that fails: %v", err)
	}
	var bad *roce.ConfigError
	if r := <-accepted; !errors.As(r.err, &bad) || bad.Field != "PrivateData" {
		t.Errorf("Accept: %v", r.err)
	}
	sorry := errors.New("sorry")
	if _, err := dial(t, a, l.Addr(), rdmacm.Config{Prepare: func(*rdmacm.Conn) error { return sorry }}); err != sorry {
		t.Errorf("Prepare fails: %v", err)
	}
}

// TestMTU: a path MTU that does not fit the server's interface is refused with one
// that does, which is tried then, unless the program has asked for another one.
func TestMTU(t *testing.T) {
	fabric := netio.NewFabric()
	var devs [2]*roce.Device
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		be, err := fabric.Open(addrPort(addr))
		must(t, err)
		if i == 1 {
			be = narrow{be}
		}
		devs[i], err = roce.Open(roce.Config{Backend: be})
		must(t, err)
		defer devs[i].Close()
	}
	l := listen(t, devs[1], rdmacm.TCP)
	refused := accept(t, l, rdmacm.Config{})
	done := make(chan result, 1)
	go func() {
		<-refused
		done <- <-accept(t, l, rdmacm.Config{})
	}()
	c, err := dial(t, devs[0], l.Addr(), rdmacm.Config{})
	must(t, err)
	r := <-done
	must(t, r.err)
	if c.Params().PathMTU != roce.MTU1024 || r.c.Params().PathMTU != roce.MTU1024 {
		t.Errorf("path MTU %v and %v", c.Params().PathMTU, r.c.Params().PathMTU)
	}
	refused = accept(t, l, rdmacm.Config{})
	var rejected *rdmacm.RejectedError
	if _, err := dial(t, devs[0], l.Addr(), rdmacm.Config{PathMTU: roce.MTU2048}); !errors.As(err, &rejected) || rejected.Reason != 26 {
		t.Errorf("a path MTU of our own: %v", err)
	}
	var bad *roce.ConfigError
	if r := <-refused; !errors.As(r.err, &bad) || bad.Field != "path MTU" {
		t.Errorf("Accept: %v", r.err)
	}
}

// narrow is a backend on a link with a small MTU.
type narrow struct{ netio.Backend }

func (n narrow) Caps() netio.Caps {
	c := n.Backend.Caps()
	c.MTU = 1500
	return c
}

// TestGone: a request whose peer has given up is found to be gone, and leaves the
// queue of the listener.
func TestGone(t *testing.T) {
	a, b := pair(t)
	l := listen(t, b, rdmacm.TCP)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := rdmacm.Dial(short, l.Addr().String(), rdmacm.Config{Device: a}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("without Accept: %v", err)
	}
	if r, err := l.Accept(short); err == nil { // it may have left already
		if _, err := r.Accept(ctx(t), rdmacm.Config{}); !errors.Is(err, rdmacm.ErrGone) && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("to a peer that has given up: %v", err)
		}
	}
}

// TestSockets: over real sockets, from the address of the route to one that is
// listened at, with devices that are opened when they are needed and closed after.
func TestSockets(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8")
	}
	l, err := rdmacm.Listen("127.0.0.81:0", rdmacm.ListenConfig{})
	must(t, err)
	accepted := accept(t, l, rdmacm.Config{Linger: -1})
	c, err := rdmacm.Dial(ctx(t), l.Addr().String(), rdmacm.Config{LocalAddr: addrPort("127.0.0.82"), Linger: -1, AckTimeout: 10 * time.Millisecond})
	must(t, err)
	r := <-accepted
	must(t, r.err)
	if c.LocalAddr() != addrPort("127.0.0.82") || c.Device().Addr() != netip.MustParseAddr("127.0.0.82") {
		t.Errorf("local address %v", c.LocalAddr())
	}
	must(t, l.Close())
	must(t, c.Shutdown(ctx(t)))
	must(t, r.c.Shutdown(ctx(t)))
	for _, d := range []*roce.Device{c.Device(), r.req.Device()} {
		if err := d.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("device %v is left: %v", d.Addr(), err)
		}
	}
}

// TestWildcard: without a host all addresses are listened at, those that are taken
// left out.
func TestWildcard(t *testing.T) {
	l, err := rdmacm.Listen("0.0.0.0:0", rdmacm.ListenConfig{})
	if err != nil {
		t.Skipf("no address of this host can be had: %v", err)
	}
	defer l.Close()
	local, err := netio.LocalAddrs()
	must(t, err)
	for _, a := range l.Addrs() {
		if !a.Addr().Is4() || !slices.Contains(local, a.Addr()) || a.Port() != l.Addr().Port() {
			t.Errorf("listens at %v", a)
		}
	}
	if l.Addrs()[0].Addr().IsLoopback() && runtime.GOOS == "linux" {
		accepted := accept(t, l, rdmacm.Config{})
		c, err := rdmacm.Dial(ctx(t), l.Addrs()[0].String(), rdmacm.Config{LocalAddr: addrPort("127.0.0.83")})
		must(t, err)
		r := <-accepted
		must(t, r.err)
		must(t, c.Shutdown(ctx(t)))
		must(t, r.c.Shutdown(ctx(t)))
	}
}
