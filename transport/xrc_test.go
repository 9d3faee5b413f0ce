package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// xrcPair are an initiator and its target.
var xrcPair = [2]QPType{XRCSend, XRCRecv}

// Every packet of an XRC request has the number of the peer's shared receive
// queue, before all other extension headers (IBTA A14); the rest is RC.
func TestXRCInitiator(t *testing.T) {
	for _, c := range []reqCase{
		{"all positions of SEND and WRITE", `
			post 1 SEND 600 srq=0x51
			> SEND_FIRST 0 256 srq=0x51
			> SEND_MIDDLE 1 256 srq=0x51
			> SEND_LAST 2 88 srq=0x51 ack
			post 2 SENDI 3 srq=0x52 imm=7
			post 3 SENDINV 300 srq=0xffffff imm=9
			post 4 WRITEI 300 srq=1 va=16 imm=5 se
			> SEND_ONLY_IMM 3 3 srq=0x52 imm=7 ack
			> SEND_FIRST 4 256 srq=0xffffff
			> SEND_LAST_INV 5 44 srq=0xffffff inv=9 ack
			> WRITE_FIRST 6 256 srq=0x1 va=16 len=300
			> WRITE_LAST_IMM 7 44 srq=0x1 imm=5 ack se
			< ACK 7
			wc 1 SEND ok
			wc 2 SEND ok
			wc 3 SEND ok
			wc 4 WRITE ok`},
		{"READ and atomics, which consume no receive, too", `
			post 1 READ 300 srq=0x51 va=8
			post 2 FADD 8 srq=0x52 a=4
			> READ 0 srq=0x51 va=8 len=300 ack
			> FETCH_ADD 2 srq=0x52 va=0 add=4 ack
			< RFIRST 0 256
			< RLAST 1 44
			< AACK 2 17
			wc 1 READ 300 ok
			wc 2 FETCH_ADD 8 found=17 ok
			post 3 CAS 8 srq=0x51 a=1 b=2
			> COMPARE_SWAP 3 srq=0x51 va=0 cmp=1 swap=2 ack
			< AACK 3 1
			wc 3 COMP_SWAP 8 found=1 ok`},
		{"a repetition names the same queue", `
			post 1 SEND 300 srq=0x51
			post 2 READ 1 srq=0x52
			> SEND_FIRST 0 256 srq=0x51
			> SEND_LAST 1 44 srq=0x51 ack
			> READ 2 srq=0x52 va=0 len=1 ack
			< NAK 1 seq
			> SEND_LAST 1 44 srq=0x51 ack
			> READ 2 srq=0x52 va=0 len=1 ack
			count retransmitted_pkts 2`},
		{"FLUSH and ATOMIC_WRITE have no operation code (Linux include/rdma/ib_pack.h)", `
			post 1 FLUSH 0 a=8
			wc 1 local QP operation error
			state ERR`},
		{"a refused queue is an invalid request", `
			post 1 SEND 1 srq=0x51
			> SEND_ONLY 0 1 srq=0x51 ack
			< NAK 0 inv
			wc 1 remote invalid request error
			state ERR`},
	} {
		for _, base := range []ib.PSN{1000, 0xffffff} {
			t.Run(c.rule, func(t *testing.T) {
				w := newReqWorld(t, base)
				w.cfg.Type = XRCSend
				w.run(c.script)
			})
		}
	}
}

// xrcOther is another shared receive queue of the domain, in protection domain 2.
type xrcOther struct {
	w  *rspWorld
	rq []RecvWQE
}

func (o *xrcOther) Pop(dst *RecvWQE) bool {
	if len(o.rq) == 0 {
		return false
	}
	*dst, o.rq = o.rq[0], o.rq[1:]
	return true
}

func (o *xrcOther) Push(wc *WC) {
	o.w.Push(wc)
	o.w.wcs[len(o.w.wcs)-1] += " at the other"
}

func newXRCWorld(t *testing.T, base ib.PSN) *rspWorld {
	a := rspAttr()
	a.RQPSN = base
	w := newRspWorldOf(t, XRCRecv, a)
	o := &xrcOther{w: w, rq: []RecvWQE{{ID: 90, SGE: []mem.SGE{{Addr: rspIOVA, Length: 300, LKey: w.alias["pd"]}}}}}
	w.srqs[2] = &SRQ{Num: 2, RQ: o, CQ: o, Mem: w.tab, PD: 2}
	return w
}

