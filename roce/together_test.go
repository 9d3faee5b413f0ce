package roce_test

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestTogether: a request and the acknowledgement that is due leave in one run, if
// the backend has such, the shorter packet last; else one after the other.
func TestTogether(t *testing.T) {
	for segments, runs := range map[int]int{64: 1, 1: 2} {
		t.Run(fmt.Sprint(segments), func(t *testing.T) {
			f := netio.NewFabric()
			f.MaxSegments = segments
			out := &countedBackend{Backend: fabricPort(t, f, "10.0.0.2")}
			devs := [2]*roce.Device{openManual(t, fabricPort(t, f, "10.0.0.1")), openManual(t, out)}
			a, b := rocetest.New(t, devs[0], rocetest.Options{}), rocetest.New(t, devs[1], rocetest.Options{})
			rocetest.Connect(t, a, b, roce.Conn{})
			write := func(from, to *rocetest.Endpoint) {
				must(t, from.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{from.MR.SGE(0, 8)}, RemoteAddr: to.MR.Addr(), RKey: to.MR.RKey()}))
			}
			write(a, b)
			settle(devs[0], 0)
			write(b, a)
			settle(devs[1], 0)
			if out.packets != 2 || out.runs != runs || out.bytes != 12+16+8+4+12+4+4 {
				t.Errorf("%d packets in %d runs, %d bytes", out.packets, out.runs, out.bytes)
			}
			settle(devs[0], 0)
			want(t, a.Next(t), 0, roce.WCWrite, roce.WCSuccess)
			settle(devs[1], 0)
			want(t, b.Next(t), 0, roce.WCWrite, roce.WCSuccess)
		})
	}
}

// TestAcknowledgementsTogether: the acknowledgements of several queue pairs that are due
// to one host at once leave in one run, if the backend has such.
func TestAcknowledgementsTogether(t *testing.T) {
	const pairs = 6
	for segments, runs := range map[int]int{64: 1, 1: pairs} {
		t.Run(fmt.Sprint(segments), func(t *testing.T) {
			f := netio.NewFabric()
			f.MaxSegments = segments
			out := &countedBackend{Backend: fabricPort(t, f, "10.0.0.2")}
			var devs [2]*roce.Device
			for i, be := range []netio.Backend{fabricPort(t, f, "10.0.0.1"), out} {
				var err error
				devs[i], err = roce.Open(roce.Config{Backend: be, Manual: true, Engines: 1})
				must(t, err)
				t.Cleanup(func() { devs[i].Close() })
			}
			c := newCrowd(t, pairs, devs, 16)
			for range 3 {
				*out = countedBackend{Backend: out.Backend}
				for _, p := range c.pairs {
					must(t, p[0].PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{c.mrs[0].SGE(0, 8)}, RemoteAddr: c.mrs[1].Addr(), RKey: c.mrs[1].RKey()}))
				}
				settle(devs[0], 0)
				settle(devs[1], 0)
				if out.packets != pairs || out.runs != runs {
					t.Errorf("%d acknowledgements in %d runs", out.packets, out.runs)
				}
			}
			settle(devs[0], 0)
			wcs := make([]roce.WC, 4*pairs)
			n, err := c.cqs[0].Poll(wcs)
			must(t, err)
			for _, wc := range wcs[:n] {
				if wc.Status != roce.WCSuccess {
					t.Errorf("completion %+v", wc)
				}
			}
			if n != 3*pairs {
				t.Errorf("%d completions", n)
			}
		})
	}
}

// TestFullRuns: what a queue pair sends in several turns leaves in datagrams as long as
// they may be, 15 packets of 4 KiB, but where the headers of packets differ in length. A
// READ is asked for in five parts here, and each begins and ends with such a packet.
func TestFullRuns(t *testing.T) {
	const size, packets = 1 << 20, 256
	f := netio.NewFabric()
	f.RecvBuffer = 8 * size
	client, server := &countedBackend{Backend: fabricPort(t, f, "10.0.0.1")}, &countedBackend{Backend: fabricPort(t, f, "10.0.0.2")}
	devs := [2]*roce.Device{openManual(t, client), openManual(t, server)}
	a, b := rocetest.New(t, devs[0], rocetest.Options{}), rocetest.New(t, devs[1], rocetest.Options{})
	rocetest.Connect(t, a, b, roce.Conn{PathMTU: roce.MTU4096})
	for _, c := range []struct {
		op     roce.WROpcode
		done   roce.WCOpcode
		sender *countedBackend
		runs   int
	}{{roce.WRWrite, roce.WCWrite, client, 19}, {roce.WRRead, roce.WCRead, server, 24}} {
		for i := range 2 { // the window opens first
			c.sender.runs, c.sender.packets = 0, 0
			must(t, a.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: c.op, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, size)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
			for range 64 {
				settle(devs[0], 0)
				settle(devs[1], 0)
			}
			want(t, a.Next(t), uint64(i), c.done, roce.WCSuccess)
		}
		if c.sender.packets != packets || c.sender.runs > c.runs {
			t.Errorf("operation %v: %d packets in %d runs, want at most %d", c.op, c.sender.packets, c.sender.runs, c.runs)
		}
	}
}
