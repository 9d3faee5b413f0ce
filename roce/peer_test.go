package roce_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// countedBackend counts what leaves.
type countedBackend struct {
	netio.Backend
	bytes, packets, runs int
}

func (c *countedBackend) Send(now time.Duration, runs []netio.Run) (int, error) {
	for i := range runs {
		c.bytes += len(runs[i].Buf)
		c.packets += runs[i].Segments()
		c.runs++
	}
	return c.Backend.Send(now, runs)
}

// TestSharedWindow: queue pairs that are connected to one host have, all together, no
// more in flight than four alone may, and take turns; nobody waits for a timer. One
// that has little to send does not wait for them.
func TestSharedWindow(t *testing.T) {
	const (
		pairs  = 100
		window = 4 << 20
		size   = 512 << 10
		rounds = 4
	)
	f := netio.NewFabric()
	f.RecvBuffer = 2 * window // the first packets of all come on top
	out := &countedBackend{Backend: fabricPort(t, f, "10.0.0.1")}
	devs := [2]*roce.Device{openManual(t, out), openManual(t, fabricPort(t, f, "10.0.0.2"))}
	c := newCrowd(t, pairs+1, devs, 16)
	var mrs [2]*roce.MR
	for i, pd := range c.pds {
		var err error
		mrs[i], err = pd.RegisterMR(make([]byte, size), roce.LocalWrite|roce.RemoteWrite)
		must(t, err)
	}
	write := func(pair, n int) {
		must(t, c.pairs[pair][0].PostSend(roce.SendWR{
			Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{mrs[0].SGE(0, n)}, RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey(),
		}))
	}
	for i := range pairs {
		for range rounds {
			write(i, size)
		}
	}
	now, most, done := time.Duration(0), 0, [pairs]int{}
	for left := pairs * rounds; left > 0; now += time.Microsecond {
		if now > 50*time.Millisecond {
			t.Fatalf("%d messages are left: %v", left, done)
		}
		before := out.bytes
		settle(devs[0], now) // everything before was acknowledged: this is in flight
		flight := out.bytes - before
		if most = max(most, flight); flight > window-size {
			packets := out.packets
			write(pairs, 8)
			settle(devs[0], now)
			if out.packets != packets+1 {
				t.Fatalf("%d bytes are in flight: 8 more were sent in %d packets", flight, out.packets-packets)
			}
			left++
		}
		settle(devs[1], now)
		wc := make([]roce.WC, 2*pairs)
		n, err := c.cqs[0].Poll(wc)
		for must(t, err); n > 0; n, err = c.cqs[0].Poll(wc) {
			for i := range wc[:n] {
				if wc[i].Status != roce.WCSuccess {
					t.Fatal(wc[i].Status)
				}
				for k := range pairs {
					if c.pairs[k][0].Num() == wc[i].QPN {
						done[k]++
					}
				}
			}
			left -= n
			must(t, err)
			devs[0].Progress(now)
		}
	}
	t.Logf("%v, at most %d bytes in flight, %d packets in %d runs", now, most, out.packets, out.runs)
	if most < window-size || most > window+pairs*4200 {
		t.Errorf("%d bytes were in flight, the window is %d", most, window)
	}
	if mean := float64(out.packets) / float64(out.runs); mean < 8 {
		t.Errorf("a run has %.1f packets: turns are too short", mean)
	}
	for name, n := range devs[0].Counters() {
		if n > 0 && (name == "ack_probes" || name == "retransmitted_pkts" || name == "local_ack_timeout_err") {
			t.Errorf("%s: %d", name, n)
		}
	}
	for k, n := range done {
		if n != rounds {
			t.Errorf("queue pair %d has completed %d messages of %d", k, n, rounds)
		}
	}
}

// Beside a queue pair that sends little and waits for it, another one has 128 KiB in
// flight to the same host, where that is more than its path holds without a queue; 5 ms
// later it has its window again. One that sends more at a time is none that waits.
func TestBesideWindow(t *testing.T) {
	const (
		size   = 1 << 20
		beside = 128 << 10
		most   = beside + 8<<10 // with headers
		rate   = 10             // bytes per nanosecond: the more is in flight the longer it takes
	)
	f := netio.NewFabric()
	f.RecvBuffer = 4 * size
	out := &countedBackend{Backend: fabricPort(t, f, "10.0.0.1")}
	var devs [2]*roce.Device
	for i, be := range []netio.Backend{out, fabricPort(t, f, "10.0.0.2")} {
		var err error
		devs[i], err = roce.Open(roce.Config{Backend: be, Manual: true, Engines: 1}) // two know nothing of each other
		must(t, err)
		t.Cleanup(func() { devs[i].Close() })
	}
	c := newCrowd(t, 2, devs, 16)
	var mrs [2]*roce.MR
	for i, pd := range c.pds {
		var err error
		mrs[i], err = pd.RegisterMR(make([]byte, size), roce.LocalWrite|roce.RemoteWrite)
		must(t, err)
	}
	write := func(pair, n int, flags roce.SendFlags) {
		must(t, c.pairs[pair][0].PostSend(roce.SendWR{
			Opcode: roce.WRWrite, Flags: flags, SGE: []roce.SGE{mrs[0].SGE(0, n)}, RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey(),
		}))
	}
	now, posted := time.Duration(0), 0
	round := func(first func()) (flight int) {
		wc := make([]roce.WC, 16)
		n, err := c.cqs[0].Poll(wc)
		must(t, err)
		for posted -= n; posted < 4; posted++ {
			write(0, size, roce.Signaled)
		}
		before := out.bytes
		settle(devs[0], now)
		flight = out.bytes - before
		first()
		settle(devs[0], now)
		now += time.Duration(flight / rate)
		settle(devs[1], now)
		return flight
	}
	nothing := func() {}
	full := func(what string) {
		t.Helper()
		for range 50 {
			if round(nothing) > size*9/10 {
				return
			}
		}
		t.Errorf("%s: %d bytes in flight", what, round(nothing))
	}
	full("alone")
	round(func() {
		write(1, 8192, 0)
		write(1, 8, 0)
	})
	full("beside one that sends more")
	round(func() { write(1, 8, 0) })
	for begin := now; now < begin+4*time.Millisecond; {
		if n := round(nothing); n > most {
			t.Fatalf("%v after 8 bytes of another: %d bytes in flight", now-begin, n)
		}
	}
	now += time.Millisecond
	full("5 ms later")
}
