package transport

import (
	"testing"

	"github.com/goroce/goroce/ib"
)

// What comes before its turn is kept, and then executed as on a network that keeps
// order; the wire shows one sequence NAK for each hole (IBTA 9.7.5.2).
func TestResponderStash(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"nothing is executed before the hole closes, then all of it, with one ACK and one NAK", `
			! recv 600
			> SEND_FIRST 0 256
			> SEND_LAST 2 10 ack
			> RDMA_WRITE_ONLY 3 20 @100
			< NAK 1 PSN sequence error
			mem rb 0:256
			mem mr
			count out_of_seq_request 1
			count out_of_seq_kept 2
			count drop_after_nak 0
			> SEND_MIDDLE 1 256
			< ACK 3 msn=2
			wc RECV 1 522
			mem rb 0:256 1:256 2:10
			mem mr@100 3:20
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 10 ack
			< ACK 3 msn=2
			count duplicate_request 2`},
		{"a packet that was only overtaken, in one batch, draws no NAK", `
			> RDMA_WRITE_ONLY 1 20 @100
			> RDMA_WRITE_ONLY 0 10 @0 ack
			< ACK 1 msn=2
			count out_of_seq_request 1`},
		{"each hole has its NAK, with the packet that shows it", `
			> RDMA_WRITE_ONLY 1 1 @1
			> RDMA_WRITE_ONLY 3 1 @3
			< NAK 0 PSN sequence error
			> RDMA_WRITE_ONLY 0 1 @0
			< ACK 1 msn=2
			> RDMA_WRITE_ONLY 4 1 @4
			< NAK 2 PSN sequence error
			> RDMA_WRITE_ONLY 2 1 @2
			< ACK 4 msn=5
			mem mr 0:1 1:1 2:1 3:1 4:1`},
		{"a duplicate of a kept packet changes nothing", `
			> RDMA_WRITE_ONLY 1 10 @1
			> RDMA_WRITE_ONLY 1 10 @1 dup=1
			< NAK 0 PSN sequence error
			count duplicate_request 1
			count out_of_seq_kept 1
			> RDMA_WRITE_ONLY 0 1 @0
			< ACK 1 msn=2
			mem mr 0:1 1:10`},
		{"READs and atomics take their turn; a READ has many PSNs", `
			> RDMA_READ_REQUEST 1 @0 len=600
			> FETCH_ADD 4 @8 add=5
			> RDMA_WRITE_ONLY 5 1 @2000 ack
			< NAK 0 PSN sequence error
			! word mr@8 7
			! recv 0
			> SEND_ONLY 0 0 ack
			< FIRST 1 256 msn=2 @0
			< MIDDLE 2 256 @256
			< LAST 3 88 msn=2 @512
			< AACK 4 found=7 msn=3
			< ACK 5 msn=4
			wc RECV 1 0
			word mr@8 12
			mem mr@2000 5:1`},
		{"one that finds no receive waits for its requester as any other", `
			> SEND_ONLY 1 4
			> RDMA_WRITE_ONLY 2 1 @0
			< NAK 0 PSN sequence error
			> RDMA_WRITE_ONLY 0 1 @4 ack
			< RNR 1 640µs
			mem mr@4 0:1
			> RDMA_WRITE_ONLY 3 1 @1
			count out_of_seq_kept 1
			count out_of_seq_request 0
			nothing
			! recv 10
			> SEND_ONLY 1 4
			< ACK 3 msn=4
			wc RECV 1 4
			mem rb 1:4`},
		{"one that is refused ends the connection when its turn comes, and not before", `
			> RDMA_WRITE_ONLY 1 1 @1 key=bad
			> RDMA_WRITE_ONLY 2 1 @2
			< NAK 0 PSN sequence error
			state RTS
			> RDMA_WRITE_ONLY 0 1 @0
			< NAK 1 remote access error
			event local access violation work queue error
			state ERR
			mem mr 0:1`},
		{"of a message with a hole the opcode sequence is judged in order", `
			> RDMA_WRITE_MIDDLE 2 256
			> RDMA_WRITE_LAST 3 1
			< NAK 0 PSN sequence error
			> RDMA_WRITE_FIRST 0 256 @0 len=769
			nothing
			> RDMA_WRITE_MIDDLE 1 256
			< ACK 3 msn=1
			mem mr 0:256 1:256 2:256 3:1`},
		{"... also when it is wrong", `
			> RDMA_WRITE_MIDDLE 1 256
			< NAK 0 PSN sequence error
			> RDMA_WRITE_ONLY 0 1 @0
			< NAK 1 invalid request
			event invalid request local work queue error
			state ERR`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := rspAttr()
			a.RQPSN = 0xfffffe
			w := newRspWorld(t, a)
			w.stash(NewStash(1<<20, 1<<20))
			w.run(c.script)
		})
	}
}

// stash gives the queue pair memory for what comes before its turn.
func (w *rspWorld) stash(s *Stash) { w.q.rcv.(*responder).early.from = s }

