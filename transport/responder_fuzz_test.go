package transport

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
)

// The input of the fuzz target is a list of pieces: an action byte, a 16-bit
// length, that many bytes of a packet from BTH to ICRC. An XRC target gets packets
// of RC translated, for the receive queue that bits of the action name.
const (
	fuzzRecv  = 1 << iota // post a receive first
	fuzzSend              // transmit some afterwards
	fuzzAll               // transmit all afterwards
	fuzzDereg             // deregister region mr first
	fuzzErr               // the application moves the QP to ERR first
)

func fuzzPiece(in []byte, action byte, pkt []byte) []byte {
	in = append(in, action)
	in = binary.BigEndian.AppendUint16(in, uint16(len(pkt)))
	return append(in, pkt...)
}

// fuzzKey makes any key one of the regions', so that mutations hit; seeds carry
// the number of the region.
func fuzzKey(w *rspWorld, k uint32) uint32 {
	return w.alias[[]string{"mr", "ro", "wo", "pd", "rb", "bad", "mr", "mr"}[k&7]]
}

// fuzzSeeds returns conversations: all those of this package's scripts that can
// be told as packets, and what real rxe requesters sent.
func fuzzSeeds(t testing.TB, w *rspWorld) (seeds [][]byte) {
	for _, script := range []string{
		"SEND_FIRST 0 256|SEND_MIDDLE 1 256|SEND_LAST 2 7 ack|SEND_ONLY 3 0 ack|SEND_FIRST 0 256",
		"RDMA_WRITE_FIRST 0 256 len=515 @1|RDMA_WRITE_MIDDLE 1 256|RDMA_WRITE_LAST_WITH_IMMEDIATE 2 3 ack|RDMA_WRITE_FIRST 0 256 len=515",
		"RDMA_READ_REQUEST 0 1000|RDMA_WRITE_ONLY 4 4 ack|RDMA_READ_REQUEST 1 744 @256|RDMA_READ_REQUEST 5 64|RDMA_WRITE_ONLY 4 4 ack",
		"RDMA_READ_REQUEST 0 10|RDMA_READ_REQUEST 1 10|RDMA_READ_REQUEST 2 10|RDMA_READ_REQUEST 0 10",
		"RDMA_WRITE_ONLY 1 4 ack|RDMA_WRITE_ONLY 2 4 ack|RDMA_WRITE_ONLY 0 4 ack|SEND_ONLY 1 4",
		"SEND_ONLY_WITH_IMMEDIATE 0 256 imm=7 se ack|FETCH_ADD 1 0 add=1|COMPARE_SWAP 2 0 @8|FLUSH 3 0 len=100 global|ATOMIC_WRITE 4 8|SEND_ONLY_WITH_INVALIDATE 5 5",
		"FETCH_ADD 0 0 add=3|FETCH_ADD 1 0 add=3|FETCH_ADD 0 0 add=3|RDMA_WRITE_ONLY 2 4|FLUSH 3 0 len=100 persistent level=1|RDMA_WRITE_ONLY 2 4|FLUSH 3 0 len=100 persistent|FETCH_ADD 4 0 @4",
		"FLUSH 0 0|ATOMIC_WRITE 0 8 len=0|ATOMIC_WRITE 0 8 @1|COMPARE_SWAP 0 0 va=0xfffffffffffffff8|FLUSH 0 0 global persistent level=3",
		"RDMA_READ_REQUEST 0 0 len=2147483648|RDMA_WRITE_ONLY 4 4 va=0xffffffffffffffff|RDMA_WRITE_FIRST 0 256 len=4294967295",
	} {
		for _, action := range []byte{0, fuzzRecv, fuzzRecv | fuzzSend, fuzzRecv | fuzzAll} {
			var in []byte
			for _, line := range strings.Split(script, "|") {
				b := w.build(line)
				fuzzSetKey(b, 0)
				in = fuzzPiece(in, action, b)
			}
			seeds = append(seeds, in)
		}
	}
	for _, s := range rspStreams(rspCapture(t, "rxe-linux-6.12.pcap")) {
		var in []byte
		for i, p := range s.requests[:min(len(s.requests), 12)] {
			b := slices.Clone(p.Bytes())
			fuzzSetKey(b, 0)
			binary.BigEndian.PutUint32(b[8:], uint32(b[8])<<24|uint32(p.PSN().Sub(s.requests[0].PSN()))&0xffffff)
			in = fuzzPiece(in, byte(i)&7|fuzzRecv, b)
		}
		seeds = append(seeds, in)
	}
	return seeds
}

