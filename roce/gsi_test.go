package roce_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// received is a management datagram as a handler got it.
type received struct {
	from roce.MADAddr
	b    []byte
}

// listenMAD returns what arrives for a management class.
func listenMAD(t testing.TB, d *roce.Device, class mad.Class) (*roce.GSI, <-chan received) {
	t.Helper()
	g, err := d.GSI()
	must(t, err)
	ch := make(chan received, 4096)
	must(t, g.Handle(class, func(from roce.MADAddr, b []byte) { ch <- received{from, bytes.Clone(b)} }))
	return g, ch
}

func nextMAD(t testing.TB, ch <-chan received) received {
	t.Helper()
	select {
	case r := <-ch:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("no datagram")
		return received{}
	}
}

// madOf returns a management datagram with a base version, a class and a recognisable rest.
func madOf(version, class byte, n int) []byte {
	b := make([]byte, n)
	fill(b, int(class))
	b[0], b[1] = version, class
	return b
}

// TestGSI: management datagrams arrive whole, padded to 256 bytes, at the handler
// of their class, which is told who has sent them and may answer at once.
func TestGSI(t *testing.T) {
	for _, addrs := range [][]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		ends := datagrams(t, addrs, roce.QPConfig{}, nil)
		a, fromB := listenMAD(t, ends[0].Dev, 7)
		b, err := ends[1].Dev.GSI()
		must(t, err)
		must(t, b.Handle(7, func(from roce.MADAddr, m []byte) {
			m[2]++
			if err := b.Send(from, m); err != nil {
				t.Error(err)
			}
		}))
		for i := range 3000 { // more than there are buffers
			m := madOf(1, 7, 200)
			m[3] = byte(i)
			must(t, a.Send(roce.MADAddr{Addr: ends[1].Dev.Addr(), TrafficClass: 0x20}, m))
			got := nextMAD(t, fromB)
			m = append(m, make([]byte, 56)...)
			m[2]++
			if got.from != (roce.MADAddr{Addr: ends[1].Dev.Addr(), QPN: 1, TrafficClass: 0x20}) || !bytes.Equal(got.b, m) {
				t.Fatalf("answer %d: %+v", i, got)
			}
		}
		if a.GUID() == b.GUID() {
			t.Error("two ports have one GUID")
		}
		if n := ends[1].Dev.Counters()["rcvd_pkts"]; n != 3000 {
			t.Errorf("rcvd_pkts is %d", n)
		}
	}
}

// TestGSIDrops: every datagram that is not handed over is counted by its reason.
func TestGSIDrops(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{MaxInline: 512}, nil)
	a, b := ends[0], ends[1]
	send := func(qkey uint32, m []byte) {
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: m, AH: handle(t, a, b), RemoteQPN: ib.GSIQPN, QKey: qkey}))
	}
	// The queue pair does not exist until somebody asks for it.
	send(mad.QKey, madOf(1, 7, 256))
	waitCounter(t, b.Dev, "drop_unknown_qp")
	_, ch := listenMAD(t, b.Dev, 7)
	must(t, a.QP.Modify(&roce.Attr{QKey: mad.QKey}, roce.MaskQKey))
	for _, tt := range []struct {
		counter string
		qkey    uint32
		b       []byte
	}{
		{"drop_mad_format", mad.QKey, madOf(1, 7, 255)},
		{"resp_local_length_error", mad.QKey, madOf(1, 7, 257)},
		{"drop_mad_format", mad.QKey, madOf(2, 7, 256)},
		{"drop_mad_class", mad.QKey, madOf(1, 5, 256)},
		{"drop_qkey", 0x11111111, madOf(1, 7, 256)},
	} {
		before := b.Dev.Counters()[tt.counter]
		send(tt.qkey, tt.b)
		send(mad.QKey, madOf(1, 7, 256)) // one behind the other
		nextMAD(t, ch)
		if n := b.Dev.Counters()[tt.counter] - before; n != 1 {
			t.Errorf("%s: %d were counted", tt.counter, n)
		}
	}
	if len(ch) != 0 {
		t.Errorf("%d datagrams too many were handed over", len(ch))
	}
}