// What is kept is bounded: bytes of a queue pair and of all of them, and PSNs ahead;
// what finds no room is dropped as before, and all of it is given back.
func TestStashLimits(t *testing.T) {
	block := blockSize(ib.MTU256)
	for _, c := range []struct {
		name         string
		limit, perQP int
		script       string
		used, free   int // blocks, at the end
	}{
		{"bytes of a queue pair", 10 * block, 2*block + 1, `
			> RDMA_WRITE_ONLY 1 1 @1
			> RDMA_WRITE_ONLY 2 1 @2
			> RDMA_WRITE_ONLY 3 1 @3
			< NAK 0 PSN sequence error
			count out_of_seq_kept 2
			count drop_after_nak 1
			> RDMA_WRITE_ONLY 0 1 @0
			< ACK 2 msn=3
			> RDMA_WRITE_ONLY 4 1 @4
			< NAK 3 PSN sequence error`, 2, 1},
		{"bytes of a device", 2*block + 1, 10 * block, `
			> RDMA_WRITE_ONLY 1 1 @1
			> RDMA_WRITE_ONLY 2 1 @2
			> RDMA_WRITE_ONLY 3 1 @3
			< NAK 0 PSN sequence error
			count out_of_seq_kept 2
			count drop_after_nak 1
			! err
			state ERR`, 2, 2},
		{"PSNs ahead", 10 * block, 10 * block, `
			> RDMA_WRITE_ONLY 1023 1 @1
			> RDMA_WRITE_ONLY 1024 1 @2
			> RDMA_WRITE_ONLY 8000000 1 @2
			< NAK 0 PSN sequence error
			count out_of_seq_kept 1
			count drop_after_nak 2`, 1, 0},
		{"a READ covers what was kept with PSNs of its responses", 10 * block, 10 * block, `
			> RDMA_WRITE_ONLY 1 1 @1
			> RDMA_WRITE_ONLY 3 1 @1
			< NAK 0 PSN sequence error
			> RDMA_READ_REQUEST 0 @0 len=600
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< LAST 2 88 msn=1 @512
			< ACK 3 msn=2
			mem mr@1 3:1`, 2, 2},
		{"nothing at all", 0, 10 * block, `
			> RDMA_WRITE_ONLY 1 1 @1
			> RDMA_WRITE_ONLY 2 1 @1
			< NAK 0 PSN sequence error
			count drop_after_nak 1
			> RDMA_WRITE_ONLY 0 1 @0
			nothing`, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, s := newRspWorld(t, rspAttr()), NewStash(c.limit, c.perQP)
			w.stash(s)
			w.run(c.script)
			if s.used != c.used*block || len(s.free[ib.MTU256]) != c.free {
				t.Errorf("%d bytes and %d free blocks, want %d blocks and %d", s.used, len(s.free[ib.MTU256]), c.used, c.free)
			}
			w.q.Destroy()
			if len(s.free[ib.MTU256]) != c.used {
				t.Errorf("%d free blocks after Destroy, want %d", len(s.free[ib.MTU256]), c.used)
			}
		})
	}
	t.Run("what one path MTU has left is there for another", func(t *testing.T) {
		s := NewStash(blockSize(ib.MTU4096), 1<<20)
		for range 20 {
			s.put(ib.MTU256, s.get(ib.MTU256))
		}
		small := s.get(ib.MTU256)
		if small == nil || s.get(ib.MTU4096) != nil {
			t.Fatal("a block too few or too many")
		}
		s.put(ib.MTU256, small)
		if s.get(ib.MTU4096) == nil || s.get(ib.MTU256) != nil || s.used != blockSize(ib.MTU4096) {
			t.Errorf("%d bytes used", s.used)
		}
	})
}

// Once there is memory, a packet that is kept and executed costs no allocation.
func TestStashAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newRspWorld(t, rspAttr())
	w.stash(NewStash(1<<20, 1<<20))
	out, psn := &reqFixed{}, 0
	pkts := [][]byte{w.build("RDMA_WRITE_ONLY 0 200 @0"), w.build("RDMA_WRITE_ONLY 0 200 @300 ack"), w.build("RDMA_WRITE_ONLY 0 100 @0")}
	var in Inbound
	cycle := func() {
		for _, i := range []int{1, 2, 0} {
			h, _ := ib.Parse(pkts[i])
			bth := h.BTH()
			bth.PSN = w.base.Add(psn + i)
			bth.Put(pkts[i])
			in = Inbound{Packet: h, Src: rspPeer, Dst: rspSelf}
			w.q.Receive(0, &in)
			w.q.TransmitControl(0, out)
		}
		psn += 3
	}
	cycle()
	if n := testing.AllocsPerRun(200, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := w.counts.Load(OutOfSequenceKept); n != 2*202 || out.sent != 2*202 {
		t.Errorf("%d packets kept, %d answers", n, out.sent)
	}
}
