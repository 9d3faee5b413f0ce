package netio

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// pair is two backends of one kind that reach each other.
type pair struct{ a, b Backend }

// kind is a way to make a pair.
type kind struct {
	name string
	open func(t *testing.T) pair
}

// kinds returns every kind of backend that this machine has.
func kinds() []kind {
	ks := []kind{{"fabric", openFabricPair}, {"fabric6", func(t *testing.T) pair {
		return fabricPair(t, NewFabric(), "[fd00::1]:4791", "[fd00::2]:4791")
	}}, {"faulty-fabric", func(t *testing.T) pair {
		p := openFabricPair(t)
		return pair{
			WithFaults(p.a, FaultConfig{Script: []Fault{{Nth: 1 << 30}, {Direction: Rx, Nth: 1 << 30}}}),
			WithFaults(p.b, FaultConfig{Script: []Fault{{Nth: 1 << 30}, {Direction: Rx, Nth: 1 << 30}}}),
		}
	}}, {"tapped-fabric", func(t *testing.T) pair {
		p := openFabricPair(t)
		return pair{Tap(p.a, new(bytes.Buffer)), Tap(p.b, new(bytes.Buffer))}
	}}}
	for _, v6 := range []bool{false, true} {
		for _, c := range []UDPConfig{{}, {NoGSO: true}, {NoGRO: true}, {NoGSO: true, NoGRO: true}, {Portable: true}} {
			name := "udp4"
			if v6 {
				name = "udp6"
			}
			name += fmt.Sprintf("-gso=%t-gro=%t", !c.NoGSO, !c.NoGRO)
			if c.Portable {
				name = name[:4] + "-portable"
			}
			ks = append(ks, kind{name, func(t *testing.T) pair { return udpPair(t, v6, c) }})
		}
		name := "udp4-queues"
		if v6 {
			name = "udp6-queues"
		}
		ks = append(ks, kind{name, func(t *testing.T) pair { return queuesPair(t, v6) }})
	}
	return ks
}

// queuesPair opens four sockets on either address, and returns those that receive what
// newPacket makes.
func queuesPair(t *testing.T, v6 bool) (p pair) {
	const n = 4
	for i, b := range []*Backend{&p.a, &p.b} {
		addr := ownAddr(t, i)
		if v6 {
			addr = freePort(t, "::1")
		}
		all, err := ListenQueues(UDPConfig{Addr: addr}, n)
		if err != nil {
			t.Fatal(err)
		}
		*b = all[QueueOf(0x123456, n)]
		t.Cleanup(func() {
			for _, q := range all {
				q.Close()
			}
		})
	}
	return p
}

func openFabricPair(t *testing.T) pair {
	return fabricPair(t, NewFabric(), "10.0.0.1:4791", "10.0.0.2:4791")
}

func fabricPair(t *testing.T, f *Fabric, a, b string) pair {
	t.Helper()
	return closing(t, pair{open(t, f, a), open(t, f, b)})
}

func open(t *testing.T, f *Fabric, addr string) Backend {
	t.Helper()
	b, err := f.Open(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// udpPair opens two sockets: on two loopback addresses of this process' own with
// the port 4791 where every such address is local, or on two ports of ::1.
func udpPair(t *testing.T, v6 bool, cfg UDPConfig) pair {
	t.Helper()
	var p pair
	for i, b := range []*Backend{&p.a, &p.b} {
		for try := 0; *b == nil; try++ {
			cfg.Addr = ownAddr(t, i)
			if v6 {
				cfg.Addr = freePort(t, "::1")
			}
			var err error
			// A free port may be taken before we have it.
			if *b, err = ListenUDP(cfg); err != nil && (!v6 || try == 10) {
				t.Fatal(err)
			}
		}
	}
	return closing(t, p)
}

// ownAddr returns loopback address i of this process, so that tests that run at the
// same time do not meet.
func ownAddr(t *testing.T, i int) netip.AddrPort {
	t.Helper()
	if runtime.GOOS != "linux" {
		return freePort(t, "127.0.0.1")
	}
	pid := os.Getpid()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(64 + pid>>8&63), byte(pid), byte(i + 1)}), Port)
}

// freePort returns the address with a port that nobody uses.
func freePort(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		t.Skipf("no UDP socket on %s: %v", addr, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func closing(t *testing.T, p pair) pair {
	t.Cleanup(func() { p.a.Close(); p.b.Close() })
	return p
}

// newPacket returns an unsealed RoCE packet with a recognisable payload.
func newPacket(op ib.Opcode, psn ib.PSN, payload int) []byte {
	n := op.Info().HeaderLen
	b := make([]byte, n+payload+ib.ICRCSize)
	ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: 0x123456, PSN: psn}.Put(b)
	for i := range payload {
		b[n+i] = byte(int(psn)*7 + i)
	}
	return b
}

// newRun returns a run of segs sealed packets, the last one shorter if there is
// more than one.
func newRun(src, dst netip.AddrPort, segs, payload int, psn ib.PSN) Run {
	r := Run{Dst: dst}
	flow := ib.NewFlow(src, dst)
	for i := range segs {
		n := payload
		if i > 0 && i == segs-1 {
			n = payload / 8 * 4
		}
		p := newPacket(ib.OpRCSendOnly, psn.Add(i), n)
		flow.Seal(uint16(i), p)
		r.Buf = append(r.Buf, p...)
		if i == 0 && segs > 1 {
			r.SegSize = len(p)
		}
	}
	return r
}

// arrived is one received packet.
type arrived struct {
	Received
	id uint16
	ok bool // the ICRC is right, with that ID
}

// collect receives until n packets have come or nothing comes for a while.
func collect(t *testing.T, b Backend, n int) []arrived {
	t.Helper()
	return collectFor(t, b, n, 2*time.Second)
}

func collectFor(t *testing.T, b Backend, n int, patience time.Duration) (out []arrived) {
	t.Helper()
	var dst [8]Received
	for len(out) < n {
		k, err := b.Recv(0, dst[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range k {
			out = append(out, unpack(&dst[i])...)
		}
		if k == 0 {
			start := time.Now()
			if err := b.Wait(patience, false); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) >= patience {
				break
			}
		}
	}
	return out
}

func unpack(r *Received) (out []arrived) {
	flow := ib.NewFlow(r.Src, r.Dst)
	for i := range r.Segments() {
		p := arrived{Received: *r}
		p.Buf = bytes.Clone(r.Segment(i))
		p.id, p.ok = flow.Recover(p.Buf)
		if r.IDKnown {
			p.id, p.ok = r.ID+uint16(i), flow.Verify(r.ID+uint16(i), p.Buf)
		}
		out = append(out, p)
	}
	return out
}

func eachKind(t *testing.T, f func(t *testing.T, p pair)) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) { f(t, k.open(t)) })
	}
}

// send sends runs, waiting where it has to.
func send(t *testing.T, b Backend, runs ...Run) {
	t.Helper()
	for len(runs) > 0 {
		n, err := b.Send(0, runs)
		runs = runs[n:]
		if err == ErrWouldBlock {
			err = b.Wait(time.Second, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
