package netio

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// BenchmarkUDP moves packets through loopback, one window at a time by one thread:
// ns/packet is what a packet costs to send and to receive together.
func BenchmarkUDP(b *testing.B) {
	for _, c := range []struct {
		name    string
		cfg     UDPConfig
		runs    int
		segs    int
		payload int
	}{
		{"gso-gro-4096", UDPConfig{}, 4, 15, 4096},
		{"gso-gro-1024", UDPConfig{}, 4, 62, 1024},
		{"single-4096", UDPConfig{NoGSO: true, NoGRO: true}, 32, 1, 4096},
		{"single-0", UDPConfig{NoGSO: true}, 32, 1, 0},
		{"portable-4096", UDPConfig{Portable: true}, 32, 1, 4096},
	} {
		b.Run(c.name, func(b *testing.B) {
			var ends [2]Backend
			for i := range ends {
				c.cfg.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 77, byte(i + 1)}), Port)
				var err error
				if ends[i], err = ListenUDP(c.cfg); err != nil {
					b.Skip(err)
				}
				defer ends[i].Close()
			}
			var runs []Run
			for range c.runs {
				runs = append(runs, newRun(ends[0].LocalAddr(), ends[1].LocalAddr(), c.segs, c.payload, 1))
			}
			var dst [32]Received
			b.ReportAllocs()
			for b.Loop() {
				if n, err := ends[0].Send(0, runs); n != len(runs) || err != nil {
					b.Fatal(n, err)
				}
				for got := 0; got < c.runs*c.segs; {
					n, err := ends[1].Recv(0, dst[:])
					if err != nil {
						b.Fatal(err)
					}
					for i := range n {
						got += dst[i].Segments()
					}
					if n == 0 {
						ends[1].Wait(time.Second, false)
					}
				}
			}
			packets := float64(b.N * c.runs * c.segs)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/packets, "ns/packet")
			b.ReportMetric(packets*float64(c.payload)*8/float64(b.Elapsed().Nanoseconds()), "Gb/s")
		})
	}
}

// BenchmarkWait is a round trip of an empty packet between two goroutines: one
// answers, the other asks, and both wait in Wait or poll.
func BenchmarkWait(b *testing.B) {
	for _, spin := range []bool{false, true} {
		b.Run(fmt.Sprintf("spin=%t", spin), func(b *testing.B) {
			var ends [2]Backend
			for i := range ends {
				var err error
				if ends[i], err = ListenUDP(UDPConfig{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 78, byte(i + 1)}), Port)}); err != nil {
					b.Skip(err)
				}
				defer ends[i].Close()
			}
			receive := func(e Backend, dst []Received) bool {
				for {
					n, err := e.Recv(0, dst)
					if err != nil {
						return false
					}
					if n == 1 {
						return true
					}
					if !spin && e.Wait(-1, false) != nil {
						return false
					}
				}
			}
			ask := []Run{newRun(ends[0].LocalAddr(), ends[1].LocalAddr(), 1, 0, 1)}
			answer := []Run{newRun(ends[1].LocalAddr(), ends[0].LocalAddr(), 1, 0, 1)}
			done := make(chan struct{})
			go func() {
				defer close(done)
				dst := make([]Received, 1)
				for receive(ends[1], dst) {
					ends[1].Send(0, answer)
				}
			}()
			dst := make([]Received, 1)
			b.ReportAllocs()
			for b.Loop() {
				ends[0].Send(0, ask)
				receive(ends[0], dst)
			}
			b.StopTimer()
			ends[1].Close()
			<-done
		})
	}
}

// BenchmarkFaulty is what the fault wrapper and a fabric cost per packet.
func BenchmarkFaulty(b *testing.B) {
	f := NewFabric()
	x, _ := f.Open(netip.MustParseAddrPort("10.0.0.1:1"))
	y, _ := f.Open(netip.MustParseAddrPort("10.0.0.2:1"))
	x = WithFaults(x, FaultConfig{Tx: Faults{Loss: .01, Reorder: .01, Duplicate: .01}})
	runs := []Run{newRun(x.LocalAddr(), y.LocalAddr(), 15, 4096, ib.PSN(1))}
	var dst [32]Received
	now := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		now += time.Microsecond
		x.Send(now, runs)
		y.Recv(now, dst[:])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*15), "ns/packet")
}
