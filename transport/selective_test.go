package transport

import (
	"fmt"
	"testing"
)

func TestSelectiveRequester(t *testing.T) {
	runReqCases(t, []reqCase{
		{"only what is missing is sent again, and sending goes on where it was", `
			set kin=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 2048
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_MIDDLE 3 256
			> SEND_MIDDLE 4 256
			> SEND_MIDDLE 5 256
			> SEND_MIDDLE 6 256
			> SEND_MIDDLE 7 256
			> SEND_LAST 8 256 ack
			< SEL 2 3 5 6
			> SEND_MIDDLE 2 256 ack
			> SEND_MIDDLE 4 256 ack
			count retransmitted_pkts 2
			count rcvd_seq_err 1
			< SEL 2 3 5 6               // the same again
			< SEL 2 3 5 6 8             // another hole
			> SEND_MIDDLE 7 256 ack
			count completer_retry_err 1
			< ACK 8
			wc 2 SEND ok
			deadline never`},
		{"a repetition that was lost is seen by what was first sent after it", `
			set kin=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 600
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_LAST 3 88 ack
			< SEL 1 2
			> SEND_FIRST 1 256 ack
			post 3 SEND 1
			> SEND_ONLY 4 1 ack
			< SEL 1 2 3
			< SEL 1 2 3 4
			> SEND_FIRST 1 256 ack
			count retransmitted_pkts 2
			count completer_retry_err 1 // no progress, no other retry
			< ACK 4
			wc 2 SEND ok
			wc 3 SEND ok`},
		{"a probe, too, leaves out what is kept; a timeout does not trust it any more", `
			set kin=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 600
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_LAST 3 88 ack
			< SEL 1 2
			> SEND_FIRST 1 256 ack
			deadline 250µs              // kinProbe
			at 250us
			> SEND_FIRST 1 256 ack
			> SEND_LAST 3 88 ack
			at 16.777216ms
			> SEND_FIRST 1 256 ack
			> SEND_MIDDLE 2 256 ack
			> SEND_LAST 3 88 ack
			count local_ack_timeout_err 1`},
		{"a READ request that is kept is not repeated; of the responses only those that are missing", `
			set kin=1 rd=4
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 2
			post 3 READ 1536
			> SEND_ONLY 1 2 ack
			> READ 2 va=0 len=1536 ack
			< SEL 1 2
			> SEND_ONLY 1 2 ack
			count retransmitted_pkts 1
			< RFIRST 2 256
			wc 2 SEND ok
			< RMID 4 256
			< RMID 5 256
			< RLAST 7 256
			> READ 3 va=256 len=256 ack
			> READ 6 va=1024 len=256 ack
			< RONLY 3 256
			< RONLY 6 256
			wc 3 READ 1536 ok
			deadline never`},
		{"what only a part of a READ ends with is no error; the true end has to look so", `
			set kin=1
			post 1 READ 768
			> READ 0 va=0 len=768 ack
			< RFIRST 0 256
			< RLAST 2 256
			> READ 1 va=256 len=256 ack
			< RONLY 1 256
			wc 1 READ 768 ok
			post 2 READ 768
			> READ 3 va=0 len=768 ack
			< RFIRST 3 256
			< RONLY 4 256
			wc 2 bad response error`},
		{"an ACK that says that a request came twice gives the window back", `
			set kin=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 600
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_LAST 3 88 ack
			window 65792
			at 100us
			< SEL 1 2 3
			> SEND_FIRST 1 256 ack
			at 200us
			< ACK 3
			wc 2 SEND ok
			count spurious_retrans 0
			< TWICE 3
			count spurious_retrans 1
			< TWICE 3                   // says nothing new
			count spurious_retrans 1`},
		{"a READ response that comes twice gives the window back", `
			set kin=1
			post 1 READ 768
			> READ 0 va=0 len=768 ack
			at 100us
			< RFIRST 0 256
			window 65852
			< RLAST 2 256
			> READ 1 va=256 len=256 ack
			at 300us
			< RMID 1 256
			wc 1 READ 768 ok
			count spurious_retrans 0
			< RONLY 1 256
			count spurious_retrans 1`},
		{"an RNR NAK has what was refused sent again though it was kept", `
			set kin=1
			post 1 WRITE 1
			> WRITE_ONLY 0 1 va=0 len=1 ack
			< ACK 0
			wc 1 WRITE ok
			post 2 WRITE 4
			post 3 SEND 5
			post 4 WRITE 6
			> WRITE_ONLY 1 4 va=0 len=4 ack
			> SEND_ONLY 2 5 ack
			> WRITE_ONLY 3 6 va=0 len=6 ack
			< SEL 1 2 3
			> WRITE_ONLY 1 4 va=0 len=4 ack
			< RNR 2 1
			wc 2 WRITE ok
			at 10us
			> SEND_ONLY 2 5 ack
			< ACK 3
			wc 3 SEND ok
			wc 4 WRITE ok`},
		{"it may be the first that the peer says", `
			set kin=1
			post 1 SEND 1
			post 2 FADD 8 a=3
			> SEND_ONLY 0 1 ack
			> FETCH_ADD 1 va=0 add=3 ack
			< SEL 0 1
			> SEND_ONLY 0 1 ack
			< AACK 1 9
			wc 1 SEND ok
			wc 2 FETCH_ADD 8 found=9 ok`},
		{"from a peer that has not said that it knows, it is dropped", `
			post 1 SEND 1
			post 2 SEND 2
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 2 ack
			< SEL 0 1
			count drop_bad_response 1
			count retransmitted_pkts 0`},
	})
	t.Run("what is forged or out of range marks nothing", func(t *testing.T) {
		w := newReqWorld(t, 5)
		w.run(`set kin=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 2
			post 3 SEND 3
			> SEND_ONLY 1 2 ack
			> SEND_ONLY 2 3 ack
			< SEL 1 3 4 65
			< SEL 1 900
			< SEL 5 6
			< SEL 0 1
			count retransmitted_pkts 0`)
		if n := w.q.req().board.n; n != 0 {
			t.Errorf("%d marks", n)
		}
	})
}

