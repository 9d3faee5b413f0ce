package hostile

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestChaos: on real sockets, with packets lost, doubled, late, damaged and made up,
// connections come and go in every way while others transfer, and devices are opened
// and closed beside them: every byte of a transfer is right, and nothing is left.
// Under the race detector it is what it looks for.
func TestChaos(t *testing.T) {
	before := inUse(runtime.NumGoroutine())
	faults := netio.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01}
	o := rocetest.Options{Memory: 64 << 10, CQEntries: 64}
	open := func(i int) *roce.Device {
		d, err := roce.Open(roce.Config{Addr: loopback(t, i), Wrap: func(be netio.Backend) netio.Backend {
			return netio.WithFaults(be, netio.FaultConfig{Seed: uint64(i), Tx: faults, Rx: faults})
		}})
		must(t, err)
		return d
	}
	da, db := open(20), open(21)
	stop := make(chan struct{})
	var attack, work sync.WaitGroup
	bait := rocetest.New(t, db, o)
	rocetest.Connect(t, rocetest.New(t, da, o), bait, patient)
	attack.Go(func() {
		from, asPeer := attacker(t, loopback(t, 22)), attacker(t, da.Addr())
		defer from.Close()
		defer asPeer.Close()
		for i := uint64(0); ; i++ {
			flood(from, asPeer, bait, 100, i, stop)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // leave the machine to others
			}
		}
	})
	attack.Go(func() { // a port that comes and goes
		for {
			a, b := ends(t, roce.Config{Addr: loopback(t, 23)}, roce.Config{Addr: loopback(t, 23)}, o)
			a.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 30000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
			a.Dev.Close()
			b.Dev.Close()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	for w := range 4 {
		work.Go(func() {
			for round := range *chaosRounds {
				a, b := rocetest.New(t, da, o), rocetest.New(t, db, o)
				rocetest.Connect(t, a, b, patient)
				for i := range 10 {
					write(t, a, b, 20000, byte(w*10+i))
				}
				a.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 30000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
				end(t, a, b, (w+round)%4)
			}
		})
	}
	work.Wait()
	close(stop)
	attack.Wait()
	must(t, da.Close())
	must(t, db.Close())
	if after := inUse(before.goroutines); after.goroutines > before.goroutines || after.descriptors > before.descriptors {
		t.Errorf("%+v before, %+v after", before, after)
	}
}

// end ends a connection with a WRITE under way, in one of four ways.
func end(t testing.TB, a, b *rocetest.Endpoint, how int) {
	switch how {
	case 0:
		must(t, a.QP.Destroy())
	case 1:
		must(t, b.QP.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	case 2:
		must(t, b.MR.Deregister())
	case 3:
		must(t, a.QP.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	}
}
