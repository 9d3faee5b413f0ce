package transport

import "testing"

func TestCompleterAcks(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.7.5.1.2: one ACK acknowledges all before it; partly acknowledged requests wait", `
			post 1 SEND 1
			post 2 SEND 300
			post 3 WRITE 1
			> SEND_ONLY 0 1 ack
			> SEND_FIRST 1 256
			> SEND_LAST 2 44 ack
			> WRITE_ONLY 3 1 va=0 len=1 ack
			< ACK 1
			wc 1 SEND ok
			< ACK 3
			wc 2 SEND ok
			wc 3 WRITE ok
			deadline never`},
		{"IBTA 9.7.5.1.1: duplicate and ghost ACKs change nothing", `
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< ACK 0
			wc 1 SEND ok
			< ACK 0
			< ACK 2
			< ACK 8000000
			< NAK 0 seq
			< NAK 0 acc
			< NAK 2 inv
			< RNR 0 1
			count drop_ghost_ack 7
			state RTS
			< ACK 1
			wc 2 SEND ok
			< ACK 1
			count drop_ghost_ack 8`},
		{"IBTA 9.7.7.2: credits that nobody agreed on do not stop a sender", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0 0
			wc 1 SEND ok
			post 2 SEND 1
			post 3 SEND 1
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 1 ack`},
		{"IBTA 9.7.5.1: reserved syndromes and responses to nothing are dropped", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RESERVED 0
			< AACK 0 5
			< RONLY 0 4
			count drop_bad_response 3
			state RTS
			< ACK 0
			wc 1 SEND ok`},
		{"IBTA 9.7.5.1.2: an ACK after going back N ends the repetition of what it covers", `
			post 1 SEND 600
			post 2 SEND 1
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 88 ack
			> SEND_ONLY 3 1 ack
			room 1
			at 16.777216ms
			> SEND_FIRST 0 256 ack
			< ACK 2
			room 9
			> SEND_ONLY 3 1 ack
			wc 1 SEND ok
			count retransmitted_pkts 2`},
	})
}

func TestCompleterTimeout(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.7.6.1.3: the timer runs from the last progress", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			deadline 16.777216ms
			at 10ms
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			deadline 16.777216ms
			< ACK 0
			wc 1 SEND ok
			deadline 26.777216ms
			at 26.777215ms              // not due: nothing happens
			at 26.777216ms
			> SEND_ONLY 1 1 ack
			deadline 43.554432ms
			count local_ack_timeout_err 1
			count completer_retry_err 1`},
		{"IBTA 9.9.2.1: retries end with a transport retry error, once for the request, flushed the rest", `
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			at 33.554432ms
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			at 50.331648ms
			wc 1 transport retry counter exceeded
			wc 2 Work Request Flushed Error
			state ERR
			deadline never
			count retry_exceeded_err 1
			count local_ack_timeout_err 3`},
		{"IBTA 9.9.2.1: progress gives all retries back", `
			set retry=1
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< ACK 0
			wc 1 SEND ok
			at 33.554432ms
			> SEND_ONLY 1 1 ack
			at 50.331648ms
			wc 2 transport retry counter exceeded`},
		{"IBTA 9.9.2.1: no retries allowed", `
			set retry=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 16.777216ms
			wc 1 transport retry counter exceeded`},
		{"IBTA 9.9.2.1: 7 retries are 7, not for ever", `
			set retry=7 timeout=1
			post 1 SEND 0
			> SEND_ONLY 0 0 ack
			at 8.192us
			> SEND_ONLY 0 0 ack
			at 16.384us
			> SEND_ONLY 0 0 ack
			at 24.576us
			> SEND_ONLY 0 0 ack
			at 32.768us
			> SEND_ONLY 0 0 ack
			at 40.96us
			> SEND_ONLY 0 0 ack
			at 49.152us
			> SEND_ONLY 0 0 ack
			at 57.344us
			> SEND_ONLY 0 0 ack
			at 65.536us
			wc 1 transport retry counter exceeded`},
		{"IBTA 9.7.6.1.3: timeout 0 never expires", `
			set timeout=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			deadline never
			at 100h
			state RTS`},
		{"IBTA 9.4.4: a READ is asked for again from where it stopped", `
			post 1 READ 900
			post 2 SEND 1
			> READ 0 va=0 len=900 ack
			> SEND_ONLY 4 1 ack
			at 10ms
			< RFIRST 0 256
			deadline 26.777216ms
			at 12ms
			< RMID 1 256
			at 28.777216ms
			> READ 2 va=512 len=388 ack
			> SEND_ONLY 4 1 ack
			< RFIRST 2 256
			< RLAST 3 132
			wc 1 READ 900 ok
			< ACK 4
			wc 2 SEND ok`},
	})
}

