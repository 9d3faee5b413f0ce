package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// rspSizes are message sizes around the borders of an MTU.
func rspSizes(mtu int) []int {
	return []int{0, 1, 2, 3, 4, 5, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 3*mtu + 2, 7 * mtu, 8*mtu + 3}
}

// rspRequest returns the packets of one SEND or WRITE of data.
func rspRequest(w *rspWorld, kind ib.OpKind, psn ib.PSN, mtu int, data []byte, at uint64) (pkts [][]byte) {
	ops := map[ib.OpKind][4]ib.Opcode{ // only, first, middle, last
		ib.KindSend:  {ib.OpRCSendOnly, ib.OpRCSendFirst, ib.OpRCSendMiddle, ib.OpRCSendLast},
		ib.KindWrite: {ib.OpRCWriteOnly, ib.OpRCWriteFirst, ib.OpRCWriteMiddle, ib.OpRCWriteLast},
	}[kind]
	n := max(1, (len(data)+mtu-1)/mtu)
	for i := range n {
		op := ops[2]
		switch {
		case n == 1:
			op = ops[0]
		case i == 0:
			op = ops[1]
		case i == n-1:
			op = ops[3]
		}
		p := data[i*mtu : min(len(data), (i+1)*mtu)]
		pad := -len(p) & 3
		b := make([]byte, op.Info().HeaderLen, op.Info().HeaderLen+len(p)+pad+ib.ICRCSize)
		ib.BTH{Opcode: op, Pad: uint8(pad), PKey: ib.DefaultPKey, DestQP: w.q.Num(), PSN: psn.Add(i), AckReq: i == n-1}.Put(b)
		if op.Info().RETH {
			ib.RETH{VA: at, RKey: w.alias["mr"], Length: uint32(len(data))}.Put(b[ib.BTHSize:])
		}
		b = append(b, p...)
		pkts = append(pkts, append(b, make([]byte, pad+ib.ICRCSize)...))
	}
	return pkts
}

// TestResponderSizes sends, writes and reads messages of all border sizes at
// every path MTU and odd addresses, each byte checked (IBTA 9.4.1, 9.4.3, 9.4.4).
func TestResponderSizes(t *testing.T) {
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		t.Run(mtu.String(), func(t *testing.T) {
			a := rspAttr()
			a.PathMTU, a.RQPSN = mtu, 0xfffff0
			w := newRspWorld(t, a)
			rng := rand.NewChaCha8([32]byte{byte(mtu)})
			psn, mr, rb := a.RQPSN, w.reg["mr"], w.reg["rb"]
			msn := 0
			take := func(pkts [][]byte, kind string, n int) {
				t.Helper()
				for _, p := range pkts {
					w.in(p)
				}
				psn = psn.Add(len(pkts))
				w.transmit()
				msn++
				want := fmt.Sprintf("ACK %d msn=%d", psn.Sub(a.RQPSN)-1, msn)
				if len(w.out.pkts) != 1 || w.show(w.out.pkts[0]) != want {
					t.Fatalf("%s of %d bytes: %d packets, want %q", kind, n, len(w.out.pkts), want)
				}
				w.out.pkts = nil
			}
			for i, n := range rspSizes(mtu.Bytes()) {
				data := make([]byte, n)
				rng.Read(data)
				off := i % 5

				w.next = off
				w.action(fmt.Sprintf("recv %d %d", n/3, n-n/3))
				take(rspRequest(w, ib.KindSend, psn, mtu.Bytes(), data, 0), "SEND", n)
				if got := fmt.Sprint(w.wcs); got != fmt.Sprintf("[RECV %d %d]", i+1, n) {
					t.Fatalf("SEND of %d bytes: %s", n, got)
				}
				w.wcs = nil
				if !bytes.Equal(rb.Bytes()[off:off+n], data) {
					t.Fatalf("SEND of %d bytes: wrong data", n)
				}

				rng.Read(data)
				take(rspRequest(w, ib.KindWrite, psn, mtu.Bytes(), data, rspIOVA+uint64(off)), "WRITE", n)
				if !bytes.Equal(mr.Bytes()[off:off+n], data) {
					t.Fatalf("WRITE of %d bytes: wrong data", n)
				}

				w.in(w.build(fmt.Sprintf("RDMA_READ_REQUEST %d 0 len=%d @%d", psn.Sub(a.RQPSN), n, off)))
				w.transmit()
				msn++
				got, count := rspJoin(t, w, psn, uint32(msn), mtu.Bytes())
				if !bytes.Equal(got, data) {
					t.Fatalf("READ of %d bytes: got %d bytes, wrong", n, len(got))
				}
				psn = psn.Add(count)
			}
		})
	}
}

