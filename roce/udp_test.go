package roce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// testPort is not 4791, so that the tests do not meet a device of this host, and
// free, so that they do not meet those of another run.
var testPort = freePort()

// freePort returns a UDP port that nobody uses on any address.
func freePort() uint16 {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// openUDP opens a device on a loopback address over a real socket.
func openUDP(t testing.TB, addr string, cfg roce.Config) *roce.Device {
	t.Helper()
	cfg.Addr, cfg.Port = netip.MustParseAddr(addr), testPort
	d, err := roce.Open(cfg)
	switch {
	case err != nil && (cfg.Addr.Is6() || runtime.GOOS != "linux"):
		t.Skipf("%s is no address of this host: %v", addr, err) // Linux alone has all of 127.0.0.0/8
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// udpPair returns two connected endpoints over the loopback interface.
func udpPair(t testing.TB, cfg roce.Config, o rocetest.Options) (a, b *rocetest.Endpoint) {
	a = rocetest.New(t, openUDP(t, "127.0.0.1", cfg), o)
	b = rocetest.New(t, openUDP(t, "127.0.0.2", cfg), o)
	rocetest.Connect(t, a, b, o.Conn)
	return a, b
}

// TestUDP: 8 MiB by WRITE and READ over real sockets, with and without the
// kernel's segmentation and coalescing; nothing is dropped.
func TestUDP(t *testing.T) {
	for _, cfg := range []roce.Config{{}, {NoGSO: true}, {NoGRO: true}, {NoGSO: true, NoGRO: true}} {
		t.Run(fmt.Sprintf("NoGSO=%v,NoGRO=%v", cfg.NoGSO, cfg.NoGRO), func(t *testing.T) {
			const size = 8 << 20
			a, b := udpPair(t, cfg, rocetest.Options{Memory: size})
			fill(a.MR.Bytes(), 1)
			wr := roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, size)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
			must(t, a.QP.PostSend(wr))
			want(t, a.Next(t), 1, roce.WCWrite, roce.WCSuccess)
			if !bytes.Equal(a.MR.Bytes(), b.MR.Bytes()) {
				t.Error("WRITE: bytes differ")
			}
			fill(b.MR.Bytes(), 2)
			wr.ID, wr.Opcode = 2, roce.WRRead
			must(t, a.QP.PostSend(wr))
			want(t, a.Next(t), 2, roce.WCRead, roce.WCSuccess)
			if !bytes.Equal(a.MR.Bytes(), b.MR.Bytes()) {
				t.Error("READ: bytes differ")
			}
			for _, name := range []string{"drop_icrc", "drop_ip_id", "drop_unknown_qp", "drop_source_address"} {
				if n := a.Dev.Counters()[name] + b.Dev.Counters()[name]; n > 0 {
					t.Errorf("%s = %d", name, n)
				}
			}
		})
	}
}

// TestSharedPort: devices of one process on one address share the socket, their
// queue pairs reach each other, and the last one closes it.
func TestSharedPort(t *testing.T) {
	d1, d2 := openUDP(t, "127.0.0.3", roce.Config{}), openUDP(t, "127.0.0.3", roce.Config{})
	a, b := rocetest.New(t, d1, rocetest.Options{}), rocetest.New(t, d2, rocetest.Options{})
	rocetest.Connect(t, a, b, roce.Conn{})
	fill(a.MR.Bytes(), 3)
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{a.MR.SGE(0, 5000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	want(t, a.Next(t), 1, roce.WCWrite, roce.WCSuccess)
	if !bytes.Equal(a.MR.Bytes()[:5000], b.MR.Bytes()[:5000]) {
		t.Error("bytes differ")
	}
	// A key of one device is worth nothing on the other.
	must(t, b.QP.PostSend(roce.SendWR{ID: 2, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: a.MR.Addr(), RKey: a.MR.RKey()}))
	want(t, b.Next(t), 2, 0, roce.WCLocProtErr)
	must(t, d1.Close())
	must(t, d2.Close())
	d3 := openUDP(t, "127.0.0.3", roce.Config{Wrap: func(b netio.Backend) netio.Backend { return b }})
	must(t, d3.Close())
}

// TestOpenErrors: the address is named and what to do.
func TestOpenErrors(t *testing.T) {
	var le *netio.ListenError
	if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("192.0.2.1"), Port: testPort}); !errors.As(err, &le) {
		t.Errorf("address that is not local: %v", err)
	}
	openUDP(t, "127.0.0.4", roce.Config{})
	own := roce.Config{Addr: netip.MustParseAddr("127.0.0.4"), Port: testPort, Wrap: func(b netio.Backend) netio.Backend { return b }}
	if _, err := roce.Open(own); !errors.As(err, &le) {
		t.Errorf("address in use: %v", err)
	}
}

// TestPeerPicksAddress: without Addr, the route to Peer decides the local address.
func TestPeerPicksAddress(t *testing.T) {
	d, err := roce.Open(roce.Config{Peer: netip.MustParseAddr("127.0.0.2"), Port: freePort()})
	must(t, err)
	defer d.Close()
	if !d.Addr().IsLoopback() {
		t.Errorf("the address for a loopback peer is %v", d.Addr())
	}
	p, err := d.QueryPort()
	must(t, err)
	if p.State != roce.PortActive || p.Interface != "lo" || p.ActiveMTU != roce.MTU4096 {
		t.Errorf("port of the loopback interface: %+v", p)
	}
}

// TestPathMTU: a path MTU that does not fit the interface is refused at RTR.
func TestPathMTU(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	must(t, err)
	d, err := roce.Open(roce.Config{Backend: mtu1500{be}})
	must(t, err)
	defer d.Close()
	p, err := d.QueryPort()
	must(t, err)
	if p.ActiveMTU != roce.MTU1024 {
		t.Errorf("active MTU %v on an interface of 1500", p.ActiveMTU)
	}
	a := rocetest.New(t, d, rocetest.Options{})
	must(t, a.QP.Init(0))
	var ce *roce.ConfigError
	if err := a.QP.RTR(roce.Remote{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 7}, roce.Conn{PathMTU: roce.MTU2048}); !errors.As(err, &ce) || ce.Field != "PathMTU" {
		t.Errorf("path MTU 2048 on an interface of 1500: %v", err)
	}
}

type mtu1500 struct{ netio.Backend }

func (m mtu1500) Caps() netio.Caps {
	c := m.Backend.Caps()
	c.MTU = 1500
	return c
}

// TestManyGoroutines: posting, polling, waiting, modifying and destroying at once;
// each request completes exactly once.
func TestManyGoroutines(t *testing.T) {
	const workers, rounds = 8, 200
	o := rocetest.Options{Memory: 64 << 10}
	da, db := openUDP(t, "127.0.0.1", roce.Config{}), openUDP(t, "127.0.0.2", roce.Config{})
	var wg sync.WaitGroup
	for w := range workers {
		a, b := rocetest.New(t, da, o), rocetest.New(t, db, o)
		rocetest.Connect(t, a, b, o.Conn)
		wg.Go(func() {
			for i := range rounds {
				if err := b.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 3000)}}); err != nil {
					t.Error(err)
				}
				if err := a.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 3000)}}); err != nil {
					t.Error(err)
				}
				for _, e := range []*rocetest.Endpoint{a, b} {
					var wc [1]roce.WC
					if w%2 == 0 { // wait
						ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
						_, err := e.CQ.Wait(ctx, wc[:])
						cancel()
						if err != nil {
							t.Error(err)
							return
						}
					} else { // poll
						for n := 0; n == 0; {
							n, _ = e.CQ.Poll(wc[:])
						}
					}
					if wc[0].ID != uint64(i) || wc[0].Status != roce.WCSuccess {
						t.Errorf("worker %d round %d: %+v", w, i, wc[0])
						return
					}
				}
			}
			if err := a.QP.Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestCloseWhileBusy: Close returns at once with a peer that is gone, and whoever
