package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// padded says whether b is s with zeros behind it.
func padded(b []byte, s string) bool { return string(bytes.TrimRight(b, "\x00")) == s }

// TestConnect: private data and parameters go both ways, each side knows the other's
// address, and messages pass in both directions.
func TestConnect(t *testing.T) {
	for _, addrs := range [][]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		for _, ps := range []rdmacm.PortSpace{rdmacm.TCP, rdmacm.IB} {
			devs := devices(t, netio.Faults{}, addrs...)
			var posted *roce.MR
			client, server := connect(t, devs[0], devs[1], rdmacm.Config{
				PortSpace: ps, PrivateData: []byte("question"), ResponderResources: 3, InitiatorDepth: 5, RetryCount: 4, RNRRetryCount: 2,
				PathMTU: roce.MTU1024, AckTimeout: 100 * time.Millisecond, TrafficClass: 0x20, FlowControl: true,
			}, rdmacm.Config{
				PrivateData: []byte("answer"), InitiatorDepth: 2, RNRRetryCount: 6,
				Prepare: func(c *rdmacm.Conn) error {
					posted = memory(t, c, 100)
					return c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{posted.SGE(0, 100)}})
				},
			})
			if !padded(client.PrivateData(), "answer") || !padded(server.PrivateData(), "question") {
				t.Errorf("private data %q and %q", client.PrivateData(), server.PrivateData())
			}
			if n := len(server.PrivateData()); n != 56 {
				t.Errorf("the server sees %d bytes of private data", n)
			}
			timeout := 134217728 * time.Nanosecond // 4.096 us * 2^15
			if got, want := client.Params(), (rdmacm.Params{ResponderResources: 2, InitiatorDepth: 5, RetryCount: 4, RNRRetryCount: 6,
				PathMTU: roce.MTU1024, AckTimeout: timeout, TrafficClass: 0x20}); got != want {
				t.Errorf("client's parameters %+v, want %+v", got, want)
			}
			if got, want := server.Params(), (rdmacm.Params{ResponderResources: 5, InitiatorDepth: 2, FlowControl: true, RetryCount: 4, RNRRetryCount: 2,
				PathMTU: roce.MTU1024, AckTimeout: timeout, TrafficClass: 0x20}); got != want {
				t.Errorf("server's parameters %+v, want %+v", got, want)
			}
			if client.RemoteAddr() != server.LocalAddr() || server.RemoteAddr() != client.LocalAddr() || client.RemoteAddr().Addr() != devs[1].Addr() {
				t.Errorf("addresses %v -> %v, %v -> %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
			}
			a, _ := server.QP().Query()
			if a.PathMTU != roce.MTU1024 || a.RetryCnt != 4 || a.RNRRetry != 2 || a.MaxRdAtomic != 2 || a.MaxDestRdAtomic != 5 || a.Timeout.Duration() != timeout {
				t.Errorf("server's queue pair %+v", a)
			}
			src := memory(t, client, 100)
			copy(src.Bytes(), "hello")
			must(t, client.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{src.SGE(0, 5)}}))
			if wc := next(t, client.CQ()); wc.Status != roce.WCSuccess {
				t.Errorf("send: %+v", wc)
			}
			if wc := next(t, server.CQ()); wc.Status != roce.WCSuccess || string(posted.Bytes()[:wc.ByteLen]) != "hello" {
				t.Errorf("receive: %+v", wc)
			}
		}
	}
}