// fuzzSetKey overwrites the key of a RETH, if the packet has one.
func fuzzSetKey(b []byte, key uint32) {
	if at := fuzzAddress(b); at > 0 {
		binary.BigEndian.PutUint32(b[at+8:], key)
	}
}

// fuzzAddress returns where the address and key of a packet are, 0 if it has none.
func fuzzAddress(b []byte) int {
	info := ib.Opcode(b[0]).Info()
	if info == nil || !info.RETH && !info.AtomicETH || len(b) < info.HeaderLen {
		return 0
	}
	at := ib.BTHSize
	if info.XRCETH {
		at += ib.XRCETHSize
	}
	if info.FETH {
		at += ib.FETHSize
	}
	return at
}

// fuzzXRC makes a packet of RC one of XRC.
func fuzzXRC(b []byte, action byte) []byte {
	if ib.Opcode(b[0]).Transport() != ib.TransportRC {
		return b
	}
	b[0] |= byte(ib.OpXRCSendFirst)
	if info := ib.Opcode(b[0]).Info(); info == nil || !info.XRCETH {
		return b
	}
	var x [ib.XRCETHSize]byte
	ib.XRCETH([]ib.QPN{1, 1, 1, 2, 2, 3, 1, 2}[action>>5]).Put(x[:])
	return slices.Insert(b, ib.BTHSize, x[:]...)
}

// FuzzResponderSequence gives a live queue pair any sequence of packets. It must
// not panic, write only where a peer may, complete each receive once, never
// acknowledge a READ without its data, and end in nothing worse than ERR.
func FuzzResponderSequence(f *testing.F) {
	tmpl := newRspWorld(nil, rspAttr())
	for _, in := range fuzzSeeds(f, tmpl) {
		f.Add(false, in)
		f.Add(true, in)
	}
	f.Fuzz(func(t *testing.T, xrc bool, in []byte) {
		if xrc {
			fuzzResponder(t, XRCRecv, in)
		} else {
			fuzzResponder(t, RC, in)
		}
	})
}

func fuzzResponder(t *testing.T, typ QPType, in []byte) {
	a := rspAttr()
	a.RQPSN = 0xfffffc
	w := newRspWorldOf(t, typ, a)
	cq := &fuzzCQ{t: t, posted: map[uint64]bool{}}
	w.q.own.CQ = cq
	if typ == XRCRecv {
		w.srqs[1].CQ = cq
		w.srqs[2] = &SRQ{Num: 2, RQ: w, CQ: cq, Mem: w.tab, PD: 1}
	}
	reads := map[ib.PSN]bool{} // PSNs that READs and atomics have
	for steps := 0; len(in) >= 3 && steps < 200; steps++ {
		action, n := in[0], int(binary.BigEndian.Uint16(in[1:]))
		in = in[3:]
		pkt := slices.Clone(in[:min(n, len(in))])
		in = in[len(pkt):]
		if action&fuzzDereg != 0 && steps > 100 {
			w.tab.Deregister(w.reg["mr"])
		}
		if action&fuzzErr != 0 && steps > 100 {
			w.q.fail(w.now, noEvent)
		}
		if action&fuzzRecv != 0 && len(w.rq) < 8 {
			cq.posted[w.nextID] = true
			w.next = int(action>>5) * 64
			w.action([]string{"recv 300", "recv 0", "recv 1 700", "recvbad"}[action>>6])
			w.q.Kick(w.now)
		}
		if len(pkt) >= ib.BTHSize {
			if typ == XRCRecv {
				pkt = fuzzXRC(pkt, action)
			}
			// Meant for this QP, with a PSN near the expected one.
			binary.BigEndian.PutUint32(pkt[4:], uint32(w.q.Num()))
			psn := a.RQPSN.Add(int(int16(binary.BigEndian.Uint16(pkt[10:]))))
			binary.BigEndian.PutUint32(pkt[8:], uint32(pkt[8])<<24|uint32(psn))
			binary.BigEndian.PutUint16(pkt[2:], uint16(ib.DefaultPKey))
			if at := fuzzAddress(pkt); at > 0 {
				fuzzSetKey(pkt, fuzzKey(w, binary.BigEndian.Uint32(pkt[at+8:])))
				if va := binary.BigEndian.Uint64(pkt[at:]); va>>62 == 0 {
					binary.BigEndian.PutUint64(pkt[at:], rspIOVA+va&0x1fff)
				}
			}
		}
		if p, bad := ib.Parse(pkt); bad == ib.OK && p.DestQP() == w.q.Num() {
			before := w.q.rsp().expected
			w.q.Receive(w.now, &Inbound{Packet: p, Src: rspPeer, Dst: rspSelf})
			switch p.Info().Op {
			case ib.KindReadRequest, ib.KindFetchAdd, ib.KindCmpSwap, ib.KindAtomicWrite, ib.KindFlush:
				for s := before; s < min(w.q.rsp().expected, before+1<<12); s++ {
					reads[psnOf(s)] = true
				}
			}
		}
		fuzzTransmit(t, w, action, reads)
	}
	w.q.fail(w.now, noEvent)
	fuzzTransmit(t, w, fuzzAll, reads)
	if typ == XRCRecv { // what no message has taken stays posted
		for _, wqe := range w.rq {
			delete(cq.posted, wqe.ID)
		}
	}
	if len(cq.posted) > 0 {
		t.Fatalf("receives never completed: %v", slices.Sorted(maps.Keys(cq.posted)))
	}
	for _, name := range []string{"ro", "pd"} {
		if !bytes.Equal(w.reg[name].Bytes(), w.fresh[name]) {
			t.Fatalf("region %s was written", name)
		}
	}
	for name, g := range w.guard {
		if !bytes.Equal(g[:rspGuard], rspGuardBytes) || !bytes.Equal(g[len(g)-rspGuard:], rspGuardBytes) {
			t.Fatalf("memory beside region %s was written", name)
		}
	}
	if !bytes.Equal(w.reg["rb"].Bytes()[4096:], w.fresh["rb"][4096:]) {
		t.Fatal("memory outside the posted buffers was written")
	}
}

