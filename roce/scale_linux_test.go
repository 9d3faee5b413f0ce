package roce_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
)

// BenchmarkIdle is the processor time that two devices with 1000 connected queue pairs
// between them take while nothing happens, in percent of one core.
func BenchmarkIdle(b *testing.B) {
	c := newCrowd(b, 500, [2]*roce.Device{openUDP(b, "127.0.0.1", roce.Config{}), openUDP(b, "127.0.0.2", roce.Config{})}, 128)
	wcs := make([]roce.WC, len(c.pairs))
	for i := range c.pairs { // so that each has been at work, and its timers
		wr := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{c.mrs[0].SGE(0, 8)}, RemoteAddr: c.mrs[1].Addr(), RKey: c.mrs[1].RKey()}
		must(b, c.pairs[i][0].PostSend(wr))
		for n := 0; n == 0; {
			var err error
			n, err = c.cqs[0].Poll(wcs)
			must(b, err)
		}
	}
	runtime.GC()
	used := func() time.Duration {
		var r syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	begin, wall := used(), time.Duration(0)
	for b.Loop() {
		time.Sleep(100 * time.Millisecond)
		wall += 100 * time.Millisecond
	}
	b.ReportMetric(100*float64(used()-begin)/float64(wall), "%cpu")
}