func TestCompleterNAK(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.7.5.2.2: a sequence NAK acknowledges what is before it and repeats from there", `
			post 1 SEND 1
			post 2 SEND 600
			post 3 WRITE 1
			> SEND_ONLY 0 1 ack
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_LAST 3 88 ack
			> WRITE_ONLY 4 1 va=0 len=1 ack
			< NAK 2 seq
			> SEND_MIDDLE 2 256
			> SEND_LAST 3 88 ack
			> WRITE_ONLY 4 1 va=0 len=1 ack
			wc 1 SEND ok
			count rcvd_seq_err 1
			< ACK 4
			wc 2 SEND ok
			wc 3 WRITE ok`},
		{"a second sequence NAK counts only after progress or a timeout", `
			set retry=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			< NAK 0 seq
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< NAK 0 seq
			< NAK 0 seq
			state RTS
			< NAK 1 seq                 // progress
			> SEND_ONLY 1 1 ack
			wc 1 SEND ok
			at 16.777216ms
			wc 2 transport retry counter exceeded`},
		{"... a timeout", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< NAK 0 seq
			> SEND_ONLY 0 1 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			< NAK 0 seq
			wc 1 transport retry counter exceeded`},
		{"a sequence NAK from before what has arrived since is old", `
			post 1 READ 600
			> READ 0 va=0 len=600 ack
			< RFIRST 0 256
			< NAK 0 seq
			count completer_retry_err 0
			< RMID 1 256
			< RLAST 2 88
			wc 1 READ 600 ok`},
		{"IBTA 9.7.5.2.4: remote invalid request", `
			post 1 SEND 1
			post 2 SEND 1 uns
			post 3 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 1 ack
			< NAK 1 inv
			wc 1 SEND ok
			wc 2 remote invalid request error
			wc 3 Work Request Flushed Error
			state ERR
			freed 3
			count req_remote_invalid_request 1`},
		{"IBTA 9.7.5.2.5: remote access error", `
			post 1 WRITE 600
			> WRITE_FIRST 0 256 va=0 len=600
			> WRITE_MIDDLE 1 256
			> WRITE_LAST 2 88 ack
			< NAK 0 acc
			wc 1 remote access error
			state ERR
			count req_remote_access_errors 1`},
		{"IBTA 9.7.5.2.6: remote operation error", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< NAK 0 op
			wc 1 remote operation error
			count req_remote_op_errors 1`},
		{"IBTA 9.7.5.2, 9.9.2.4.3: NAK codes that RC does not have are bad responses", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< NAK 0 rd
			wc 1 bad response error`},
		{"... reserved ones as well", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< NAK 0 9
			wc 1 bad response error`},
		{"Linux rxe_resp.c: an error in mid-READ names the PSN of the request", `
			post 1 READ 900
			> READ 0 va=0 len=900 ack
			< RFIRST 0 256
			< RMID 1 256
			< NAK 0 acc
			wc 1 remote access error
			state ERR`},
		{"... or that of the response that could not be made", `
			post 1 READ 900
			> READ 0 va=0 len=900 ack
			< RFIRST 0 256
			< NAK 1 acc
			wc 1 remote access error`},
	})
}

func TestCompleterRNR(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.7.5.2.8: the wait is as long as asked, then everything from there again", `
			post 1 SEND 1
			post 2 SEND 300
			post 3 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_FIRST 1 256
			> SEND_LAST 2 44 ack
			> SEND_ONLY 3 1 ack
			at 5ms
			< RNR 1 14                  // code 14: 1.28 ms
			wc 1 SEND ok
			deadline 6.28ms
			at 6.279999ms
			post 4 SEND 1
			at 6.28ms
			> SEND_FIRST 1 256
			> SEND_LAST 2 44 ack
			> SEND_ONLY 3 1 ack
			> SEND_ONLY 4 1 ack
			deadline 21.28ms            // a probe, see recover_test.go
			count rcvd_rnr_err 1
			count completer_retry_err 0`},
		{"Linux rxe_resp.c: a sequence NAK behind an RNR NAK does not cut the wait short", `
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< RNR 0 14
			< NAK 0 seq
			< RNR 0 14
			deadline 1.28ms
			at 1.28ms
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			count completer_retry_err 0
			count rcvd_rnr_err 1`},
		{"IBTA 9.9.2.1: the RNR retry count ends it", `
			set rnr=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RNR 0 1
			at 10us
			> SEND_ONLY 0 1 ack
			< RNR 0 1
			wc 1 RNR retry counter exceeded
			state ERR
			count retry_rnr_exceeded_err 1`},
		{"IBTA 9.9.2.1: 0 RNR retries end it at once", `
			set rnr=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RNR 0 1
			wc 1 RNR retry counter exceeded`},
		{"IBTA 9.9.2.1: progress gives the RNR retries back", `
			set rnr=1
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< RNR 0 1
			at 10us
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< RNR 1 1
			wc 1 SEND ok
			at 20us
			> SEND_ONLY 1 1 ack
			< RNR 1 1
			wc 2 RNR retry counter exceeded`},
		{"IBTA 9.7.5.2.8: an RNR wait costs no transport retry and the ack timer rests in it", `
			set retry=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RNR 0 0
			deadline 655.36ms
			at 17ms
			at 655.36ms
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok`},
		{"an ACK of what was refused, in the wait, completes it; what is new waits all the same", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RNR 0 14
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			deadline 1.28ms
			at 1.28ms
			> SEND_ONLY 1 1 ack`},
		{"Linux rxe_resp.c: an RNR NAK of a READ keeps what has arrived", `
			post 1 READ 900
			> READ 0 va=0 len=900 ack
			< RFIRST 0 256
			< RNR 0 1
			< RMID 1 256
			at 10us
			> READ 2 va=512 len=388 ack
			< RMID 2 256
			< RLAST 3 132
			wc 1 READ 900 ok`},
		{"drain and ERR end the wait", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< RNR 0 1
			modify err
			wc 1 Work Request Flushed Error
			deadline never`},
	})
	// A peer that posts no receive for long, on a network that loses what is sent now and
	// then: each loss took a retry, and the connection ended.
	t.Run("IBTA 9.9.2.1: who answers with an RNR NAK is there; losses between two take no more than one retry", func(t *testing.T) {
		w := newReqWorld(t, 5)
		w.run(`set retry=1
			set rnr=7
			post 1 SEND 1
			> SEND_ONLY 0 1 ack`)
		for range 10 {
			w.run("< RNR 0 1")
			for range 2 { // the end of the wait, an ack timeout
				w.now = w.q.Deadline()
				w.run("at " + w.now.String() + "\n> SEND_ONLY 0 1 ack")
			}
		}
		w.run("count local_ack_timeout_err 10\n< ACK 0\nwc 1 SEND ok")
	})
	t.Run("IBTA 9.9.2.1: 7 RNR retries are for ever", func(t *testing.T) {
		w := newReqWorld(t, 5)
		w.run(`set rnr=7
			post 1 SEND 1
			> SEND_ONLY 0 1 ack`)
		for range 100 {
			w.run("< RNR 0 1")
			w.now = w.q.Deadline()
			w.run("at " + w.now.String() + "\n> SEND_ONLY 0 1 ack")
		}
		w.run("< ACK 0\nwc 1 SEND ok")
	})
}

func TestCompleterRead(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.7.5.1.2: a READ response acknowledges everything before the READ", `
			post 1 SEND 1
			post 2 WRITE 1
			post 3 READ 1
			> SEND_ONLY 0 1 ack
			> WRITE_ONLY 1 1 va=0 len=1 ack
			> READ 2 va=0 len=1 ack
			< RONLY 2 1
			wc 1 SEND ok
			wc 2 WRITE ok
			wc 3 READ 1 ok`},
		{"IBTA 9.7.5.2.9: an ACK from behind a READ is an implied NAK, once", `
			post 1 SEND 1
			post 2 READ 1
			post 3 SEND 1
			> SEND_ONLY 0 1 ack
			> READ 1 va=0 len=1 ack
			> SEND_ONLY 2 1 ack
			< ACK 2
			> READ 1 va=0 len=1 ack
			wc 1 SEND ok
			count implied_nak_seq_err 1
			< ACK 2
			< RONLY 1 1
			wc 2 READ 1 ok
			wc 3 SEND ok
			count retransmitted_pkts 1`},
		{"... and so is one for the PSN of the READ itself, which completes nothing", `
			post 1 READ 1
			> READ 0 va=0 len=1 ack
			< ACK 0
			> READ 0 va=0 len=1 ack
			< RONLY 0 1
			wc 1 READ 1 ok`},
		{"... a NAK or RNR NAK from behind a READ", `
			post 1 READ 1
			post 2 SEND 1
			> READ 0 va=0 len=1 ack
			> SEND_ONLY 1 1 ack
			< RNR 1 1
			> READ 0 va=0 len=1 ack
			> SEND_ONLY 1 1 ack
			< NAK 1 acc
			< RONLY 0 1
			wc 1 READ 1 ok
			< NAK 1 acc
			wc 2 remote access error`},
		{"IBTA 9.7.5.2.9: a gap in READ responses asks again from it; what comes meanwhile counts", `
			post 1 READ 1300
			> READ 0 va=0 len=1300 ack
			< RFIRST 0 256
			< RMID 2 256
			> READ 1 va=256 len=1044 ack
			< RMID 3 256
			< RMID 4 256
			< RLAST 5 20
			< RFIRST 1 256
			wc 1 READ 1300 ok
			< RMID 2 256
			count drop_bad_response 1`},
		{"duplicate READ responses are dropped", `
			post 1 READ 600
			> READ 0 va=0 len=600 ack
			< RFIRST 0 256
			< RFIRST 0 256
			< RMID 1 256
			< RMID 1 256
			< RLAST 2 88
			wc 1 READ 600 ok
			< RLAST 2 88
			count drop_duplicate 2
			count drop_bad_response 1`},
		{"Linux rxe_resp.c: a repetition may go on with MIDDLE and LAST", `
			post 1 READ 900
			> READ 0 va=0 len=900 ack
			< RFIRST 0 256
			at 16.777216ms
			> READ 1 va=256 len=644 ack
			< RMID 1 256
			< RFIRST 2 256              // or begin anew
			< RLAST 3 132
			wc 1 READ 900 ok`},
		{"late responses to the first request are as good as those to the second", `
			room 1
			post 1 READ 600
			> READ 0 va=0 len=600 ack
			at 16.777216ms
			room 0
			< RFIRST 0 256
			< RMID 1 256
			room 1
			> READ 2 va=512 len=88 ack
			< RLAST 2 88
			wc 1 READ 600 ok`},
		{"several READs outstanding, all asked for again after a timeout", `
			post 1 READ 300
			post 2 READ 300
			> READ 0 va=0 len=300 ack
			> READ 2 va=0 len=300 ack
			< RFIRST 0 256
			at 16.777216ms
			> READ 1 va=256 len=44 ack
			> READ 2 va=0 len=300 ack
			< RONLY 1 44
			wc 1 READ 300 ok
			< RFIRST 2 256
			< RLAST 3 44
			wc 2 READ 300 ok`},
		{"IBTA 9.9.2.4.3: a response that ends too early is a bad response", `
			post 1 READ 600
			> READ 0 va=0 len=600 ack
			< RONLY 0 256
			wc 1 bad response error
			state ERR`},
		{"... or too late", `
			post 1 READ 256
			> READ 0 va=0 len=256 ack
			< RFIRST 0 256
			wc 1 bad response error`},
		{"... or says NAK", `
			post 1 READ 256
			> READ 0 va=0 len=256 ack
			< RNAK 0 256
			wc 1 bad response error`},
		{"IBTA 9.9.2.4.3: too much data", `
			post 1 READ 3
			> READ 0 va=0 len=3 ack
			< RONLY 0 4
			wc 1 local length error`},
		{"... and too little", `
			post 1 READ 600
			> READ 0 va=0 len=600 ack
			< RFIRST 0 255
			wc 1 local length error`},
		{"... nothing at all", `
			post 1 READ 1
			> READ 0 va=0 len=1 ack
			< RONLY 0 0
			wc 1 local length error`},
	})
}
