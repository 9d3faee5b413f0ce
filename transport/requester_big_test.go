package transport

import (
	"runtime"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// bigWorld has 64 MiB of memory that a list of 32 segments makes 2^31 bytes.
func bigWorld(t testing.TB) (*reqWorld, []mem.SGE) {
	w := newReqWorld(t, 0xffff00)
	w.attr.PathMTU = ib.MTU4096
	r, err := w.tab.Register(make([]byte, 64<<20), 1, mem.LocalWrite, reqIOVA)
	if err != nil {
		t.Fatal(err)
	}
	w.connect()
	var list []mem.SGE
	for range mem.MaxSGE {
		list = append(list, mem.SGE{Addr: reqIOVA, Length: 64 << 20, LKey: r.Key()})
	}
	return w, list
}

func (w *reqWorld) postBig(op WROpcode, list []mem.SGE) {
	w.posted[1] = &reqPosted{op: op, length: 0, packets: 0}
	w.sq.post(SendWQE{ID: 1, Opcode: op, Flags: Signaled, RemoteAddr: reqRemote, RKey: reqRKey}, list, nil)
	w.q.Kick(0)
}

// IBTA 9.7.2: messages of 2^31 bytes, here with PSNs that wrap on the way.
func TestRequesterLongestWrite(t *testing.T) {
	w, list := bigWorld(t)
	w.postBig(WRWrite, list)
	const packets = 1 << 31 / 4096
	next, asked := 0, -1
	for len(w.wcs) == 0 {
		w.pump()
		for _, b := range w.out.sent {
			p, bad := ib.Parse(b)
			if bad != ib.OK || p.PSN() != w.base.Add(next) || len(p.Payload()) != 4096 {
				t.Fatalf("packet %d: %v PSN %v, %d bytes", next, bad, p.PSN(), len(p.Payload()))
			}
			want := ib.OpRCWriteMiddle
			if next == 0 {
				want = ib.OpRCWriteFirst
			} else if next == packets-1 {
				want = ib.OpRCWriteLast
			}
			if p.Opcode() != want || next == 0 && p.RETH().Length != 1<<31 {
				t.Fatalf("packet %d: %v %+v", next, p.Info().Name, p.RETH())
			}
			if p.AckReq() {
				asked = next
			}
			next++
		}
		w.out.sent = w.out.sent[:0]
		h := ib.BTH{Opcode: ib.OpRCAck, PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: w.base.Add(asked)}
		b := make([]byte, ib.BTHSize+ib.AETHSize+ib.ICRCSize)
		h.Put(b)
		ib.AETH{Syndrome: 31}.Put(b[ib.BTHSize:])
		p, _ := ib.Parse(b)
		w.q.Receive(0, &Inbound{Packet: p, Src: reqPeer})
	}
	if next != packets || w.wcs[0] != "wc 1 WRITE ok" {
		t.Errorf("%d packets, %v", next, w.wcs)
	}
}

// IBTA 9.7.2: the same as a READ, in requests that fit the window.
func TestRequesterLongestRead(t *testing.T) {
	w, list := bigWorld(t)
	w.postBig(WRRead, list)
	const packets = 1 << 31 / 4096
	next := 0
	resp := make([]byte, ib.BTHSize+ib.AETHSize+4096+ib.ICRCSize)
	for len(w.wcs) == 0 {
		w.pump()
		reqs := w.out.sent
		w.out.sent = nil
		if len(reqs) == 0 {
			t.Fatalf("stuck at %d", next)
		}
		for _, b := range reqs {
			p, bad := ib.Parse(b)
			h := p.RETH()
			if bad != ib.OK || p.PSN() != w.base.Add(next) || h.VA != reqRemote+uint64(next)*4096 || h.Length == 0 || h.Length > 512<<10 {
				t.Fatalf("request at %d: %v PSN %v %+v", next, bad, p.PSN(), h)
			}
			for i, n := 0, int(h.Length/4096); i < n; i++ {
				op := ib.OpRCReadResponseMiddle
				switch {
				case n == 1:
					op = ib.OpRCReadResponseOnly
				case i == 0:
					op = ib.OpRCReadResponseFirst
				case i == n-1:
					op = ib.OpRCReadResponseLast
				}
				b := resp[:op.Info().HeaderLen+4096+ib.ICRCSize]
				ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: w.base.Add(next)}.Put(b)
				if op.Info().AETH {
					ib.AETH{Syndrome: 31}.Put(b[ib.BTHSize:])
				}
				in, _ := ib.Parse(b)
				w.q.Receive(0, &Inbound{Packet: in, Src: reqPeer})
				next++
			}
		}
	}
	// The byte count of a completion has 32 bits, 2^31 fits.
	if next != packets || w.wcs[0] != "wc 1 READ 2147483648 ok" {
		t.Errorf("%d packets, %v", next, w.wcs)
	}
}