// fuzzTransmit takes packets and checks what must hold of every one.
func fuzzTransmit(t *testing.T, w *rspWorld, action byte, reads map[ib.PSN]bool) {
	q := w.q
	budget := 600
	if action&fuzzAll != 0 {
		budget = 1 << 16
	} else if action&fuzzSend == 0 {
		return
	}
	for n := 0; q.Wants() != 0 && n < budget; {
		w.out = rspOutbox{room: 8}
		pending := q.rsp().reads.pending()
		var barrier uint64
		if pending {
			barrier = q.rsp().reads.barrier()
		}
		want := q.Wants()
		q.TransmitControl(w.now, &w.out)
		control := len(w.out.pkts)
		n += q.Transmit(w.now, &w.out, 1000)
		if len(w.out.pkts) == 0 && q.Wants() == want {
			t.Fatalf("wants %d, transmits nothing", want)
		}
		for i, b := range w.out.pkts {
			p, bad := ib.Parse(b)
			if bad != ib.OK || !p.Info().Response || p.DestQP() != q.attr.DestQPN {
				t.Fatalf("transmitted a bad packet: %v", bad)
			}
			isAck := p.Info().Op == ib.KindAck
			if isAck != (i < control) {
				t.Fatalf("%v from the wrong method", p.Opcode())
			}
			if isAck && p.AETH().Syndrome.Kind() == ib.SynAck {
				if reads[p.PSN()] {
					t.Fatalf("ACK has the PSN of a READ, %v", p.PSN())
				}
				if pending && extend(p.PSN(), q.rsp().expected) >= barrier {
					t.Fatalf("ACK %v past a READ that is not answered", p.PSN())
				}
			}
			if p.Info().Op == ib.KindReadResponse && len(p.Payload()) > 0 && bytes.Contains(w.fresh["pd"], p.Payload()) && len(p.Payload()) > 8 {
				t.Fatal("READ from another protection domain")
			}
		}
	}
}

// fuzzCQ checks that each receive completes once.
type fuzzCQ struct {
	t      *testing.T
	posted map[uint64]bool
}

func (c *fuzzCQ) Push(wc *WC) {
	if !c.posted[wc.ID] {
		c.t.Fatalf("receive %d completed twice, or never posted: %+v", wc.ID, *wc)
	}
	delete(c.posted, wc.ID)
}
