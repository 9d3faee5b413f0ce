package transport

import (
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// runServiceTalks runs conversations of a service with several first PSNs.
func runServiceTalks(t *testing.T, typ QPType, talks []rspTalk) {
	for _, base := range []ib.PSN{0, 0xffffff, 0xfffffe} {
		for _, k := range talks {
			t.Run(k.name+"/"+base.String(), func(t *testing.T) {
				a := rspAttr()
				a.QKey = 0x11111111
				if k.attr != nil {
					k.attr(&a)
				}
				a.RQPSN = base
				w := newRspWorldOf(t, typ, a)
				w.run(k.script)
				if t.Failed() {
					t.Log("rule:", k.rule)
				}
			})
		}
	}
}

func TestUCReceiver(t *testing.T) {
	runServiceTalks(t, UC, []rspTalk{
		{name: "messages", rule: "IBTA 9.8.2: SENDs fill receives, WRITEs memory, and nothing is answered", script: `
			! recv 600
			! recv 10
			> UC_SEND_FIRST 0 256 ack
			> UC_SEND_MIDDLE 1 256
			> UC_SEND_LAST 2 7 se
			> UC_SEND_ONLY_WITH_IMMEDIATE 3 0 imm=5
			wc RECV 1 519 se
			wc RECV 2 0 imm=5
			mem rb@0 0:256 1:256 2:7
			count sent_pkts 0
			count rdma_recvs 2
			> UC_RDMA_WRITE_FIRST 4 256 len=260 @16
			> UC_RDMA_WRITE_LAST 5 4
			nothing
			mem mr@16 4:256 5:4
			! recv 10
			> UC_RDMA_WRITE_FIRST 6 256 len=257 @700
			> UC_RDMA_WRITE_LAST_WITH_IMMEDIATE 7 1 imm=9
			wc RECV_RDMA_WITH_IMM 3 257 imm=9
			mem mr@700 6:256 7:1
			> UC_RDMA_WRITE_ONLY 8 0
			nothing`},
		{name: "a lost packet", rule: "IBTA 9.8.2.2, Linux rxe_resp.c class D1: the message is dropped, its receive serves the next", script: `
			! recv 600
			> UC_SEND_FIRST 0 256
			> UC_SEND_LAST 2 7
			nothing
			count out_of_seq_request 1
			count drop_broken_message 2
			> UC_SEND_ONLY 3 5
			wc RECV 1 5`},
		{name: "a lost LAST", rule: "IBTA 9.8.2.2: a FIRST begins a message, whatever came before", script: `
			! recv 600
			> UC_RDMA_WRITE_FIRST 0 256 len=512
			> UC_RDMA_WRITE_FIRST 2 256 len=300 @4096
			> UC_RDMA_WRITE_LAST 3 44
			nothing
			count drop_broken_message 1
			> UC_SEND_ONLY 4 1
			wc RECV 1 1`},
		{name: "a lost FIRST", rule: "IBTA 9.8.2.2: the rest of the message is dropped", script: `
			! recv 600
			> UC_SEND_MIDDLE 1 256
			> UC_SEND_LAST 2 256
			nothing
			count drop_broken_message 2
			> UC_SEND_ONLY 3 5
			wc RECV 1 5`},
		{name: "kinds mixed", rule: "IBTA 9.8.2.2: a MIDDLE of another operation ends the message", script: `
			! recv 600
			> UC_SEND_FIRST 0 256
			> UC_RDMA_WRITE_LAST 1 1
			nothing
			count drop_broken_message 2
			count out_of_seq_request 0`},
		{name: "no step is lost for good", rule: "IBTA 9.8.2.2: the next expected PSN follows whatever came", script: `
			! recv 10
			! recv 10
			> UC_SEND_ONLY 4000000 1
			wc RECV 1 1
			> UC_SEND_ONLY 0 1
			wc RECV 2 1
			count out_of_seq_request 1`},
		{name: "no receive", rule: "Linux rxe_resp.c: UC drops the message", script: `
			> UC_SEND_FIRST 0 256
			> UC_SEND_LAST 1 1
			nothing
			count drop_no_receive 1
			count drop_broken_message 1
			> UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 2 8
			nothing
			count drop_no_receive 1
			mem mr@0
			! recv 10
			> UC_SEND_ONLY 3 1
			wc RECV 1 1`},
		{name: "too long for the receive", rule: "Linux rxe_resp.c class D: dropped, no error, the receive stays", script: `
			! recv 300
			> UC_SEND_FIRST 0 256
			> UC_SEND_LAST 1 45
			nothing
			count resp_local_length_error 1
			> UC_SEND_ONLY 2 10
			wc RECV 1 10
			state RTS`},
		{name: "lengths", rule: "IBTA 9.7.4.1.6: FIRST and MIDDLE are full, LAST is not empty, the RETH is kept to", script: `
			! recv 600
			> UC_SEND_FIRST 0 255
			> UC_SEND_ONLY 1 257
			nothing
			count resp_remote_invalid_request 2
			> UC_SEND_FIRST 2 256
			> UC_SEND_LAST 3 0
			nothing
			count resp_remote_invalid_request 1
			> UC_RDMA_WRITE_ONLY 4 8 len=9
			> UC_RDMA_WRITE_FIRST 5 256 len=256
			> UC_RDMA_WRITE_FIRST 6 256 len=300
			> UC_RDMA_WRITE_LAST 7 45
			> UC_RDMA_WRITE_ONLY 8 8 len=0x80000001
			nothing
			count resp_remote_invalid_request 4
			mem mr@0 6:256
			state RTS`},
		{name: "memory that goes away", rule: "a WRITE stops where the memory ends to be there", script: `
			> UC_RDMA_WRITE_FIRST 0 256 len=300
			! dereg mr
			> UC_RDMA_WRITE_LAST 1 44
			nothing
			count resp_remote_access_errors 1
			state RTS`},
		{name: "flushed", rule: "IBTA 10.3.1.7: ERR flushes the receive of a message under way first", script: `
			! recv 600
			! recv 600
			> UC_SEND_FIRST 0 256
			! err
			wc RECV 1 Work Request Flushed Error
			wc RECV 2 Work Request Flushed Error
			> UC_SEND_LAST 1 1
			nothing
			count drop_qp_state 1`},
	})
}

func TestUDReceiver(t *testing.T) {
	runServiceTalks(t, UD, []rspTalk{
		{name: "datagrams", rule: "IBTA Annex A17: 40 bytes stand before the payload, and are counted", script: `
			! recv 50
			! recv 20 25
			> UD_SEND_ONLY 0 10 se src=77
			> UD_SEND_ONLY_WITH_IMMEDIATE 9 5 imm=3
			wc RECV 1 50 se grh src=77
			wc RECV 2 45 imm=3 grh src=17
			mem rb@0 grh:36 0:10 grh:36 9:5
			count sent_pkts 0
			count rdma_recvs 2`},
		{name: "PSNs mean nothing", rule: "IBTA 9.8.3.1", script: `
			! recv 41
			! recv 41
			> UD_SEND_ONLY 5 1
			> UD_SEND_ONLY 5 1
			wc RECV 1 41 grh src=17
			wc RECV 2 41 grh src=17
			count out_of_seq_request 0`},
		{name: "Q_Key", rule: "IBTA 10.2.5: another Q_Key is dropped and counted", script: `
			! recv 100
			> UD_SEND_ONLY 0 1 qkey=0x11111110
			> UD_SEND_ONLY 0 1 qkey=0
			nothing
			count drop_qkey 2
			> UD_SEND_ONLY 1 1
			wc RECV 1 41 grh src=17`},
		{name: "partition", rule: "IBTA 10.9.3: another P_Key is dropped and counted", script: `
			! recv 100
			> UD_SEND_ONLY 0 1 pkey=0x8001
			> UD_SEND_ONLY 0 1 pkey=0
			nothing
			count drop_pkey 2
			> UD_SEND_ONLY 0 1 pkey=0x7fff
			wc RECV 1 41 grh src=17`},
		{name: "no receive", rule: "IBTA 9.8.3: dropped", script: `
			> UD_SEND_ONLY 0 1
			nothing
			count drop_no_receive 1`},
		{name: "receive too small", rule: "Linux rxe_resp.c: below 40 + payload the datagram is dropped; the receive stays", script: `
			! recv 49
			> UD_SEND_ONLY 0 10
			nothing
			count resp_local_length_error 1
			mem rb@0
			state RTS
			> UD_SEND_ONLY 1 9
			wc RECV 1 49 grh src=17`},
		{name: "empty", rule: "a datagram without payload is its 40 bytes", script: `
			! recv 39
			> UD_SEND_ONLY 0 0
			nothing
			count resp_local_length_error 1
			! recv 40
			> UD_SEND_ONLY 0 0
			nothing
			count resp_local_length_error 1`},
		{name: "longer than any path", rule: "IBTA 9.8.3: at most 4096 bytes", script: `
			! recv 10000
			> UD_SEND_ONLY 0 4097
			nothing
			count resp_remote_invalid_request 1
			> UD_SEND_ONLY 0 4096
			wc RECV 1 4136 grh src=17`},
		{name: "a bad receive buffer", rule: "IBTA 9.9.3: local protection error, and the queue pair is in ERR", script: `
			! recvbad
			! recv 100
			> UD_SEND_ONLY 0 1
			wc RECV 1 local protection error
			wc RECV 2 Work Request Flushed Error
			state ERR`},
		{name: "other services", rule: "IBTA 9.6.1", script: `
			! recv 100
			> UC_SEND_ONLY 0 1
			> SEND_ONLY 0 1
			nothing
			count drop_transport 2`},
	})
}

// A UD queue pair takes datagrams from any host, and in SQE, too (IBTA 10.3.1.6).
func TestUDFromAnywhere(t *testing.T) {
	for _, state := range []State{Init, RTR, RTS, SQD, SQE, Err} {
		w := newRspWorldOf(t, UD, rspAttr())
		w.q.become(state)
		w.action("recv 100")
		p, bad := ib.Parse(w.build("UD_SEND_ONLY 0 1"))
		if bad != ib.OK {
			t.Fatal(bad)
		}
		if w.q.Receive(0, &Inbound{Packet: p, Src: netip.MustParseAddr("203.0.113.9"), Dst: rspSelf}); state == Err {
			w.wcs = w.wcs[1:] // flushed
		}
		if want := state >= RTR && state != Err; (len(w.wcs) == 1) != want || len(w.events) != 0 {
			t.Errorf("%v: completions %q, events %q", state, w.wcs, w.events)
		}
	}
}

// In SQE a UC queue pair goes on receiving.
func TestUCReceivesInSQE(t *testing.T) {
	w := newRspWorldOf(t, UC, rspAttr())
	w.q.become(SQE)
	w.run(`
		! recv 10
		> UC_SEND_ONLY 0 1
		wc RECV 1 1
		state SQE`)
}

// Receiving allocates nothing.
func TestUnreliableReceiveAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for typ, line := range map[QPType]string{UC: "UC_SEND_ONLY 0 200", UD: "UD_SEND_ONLY 0 200"} {
		w := newRspWorldOf(t, typ, rspAttr())
		n := 0
		w.q.own.RQ = endlessRQ{[]mem.SGE{{Addr: rspIOVA, Length: 100, LKey: w.alias["rb"]}, {Addr: rspIOVA + 100, Length: 200, LKey: w.alias["rb"]}}}
		w.q.own.CQ = countCQ{&n}
		p, bad := ib.Parse(w.build(line))
		if bad != ib.OK {
			t.Fatal(bad)
		}
		in := Inbound{Packet: p, Src: rspPeer, Dst: rspSelf}
		w.q.Receive(0, &in) // grows the cursor once
		if allocs := testing.AllocsPerRun(100, func() { w.q.Receive(0, &in) }); allocs != 0 {
			t.Errorf("%v: %v allocations", typ, allocs)
		}
		if n != 102 {
			t.Errorf("%v: %d completions", typ, n)
		}
	}
}

type endlessRQ struct{ sges []mem.SGE }

func (r endlessRQ) Pop(dst *RecvWQE) bool {
	dst.SGE = append(dst.SGE[:0], r.sges...)
	return true
}

type countCQ struct{ n *int }

func (c countCQ) Push(wc *WC) {
	if wc.Status == WCSuccess {
		*c.n++
	}
}