// IBTA 9.7.2, 11.6.2: one byte more is a local length error.
func TestRequesterTooLong(t *testing.T) {
	w, list := bigWorld(t)
	r, err := w.tab.Register(make([]byte, 64<<20+1), 1, mem.LocalWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	list[5] = mem.SGE{Length: 64<<20 + 1, LKey: r.Key()}
	w.postBig(WRSend, list)
	w.pump()
	if got := w.take(); len(got) != 1 || got[0] != "wc 1 local length error" {
		t.Error(got)
	}
}

// The arithmetic of the longest message at the smallest MTU: it has 2^23
// packets, half of all PSNs (IBTA 9.7.1).
func TestRecordArithmetic(t *testing.T) {
	for mtu := uint32(256); mtu <= 4096; mtu *= 2 {
		for _, n := range []uint32{0, 1, mtu, mtu + 1, 1<<31 - 1, 1 << 31} {
			packets := max(1, (uint64(n)+uint64(mtu)-1)/uint64(mtu))
			c := record{first: firstSeq(0xffffff), length: n, cum: 7}
			c.end = c.first + packets
			if c.offset(c.end-1, mtu) > uint64(n) || n > 0 && c.offset(c.end-1, mtu)+uint64(mtu) < uint64(n) {
				t.Errorf("%d bytes at MTU %d: last packet at %d", n, mtu, c.offset(c.end-1, mtu))
			}
			full, last := charge(mtu), charge(n-uint32(packets-1)*mtu)
			if got, want := c.cumAt(c.end, mtu), 7+full*(packets-1)+last; got != want {
				t.Errorf("%d bytes at MTU %d: charge %d, want %d", n, mtu, got, want)
			}
			if c.cumAt(c.first, mtu) != 7 || packets > 1 && c.cumAt(c.end-1, mtu) != 7+full*(packets-1) {
				t.Errorf("%d bytes at MTU %d: charge in the middle", n, mtu)
			}
		}
	}
	// IBTA 9.7.1: the nearest of all sequence numbers with a PSN.
	for _, near := range []uint64{seqBase, seqBase + 1, 1<<24 + 0xffffff, 1 << 40, 1<<40 + 0x800000} {
		for _, d := range []int{0, 1, -1, 1<<23 - 1, -1 << 23} {
			if got := extend(psnOf(near).Add(d), near); got != near+uint64(int64(d)) {
				t.Errorf("extend by %d near %#x: %#x", d, near, got)
			}
		}
	}
}

// reqSink counts completions.
type reqSink struct {
	n  int
	wc WC
}

func (s *reqSink) Push(wc *WC) { s.n++; s.wc = *wc }

// reqFixed is an outbox that reuses one packet.
type reqFixed struct {
	b    [8192]byte
	n    int
	sent int
}

func (o *reqFixed) Packet(_ *Path, n int) []byte { o.n = n; return o.b[:n] }
func (o *reqFixed) Commit()                      { o.sent++ }

// No packet costs an allocation: sending, acknowledgements, READ responses,
// retransmission, completions.
func TestRequesterAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newReqWorld(t, 0xffff00)
	w.attr.PathMTU = ib.MTU1024
	sink, out := &reqSink{}, &reqFixed{}
	w.cfg.SendCQ, w.cfg.RecvCQ = sink, sink
	w.connect()
	list := []mem.SGE{{Addr: reqIOVA, Length: 1200, LKey: w.src.Key()}, {Addr: reqIOVA + 999, Length: 10, LKey: w.src.Key()}}
	land := []mem.SGE{{Addr: reqIOVA, Length: 1100, LKey: w.dst.Key()}}
	var in Inbound
	resp := make([]byte, 2048)
	receive := func(op ib.Opcode, n, psn int, syn ib.Syndrome) {
		b := resp[:op.Info().HeaderLen+n+ib.ICRCSize]
		ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: w.base.Add(psn)}.Put(b)
		ib.AETH{Syndrome: syn}.Put(b[ib.BTHSize:])
		p, _ := ib.Parse(b)
		in = Inbound{Packet: p, Src: reqPeer}
		w.q.Receive(w.now, &in)
	}
	psn := 0
	cycle := func() {
		for _, op := range []WROpcode{WRSend, WRWriteWithImm} {
			w.sq.post(SendWQE{Opcode: op, Flags: Signaled}, list, nil)
		}
		w.sq.post(SendWQE{Opcode: WRRead, Flags: Signaled}, land, nil)
		w.q.Kick(w.now)
		for w.q.Wants() != 0 {
			w.q.Transmit(w.now, out, 1<<16)
		}
		receive(ib.OpRCAck, 0, psn+2, ib.NAKSyndrome(ib.NAKSequence))
		for w.q.Wants() != 0 {
			w.q.Transmit(w.now, out, 1<<16)
		}
		receive(ib.OpRCReadResponseFirst, 1024, psn+4, 31)
		w.now = w.q.Deadline()
		w.q.Expire(w.now)
		for w.q.Wants() != 0 {
			w.q.Transmit(w.now, out, 1<<16)
		}
		receive(ib.OpRCReadResponseOnly, 1100-1024, psn+5, 31)
		psn += 6
	}
	cycle()
	if n := testing.AllocsPerRun(200, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if sink.n != 3*202 || sink.wc.Status != WCSuccess {
		t.Errorf("%d completions, the last %v", sink.n, sink.wc.Status)
	}
}

// An idle queue pair stays small (4 KiB is the aim).
func TestIdleSize(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newReqWorld(t, 1)
	w.sq = newReqSQ(t, 64)
	const many = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range many {
		w.q = NewQP(w.cfg)
		for _, s := range []struct {
			to   State
			mask AttrMask
		}{{Init, initMask}, {RTR, rtrRCMask}, {RTS, rtsRCMask}} {
			a := w.attr
			a.State = s.to
			if err := w.q.Modify(w.now, &a, s.mask|MaskState); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / many; n > 4096 {
		t.Errorf("a connected queue pair that never sent takes %d bytes", n)
	} else {
		t.Logf("%d bytes", n)
	}
}