// The shared receive queue that a request names decides on the receive, the
// completion queue and the protection domain (IBTA A14).
func TestXRCTarget(t *testing.T) {
	for _, c := range []reqCase{
		{"messages to two queues, each with its receives and memory", `
			! recv 300
			> XRC_SEND_FIRST 0 256
			> XRC_SEND_LAST 1 7 ack
			> XRC_SEND_ONLY_WITH_IMMEDIATE 2 9 srq=2 imm=3 ack
			< ACK 2 msn=2
			wc RECV 1 263
			wc RECV 90 9 imm=3 at the other
			mem rb@0 0:256 1:7
			mem pd@0 2:9`},
		{"WRITE, READ and atomics use the memory of the queue's protection domain", `
			> XRC_RDMA_WRITE_ONLY 0 8 @8 ack
			< ACK 0 msn=1
			mem mr@8 0:8
			> XRC_RDMA_WRITE_ONLY 1 8 srq=2 key=pd @16 ack
			< ACK 1 msn=2
			mem pd@16 1:8
			> XRC_RDMA_READ_REQUEST 2 300 key=ro
			< FIRST 2 256 msn=3 @0
			< LAST 3 44 msn=3 @256
			! word mr@64 0
			> XRC_FETCH_ADD 4 0 add=5 @64
			< AACK 4 found=0 msn=4
			word mr@64 5`},
		{"an immediate WRITE takes a receive of the queue that its last packet names", `
			> XRC_RDMA_WRITE_FIRST 0 256 srq=2 key=pd len=260 @512
			> XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE 1 4 srq=2 imm=8 ack se
			< ACK 1 msn=1
			wc RECV_RDMA_WITH_IMM 90 260 imm=8 se at the other
			mem pd@512 0:256 1:4`},
		{"memory of another protection domain than the queue's", `
			> XRC_RDMA_WRITE_ONLY 0 8 srq=2 key=mr
			< NAK 0 remote access error
			event local access violation work queue error
			event last WQE reached
			state ERR`},
		{"a key of another protection domain is not closed", `
			> XRC_SEND_ONLY_WITH_INVALIDATE 0 1 srq=2 key=mr
			wc RECV 90 remote invalid request error at the other
			event last WQE reached
			state ERR`},
		{"an empty queue: RNR NAK, while messages to another go on later (IBTA 9.7.5.2.8)", `
			> XRC_SEND_ONLY 0 1 ack
			< RNR 0 640µs
			count send_rnr_err 1
			> XRC_SEND_ONLY 0 1 srq=2 ack
			< ACK 0 msn=1
			wc RECV 90 1 at the other
			mem pd@0 0:1`},
		{"no queue has the number", `
			> XRC_SEND_ONLY 0 1 srq=3
			< NAK 0 invalid request
			event local access violation work queue error
			event last WQE reached
			state ERR
			count resp_remote_invalid_request 1`},
		{"... not even for a WRITE, which consumes no receive", `
			> XRC_RDMA_WRITE_ONLY 0 8 srq=0
			< NAK 0 invalid request
			event local access violation work queue error
			event last WQE reached`},
		{"the packets of a message name two queues", `
			! recv 300
			> XRC_SEND_FIRST 0 256
			> XRC_SEND_LAST 1 1 srq=2
			< NAK 1 invalid request
			wc RECV 1 Work Request Flushed Error
			event local access violation work queue error
			event last WQE reached
			mem rb@0 0:256`},
		{"destroyed in a message: what was posted never completes (ibv_destroy_srq)", `
			! recv 300
			> XRC_SEND_FIRST 0 256
			nothing
			! close-srq 1
			> XRC_SEND_LAST 1 1
			< NAK 1 invalid request
			event local access violation work queue error
			event last WQE reached
			mem rb@0 0:256`},
		{"destroyed before a READ is answered: its memory is not read", `
			! hold
			! data 0
			> XRC_RDMA_READ_REQUEST 0 600
			nothing
			! close-srq 1
			! control
			< NAK 0 remote access error
			event local access violation work queue error
			event last WQE reached`},
		{"a duplicate is answered again, if it names the same queue", `
			> XRC_RDMA_READ_REQUEST 0 5
			< ONLY 0 5 msn=1 @0
			> XRC_RDMA_READ_REQUEST 0 5
			< ONLY 0 5 msn=1 @0
			> XRC_RDMA_READ_REQUEST 0 5 srq=2
			count drop_duplicate 1
			! word mr@0 0
			> XRC_FETCH_ADD 1 0 add=5
			< AACK 1 found=0 msn=2
			word mr@0 5
			> XRC_FETCH_ADD 1 0 add=5
			< AACK 1 found=0 msn=2
			word mr@0 5`},
		{"a gap and its NAK", `
			> XRC_RDMA_WRITE_ONLY 1 1 ack
			< NAK 0 PSN sequence error`},
		{"moved to ERR, idle and in a message: as with any shared queue (IBTA 10.2.9.3)", `
			! recv 300
			! recv 300
			> XRC_SEND_FIRST 0 256
			nothing
			! err
			wc RECV 1 Work Request Flushed Error
			event last WQE reached`},
	} {
		for _, base := range []ib.PSN{0, 0xffffff} {
			t.Run(fmt.Sprintf("%s/%v", c.rule, base), func(t *testing.T) { newXRCWorld(t, base).run(c.script) })
		}
	}
}

