package hostile

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// TestNumbersAreUnpredictable: queue pair numbers, first PSNs and keys follow no
// pattern, in one device and from one to the next (ReDMArk, V1 to V6): each bit is
// set in about half of them, no step from one to the next comes twice as often as
// chance has it, and another device does not repeat them.
func TestNumbersAreUnpredictable(t *testing.T) {
	const n = 1000
	draw := func() (series map[string][]uint32) {
		be, err := netio.NewFabric().Open(netip.AddrPortFrom(victimAddr, netio.Port))
		must(t, err)
		d, err := roce.Open(roce.Config{Backend: be, Manual: true})
		must(t, err)
		defer d.Close()
		pd, err := d.AllocPD()
		must(t, err)
		cq, err := d.CreateCQ(1)
		must(t, err)
		series = map[string][]uint32{}
		buf := make([]byte, 8)
		for range n {
			q, err := pd.CreateQP(roce.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
			must(t, err)
			mr, err := pd.RegisterMR(buf, roce.RemoteRead)
			must(t, err)
			series["QPN"] = append(series["QPN"], uint32(q.Num()))
			series["PSN"] = append(series["PSN"], uint32(q.PSN()))
			series["key"] = append(series["key"], mr.RKey()>>8) // what names the region; the rest is the program's
		}
		return series
	}
	first, second := draw(), draw()
	for name, list := range first {
		steps := map[uint32]int{}
		var ones [24]int
		for i, v := range list {
			for b := range ones {
				ones[b] += int(v >> b & 1)
			}
			if i > 0 {
				steps[(v-list[i-1])&uint32(ib.MulticastQPN)]++
			}
		}
		for b, c := range ones {
			if c < n*2/5 || c > n*3/5 { // six standard deviations
				t.Errorf("bit %d of the %s is set in %d of %d", b, name, c, n)
			}
		}
		for step, c := range steps {
			if c > 2 {
				t.Errorf("the %s grows by %d %d times", name, step, c)
			}
		}
		if slices.Equal(list, second[name]) {
			t.Errorf("two devices have the same %ss", name)
		}
	}
}
