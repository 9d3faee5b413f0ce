package hostile

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// flood sends packets to a device until they are all sent or stop is closed: random
// bytes; packets of every opcode with the right queue pair number and ICRC, from an
// address that is not the peer's; from the peer's own address with the right ICRC for
// queue pairs that do not exist, and damaged ones for the one that does.
func flood(from, asPeer *net.UDPConn, victim *rocetest.Endpoint, n int, seed uint64, stop <-chan struct{}) (sent int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	to := netip.AddrPortFrom(victim.Dev.Addr(), netio.Port)
	ops := known()
	buf := make([]byte, 1500)
	for i := range n {
		select {
		case <-stop:
			return i
		default:
		}
		conn, qpn, b := from, victim.QP.Num(), buf[:rnd.IntN(1400)]
		for j := range b[:min(len(b), 64)] {
			b[j] = byte(rnd.Uint32())
		}
		if i%4 == 0 {
			conn.WriteToUDPAddrPort(b, to)
			continue
		}
		op := ops[rnd.IntN(len(ops))]
		b = buf[:op.Info().HeaderLen+rnd.IntN(256)*4+ib.ICRCSize]
		if i%4 > 1 {
			conn = asPeer
		}
		if i%4 == 2 {
			qpn ^= ib.QPN(1 + rnd.IntN(1<<20))
		}
		ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: qpn, PSN: ib.PSN(rnd.Uint32() & 0xffffff)}.Put(b)
		flow := ib.NewFlow(conn.LocalAddr().(*net.UDPAddr).AddrPort(), to)
		flow.Seal(0, b)
		if i%4 == 3 {
			b[len(b)-1-rnd.IntN(ib.ICRCSize)] ^= byte(1 + rnd.IntN(255))
		}
		conn.WriteToUDPAddrPort(b, to)
	}
	return n
}

// TestFlood: under a flood at both sockets a transfer goes on, every byte right, and
// memory does not grow. The loss of goodput is printed.
func TestFlood(t *testing.T) {
	o := rocetest.Options{Memory: 1 << 20}
	a, b := ends(t, roce.Config{Addr: loopback(t, 10)}, roce.Config{Addr: loopback(t, 11)}, o)
	defer a.Dev.Close()
	defer b.Dev.Close()
	const size = 256 << 10
	goodput := func(over func(n int) bool) float64 {
		start, n := time.Now(), 0
		for ; !over(n); n++ {
			write(t, a, b, size, byte(n))
		}
		return float64(2*n*size) / time.Since(start).Seconds() / 1e6
	}
	enough := func(n int) bool { return n == max(4, *floodPackets/2000) }
	before := goodput(enough)
	memory := inUse(runtime.NumGoroutine())

	var wg sync.WaitGroup
	var running atomic.Int32
	sent := make([]int, 2)
	victims := [2]*rocetest.Endpoint{a, b}
	stop := make(chan struct{})
	for i, v := range victims {
		from, asPeer := attacker(t, loopback(t, 12)), attacker(t, victims[1-i].Dev.Addr())
		running.Add(1)
		wg.Go(func() {
			sent[i] = flood(from, asPeer, v, *floodPackets/2, uint64(i), stop)
			running.Add(-1)
			from.Close()
			asPeer.Close()
		})
	}
	start := time.Now()
	during := goodput(func(n int) bool { return n > 0 && running.Load() == 0 })
	took := time.Since(start)
	wg.Wait()
	grown := inUse(memory.goroutines).heap - memory.heap
	after := goodput(enough)
	t.Logf("%d packets in %v (%.0f per second); goodput %.0f MB/s before, %.0f during, %.0f after; heap grown by %d KiB",
		sent[0]+sent[1], took.Round(time.Millisecond), float64(sent[0]+sent[1])/took.Seconds(), before, during, after, grown>>10)
	if grown > 4<<20 {
		t.Errorf("memory has grown by %d bytes", grown)
	}
	counters := b.Dev.Counters()
	for _, reason := range []string{"drop_source_address", "drop_unknown_qp", "drop_icrc", "drop_too_short", "drop_unknown_opcode"} {
		if counters[reason] == 0 {
			t.Errorf("nothing was dropped as %s: the flood has not come", reason)
		}
		t.Logf("%s %d", reason, counters[reason])
	}
}