// Packets that are not for a queue pair's service, or for the other direction of
// its, are dropped and counted, and change nothing (IBTA 9.6.1).
func TestXRCOtherPackets(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  QPType
		line string
	}{
		{"XRC request to RC", RC, "XRC_SEND_ONLY 0 1"},
		{"XRC request to UC", UC, "XRC_SEND_ONLY 0 1"},
		{"XRC request to UD", UD, "XRC_SEND_ONLY 0 1"},
		{"RC request to a target", XRCRecv, "SEND_ONLY 0 1"},
		{"RC FLUSH to a target", XRCRecv, "FLUSH 0 0 global"},
		{"UC request to a target", XRCRecv, "UC_SEND_ONLY 0 1"},
		{"UD request to a target", XRCRecv, "UD_SEND_ONLY 0 1"},
		{"XRC response to a target", XRCRecv, "XRC_ACKNOWLEDGE 0 0"},
		{"RC response to a target", XRCRecv, "ACKNOWLEDGE 0 0"},
		{"XRC request to an initiator", XRCSend, "XRC_SEND_ONLY 0 1"},
		{"RC response to an initiator", XRCSend, "ACKNOWLEDGE 0 0"},
		{"RC request to an initiator", XRCSend, "SEND_ONLY 0 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRspWorldOf(t, c.typ, rspAttr())
			w.run("! recv 10\n> " + c.line + "\ncount drop_transport 1\nstate RTS")
		})
	}
}

// A target has nothing to send: SQD is drained at once, and it has no timer.
func TestXRCTargetDrains(t *testing.T) {
	w := newXRCWorld(t, 0)
	if err := w.q.Modify(0, &Attr{State: SQD, SQDrainNotify: true}, MaskState|MaskSQDNotify); err != nil {
		t.Fatal(err)
	}
	if len(w.events) != 1 || w.events[0] != EventSQDrained.String() || w.q.Query().SQDraining || w.q.Deadline() != Never {
		t.Errorf("events %q, attributes %+v, deadline %v", w.events, w.q.Query(), w.q.Deadline())
	}
	w.run(`
		> XRC_SEND_ONLY 0 1 srq=2 ack
		< ACK 0 msn=1
		wc RECV 90 1 at the other`)
	w.q.Destroy()
	if w.q.rsp().srq != &w.q.own {
		t.Error("the destroyed queue pair holds a receive queue")
	}
}

// The same random exchanges as of RC, one way.
func TestXRCPairRandom(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newPairOf(t, xrcPair, seed, ib.MTU256+ib.MTU(seed%5), []int{0, 2000, 20000}[seed%3])
			p.fate = p.random(0.05, 0.05, 0.05)
			p.end[0].left = 200
			p.run(10 * time.Second)
			p.finish()
			if n := p.end[1].counts.Load(RDMARecvs); n == 0 {
				t.Error("no messages")
			}
		})
	}
}

// Any single fault and any two losses, as of RC (IBTA 9.7, 9.9.2).
func TestXRCPairEveryFault(t *testing.T) {
	pairEveryFault(t, xrcPair, []int{700}, func(e *pairEnd) {
		e.post(WRSend, 300, 0)
		e.post(WRRead, 600, Signaled)
		e.postAtomic(WRAtomicFetAdd, Signaled)
		e.post(WRWriteWithImm, 0, Signaled|Fence)
		e.postAtomic(WRAtomicCmpSwp, Signaled)
	})
}

// No packet of XRC costs an allocation, on either side.
func TestXRCAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	two := newBenchTwo(t, xrcPair, 3000, ib.MTU1024)
	s, want := two.ends[0], 0
	word := []mem.SGE{{Length: mem.WordSize, LKey: two.reg.Key()}}
	cycle := func() {
		for _, op := range []WROpcode{WRSend, WRWriteWithImm, WRRead, WRAtomicFetAdd} {
			list := s.recv
			if op == WRAtomicFetAdd {
				list = word
			}
			two.post(op, list)
			want++
		}
		for s.done < want {
			two.turn()
		}
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := two.counts.Load(RDMARecvs); n != 2*102 {
		t.Errorf("%d messages received, want %d", n, 2*102)
	}
}
