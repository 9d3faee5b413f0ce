package rdmacm_test

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// devices returns devices on one network in memory, with faults if wanted.
func devices(t testing.TB, faults netio.Faults, addrs ...string) (devs []*roce.Device) {
	t.Helper()
	fabric := netio.NewFabric()
	for i, a := range addrs {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(a), netio.Port))
		must(t, err)
		if faults != (netio.Faults{}) {
			be = netio.WithFaults(be, netio.FaultConfig{Seed: uint64(i + 1), Rx: faults})
		}
		d, err := roce.Open(roce.Config{Backend: be, Spin: -1})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		devs = append(devs, d)
	}
	return devs
}

// pair returns two devices.
func pair(t testing.TB) (a, b *roce.Device) {
	devs := devices(t, netio.Faults{}, "10.0.0.1", "10.0.0.2")
	return devs[0], devs[1]
}

// ctx returns a context that ends with the test, or after a while.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return c
}

// listen listens on a device, at a free port.
func listen(t testing.TB, d *roce.Device, ps rdmacm.PortSpace) *rdmacm.Listener {
	t.Helper()
	l, err := rdmacm.Listen(":0", rdmacm.ListenConfig{Device: d, PortSpace: ps})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// result is what Accept, Dial or Reject returned.
type result struct {
	c   *rdmacm.Conn
	req *rdmacm.Request
	err error
}

// accept answers the next request as cfg says.
func accept(t testing.TB, l *rdmacm.Listener, cfg rdmacm.Config) <-chan result {
	done := make(chan result, 1)
	c := ctx(t)
	go func() {
		r, err := l.Accept(c)
		if err != nil {
			done <- result{err: err}
			return
		}
		conn, err := r.Accept(c, cfg)
		done <- result{conn, r, err}
	}()
	return done
}

func dial(t testing.TB, from *roce.Device, to netip.AddrPort, cfg rdmacm.Config) (*rdmacm.Conn, error) {
	t.Helper()
	cfg.Device = from
	return rdmacm.Dial(ctx(t), net.JoinHostPort(to.Addr().String(), strconv.Itoa(int(to.Port()))), cfg)
}

// connect connects from one device to another.
func connect(t testing.TB, from, to *roce.Device, active, passive rdmacm.Config) (client, server *rdmacm.Conn) {
	t.Helper()
	l := listen(t, to, active.PortSpace)
	accepted := accept(t, l, passive)
	client, err := dial(t, from, l.Addr(), active)
	must(t, err)
	r := <-accepted
	must(t, r.err)
	t.Cleanup(func() { client.Close(); r.c.Close() })
	return client, r.c
}

// next waits for a completion.
func next(t testing.TB, cq *roce.CQ) roce.WC {
	t.Helper()
	var wc [1]roce.WC
	if _, err := cq.Wait(ctx(t), wc[:]); err != nil {
		t.Fatalf("waiting for a completion: %v", err)
	}
	return wc[0]
}

// memory registers memory in a connection's domain.
func memory(t testing.TB, c *rdmacm.Conn, n int) *roce.MR {
	t.Helper()
	mr, err := c.PD().RegisterMR(make([]byte, n), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead)
	must(t, err)
	return mr
}

// ended waits until a connection has ended, and says why.
func ended(t testing.TB, c *rdmacm.Conn) error {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the connection does not end")
	}
	return c.Err()
}

func addrPort(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), netio.Port) }

// loser is a backend that loses the next acknowledgement for each token.
type loser struct {
	netio.Backend
	lose chan struct{}
}

func (l *loser) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := l.Backend.Recv(now, dst)
	kept := dst[:0]
	for _, r := range dst[:n] {
		if ib.Opcode(r.Buf[0]) == ib.OpRCAck {
			select {
			case <-l.lose:
				continue
			default:
			}
		}
		kept = append(kept, r)
	}
	return len(kept), err
}
