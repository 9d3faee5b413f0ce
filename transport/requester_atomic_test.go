package transport

import "testing"

func TestRequesterAtomics(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.4.5: operands and answers of atomics", `
			post 1 FADD 8 va=16 a=5
			> FETCH_ADD 0 va=16 add=5 ack
			post 2 CAS 8 va=24 a=7 b=9
			> COMPARE_SWAP 1 va=24 cmp=7 swap=9 ack
			< AACK 0 1000
			wc 1 FETCH_ADD 8 found=1000 ok
			< AACK 1 7
			wc 2 COMP_SWAP 8 found=7 ok
			deadline never
			freed 2`},
		{"IBTA 9.4.5: the answer may go to several segments", `
			post 1 FADD 8 a=5 sges=3
			> FETCH_ADD 0 va=0 add=5 ack
			< AACK 0 72623859790382856
			wc 1 FETCH_ADD 8 found=72623859790382856 ok`},
		{"IBTA A19: ATOMIC_WRITE has one word, from memory or inline, and a READ response as its answer", `
			post 1 AWRITE 8 va=16
			> ATOMIC_WRITE 0 8 va=16 len=8 ack
			post 2 AWRITE 8 va=24 inline
			> ATOMIC_WRITE 1 8 va=24 len=8 ack
			< RONLY 0 0
			wc 1 ATOMIC_WRITE ok
			< RONLY 1 0
			wc 2 ATOMIC_WRITE ok`},
		{"IBTA A19: FLUSH names placement, level and range", `
			post 1 FLUSH 0 va=16 a=100 imm=3
			> FLUSH 0 {Global:true Persistent:true Level:0} va=16 len=100 ack
			post 2 FLUSH 0 va=0 a=0 imm=18
			> FLUSH 1 {Global:false Persistent:true Level:1} va=0 len=0 ack
			< RONLY 0 0
			wc 1 FLUSH ok
			< RONLY 1 0
			wc 2 FLUSH ok`},
		{"unsignaled atomics complete silently", `
			post 1 FADD 8 uns
			> FETCH_ADD 0 va=0 add=0 ack
			< AACK 0 3
			freed 1`},
		{"IBTA 9.7.3.1: READs, atomics and ATOMIC_WRITEs share the initiator depth", `
			set rd=2
			post 1 FADD 8 a=1
			post 2 READ 4
			post 3 CAS 8
			post 4 AWRITE 8
			> FETCH_ADD 0 va=0 add=1 ack
			> READ 1 va=0 len=4 ack
			< AACK 0 6
			> COMPARE_SWAP 2 va=0 cmp=0 swap=0 ack
			wc 1 FETCH_ADD 8 found=6 ok
			< RONLY 1 4
			> ATOMIC_WRITE 3 8 va=0 len=8 ack
			wc 2 READ 4 ok
			< AACK 2 0
			wc 3 COMP_SWAP 8 found=0 ok
			< RONLY 3 0
			wc 4 ATOMIC_WRITE ok`},
		{"IBTA 9.7.3.1: what waits for depth holds up what is behind it: requests leave in order", `
			set rd=1
			post 1 FADD 8
			post 2 FADD 8
			post 3 SEND 4
			> FETCH_ADD 0 va=0 add=0 ack
			< AACK 0 1
			> FETCH_ADD 1 va=0 add=0 ack
			> SEND_ONLY 2 4 ack
			wc 1 FETCH_ADD 8 found=1 ok`},
		{"Linux rxe_req.c: FLUSH needs no initiator depth", `
			set rd=0
			post 1 FLUSH 0 a=1 imm=1
			post 2 FLUSH 0 a=2 imm=1
			> FLUSH 0 {Global:true Persistent:false Level:0} va=0 len=1 ack
			< RONLY 0 0
			> FLUSH 1 {Global:true Persistent:false Level:0} va=0 len=2 ack
			wc 1 FLUSH ok`},
		{"IBTA 10.8.3.3: a fence waits for atomics", `
			post 1 FADD 8
			post 2 SEND 4 fence
			post 3 SEND 4
			> FETCH_ADD 0 va=0 add=0 ack
			< AACK 0 1
			> SEND_ONLY 1 4 ack
			> SEND_ONLY 2 4 ack
			wc 1 FETCH_ADD 8 found=1 ok`},
		{"IBTA 10.8.3.3: a fenced atomic waits for a READ", `
			post 1 READ 4
			post 2 CAS 8 fence
			> READ 0 va=0 len=4 ack
			< RONLY 0 4
			> COMPARE_SWAP 1 va=0 cmp=0 swap=0 ack
			wc 1 READ 4 ok`},
		{"IBTA 9.7.5.1.2: the answer acknowledges what is before it", `
			post 1 SEND 4
			post 2 FADD 8
			> SEND_ONLY 0 4 ack
			> FETCH_ADD 1 va=0 add=0 ack
			< AACK 1 9
			wc 1 SEND ok
			wc 2 FETCH_ADD 8 found=9 ok`},
		{"IBTA 9.7.5.2.9: an ACK past an atomic is an implied NAK of it, its own PSN as well", `
			post 1 FADD 8 a=3
			post 2 SEND 4
			> FETCH_ADD 0 va=0 add=3 ack
			> SEND_ONLY 1 4 ack
			< ACK 1
			count implied_nak_seq_err 1
			> FETCH_ADD 0 va=0 add=3 ack
			< ACK 0
			< AACK 0 9
			wc 1 FETCH_ADD 8 found=9 ok
			wc 2 SEND ok
			count retransmitted_pkts 1`},
		{"IBTA 9.7.5.2.9: the answer to a later atomic is an implied NAK of an earlier one", `
			post 1 FADD 8 a=3
			post 2 FADD 8 a=4
			> FETCH_ADD 0 va=0 add=3 ack
			> FETCH_ADD 1 va=0 add=4 ack
			< AACK 1 12
			count implied_nak_seq_err 1
			> FETCH_ADD 0 va=0 add=3 ack
			< AACK 1 13                 // the first counts
			< AACK 0 9
			wc 1 FETCH_ADD 8 found=9 ok
			wc 2 FETCH_ADD 8 found=12 ok`},
		{"IBTA 9.7.6.1.3: a timeout repeats atomics and FLUSHes", `
			post 1 CAS 8 a=1 b=2
			post 2 FLUSH 0 a=8 imm=2
			> COMPARE_SWAP 0 va=0 cmp=1 swap=2 ack
			> FLUSH 1 {Global:false Persistent:true Level:0} va=0 len=8 ack
			at 16.777216ms
			> COMPARE_SWAP 0 va=0 cmp=1 swap=2 ack
			> FLUSH 1 {Global:false Persistent:true Level:0} va=0 len=8 ack twice
			< AACK 0 1
			wc 1 COMP_SWAP 8 found=1 ok
			< RONLY 1 0
			wc 2 FLUSH ok`},
		{"Linux rxe_opcode.c: rxe drops FLUSHes sealed by the rule, so one that is repeated changes its form, until a form is known to be right", `
			post 1 SEND 4
			post 2 FLUSH 0 a=8 imm=1
			post 3 FLUSH 0 a=9 imm=1
			> SEND_ONLY 0 4 ack
			> FLUSH 1 {Global:true Persistent:false Level:0} va=0 len=8 ack
			> FLUSH 2 {Global:true Persistent:false Level:0} va=0 len=9 ack
			< ACK 0
			wc 1 SEND ok
			< NAK 1 seq
			> FLUSH 1 {Global:true Persistent:false Level:0} va=0 len=8 ack twice
			> FLUSH 2 {Global:true Persistent:false Level:0} va=0 len=9 ack twice
			< RONLY 1 0
			wc 2 FLUSH ok
			at 16.777216ms
			> FLUSH 2 {Global:true Persistent:false Level:0} va=0 len=9 ack
			at 33.554432ms
			> FLUSH 2 {Global:true Persistent:false Level:0} va=0 len=9 ack twice
			< RONLY 2 0
			wc 3 FLUSH ok
			post 4 FLUSH 0 a=7 imm=1
			> FLUSH 3 {Global:true Persistent:false Level:0} va=0 len=7 ack twice
			< RONLY 3 0
			wc 4 FLUSH ok
			post 5 FLUSH 0 a=6 imm=1
			> FLUSH 4 {Global:true Persistent:false Level:0} va=0 len=6 ack twice
			at 50.331648ms
			> FLUSH 4 {Global:true Persistent:false Level:0} va=0 len=6 ack twice
			< RONLY 4 0
			wc 5 FLUSH ok`},
		{"a second answer is dropped", `
			post 1 FADD 8
			post 2 FADD 8
			> FETCH_ADD 0 va=0 add=0 ack
			> FETCH_ADD 1 va=0 add=0 ack
			< AACK 0 5
			< AACK 0 6
			wc 1 FETCH_ADD 8 found=5 ok
			count drop_duplicate 1
			< AACK 1 7
			wc 2 FETCH_ADD 8 found=7 ok
			< AACK 1 8
			count drop_bad_response 1`},
		{"Linux rxe_resp.c: NAKs of atomics are opcode ACKNOWLEDGE", `
			post 1 FADD 8 va=4
			> FETCH_ADD 0 va=4 add=0 ack
			< NAK 0 inv
			wc 1 remote invalid request error
			state ERR`},
		{"IBTA 9.9.2.4.2: a remote access error", `
			post 1 CAS 8
			post 2 SEND 4
			> COMPARE_SWAP 0 va=0 cmp=0 swap=0 ack
			> SEND_ONLY 1 4 ack
			< NAK 0 acc
			wc 1 remote access error
			wc 2 Work Request Flushed Error`},
		{"IBTA 9.9.2.4.3: a NAK in an ATOMIC ACKNOWLEDGE is a bad response", `
			post 1 FADD 8
			> FETCH_ADD 0 va=0 add=0 ack
			< AACKNAK 0
			wc 1 bad response error`},
		{"IBTA 9.9.2.4.3: a READ response answers no atomic", `
			post 1 FADD 8
			> FETCH_ADD 0 va=0 add=0 ack
			< RONLY 0 8
			wc 1 bad response error`},
		{"IBTA 9.9.2.4.3: an ATOMIC ACKNOWLEDGE answers no READ", `
			post 1 READ 8
			> READ 0 va=0 len=8 ack
			< AACK 0 5
			wc 1 bad response error`},
		{"IBTA 9.9.2.4.3: an ATOMIC ACKNOWLEDGE answers no FLUSH", `
			post 1 FLUSH 0 imm=1
			> FLUSH 0 {Global:true Persistent:false Level:0} va=0 len=0 ack
			< AACK 0 5
			wc 1 bad response error`},
		{"IBTA 9.9.2.4.3: data in the answer to an ATOMIC_WRITE", `
			post 1 AWRITE 8
			> ATOMIC_WRITE 0 8 va=0 len=8 ack
			< RONLY 0 4
			wc 1 local length error`},
		{"IBTA 9.9.2.4.3: an answer in several packets", `
			post 1 FLUSH 0 imm=1
			> FLUSH 0 {Global:true Persistent:false Level:0} va=0 len=0 ack
			< RFIRST 0 256
			wc 1 bad response error`},
		{"ibv_post_send(3): an atomic has 8 bytes", `
			post 1 FADD 4
			wc 1 local length error
			state ERR`},
		{"ibv_post_send(3): an ATOMIC_WRITE has 8 bytes", `
			post 1 AWRITE 16
			wc 1 local length error`},
		{"ibv_wr_post(3): a FLUSH has no segments", `
			post 1 FLUSH 8 imm=1
			wc 1 local length error`},
		{"an atomic cannot be inline", `
			post 1 FADD 8 inline
			wc 1 local QP operation error`},
		{"IBTA 9.7.3.1: an atomic without initiator depth is a local QP operation error", `
			set rd=0
			post 1 CAS 8
			wc 1 local QP operation error`},
		{"IBTA 9.7.3.1: an ATOMIC_WRITE without initiator depth as well", `
			set rd=0
			post 1 AWRITE 8
			wc 1 local QP operation error`},
		{"IBTA 10.7.2.2: the key is checked before the atomic leaves", `
			post 1 FADD 8 key=9
			wc 1 local protection error`},
		{"a region deregistered before the answer comes is a local protection error", `
			post 1 FADD 8
			> FETCH_ADD 0 va=0 add=0 ack
			dereg dst
			< AACK 0 5
			wc 1 local protection error`},
		{"no room: an atomic is sent once", `
			room 0
			post 1 FADD 8
			room 1
			> FETCH_ADD 0 va=0 add=0 ack
			kick
			< AACK 0 5
			wc 1 FETCH_ADD 8 found=5 ok`},
	})
}
