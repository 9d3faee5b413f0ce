package transport

import (
	"fmt"
	"net/netip"
	"testing"

	"math/rand/v2"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// benchEnd is one end of BenchmarkPair: queues without checks.
type benchEnd struct {
	q    *QP
	sq   reqSQ
	out  benchOutbox
	done int
	recv []mem.SGE
}

func (e *benchEnd) Push(wc *WC) {
	if wc.Status != WCSuccess {
		panic(wc.Status.String())
	}
	if wc.Opcode < WCRecv {
		e.done++
	}
}

func (e *benchEnd) Pop(dst *RecvWQE) bool {
	dst.SGE = append(dst.SGE[:0], e.recv...)
	return true
}

// benchOutbox is 64 KiB of packets, as the engine has it.
type benchOutbox struct {
	buf  [64 << 10]byte
	pkts [256]int // ends
	n    int
	open int
}

func (o *benchOutbox) at() int {
	if o.n == 0 {
		return 0
	}
	return o.pkts[o.n-1]
}

func (o *benchOutbox) Packet(_ *Path, n int) []byte {
	at := o.at()
	if o.n == len(o.pkts) || at+n > len(o.buf) {
		return nil
	}
	o.open = n
	return o.buf[at : at+n]
}

func (o *benchOutbox) Commit() {
	o.pkts[o.n] = o.at() + o.open
	o.n++
}

// BenchmarkPair moves messages between two queue pairs: the whole protocol
// without ICRC and network.
func BenchmarkPair(b *testing.B) {
	for _, c := range []struct {
		op   WROpcode
		size int
		mtu  ib.MTU
	}{
		{WRSend, 8, ib.MTU4096}, {WRSend, 65536, ib.MTU4096}, {WRWrite, 65536, ib.MTU1024},
		{WRWrite, 65536, ib.MTU4096}, {WRRead, 65536, ib.MTU4096},
	} {
		b.Run(fmt.Sprintf("op %d size %d mtu %v", c.op, c.size, c.mtu), func(b *testing.B) {
			benchPair(b, c.op, c.size, c.mtu)
		})
	}
}

// benchTwo are two connected queue pairs and the memory that their messages use.
type benchTwo struct {
	ends    [2]*benchEnd
	addr    [2]netip.Addr
	reg     *mem.Region
	counts  Counters
	packets int
	in      Inbound
}

// SRQ makes end 1 the receive queue of an XRC domain.
func (b *benchTwo) SRQ(ib.QPN) *SRQ { return &b.ends[1].q.own }

func newBenchTwo(tb testing.TB, types [2]QPType, size int, mtu ib.MTU) *benchTwo {
	b := &benchTwo{addr: [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}}
	tab := mem.NewTable(rand.NewChaCha8([32]byte{}))
	var err error
	b.reg, err = tab.Register(make([]byte, 1<<20), 1, mem.LocalWrite|mem.RemoteRead|mem.RemoteWrite|mem.RemoteAtomic, 0)
	if err != nil {
		tb.Fatal(err)
	}
	for i, typ := range types {
		e := &benchEnd{sq: newReqSQ(tb, 128), recv: []mem.SGE{{Length: uint32(size), LKey: b.reg.Key()}}}
		e.q = NewQP(QPConfig{Num: ib.QPN(2 + i), Type: typ, PD: 1, Mem: tab, SQ: &e.sq, RQ: e, SendCQ: e, RecvCQ: e,
			SQDepth: 128, Counters: &b.counts, SRQs: b})
		a := Attr{PathMTU: mtu, DestQPN: ib.QPN(3 - i), PortNum: 1, AV: AddressVector{DGID: ib.GIDFromAddr(b.addr[1-i])},
			Access: mem.RemoteRead | mem.RemoteWrite | mem.RemoteAtomic, MaxRdAtomic: 16, MaxDestRdAtomic: 16, Timeout: 14, RetryCnt: 7}
		for a.State = Init; a.State <= RTS; a.State++ {
			mask, _, _ := findTransition(typ, a.State-1, a.State)
			if err := e.q.Modify(0, &a, mask|MaskState); err != nil {
				tb.Fatal(err)
			}
		}
		b.ends[i] = e
	}
	return b
}

// post posts a request of end 0.
func (b *benchTwo) post(op WROpcode, list []mem.SGE) bool {
	return b.ends[0].sq.post(SendWQE{Opcode: op, Flags: Signaled, RKey: b.reg.Key()}, list, nil)
}

// turn lets each end send once, and hands it over.
func (b *benchTwo) turn() {
	b.ends[0].q.Kick(0)
	for i, e := range b.ends {
		e.q.TransmitControl(0, &e.out)
		e.q.Transmit(0, &e.out, 64<<10)
		at := 0
		for _, end := range e.out.pkts[:e.out.n] {
			p, bad := ib.Parse(e.out.buf[at:end])
			if bad != ib.OK {
				panic(bad.String())
			}
			b.in = Inbound{Packet: p, Src: b.addr[i]}
			b.ends[1-i].q.Receive(0, &b.in)
			at = end
		}
		b.packets += e.out.n
		e.out.n = 0
	}
}

func benchPair(b *testing.B, op WROpcode, size int, mtu ib.MTU) {
	two := newBenchTwo(b, bothRC, size, mtu)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for posted := 0; two.ends[0].done < b.N; {
		for posted < b.N && two.post(op, two.ends[0].recv) {
			posted++
		}
		two.turn()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(two.packets), "ns/packet")
	if n := two.counts.Load(CompleterRetry); n != 0 {
		b.Errorf("%d retries", n)
	}
}