// The responder tells a peer that understands it which packets it keeps, with each
// batch that brings some, and where the next hole is.
func TestSelectiveResponder(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"each batch has its selective NAK", `
			> RDMA_WRITE_ONLY 0 1 @0 kin
			nothing
			> RDMA_WRITE_ONLY 2 1 @2
			> RDMA_WRITE_ONLY 4 1 @4
			< SEL 1 2 4
			count out_of_seq_request 1
			> RDMA_WRITE_ONLY 5 1 @5
			< SEL 1 2 4 5
			count out_of_seq_request 0
			> RDMA_WRITE_ONLY 1 1 @1
			< SEL 3 4 5
			count out_of_seq_request 1
			> RDMA_WRITE_ONLY 3 1 @3
			< ACK 5 msn=6
			mem mr 0:1 1:1 2:1 3:1 4:1 5:1`},
		{"as many as the distance needs", `
			> RDMA_WRITE_ONLY 0 1 @0 kin
			nothing
			> RDMA_WRITE_ONLY 2 1 @1
			> RDMA_WRITE_ONLY 65 1 @1
			> RDMA_WRITE_ONLY 66 1 @1
			> RDMA_WRITE_ONLY 200 1 @1
			< SEL 1 2 65
			< SEL 1 66
			< SEL 1 200`},
		{"what there is no room for is due later", `
			> RDMA_WRITE_ONLY 0 1 @0 kin
			nothing
			! hold
			> RDMA_WRITE_ONLY 2 1 @1
			! room 0
			nothing
			! control
			< SEL 1 2`},
		{"what comes twice is said in the next ACK", `
			> RDMA_WRITE_ONLY 0 1 @0 ack kin
			< ACK 0 msn=1
			> RDMA_WRITE_ONLY 0 1 @0 ack kin
			< ACK 0 msn=1 twice
			> RDMA_WRITE_ONLY 1 1 @1 ack kin
			< ACK 1 msn=2`},
		{"nothing cuts an RNR wait short", `
			> RDMA_WRITE_ONLY 0 1 @0 kin
			nothing
			> SEND_ONLY 1 1
			< RNR 1 640µs
			> RDMA_WRITE_ONLY 2 1 @1
			nothing`},
		{"a part of a READ is answered as it is asked for", `
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024
			> RDMA_READ_REQUEST 3 @768 len=256
			< ONLY 3 256 msn=1 @768
			> RDMA_READ_REQUEST 1 @256 len=512
			< FIRST 1 256 msn=1 @256
			< LAST 2 256 msn=1 @512
			> RDMA_READ_REQUEST 3 @768 len=432
			< FIRST 3 256 msn=1 @768
			< LAST 4 176 msn=1 @1024`},
		{"... one that does not end between packets, is empty, or is elsewhere, is not", `
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024
			> RDMA_READ_REQUEST 1 @256 len=255
			> RDMA_READ_REQUEST 1 @256 len=0
			> RDMA_READ_REQUEST 1 @256 len=1200
			> RDMA_READ_REQUEST 1 @0 len=256
			count drop_duplicate 4`},
		{"parts that are asked for in the middle of an answer come before the rest of it, or with it", `
			! hold
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			! data 700
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			> RDMA_READ_REQUEST 1 @256 len=256
			> RDMA_READ_REQUEST 3 @768 len=256
			< ONLY 1 256 msn=1 @256
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024`},
		{"... whole, also one that reaches into what is still to be written", `
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024
			! hold
			> RDMA_READ_REQUEST 0 @0 len=1200
			! data 700
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			> RDMA_READ_REQUEST 1 @256 len=768
			< FIRST 1 256 msn=1 @256
			< MIDDLE 2 256 @512
			< LAST 3 256 msn=1 @768
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024`},
		{"... and an acknowledgement after all of them", `
			! hold
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			> RDMA_WRITE_ONLY 5 1 @1 ack
			! data 400
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			! hold
			> RDMA_READ_REQUEST 0 @0 len=512
			! control
			nothing
			! hold
			! data 100
			< FIRST 0 256 msn=1 @0
			! hold
			! control
			nothing
			! data 10000
			! control
			< LAST 1 256 msn=1 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024
			< ACK 5 msn=2`},
		{"... two parts are answered without what is between them", `
			> RDMA_READ_REQUEST 0 @0 len=1200 kin
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< MIDDLE 3 256 @768
			< LAST 4 176 msn=1 @1024
			> RDMA_READ_REQUEST 1 @256 len=256
			> RDMA_READ_REQUEST 3 @768 len=256
			< ONLY 1 256 msn=1 @256
			< ONLY 3 256 msn=1 @768`},
		{"to others nothing of it is said or answered", `
			> RDMA_WRITE_ONLY 0 1 @0 ack
			> RDMA_WRITE_ONLY 0 1 @0 ack
			< ACK 0 msn=1
			> RDMA_READ_REQUEST 1 @0 len=600
			< FIRST 1 256 msn=2 @0
			< MIDDLE 2 256 @256
			< LAST 3 88 msn=2 @512
			> RDMA_READ_REQUEST 1 @0 len=256
			count drop_duplicate 1
			> RDMA_WRITE_ONLY 5 1 @1 kin
			> RDMA_WRITE_ONLY 6 1 @1 kin
			< NAK 4 PSN sequence error`},
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

