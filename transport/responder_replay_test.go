package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// rspCaptured is one RoCE packet of a capture.
type rspCaptured struct {
	src, dst netip.Addr
	ib.Packet
}

// rspCapture reads the RC packets over IPv4 of a classic pcap file with
// Ethernet frames.
func rspCapture(t testing.TB, name string) (pkts []rspCaptured) {
	t.Helper()
	b, err := os.ReadFile("../ib/testdata/rxe/" + name)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if le.Uint32(b) != 0xa1b2c3d4 || le.Uint32(b[20:]) != 1 {
		t.Fatalf("%s is no little-endian pcap file of Ethernet frames", name)
	}
	for b = b[24:]; len(b) >= 16; {
		n := int(le.Uint32(b[8:]))
		f := b[16:][:n]
		b = b[16+n:]
		if n < 42 || binary.BigEndian.Uint16(f[12:]) != 0x800 || f[14] != 0x45 || f[23] != 17 || binary.BigEndian.Uint16(f[36:]) != 4791 {
			continue
		}
		f = f[14:][:binary.BigEndian.Uint16(f[16:])]
		p, bad := ib.Parse(f[28:])
		if bad != ib.OK {
			t.Fatalf("%s: malformed packet: %v", name, bad)
		}
		if p.Info().Transport == ib.TransportRC {
			src, _ := netip.AddrFromSlice(f[12:16])
			dst, _ := netip.AddrFromSlice(f[16:20])
			pkts = append(pkts, rspCaptured{src, dst, p})
		}
	}
	return pkts
}

// rspStream is what one real requester sent to one real responder, and got.
type rspStream struct {
	src, dst  netip.Addr
	qp        ib.QPN
	requests  []ib.Packet
	responses []ib.Packet
}

// rspStreams sorts a capture. Both hosts numbered their queue pairs alike, so
// the responses to a stream's requests go to the same QPN.
func rspStreams(pkts []rspCaptured) (streams []*rspStream) {
	find := func(src, dst netip.Addr, qp ib.QPN) *rspStream {
		for _, s := range streams {
			if s.src == src && s.dst == dst && s.qp == qp {
				return s
			}
		}
		streams = append(streams, &rspStream{src: src, dst: dst, qp: qp})
		return streams[len(streams)-1]
	}
	for _, p := range pkts {
		if p.Info().Request {
			s := find(p.src, p.dst, p.DestQP())
			s.requests = append(s.requests, p.Packet)
		} else {
			s := find(p.dst, p.src, p.DestQP())
			s.responses = append(s.responses, p.Packet)
		}
	}
	return streams
}

// rspDescribe renders a response; what an implementation may choose is left out.
func rspDescribe(p ib.Packet) string {
	s := fmt.Sprintf("%v %v", p.Opcode(), p.PSN())
	if p.Info().AETH {
		s += fmt.Sprintf(" %v MSN %d", p.AETH().Syndrome, p.AETH().MSN)
	}
	return fmt.Sprintf("%s %x", s, p.Payload())
}

// TestResponderReplay gives the requests that Linux rxe sent to another rxe
// to this responder: it must answer every one as rxe did, packet by packet.
func TestResponderReplay(t *testing.T) {
	for _, name := range []string{"rxe-linux-6.1.pcap", "rxe-linux-6.12.pcap"} {
		t.Run(name, func(t *testing.T) {
			total := map[ib.OpKind]int{}
			for _, s := range rspStreams(rspCapture(t, name)) {
				s.replay(t, total)
			}
			for kind, n := range map[ib.OpKind]int{ib.KindSend: 400, ib.KindWrite: 50, ib.KindReadRequest: 10, ib.KindReadResponse: 50} {
				if total[kind] < n {
					t.Errorf("only %d packets of kind %v replayed, want at least %d", total[kind], kind, n)
				}
			}
		})
	}
}

