package hostile

import (
	"bytes"
	"flag"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// What `make hostile` changes. The zero values are for ordinary test runs.
var (
	fabricCycles = flag.Int("hostile.cycles", 100, "open, connect, transfer and close so many times on the fabric")
	socketCycles = flag.Int("hostile.socketcycles", 30, "the same on loopback sockets")
	floodPackets = flag.Int("hostile.flood", 20000, "packets of the flood")
	chaosRounds  = flag.Int("hostile.chaos", 2, "connections of each goroutine of the chaos test, one after the other")
)

// loopback returns an address of this process' own, so that tests that run at the
// same time do not meet.
func loopback(t testing.TB, i int) netip.Addr {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8")
	}
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(128 + pid>>8&63), byte(pid), byte(i + 1)})
}

// patient is a connection that outlasts a busy machine.
var patient = roce.Conn{AckTimeout: 200 * time.Millisecond, RetryCount: 7}

// ends are two connected endpoints of devices of their own.
func ends(t testing.TB, a, b roce.Config, o rocetest.Options) (x, y *rocetest.Endpoint) {
	open := func(cfg roce.Config) *rocetest.Endpoint {
		d, err := roce.Open(cfg)
		must(t, err)
		return rocetest.New(t, d, o)
	}
	x, y = open(a), open(b)
	rocetest.Connect(t, x, y, patient)
	return x, y
}

// write writes n bytes from a to b, different ones each time, reads them back into
// the other half of its memory and compares them. The peer's memory is left to the
// devices, as the race detector does not see the wire.
func write(t testing.TB, a, b *rocetest.Endpoint, n int, seed byte) {
	half := len(a.MR.Bytes()) / 2
	src, back := a.MR.Bytes()[:n], a.MR.Bytes()[half:][:n]
	for i := range src {
		src[i] = byte(i*7+i>>8) + seed
	}
	clear(back)
	for _, wr := range []roce.SendWR{
		{ID: 1, Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, n)}},
		{ID: 2, Opcode: roce.WRRead, SGE: []roce.SGE{a.MR.SGE(half, n)}},
	} {
		wr.Flags, wr.RemoteAddr, wr.RKey = roce.Signaled, b.MR.Addr(), b.MR.RKey()
		must(t, a.QP.PostSend(wr))
		if wc := a.Next(t); wc.Status != roce.WCSuccess || wc.ID != wr.ID {
			t.Fatalf("completion %+v", wc)
		}
	}
	if !bytes.Equal(back, src) {
		t.Fatal("wrong bytes")
	}
}

// resources are what a leak would show in.
type resources struct {
	heap        int64
	goroutines  int
	descriptors int
}

// inUse returns what is in use, once there are no more goroutines than that, or have
// not become so few for long.
func inUse(goroutines int) (r resources) {
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	var m runtime.MemStats
	for range 2 {
		runtime.GC() // what has a finalizer goes with the second
	}
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	return resources{heap: int64(m.HeapAlloc), goroutines: runtime.NumGoroutine(), descriptors: len(fds)}
}

// cycles opens two devices, connects, transfers and closes them n times, and fails
// if anything is left of it.
func cycles(t *testing.T, n int, open func() (a, b *rocetest.Endpoint)) {
	one := func(i int) {
		a, b := open()
		write(t, a, b, 3000, byte(i))
		must(t, a.Dev.Close())
		must(t, b.Dev.Close())
	}
	idle := runtime.NumGoroutine()
	for i := range n/10 + 1 {
		one(i)
	}
	before := inUse(idle)
	start := time.Now()
	for i := range n {
		one(i)
	}
	took := time.Since(start)
	after := inUse(before.goroutines)
	t.Logf("%d cycles in %v: heap %d KiB before, %d KiB after; goroutines %d, %d; descriptors %d, %d", n, took.Round(time.Millisecond),
		before.heap>>10, after.heap>>10, before.goroutines, after.goroutines, before.descriptors, after.descriptors)
	if after.goroutines > before.goroutines || after.descriptors > before.descriptors || after.heap > before.heap+1<<20 {
		t.Error("something is left")
	}
}

// TestCycles: devices that come and go leave nothing.
func TestCycles(t *testing.T) {
	o := rocetest.Options{Memory: 8 << 10, CQEntries: 16}
	t.Run("fabric", func(t *testing.T) {
		cycles(t, *fabricCycles, func() (a, b *rocetest.Endpoint) {
			f := netio.NewFabric()
			f.RecvBuffer = 64 << 10
			var cfg [2]roce.Config
			for i, addr := range []netip.Addr{victimAddr, peerAddr} {
				be, err := f.Open(netip.AddrPortFrom(addr, netio.Port))
				must(t, err)
				cfg[i].Backend = be
			}
			return ends(t, cfg[0], cfg[1], o)
		})
	})
	t.Run("sockets", func(t *testing.T) {
		a, b := loopback(t, 0), loopback(t, 1)
		cycles(t, *socketCycles, func() (x, y *rocetest.Endpoint) {
			return ends(t, roce.Config{Addr: a}, roce.Config{Addr: b}, o)
		})
	})
}

// attacker is a UDP socket of an address.
func attacker(t testing.TB, addr netip.Addr) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	must(t, err)
	return c
}