// Of more parts than are remembered the last has all that follows it written again.
func TestSelectiveManyParts(t *testing.T) {
	w := newRspWorld(t, rspAttr())
	script := "> RDMA_READ_REQUEST 0 @0 len=5120 kin\n< FIRST 0 256 msn=1 @0\n"
	for i := 1; i < 19; i++ {
		script += fmt.Sprintf("< MIDDLE %d 256 @%d\n", i, 256*i)
	}
	script += "< LAST 19 256 msn=1 @4864\n! hold\n"
	for i := range maxParts + 1 {
		script += fmt.Sprintf("> RDMA_READ_REQUEST %d @%d len=256\n", i, 256*i)
	}
	script += "! data 100000\n"
	for i := range maxParts {
		script += fmt.Sprintf("< ONLY %d 256 msn=1 @%d\n", i, 256*i)
	}
	w.run(script + `< FIRST 16 256 msn=1 @4096
		< MIDDLE 17 256 @4352
		< MIDDLE 18 256 @4608
		< LAST 19 256 msn=1 @4864
		> RDMA_READ_REQUEST 1 @256 len=256
		< ONLY 1 256 msn=1 @256`)
	if w.q.rsp().reads.opened != 0 {
		t.Error("the memory of the READ is still held")
	}
}

// With NoSelective nothing is told and nothing is believed.
func TestNoSelective(t *testing.T) {
	w := newReqWorld(t, 5)
	w.cfg.NoSelective = true
	w.run(`set kin=1
		post 1 SEND 1
		> SEND_ONLY 0 1 ack
		< ACK 0
		wc 1 SEND ok
		post 2 SEND 2
		post 3 SEND 3
		> SEND_ONLY 1 2 ack
		> SEND_ONLY 2 3 ack
		< SEL 1 2
		count drop_bad_response 1
		< NAK 1 seq
		> SEND_ONLY 1 2 ack
		> SEND_ONLY 2 3 ack`)
	if w.q.resv != 0 || w.q.kin {
		t.Errorf("reserved field %#x, kin %v", w.q.resv, w.q.kin)
	}
}
