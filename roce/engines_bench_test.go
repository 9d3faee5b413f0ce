package roce_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// BenchmarkEngines are WRITEs over loopback between two devices, by goroutines that each
// have a pair of queue pairs and poll at both ends of it: what more engines gain where
// more processors work.
func BenchmarkEngines(b *testing.B) {
	for _, size := range []int{64, 1 << 20} {
		for _, c := range []struct{ workers, engines int }{{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 4}} {
			b.Run(fmt.Sprintf("%d/workers=%d/engines=%d", size, c.workers, c.engines), func(b *testing.B) {
				var devs [2]*roce.Device
				for i := range devs {
					devs[i] = openUDP(b, fmt.Sprintf("127.0.0.%d", i+1), roce.Config{Engines: c.engines})
				}
				pairs := make([][2]*rocetest.Endpoint, c.workers)
				for k := range pairs {
					for i, d := range devs {
						pairs[k][i] = rocetest.New(b, d, rocetest.Options{})
					}
					rocetest.Connect(b, pairs[k][0], pairs[k][1], roce.Conn{})
				}
				b.SetBytes(int64(size))
				b.ResetTimer()
				var wg sync.WaitGroup
				for k := range pairs {
					n := b.N / c.workers
					if k == 0 {
						n = b.N - n*(c.workers-1)
					}
					wg.Go(func() { writeBoth(b, pairs[k], n, size) })
				}
				wg.Wait()
			})
		}
	}
}

// writeBoth does n WRITEs, 16 under way, and polls at both ends.
func writeBoth(b *testing.B, p [2]*rocetest.Endpoint, n, size int) {
	wr := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{p[0].MR.SGE(0, size)}, RemoteAddr: p[1].MR.Addr(), RKey: p[1].MR.RKey()}
	wcs := make([]roce.WC, 16)
	for posted, done := 0, 0; done < n; {
		for ; posted < n && posted-done < 16; posted++ {
			if err := p[0].QP.PostSend(wr); err != nil {
				b.Error(err)
				return
			}
		}
		for i := range p {
			k, err := p[i].CQ.Poll(wcs)
			if err != nil {
				b.Error(err)
				return
			}
			done += k
		}
	}
}
