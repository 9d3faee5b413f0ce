package transport

import (
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// rspTalk is a conversation with a responder and the rule that it shows. See
// rspWorld for the language.
type rspTalk struct {
	name, rule, script string
	attr               func(*Attr)
}

// runTalks runs conversations with several first PSNs: the last make the PSN
// wrap in their course (IBTA 9.7.1).
func runTalks(t *testing.T, talks []rspTalk) {
	for _, base := range []ib.PSN{0, 0xffffff, 0xfffffe} {
		for _, k := range talks {
			t.Run(k.name+"/"+base.String(), func(t *testing.T) {
				t.Cleanup(func() {
					if t.Failed() {
						t.Log("rule:", k.rule)
					}
				})
				a := rspAttr()
				if k.attr != nil {
					k.attr(&a)
				}
				a.RQPSN = base
				w := newRspWorld(t, a)
				w.run(k.script)
			})
		}
	}
}

func TestResponderMessages(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "SEND", rule: "IBTA 9.4.1, 9.7.7.1: one message, one receive, one MSN", script: `
			! recv 100
			> SEND_ONLY 0 10 ack
			< ACK 0 msn=1
			wc RECV 1 10
			mem rb@0 0:10
			count rdma_recvs 1
			count rcvd_pkts 1
			count sent_pkts 1`},
		{name: "SEND of three packets", rule: "IBTA 9.4.1: FIRST, MIDDLE, LAST fill one receive", script: `
			! recv 600
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 7 ack se
			< ACK 2 msn=1
			wc RECV 1 519 se
			mem rb@0 0:256 1:256 2:7`},
		{name: "SEND scattered", rule: "IBTA 10.8.2: a receive is a list of buffers", script: `
			! recv 1 0 254 3 400
			> SEND_FIRST 0 256
			> SEND_LAST 1 256 ack
			< ACK 1 msn=1
			wc RECV 1 512
			mem rb@0 0:256 1:256`},
		{name: "SEND with immediate", rule: "IBTA 9.4.1: immediate data goes to the completion", script: `
			! recv 300
			! recv 0
			> SEND_FIRST 0 256
			> SEND_LAST_WITH_IMMEDIATE 1 1 imm=0x89abcdef se
			> SEND_ONLY_WITH_IMMEDIATE 2 0 imm=3 ack
			< ACK 2 msn=2
			wc RECV 1 257 imm=2309737967 se
			wc RECV 2 0 imm=3`},
		{name: "SEND exactly as long as the receive", rule: "IBTA 9.7.4.1.7: not too long", script: `
			! recv 256 44
			> SEND_FIRST 0 256
			> SEND_LAST 1 44 ack
			< ACK 1 msn=1
			wc RECV 1 300`},
		{name: "empty SEND into an empty receive", rule: "IBTA 9.4.1: a message may have no payload", script: `
			! recv
			> SEND_ONLY 0 0 ack
			< ACK 0 msn=1
			wc RECV 1 0`},
		{name: "empty SEND looks at no key", rule: "IBTA 9.4.1, Linux rxe_resp.c: no bytes, no access", script: `
			! recvbad
			> SEND_ONLY 0 0 ack
			< ACK 0 msn=1
			wc RECV 1 0`},
		{name: "WRITE", rule: "IBTA 9.4.3: no completion at the responder", script: `
			> RDMA_WRITE_ONLY 0 10 @100 ack
			< ACK 0 msn=1
			mem mr@100 0:10`},
		{name: "WRITE of three packets", rule: "IBTA 9.4.3", script: `
			> RDMA_WRITE_FIRST 0 256 len=515 @1
			> RDMA_WRITE_MIDDLE 1 256
			> RDMA_WRITE_LAST 2 3 ack
			< ACK 2 msn=1
			mem mr@1 0:256 1:256 2:3`},
		{name: "WRITE of two full packets", rule: "IBTA 9.4.3: the last packet may be full", script: `
			> RDMA_WRITE_FIRST 0 256 len=512 @65024
			> RDMA_WRITE_LAST 1 256 ack
			< ACK 1 msn=1
			mem mr@65024 0:256 1:256`},
		{name: "WRITE into a region without remote read", rule: "IBTA 10.6.3: each right by itself", script: `
			> RDMA_WRITE_ONLY 0 4 key=wo ack
			< ACK 0 msn=1
			mem wo@0 0:4`},
		{name: "WRITE with immediate", rule: "IBTA 9.4.3: consumes a receive, its buffers stay as they are", script: `
			! recv 100
			! recvbad
			> RDMA_WRITE_FIRST 0 256 len=260 @0
			> RDMA_WRITE_LAST_WITH_IMMEDIATE 1 4 imm=77 se
			> RDMA_WRITE_ONLY_WITH_IMMEDIATE 2 5 @260 imm=78 ack
			< ACK 2 msn=2
			wc RECV_RDMA_WITH_IMM 1 260 imm=77 se
			wc RECV_RDMA_WITH_IMM 2 5 imm=78
			mem mr@0 0:256 1:4 2:5
			mem rb@0`},
		{name: "empty WRITE checks no key", rule: "IBTA C9-88; Linux rxe_resp.c check_rkey", script: `
			! recv 100
			> RDMA_WRITE_ONLY 0 0 key=bad va=0xffffffffffffffff ack
			> RDMA_WRITE_ONLY_WITH_IMMEDIATE 1 0 key=bad imm=1 ack
			< ACK 1 msn=2
			wc RECV_RDMA_WITH_IMM 1 0 imm=1`},
		{name: "READ", rule: "IBTA 9.4.4: ONLY for one packet", script: `
			> RDMA_READ_REQUEST 0 20 @40
			< ONLY 0 20 msn=1 @40`},
		{name: "READ of many packets", rule: "IBTA 9.4.4, C9-148: FIRST, MIDDLE, LAST with consecutive PSNs, one MSN", script: `
			> RDMA_READ_REQUEST 0 1021 @3
			< FIRST 0 256 msn=1 @3
			< MIDDLE 1 256 @259
			< MIDDLE 2 256 @515
			< LAST 3 253 msn=1 @771
			> RDMA_WRITE_ONLY 4 1 ack
			< ACK 4 msn=2`},
		{name: "empty READ checks no key", rule: "IBTA C9-88; Linux rxe_resp.c check_rkey", script: `
			> RDMA_READ_REQUEST 0 0 key=bad va=0xfffffffffffffff0
			< ONLY 0 0 msn=1`},
		{name: "READ from a region without remote write", rule: "IBTA 10.6.3", script: `
			> RDMA_READ_REQUEST 0 4096 key=ro
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< MIDDLE 4 256 @1024
			< MIDDLE 5 256 @1280
			< MIDDLE 6 256 @1536
			< MIDDLE 7 256 @1792
			< MIDDLE 8 256 @2048
			< MIDDLE 9 256 @2304
			< MIDDLE 10 256 @2560
			< MIDDLE 11 256 @2816
			< MIDDLE 12 256 @3072
			< MIDDLE 13 256 @3328
			< MIDDLE 14 256 @3584
			< LAST 15 256 msn=1 @3840`},
		{name: "two READs", rule: "IBTA 9.7.7.1: each response shows the MSN at its request", script: `
			> RDMA_READ_REQUEST 0 257 @0
			> RDMA_READ_REQUEST 2 4 @1000
			< FIRST 0 256 msn=1 @0
			< LAST 1 1 msn=1
			< ONLY 2 4 msn=2 @1000`},
	})
}

