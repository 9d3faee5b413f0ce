package roce_test

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/roce"
)

// BenchmarkManyWrites are WRITEs of 1 MiB over loopback by 1 and 64 queue pairs, 127 of
// them under way: each queue pair with memory of its own at both ends, as in perftest, or
// all with the same; and one queue pair with the memory of 64.
func BenchmarkManyWrites(b *testing.B) {
	const size = 1 << 20
	for _, c := range []struct{ pairs, memory int }{{1, 1}, {64, 64}, {64, 1}, {1, 64}} {
		b.Run(fmt.Sprintf("qps=%d/MiB=%d", c.pairs, c.memory), func(b *testing.B) {
			devs := [2]*roce.Device{openUDP(b, "127.0.0.1", roce.Config{}), openUDP(b, "127.0.0.2", roce.Config{})}
			many := newCrowd(b, c.pairs, devs, 128)
			var mrs [2]*roce.MR
			for i, pd := range many.pds {
				buf := make([]byte, c.memory*size)
				fill(buf, i)
				var err error
				mrs[i], err = pd.RegisterMR(buf, roce.LocalWrite|roce.RemoteWrite)
				must(b, err)
			}
			b.SetBytes(size)
			wcs := make([]roce.WC, 16)
			open, next := 0, 0
			for b.Loop() {
				at := next % c.memory * size
				must(b, many.pairs[next%c.pairs][0].PostSend(roce.SendWR{
					Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{mrs[0].SGE(at, size)}, RemoteAddr: mrs[1].Addr() + uint64(at), RKey: mrs[1].RKey(),
				}))
				next++
				for open++; open >= 128; {
					n, err := many.cqs[0].Poll(wcs)
					must(b, err)
					open -= n
				}
			}
			for open > 0 {
				n, err := many.cqs[0].Poll(wcs)
				must(b, err)
				open -= n
			}
			c := devs[1].Counters()
			b.ReportMetric(float64(c["tx_packets"])/float64(b.N), "answers/op")
			b.ReportMetric(float64(c["tx_runs"])/float64(b.N), "runs/op")
		})
	}
}