func (s *rspStream) replay(t *testing.T, total map[ib.OpKind]int) {
	// What this responder does not do (yet) ends the comparison.
	atomic := slices.IndexFunc(s.requests, func(p ib.Packet) bool { return p.Info().AtomicETH || p.Info().IETH })
	if atomic >= 0 {
		s.requests = s.requests[:atomic]
	}
	if len(s.requests) == 0 {
		return
	}
	w := newRspWorld(t, rspAttr())
	w.registerSeen(t, s.requests)
	a := rspAttr()
	a.RQPSN, a.MaxDestRdAtomic, a.PathMTU = s.requests[0].PSN(), 128, s.mtu()
	w.up(a, RTS)
	w.q.own.RQ = &rspLongRQ{left: 1000, wqe: RecvWQE{SGE: []mem.SGE{{Addr: rspIOVA, Length: 64 << 10, LKey: w.alias["rb"]}}}}
	left := s.responses
	for i, p := range s.requests {
		total[p.Info().Op]++
		if p.Opcode() == ib.OpRCReadRequest {
			w.fillFrom(p, left, a.PathMTU.Bytes())
		}
		w.q.Receive(w.now, &Inbound{Packet: p, Src: rspPeer, Dst: rspSelf})
		w.out.pkts = nil
		w.transmit()
		for _, b := range w.out.pkts {
			got, bad := ib.Parse(b)
			if bad != ib.OK {
				t.Fatal(bad)
			}
			if len(left) == 0 {
				t.Fatalf("%v>%v %v: request %d, %v PSN %v: rxe did not answer, we do: %s", s.src, s.dst, s.qp, i, p.Opcode(), p.PSN(), rspDescribe(got))
			}
			if g, want := rspDescribe(got), rspDescribe(left[0]); g != want {
				t.Fatalf("%v>%v %v: request %d, %v PSN %v: answer\n%.200s\nbut rxe's\n%.200s", s.src, s.dst, s.qp, i, p.Opcode(), p.PSN(), g, want)
			}
			total[got.Info().Op]++
			left = left[1:]
		}
	}
	if atomic < 0 && len(left) > 0 {
		t.Fatalf("%v>%v %v: rxe sent %d responses that we do not: %s", s.src, s.dst, s.qp, len(left), rspDescribe(left[0]))
	}
}

// mtu returns the path MTU of the connection: what a FIRST packet carries.
func (s *rspStream) mtu() ib.MTU {
	for _, p := range slices.Concat(s.requests, s.responses) {
		if p.Info().Pos == ib.PosFirst {
			if m, ok := ib.MTUFromBytes(len(p.Payload())); ok {
				return m
			}
		}
	}
	return ib.MTU1024
}

// registerSeen makes a table with the keys and ranges that requests name.
func (w *rspWorld) registerSeen(t *testing.T, requests []ib.Packet) {
	type span struct{ lo, hi uint64 }
	spans := map[uint32]span{}
	var order []uint32
	for _, p := range requests {
		if h := p.RETH(); p.Info().RETH {
			s, ok := spans[h.RKey]
			if !ok {
				order = append(order, h.RKey)
				s.lo = h.VA
			}
			spans[h.RKey] = span{min(s.lo, h.VA), max(s.hi, h.VA+uint64(h.Length))}
		}
	}
	var keys []byte // the table draws its keys from here
	for _, k := range append([]uint32{0x12345678}, order...) {
		keys = binary.LittleEndian.AppendUint32(keys, k)
	}
	w.tab = mem.NewTable(bytes.NewReader(keys))
	w.q.own.Mem = w.tab
	clear(w.reg)
	w.region("rb", 64<<10, 1, mem.LocalWrite)
	for _, k := range order {
		s := spans[k]
		r, err := w.tab.Register(make([]byte, s.hi-s.lo), 1, mem.LocalWrite|mem.RemoteRead|mem.RemoteWrite, s.lo)
		if err != nil {
			t.Fatal(err)
		}
		if r.Key() != k {
			t.Fatalf("key %#x instead of %#x", r.Key(), k)
		}
		w.reg[fmt.Sprint(k)] = r
	}
}

// fillFrom makes the memory that a READ names what rxe answered.
func (w *rspWorld) fillFrom(req ib.Packet, responses []ib.Packet, mtu int) {
	h := req.RETH()
	r := w.reg[fmt.Sprint(h.RKey)]
	to := r.Bytes()[h.VA-r.Addr():][:h.Length]
	for _, p := range responses {
		if i := p.PSN().Sub(req.PSN()); p.Info().Op == ib.KindReadResponse && i >= 0 && i*mtu < len(to) {
			copy(to[i*mtu:], p.Payload())
		}
	}
}