func TestResponderAcknowledges(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "without AckReq", rule: "IBTA 9.7.5.1: an ACK is required only if asked for", script: `
			! recv 10
			> SEND_ONLY 0 4
			> RDMA_WRITE_ONLY 1 4
			wc RECV 1 4`},
		{name: "coalesced", rule: "IBTA 9.7.5.1: one ACK stands for all before it", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			> RDMA_WRITE_ONLY 1 4 @100 ack
			> RDMA_WRITE_ONLY 2 4 @200 ack
			< ACK 2 msn=3`},
		{name: "up to the last packet that asked", rule: "IBTA 9.7.5.1", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			> RDMA_WRITE_ONLY 1 4
			< ACK 0 msn=1`},
		{name: "in mid-message", rule: "IBTA 9.7.7.1: the MSN counts whole messages", script: `
			> RDMA_WRITE_FIRST 0 256 len=300 ack
			< ACK 0 msn=0
			> RDMA_WRITE_LAST 1 44 ack
			< ACK 1 msn=1`},
		{name: "no room", rule: "what the outbox has no room for stays due", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			! hold
			! room 0
			nothing
			> RDMA_WRITE_ONLY 1 4 ack
			< ACK 1 msn=2`},
		{name: "behind a READ", rule: "IBTA 9.7.5.1, implied NAK: no ACK past a READ before its last response", script: `
			> RDMA_READ_REQUEST 0 600 @0
			> RDMA_WRITE_ONLY 3 4 @8 ack
			! hold
			! control
			count ack_deferred 1
			! hold
			! data 1
			! control
			< FIRST 0 256 msn=1 @0
			! hold
			! data 1
			! control
			< MIDDLE 1 256 @256
			! hold
			! room 1
			! control
			< LAST 2 88 msn=1 @512
			< ACK 3 msn=2`},
		{name: "before a READ", rule: "IBTA 9.7.5.1: an ACK before the READ may leave at once", script: `
			> RDMA_WRITE_ONLY 0 4 @8 ack
			> RDMA_READ_REQUEST 1 4 @100
			! hold
			! control
			< ACK 0 msn=1
			! hold
			! data 1000
			< ONLY 1 4 msn=2 @100`},
		{name: "NAK behind a READ", rule: "IBTA 9.7.5.1, implied NAK: a NAK acknowledges what is before it", script: `
			> RDMA_READ_REQUEST 0 300 @0
			> RDMA_WRITE_ONLY 3 4 ack
			! hold
			! control
			nothing
			! control
			< FIRST 0 256 msn=1 @0
			< LAST 1 44 msn=1 @256
			< NAK 2 PSN sequence error`},
		{name: "RNR NAK behind a READ", rule: "IBTA 9.7.5.1, implied NAK", script: `
			> RDMA_READ_REQUEST 0 4 @16
			> SEND_ONLY 1 4 ack
			! control
			< ONLY 0 4 msn=1 @16
			< RNR 1 640µs`},
		{name: "fatal NAK behind a READ", rule: "IBTA 9.9.3: earlier requests are answered first", script: `
			> RDMA_READ_REQUEST 0 4 @16
			> RDMA_WRITE_ONLY 1 4 key=bad
			! control
			< ONLY 0 4 msn=1 @16
			< NAK 1 remote access error
			event local access violation work queue error
			state ERR`},
		{name: "budget", rule: "a turn writes about as many bytes as it was given", script: `
			> RDMA_READ_REQUEST 0 1024 @0
			! hold
			! data 273
			< FIRST 0 256 msn=1 @0
			! hold
			! data 277
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			! hold
			! room 0
			nothing
			! control
			< LAST 3 256 msn=1 @768`},
	})
}

func TestResponderSequence(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "gap", rule: "IBTA 9.7.5.2; Linux rxe_resp.c check_psn: one sequence NAK per gap", script: `
			> RDMA_WRITE_ONLY 1 4 ack
			> RDMA_WRITE_ONLY 2 4 ack
			< NAK 0 PSN sequence error
			count out_of_seq_request 1
			count drop_after_nak 1
			mem mr@0
			> RDMA_WRITE_ONLY 3 4 ack
			> RDMA_WRITE_ONLY 1 4 ack
			count drop_after_nak 2
			> RDMA_WRITE_ONLY 0 4 ack
			< ACK 0 msn=1
			mem mr@0 0:4
			> RDMA_WRITE_ONLY 2 4 ack
			< NAK 1 PSN sequence error
			count out_of_seq_request 1`},
		{name: "gap closed within the batch", rule: "a NAK that has not left is withdrawn when its packet comes (Linux hw/hfi1/rc.c defers NAKs likewise)", script: `
			> RDMA_WRITE_ONLY 1 4 ack
			> RDMA_WRITE_ONLY 0 4 ack
			< ACK 0 msn=1`},
		{name: "NAK stands for the ACK before it", rule: "IBTA 9.7.5.1: a NAK acknowledges everything before its PSN", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			> RDMA_WRITE_ONLY 2 4 ack
			< NAK 1 PSN sequence error`},
		{name: "no NAK for a duplicate in a gap", rule: "IBTA C9-105", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			> RDMA_WRITE_ONLY 2 4 ack
			< NAK 1 PSN sequence error
			> RDMA_WRITE_ONLY 0 4 ack
			< ACK 0 msn=1
			> RDMA_WRITE_ONLY 2 4 ack
			nothing`},
		{name: "gap before an invalid packet", rule: "IBTA 9.7.4.1.2: the PSN is judged before the opcode", script: `
			> SEND_LAST 1 4 ack
			< NAK 0 PSN sequence error
			state RTS`},
		{name: "gap as far as possible", rule: "IBTA 9.7.1: half of the PSN space lies ahead", script: `
			> RDMA_WRITE_ONLY 8388607 4 ack
			< NAK 0 PSN sequence error`},
		{name: "older than everything", rule: "IBTA 9.7.1: half of the PSN space lies behind", script: `
			> RDMA_WRITE_ONLY 8388608 4 ack
			< ACK -1 msn=0
			count duplicate_request 1
			mem mr@0`},
		{name: "gap in a message", rule: "IBTA 9.7.4.1.2: the message goes on where it was", script: `
			! recv 600
			> SEND_FIRST 0 256
			> SEND_LAST 2 7 ack
			< NAK 1 PSN sequence error
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 7 ack
			< ACK 2 msn=1
			wc RECV 1 519
			mem rb@0 0:256 1:256 2:7`},
	})
}

func TestResponderRNR(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "SEND", rule: "IBTA 9.7.5.2.8: the timer of the QP; the packet is taken when it returns", script: `
			> SEND_ONLY 0 4 ack
			< RNR 0 640µs
			count send_rnr_err 1
			! recv 10
			> SEND_ONLY 0 4 ack
			< ACK 0 msn=1
			wc RECV 1 4
			mem rb@0 0:4`},
		{name: "pipelined packets", rule: "IBTA 9.7.5.2.8; Linux rxe_req.c goes on sending: drop silently until the refused packet returns", script: `
			> SEND_ONLY 0 4 ack
			> SEND_ONLY 1 4 ack
			> RDMA_WRITE_ONLY 2 4 ack
			< RNR 0 640µs
			count drop_after_nak 2
			count out_of_seq_request 0
			! recv 10
			> SEND_ONLY 1 4 ack
			> RDMA_WRITE_ONLY 2 4 ack
			count drop_after_nak 2
			> SEND_ONLY 0 4 ack
			> SEND_ONLY 1 4 ack
			< RNR 1 640µs
			wc RECV 1 4`},
		{name: "again", rule: "IBTA 9.7.5.2.8: still not ready", script: `
			> SEND_ONLY 0 4 ack
			< RNR 0 640µs
			> SEND_ONLY 0 4 ack
			< RNR 0 640µs
			> SEND_ONLY 0 4 ack
			> SEND_ONLY 0 4 ack
			< RNR 0 640µs
			count send_rnr_err 2`},
		{name: "first packet of a message", rule: "IBTA 9.7.5.2.8: the receive is taken by the first packet", script: `
			> SEND_FIRST 0 256
			> SEND_LAST 1 4 ack
			< RNR 0 640µs
			! recv 300
			> SEND_FIRST 0 256
			> SEND_LAST 1 4 ack
			< ACK 1 msn=1
			wc RECV 1 260
			mem rb@0 0:256 1:4`},
		{name: "WRITE with immediate", rule: "IBTA 9.4.3, 9.7.5.2.8: only its last packet needs a receive", script: `
			> RDMA_WRITE_FIRST 0 256 len=260 @0
			> RDMA_WRITE_LAST_WITH_IMMEDIATE 1 4 imm=1 ack
			< RNR 1 640µs
			mem mr@0 0:256
			! recv
			> RDMA_WRITE_LAST_WITH_IMMEDIATE 1 4 imm=1 ack
			< ACK 1 msn=1
			wc RECV_RDMA_WITH_IMM 1 260 imm=1
			mem mr@256 1:4`},
		{name: "before length and key", rule: "Linux rxe_resp.c: resources are judged before length and key", script: `
			> RDMA_WRITE_ONLY_WITH_IMMEDIATE 0 4 key=bad
			< RNR 0 640µs
			> SEND_ONLY 0 257
			< RNR 0 640µs
			state RTS`},
		{name: "code 0", rule: "IBTA 9.7.5.2.8: 0 is 655.36 ms", attr: func(a *Attr) { a.MinRNRTimer = 0 }, script: `
			> SEND_ONLY 0 4 ack
			< RNR 0 655.36ms`},
		{name: "ACK before it", rule: "IBTA 9.7.5.1: an RNR NAK acknowledges what is before it", script: `
			> RDMA_WRITE_ONLY 0 4 ack
			> SEND_ONLY 1 4 ack
			< RNR 1 640µs`},
	})
}

func TestResponderStates(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "ERR keeps a due ACK", rule: "IBTA 9.7.5.1: it is true, and the peer fails without it", script: `
			! recv 10
			> SEND_ONLY 0 4 ack
			! err
			< ACK 0 msn=1
			wc RECV 1 4
			state ERR`},
		{name: "ERR forgets READs and ACKs behind them", rule: "IBTA 10.3.1.7", script: `
			> RDMA_READ_REQUEST 0 4
			> RDMA_WRITE_ONLY 1 4 ack
			! err
			nothing`},
		{name: "ERR forgets a sequence NAK", rule: "IBTA 10.3.1.7: a retry would be in vain", script: `
			> RDMA_WRITE_ONLY 1 4 ack
			! err
			nothing`},
		{name: "ERR flushes in order", rule: "IBTA 10.8.3: completions in queue order, each request once", script: `
			! recv 500
			! recv 10
			> SEND_FIRST 0 256
			! recv 10
			! err
			! recv 10
			wc RECV 1 Work Request Flushed Error
			wc RECV 2 Work Request Flushed Error
			wc RECV 3 Work Request Flushed Error
			wc RECV 4 Work Request Flushed Error
			count resp_cqe_flush_error 4
			! err
			nothing`},
	})
	t.Run("communication established", func(t *testing.T) { // IBTA 11.6.3.1
		w := newRspWorld(t, rspAttr())
		w.up(rspAttr(), RTR)
		w.run(`
			> RDMA_WRITE_ONLY 0 4 ack
			< ACK 0 msn=1
			event communication established
			> RDMA_WRITE_ONLY 1 4 ack
			< ACK 1 msn=2
			state RTR`)
	})
	t.Run("reset and again", func(t *testing.T) { // IBTA 10.3.1.1: RESET forgets everything
		w := newRspWorld(t, rspAttr())
		w.run(`
			! recv 1000
			> RDMA_READ_REQUEST 0 1000
			> SEND_FIRST 4 256
			> SEND_LAST 6 256 ack
			! hold
			nothing`)
		w.q.rsp().reset()
		if w.q.Wants() != 0 {
			t.Error("wants to transmit after RESET")
		}
		w.up(rspAttr(), RTS)
		w.run(`
			> RDMA_READ_REQUEST 0 1000
			> RDMA_WRITE_ONLY 4 4 ack
			! hold
			! control
			nothing
			! control
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< LAST 3 232 msn=1 @768
			< ACK 4 msn=2`)
	})
	t.Run("resize", func(t *testing.T) { // libibverbs: MaxDestRdAtomic may change in SQD
		a := rspAttr()
		a.MaxDestRdAtomic = 3
		w := newRspWorld(t, a)
		w.run(`
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_READ_REQUEST 1 4 @16
			> RDMA_READ_REQUEST 2 4 @32
			< ONLY 0 4 msn=1 @0
			< ONLY 1 4 msn=2 @16
			< ONLY 2 4 msn=3 @32`)
		w.q.attr.MaxDestRdAtomic = 2
		w.q.rsp().resize()
		w.run(`
			> RDMA_READ_REQUEST 0 4 @0
			count drop_no_resource 1
			> RDMA_READ_REQUEST 1 4 @16
			> RDMA_READ_REQUEST 2 4 @32
			< ONLY 1 4 msn=2 @16
			< ONLY 2 4 msn=3 @32`)
		w.q.attr.MaxDestRdAtomic = 4
		w.q.rsp().resize()
		w.run(`
			> RDMA_READ_REQUEST 3 4 @48
			> RDMA_READ_REQUEST 4 4 @64
			> RDMA_READ_REQUEST 1 4 @16
			< ONLY 1 4 msn=2 @16
			< ONLY 3 4 msn=4 @48
			< ONLY 4 4 msn=5 @64`)
	})
	t.Run("none allowed", func(t *testing.T) {
		a := rspAttr()
		a.Access = mem.LocalWrite
		w := newRspWorld(t, a)
		w.run(`
			! recv 4
			> SEND_ONLY 0 4 ack
			< ACK 0 msn=1
			wc RECV 1 4`)
	})
}
