package roce_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// crowd is two devices with n connected pairs of queue pairs between them.
type crowd struct {
	devs  [2]*roce.Device
	pds   [2]*roce.PD
	cqs   [2]*roce.CQ
	mrs   [2]*roce.MR
	pairs [][2]*roce.QP
}

func newCrowd(tb testing.TB, n int, devs [2]*roce.Device, depth int) *crowd {
	c := &crowd{devs: devs}
	for i, d := range devs {
		var err error
		c.pds[i], err = d.AllocPD()
		must(tb, err)
		c.cqs[i], err = d.CreateCQ(1024)
		must(tb, err)
		c.mrs[i], err = c.pds[i].RegisterMR(make([]byte, 4096), roce.LocalWrite|roce.RemoteWrite)
		must(tb, err)
	}
	for range n {
		var p [2]*roce.QP
		for i := range p {
			var err error
			p[i], err = c.pds[i].CreateQP(roce.QPConfig{SendCQ: c.cqs[i], MaxSendWR: depth, MaxRecvWR: depth})
			must(tb, err)
		}
		for i, q := range p {
			peer := p[1-i]
			must(tb, q.Connect(roce.Remote{Addr: devs[1-i].Addr(), QPN: peer.Num(), PSN: peer.PSN()}, roce.Conn{Access: roce.RemoteWrite}))
		}
		c.pairs = append(c.pairs, p)
	}
	return c
}

// manualPair is two manual devices on a fabric.
func manualPair(tb testing.TB) (devs [2]*roce.Device) {
	f := netio.NewFabric()
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		devs[i] = openManual(tb, fabricPort(tb, f, addr))
	}
	return devs
}

// write posts an 8-byte WRITE of pair i and lets both devices work until it completes.
func (c *crowd) write(tb testing.TB, i int, now time.Duration) {
	wr := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{c.mrs[0].SGE(0, 8)}, RemoteAddr: c.mrs[1].Addr(), RKey: c.mrs[1].RKey()}
	must(tb, c.pairs[i][0].PostSend(wr))
	var wc [1]roce.WC
	for turns := 0; ; turns++ {
		for _, d := range c.devs {
			d.Progress(now)
		}
		if n, err := c.cqs[0].Poll(wc[:]); err != nil || n > 0 && wc[0].Status != roce.WCSuccess || turns > 10 {
			tb.Fatalf("%d completions, %v, %v after %d turns", n, err, wc[0].Status, turns)
		} else if n > 0 {
			return
		}
	}
}

// heap returns the bytes of live objects.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// 10,000 connected queue pairs in one process have at most 4 KiB each while they are
// idle, with room for 16 READs each way and 128 requests in each queue.
func TestIdleMemory(t *testing.T) {
	const pairs = 5000
	before := heap()
	begin := time.Now()
	f := netio.NewFabric()
	var devs [2]*roce.Device
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		var err error
		devs[i], err = roce.Open(roce.Config{Backend: fabricPort(t, f, addr), Manual: true, Engines: 1})
		must(t, err)
		t.Cleanup(func() { devs[i].Close() })
	}
	c := newCrowd(t, pairs, devs, 128)
	each := int(heap()-before) / (2 * pairs)
	t.Logf("%d connected queue pairs, %d bytes each, made in %v", 2*pairs, each, time.Since(begin))
	if each > 4096 {
		t.Errorf("a connected idle queue pair takes %d bytes", each)
	}
	runtime.KeepAlive(c)
}

// BenchmarkCrowd is an 8-byte WRITE, of each of many queue pairs in turn: what it
// costs must not grow with their number, that of the timers that run, or that of the
// memory regions, but for what the caches miss.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c := newCrowd(b, n, manualPair(b), 1)
			for range n - 1 {
				_, err := c.pds[1].RegisterMR(make([]byte, 8), roce.RemoteWrite|roce.LocalWrite)
				must(b, err)
			}
			now := time.Duration(0)
			for i := range n { // the first request allocates
				c.write(b, i, now)
			}
			for i := 0; b.Loop(); i++ {
				now += time.Microsecond
				c.write(b, i%n, now)
			}
		})
	}
}