// waitCounter waits until a counter is not 0.
func waitCounter(t testing.TB, d *roce.Device, name string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); d.Counters()[name] == 0; {
		if time.Now().After(end) {
			t.Fatalf("%s stays 0", name)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestGSIShared: devices on one address have one GSI, which lives as long as one of
// them does and can be had again afterwards.
func TestGSIShared(t *testing.T) {
	for range 2 {
		d1, d2 := openUDP(t, "127.0.0.1", roce.Config{}), openUDP(t, "127.0.0.1", roce.Config{})
		peer := openUDP(t, "127.0.0.2", roce.Config{})
		g1, ch := listenMAD(t, d1, 7)
		g2, err := d2.GSI()
		must(t, err)
		if g1 != g2 {
			t.Fatal("two devices on one address have two GSIs")
		}
		if err := g2.Handle(7, func(roce.MADAddr, []byte) {}); !errors.Is(err, roce.ErrBusy) {
			t.Errorf("a class can be served twice: %v", err)
		}
		must(t, d1.Close())
		from, err := peer.GSI()
		must(t, err)
		must(t, from.Send(roce.MADAddr{Addr: d2.Addr()}, madOf(1, 7, 256)))
		nextMAD(t, ch)
		must(t, d2.Close())
		select {
		case <-g1.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the GSI outlives its port")
		}
		if err := g1.Send(roce.MADAddr{Addr: peer.Addr()}, nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
		if _, err := d1.GSI(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("GSI of a closed device: %v", err)
		}
		must(t, peer.Close())
	}
}

// TestGSILimits: what the program may have is not what the port needs for itself.
func TestGSILimits(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), netio.Port))
	must(t, err)
	d, err := roce.Open(roce.Config{Backend: be, Limits: roce.Limits{MaxQP: 1, MaxCQ: 1, MaxMR: 1, MaxAH: 1}})
	must(t, err)
	defer d.Close()
	g, ch := listenMAD(t, d, 7)
	for range 3 {
		must(t, g.Send(roce.MADAddr{Addr: d.Addr()}, madOf(1, 7, 256)))
		nextMAD(t, ch)
	}
	rocetest.New(t, d, rocetest.Options{Memory: 100})
}

// TestGSIErrors: what cannot be sent is named, and nothing is kept of it.
func TestGSIErrors(t *testing.T) {
	a := datagrams(t, []string{"10.0.0.1"}, roce.QPConfig{}, nil)[0]
	g, err := a.Dev.GSI()
	must(t, err)
	var bad *roce.ConfigError
	if err := g.Send(roce.MADAddr{Addr: a.Dev.Addr()}, make([]byte, 257)); !errors.As(err, &bad) || bad.Field != "b" {
		t.Errorf("257 bytes: %v", err)
	}
	if err := g.Send(roce.MADAddr{}, nil); !errors.As(err, &bad) || bad.Field != "AV.DGID" {
		t.Errorf("no address: %v", err)
	}
}

// TestGSIFull: datagrams that find no room are refused and counted; what was posted
// goes out later.
func TestGSIFull(t *testing.T) {
	fabric := netio.NewFabric()
	var devs [2]*roce.Device
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
		must(t, err)
		devs[i], err = roce.Open(roce.Config{Backend: be, Manual: i == 0}) // the first sends when told to
		must(t, err)
		defer devs[i].Close()
	}
	a, b := devs[0], devs[1]
	_, ch := listenMAD(t, b, 7)
	g, err := a.GSI()
	must(t, err)
	to, sent := roce.MADAddr{Addr: b.Addr()}, 0
	for ; ; sent++ {
		if err := g.Send(to, madOf(1, 7, 256)); err != nil {
			if !errors.Is(err, roce.ErrQueueFull) || a.Counters()["drop_mad_send"] != 1 || sent < 100 {
				t.Errorf("after %d: %v", sent, err)
			}
			break
		}
	}
	for a.Progress(0) == 0 {
	}
	for range sent {
		nextMAD(t, ch)
	}
	must(t, g.Send(to, madOf(1, 7, 256)))
}