// waits gets to know.
func TestCloseWhileBusy(t *testing.T) {
	a, b := udpPair(t, roce.Config{}, rocetest.Options{Memory: 1 << 20})
	must(t, b.Dev.Close())
	for i := range 10 {
		must(t, a.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 1<<20)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	}
	must(t, a.Dev.Close())
	for i := range 10 {
		want(t, a.Next(t), uint64(i), 0, roce.WCWRFlushErr)
	}
}

// TestUnreachable: a peer that does not answer ends the request with retries
// exceeded, everything behind it flushed.
func TestUnreachable(t *testing.T) {
	d := openUDP(t, "127.0.0.1", roce.Config{})
	a := rocetest.New(t, d, rocetest.Options{})
	must(t, a.QP.Connect(roce.Remote{Addr: netip.MustParseAddr("127.0.0.9"), QPN: 5}, roce.Conn{AckTimeout: time.Millisecond, RetryCount: 2}))
	must(t, a.QP.PostSend(
		roce.SendWR{ID: 1, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 8)}},
		roce.SendWR{ID: 2, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
	want(t, a.Next(t), 1, 0, roce.WCRetryExcErr)
	want(t, a.Next(t), 2, 0, roce.WCWRFlushErr)
}

// TestIPv6: the same over IPv6, two queue pairs of one device.
func TestIPv6(t *testing.T) {
	d := openUDP(t, "::1", roce.Config{})
	a, b := rocetest.New(t, d, rocetest.Options{}), rocetest.New(t, d, rocetest.Options{})
	rocetest.Connect(t, a, b, roce.Conn{PathMTU: roce.MTU4096})
	fill(a.MR.Bytes(), 5)
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{a.MR.SGE(0, 1<<20)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	want(t, a.Next(t), 1, roce.WCWrite, roce.WCSuccess)
	if !bytes.Equal(a.MR.Bytes(), b.MR.Bytes()) {
		t.Error("bytes differ")
	}
	if g := d.GIDs()[0]; g != ib.GIDFromAddr(netip.IPv6Loopback()) {
		t.Errorf("GID %v", g)
	}
}

// BenchmarkPingPong is one SEND of 8 bytes each way, polling.
func BenchmarkPingPong(b *testing.B) {
	x, y := udpPair(b, roce.Config{}, rocetest.Options{QP: roce.QPConfig{MaxInline: 8}})
	var data [8]byte
	wc := make([]roce.WC, 1)
	half := func(from, to *rocetest.Endpoint) {
		to.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{to.MR.SGE(0, 8)}})
		from.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: data[:]})
		for n := 0; n == 0; {
			n, _ = to.CQ.Poll(wc)
		}
	}
	for b.Loop() {
		half(x, y)
		half(y, x)
	}
}

// BenchmarkWrite is a WRITE of 1 MiB, several under way.
func BenchmarkWrite(b *testing.B) {
	for _, mtu := range []ib.MTU{roce.MTU1024, roce.MTU4096} {
		b.Run(mtu.String(), func(b *testing.B) {
			x, y := udpPair(b, roce.Config{}, rocetest.Options{Conn: roce.Conn{PathMTU: mtu}})
			b.SetBytes(1 << 20)
			wc := make([]roce.WC, 16)
			wr := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{x.MR.SGE(0, 1<<20)}, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
			open := 0
			for b.Loop() {
				if x.QP.PostSend(wr) != nil {
					b.Fatal("queue full")
				}
				for open++; open > 4; {
					n, _ := x.CQ.Poll(wc)
					open -= n
				}
			}
			for open > 0 {
				n, _ := x.CQ.Poll(wc)
				open -= n
			}
		})
	}
}
