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

func benchPair(b *testing.B, op WROpcode, size int, mtu ib.MTU) {
	var ends [2]*benchEnd
	var counts Counters
	addr := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	tab := mem.NewTable(rand.NewChaCha8([32]byte{}))
	reg, err := tab.Register(make([]byte, 1<<20), 1, mem.LocalWrite|mem.RemoteRead|mem.RemoteWrite, 0)
	if err != nil {
		b.Fatal(err)
	}
	list := []mem.SGE{{Length: uint32(size), LKey: reg.Key()}}
	for i := range ends {
		e := &benchEnd{sq: newReqSQ(b, 128), recv: list}
		e.q = NewQP(QPConfig{Num: ib.QPN(2 + i), Type: RC, PD: 1, Mem: tab, SQ: &e.sq, RQ: e, SendCQ: e, RecvCQ: e,
			SQDepth: 128, Counters: &counts})
		a := Attr{PathMTU: mtu, DestQPN: ib.QPN(3 - i), PortNum: 1, AV: AddressVector{DGID: ib.GIDFromAddr(addr[1-i])},
			Access: mem.RemoteRead | mem.RemoteWrite, MaxRdAtomic: 16, MaxDestRdAtomic: 16, Timeout: 14, RetryCnt: 7}
		for j, mask := range []AttrMask{initMask, rtrRCMask, rtsRCMask} {
			a.State = Init + State(j)
			if err := e.q.Modify(0, &a, mask|MaskState); err != nil {
				b.Fatal(err)
			}
		}
		ends[i] = e
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	packets, posted := 0, 0
	var in Inbound
	for s := ends[0]; s.done < b.N; {
		for posted < b.N && s.sq.post(SendWQE{Opcode: op, Flags: Signaled, RKey: reg.Key()}, list, nil) {
			posted++
		}
		s.q.Kick(0)
		for i, e := range ends {
			e.q.TransmitControl(0, &e.out)
			e.q.Transmit(0, &e.out, 64<<10)
			at := 0
			for _, end := range e.out.pkts[:e.out.n] {
				p, bad := ib.Parse(e.out.buf[at:end])
				if bad != ib.OK {
					b.Fatal(bad)
				}
				in = Inbound{Packet: p, Src: addr[i]}
				ends[1-i].q.Receive(0, &in)
				at = end
			}
			packets += e.out.n
			e.out.n = 0
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
	if n := counts.Load(CompleterRetry); n != 0 {
		b.Errorf("%d retries", n)
	}
}