// rspJoin checks the shape of one READ's responses and returns their payload
// and number.
func rspJoin(t *testing.T, w *rspWorld, psn ib.PSN, msn uint32, mtu int) (data []byte, n int) {
	t.Helper()
	n = len(w.out.pkts)
	for i, b := range w.out.pkts {
		p, bad := ib.Parse(b)
		if bad != ib.OK {
			t.Fatal(bad)
		}
		want := ib.OpRCReadResponseMiddle
		switch {
		case n == 1:
			want = ib.OpRCReadResponseOnly
		case i == 0:
			want = ib.OpRCReadResponseFirst
		case i == n-1:
			want = ib.OpRCReadResponseLast
		}
		full := i == n-1 || len(p.Payload()) == mtu
		if p.Opcode() != want || p.PSN() != psn.Add(i) || p.Info().AETH && p.AETH().MSN != msn || !full || i > 0 && len(p.Payload()) == 0 {
			t.Fatalf("response %d of %d: %v PSN %v, %d bytes, MSN %d", i, n, p.Opcode(), p.PSN(), len(p.Payload()), p.AETH().MSN)
		}
		data = append(data, p.Payload()...)
	}
	w.out.pkts = nil
	return data, n
}

// TestResponderAllocs asserts that requests and answers allocate nothing.
func TestResponderAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a := rspAttr()
	a.PathMTU = ib.MTU1024
	w := newRspWorld(t, a)
	q := w.q
	q.own.RQ, q.own.CQ = &rspLongRQ{left: 1000, wqe: RecvWQE{ID: 9, SGE: []mem.SGE{
		{Addr: rspIOVA, Length: 1000, LKey: w.alias["rb"]},
		{Addr: rspIOVA + 5000, Length: 1000, LKey: w.alias["rb"]},
		{Addr: rspIOVA + 9000, Length: 1000, LKey: w.alias["rb"]},
	}}}, &rspCountCQ{}
	data := make([]byte, 2500)
	var pkts []Inbound
	add := func(b []byte) {
		p, bad := ib.Parse(b)
		if bad != ib.OK {
			t.Fatal(bad)
		}
		pkts = append(pkts, Inbound{Packet: p, Src: rspPeer, Dst: rspSelf})
	}
	for _, b := range rspRequest(w, ib.KindSend, 0, 1024, data, 0) {
		add(b)
	}
	for _, b := range rspRequest(w, ib.KindWrite, 0, 1024, data, rspIOVA) {
		add(b)
	}
	add(w.build("RDMA_READ_REQUEST 0 2500"))
	read := len(pkts) - 1
	out := &rspNullOutbox{buf: make([]byte, 8192)}
	round := func() {
		for i := range pkts {
			p := &pkts[i]
			ib.BTH{Opcode: p.Opcode(), Pad: p.Pad(), PKey: p.PKey(), DestQP: p.DestQP(), PSN: psnOf(q.rsp().expected), AckReq: true}.Put(p.Bytes())
			q.Receive(w.now, p)
			q.Receive(w.now, p) // and as a duplicate
			if i == read {
				q.Transmit(w.now, out, 3000)
			}
			q.TransmitControl(w.now, out)
		}
		for q.Wants() != 0 {
			q.Transmit(w.now, out, 1<<20)
			q.TransmitControl(w.now, out)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations per round of SEND, WRITE and READ", n)
	}
	if q.State() != RTS || out.n == 0 || w.counts.Load(RDMARecvs) < 100 || w.counts.Load(DuplicateRequest) < 700 {
		t.Errorf("the rounds were not what they should be: %v, %d packets out", q.State(), out.n)
	}
}

// rspLongRQ holds left equal receives.
type rspLongRQ struct {
	wqe  RecvWQE
	left int
}

func (r *rspLongRQ) Pop(dst *RecvWQE) bool {
	if r.left == 0 {
		return false
	}
	r.left--
	dst.ID = r.wqe.ID
	dst.SGE = append(dst.SGE[:0], r.wqe.SGE...)
	return true
}

type rspCountCQ struct{ n int }

func (c *rspCountCQ) Push(*WC) { c.n++ }

type rspNullOutbox struct {
	buf []byte
	n   int
}

func (o *rspNullOutbox) Packet(_ *Path, n int) []byte { return o.buf[:n] }
func (o *rspNullOutbox) Commit()                      { o.n++ }