// TestReject: the program's refusal comes with its private data; a port without
// listener, or of another port space, refuses as TCP does.
func TestReject(t *testing.T) {
	a, b := pair(t)
	l := listen(t, b, rdmacm.TCP)
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			if !padded(r.PrivateData(), "please") {
				t.Errorf("private data %q", r.PrivateData())
			}
			if err := r.Reject([]byte("no room")); err != nil {
				t.Error(err)
			}
			if err := r.Reject(nil); err == nil {
				t.Error("a request can be answered twice")
			}
		}
	}()
	_, err := dial(t, a, l.Addr(), rdmacm.Config{PrivateData: []byte("please")})
	var rejected *rdmacm.RejectedError
	if !errors.As(err, &rejected) || !padded(rejected.PrivateData, "no room") || rejected.Reason != 28 || !strings.Contains(err.Error(), "the program there rejects") {
		t.Errorf("refused by the program: %v", err)
	}
	must(t, l.Close())
	if _, err := l.Accept(ctx(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	for _, ps := range []rdmacm.PortSpace{rdmacm.TCP, rdmacm.IB, rdmacm.UDP} {
		if _, err = dial(t, a, l.Addr(), rdmacm.Config{PortSpace: ps}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "nobody listens on this port") {
			t.Errorf("no listener: %v", err)
		}
	}
	if a.Counters()["rcvd_pkts"] == 0 {
		t.Error("no packet was counted")
	}
}

// TestUnreachable: a host that does not answer is given up after the retries that
// were asked for; a context ends an attempt at once.
func TestUnreachable(t *testing.T) {
	a, b := pair(t)
	to := listen(t, b, rdmacm.TCP).Addr()
	must(t, b.Close())
	for _, ps := range []rdmacm.PortSpace{rdmacm.TCP, rdmacm.UDP} {
		began := time.Now()
		_, err := dial(t, a, to, rdmacm.Config{PortSpace: ps, ResponseTimeout: 20 * time.Millisecond, Retries: 2})
		var late *rdmacm.UnreachableError
		if !errors.As(err, &late) || late.Addr != to || !late.Timeout() {
			t.Errorf("%v: %v", ps, err)
		}
		if took := time.Since(began); took < 60*time.Millisecond {
			t.Errorf("%v: given up after %v", ps, took)
		}
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := rdmacm.Dial(short, to.String(), rdmacm.Config{Device: a, PortSpace: ps}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: with a context: %v", ps, err)
		}
	}
}

// TestConnectionLimit: a device that has as many connections as it may have names the
// limit, and refuses those of peers.
func TestConnectionLimit(t *testing.T) {
	fabric := netio.NewFabric()
	open := func(addr string, limits roce.Limits) *roce.Device {
		be, err := fabric.Open(addrPort(addr))
		must(t, err)
		d, err := roce.Open(roce.Config{Backend: be, Spin: -1, Limits: limits})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	a, b := open("10.0.0.1", roce.Limits{}), open("10.0.0.2", roce.Limits{MaxCMID: 2})
	for range 2 {
		connect(t, a, b, rdmacm.Config{}, rdmacm.Config{})
	}
	var limit *roce.LimitError
	if _, err := dial(t, b, listen(t, a, rdmacm.TCP).Addr(), rdmacm.Config{}); !errors.As(err, &limit) || limit.Limit != "MaxCMID" || limit.Most != 2 {
		t.Errorf("a third connection of the limited device: %v", err)
	}
	if _, err := dial(t, a, listen(t, b, rdmacm.TCP).Addr(), rdmacm.Config{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a third connection to it: %v", err)
	}
}

// TestDisconnect: either side, or both at once, ends the connection; what is posted
// is flushed, the peer is told why.
func TestDisconnect(t *testing.T) {
	for _, who := range []string{"client", "server", "both"} {
		a, b := pair(t)
		client, server := connect(t, a, b, rdmacm.Config{}, rdmacm.Config{})
		for _, c := range []*rdmacm.Conn{client, server} {
			must(t, c.QP().PostRecv(roce.RecvWR{ID: 5}))
		}
		first, second := client, server
		if who == "server" {
			first, second = server, client
		}
		done := make(chan error, 1)
		if who == "both" {
			go func() { done <- second.Disconnect(ctx(t), []byte("bye")) }()
		}
		err := first.Disconnect(ctx(t), []byte("bye"))
		if who == "both" {
			if err != nil && !errors.Is(err, rdmacm.ErrDisconnected) {
				t.Errorf("both: %v", err)
			}
			if err := <-done; err != nil && !errors.Is(err, rdmacm.ErrDisconnected) {
				t.Errorf("both: %v", err)
			}
			ended(t, second)
		} else {
			must(t, err)
			if err := ended(t, second); !errors.Is(err, rdmacm.ErrDisconnected) {
				t.Errorf("%s disconnects: the other side hears %v", who, err)
			}
			if err := second.Disconnect(ctx(t), nil); !errors.Is(err, rdmacm.ErrDisconnected) {
				t.Errorf("Disconnect of what has ended: %v", err)
			}
		}
		for _, c := range []*rdmacm.Conn{client, server} {
			if wc := next(t, c.CQ()); wc.ID != 5 || wc.Status != roce.WCWRFlushErr {
				t.Errorf("%s: %+v", who, wc)
			}
			must(t, c.Shutdown(ctx(t)))
		}
	}
}

// TestClose: Close frees everything once the time-wait is over, and the device has
// no trace of the connection.
func TestClose(t *testing.T) {
	a, b := pair(t)
	client, server := connect(t, a, b, rdmacm.Config{AckTimeout: 10 * time.Millisecond}, rdmacm.Config{})
	must(t, client.Close())
	if err := client.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
	if err := ended(t, server); !errors.Is(err, rdmacm.ErrDisconnected) {
		t.Errorf("the peer of Close hears %v", err)
	}
	must(t, client.Shutdown(ctx(t)))
	must(t, server.Shutdown(ctx(t)))
	for _, c := range []*rdmacm.Conn{client, server} {
		if err := c.QP().Destroy(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the queue pair is left: %v", err)
		}
		if err := c.CQ().Destroy(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the completion queue is left: %v", err)
		}
		must(t, c.PD().Dealloc())
	}
}

// TestLinger: who closes right after the last message still acknowledges it when the
// first acknowledgement is lost.
func TestLinger(t *testing.T) {
	lose := make(chan struct{}, 1)
	fabric := netio.NewFabric()
	var devs [2]*roce.Device
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		be, err := fabric.Open(addrPort(addr))
		must(t, err)
		devs[i], err = roce.Open(roce.Config{Backend: &loser{be, lose}})
		must(t, err)
		defer devs[i].Close()
	}
	client, server := connect(t, devs[0], devs[1], rdmacm.Config{AckTimeout: 536 * time.Millisecond}, rdmacm.Config{
		Prepare: func(c *rdmacm.Conn) error { return c.QP().PostRecv(roce.RecvWR{}) },
	})
	lose <- struct{}{}
	must(t, client.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
	if wc := next(t, server.CQ()); wc.Status != roce.WCSuccess {
		t.Fatalf("receive: %+v", wc)
	}
	must(t, server.Close())
	if wc := next(t, client.CQ()); wc.Status != roce.WCSuccess {
		t.Errorf("the acknowledgement did not come: %+v", wc)
	}
	if len(lose) != 0 {
		t.Error("no acknowledgement was lost")
	}
}

// TestDeviceClosed: with the device its connections and listeners end.
func TestDeviceClosed(t *testing.T) {
	a, b := pair(t)
	client, server := connect(t, a, b, rdmacm.Config{}, rdmacm.Config{})
	l := listen(t, a, rdmacm.TCP)
	must(t, a.Close())
	if err := ended(t, client); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection ends with %v", err)
	}
	if _, err := l.Accept(ctx(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	must(t, client.Shutdown(ctx(t)))
	if _, err := dial(t, a, server.LocalAddr(), rdmacm.Config{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial: %v", err)
	}
}

// TestEvents: the program can follow what happens.
func TestEvents(t *testing.T) {
	a, b := pair(t)
	events := make(chan rdmacm.Event, 16)
	client, server := connect(t, a, b, rdmacm.Config{Events: events, AckTimeout: 10 * time.Millisecond}, rdmacm.Config{PrivateData: []byte("x")})
	must(t, server.Disconnect(ctx(t), []byte("enough")))
	ended(t, client)
	for _, want := range []rdmacm.EventType{rdmacm.EventEstablished, rdmacm.EventDisconnected, rdmacm.EventTimewaitExit} {
		select {
		case ev := <-events:
			if ev.Type != want || ev.Conn != client || want == rdmacm.EventDisconnected && !padded(ev.PrivateData, "enough") {
				t.Errorf("event %v with %q, want %v", ev.Type, ev.PrivateData, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no %v", want)
		}
	}
	before := rdmacm.Counters()["drop_event"]
	full := make(chan rdmacm.Event)
	connect(t, a, b, rdmacm.Config{Events: full}, rdmacm.Config{})
	if rdmacm.Counters()["drop_event"] == before {
		t.Error("an event that found no room was not counted")
	}
}

// A program may end as soon as Disconnect, without time to wait, or Close, without
// Linger, has returned: its request to disconnect is on its way.
func TestLeavesAtOnce(t *testing.T) {
	for name, leave := range map[string]func(*rdmacm.Conn){
		"Disconnect": func(c *rdmacm.Conn) {
			over, end := context.WithCancel(t.Context())
			end()
			c.Disconnect(over, nil)
		},
		"Close": func(c *rdmacm.Conn) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			client, _ := connect(t, a, b, rdmacm.Config{Linger: -1}, rdmacm.Config{})
			before := rdmacm.Counters()["cm_tx_dreq"]
			leave(client)
			if sent := rdmacm.Counters()["cm_tx_dreq"] - before; sent != 1 {
				t.Errorf("%d DREQs when it returns", sent)
			}
		})
	}
}
