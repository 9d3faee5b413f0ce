package transport

import "testing"

func TestRecoverRead(t *testing.T) {
	runReqCases(t, []reqCase{
		{"a READ with two holes is asked for again from the first that is left", `
			post 1 READ 1536
			> READ 0 va=0 len=1536 ack
			< RFIRST 0 256
			< RMID 2 256
			> READ 1 va=256 len=1280 ack
			< RMID 4 256
			< RLAST 5 256
			> READ 1 va=256 len=1280 ack    // 3 is missing, too: it was not when 1 was asked for
			< RFIRST 1 256
			< RMID 2 256
			count drop_duplicate 1
			< RMID 3 256
			wc 1 READ 1536 ok
			count implied_nak_seq_err 2`},
		{"of several READ REQUESTs only those are asked for again whose responses are missing", `
			set rd=4 window=5056            // 16 full packets, in four parts
			post 1 READ 4096
			post 2 SEND 4
			> READ 0 va=0 len=1024 ack
			> READ 4 va=1024 len=1024 ack
			> READ 8 va=2048 len=1024 ack
			> READ 12 va=3072 len=1024 ack
			< RFIRST 0 256
			< RMID 1 256
			< RMID 2 256
			< RFIRST 4 256
			> READ 3 va=768 len=256 ack
			< RMID 5 256
			< RMID 6 256
			< RLAST 7 256
			< RFIRST 8 256
			< RMID 9 256
			< RLAST 11 256
			> READ 10 va=2560 len=512 ack
			> SEND_ONLY 16 4 ack
			< RFIRST 12 256
			< RMID 13 256
			< RMID 14 256
			< RLAST 15 256
			< RONLY 3 256
			< RFIRST 10 256
			wc 1 READ 4096 ok
			< RLAST 11 256
			count drop_bad_response 1
			count retransmitted_pkts 2`},
		{"a repetition that was lost is seen by what was first sent after it", `
			set rd=4
			post 1 READ 256
			post 2 READ 256
			> READ 0 va=0 len=256 ack
			> READ 1 va=0 len=256 ack
			< RONLY 1 256
			> READ 0 va=0 len=256 ack
			post 3 READ 256
			> READ 2 va=0 len=256 ack
			< RONLY 2 256
			> READ 0 va=0 len=256 ack
			count completer_retry_err 1
			count implied_nak_seq_err 2
			< RONLY 0 256
			wc 1 READ 256 ok
			wc 2 READ 256 ok
			wc 3 READ 256 ok`},
		{"a WRITE that is acknowledged behind a READ is not sent again, one that is not is", `
			post 1 READ 4
			post 2 WRITE 1
			post 3 WRITE 2
			> READ 0 va=0 len=4 ack
			> WRITE_ONLY 1 1 va=0 len=1 ack
			> WRITE_ONLY 2 2 va=0 len=2 ack
			< ACK 1
			> READ 0 va=0 len=4 ack
			at 16.777216ms
			> READ 0 va=0 len=4 ack
			> WRITE_ONLY 2 2 va=0 len=2 ack
			< RONLY 0 4
			wc 1 READ 4 ok
			wc 2 WRITE ok
			< ACK 2
			wc 3 WRITE ok
			deadline never`},
		{"the timer runs while nothing but what is behind a READ is out", `
			post 1 READ 4
			post 2 WRITE 1
			> READ 0 va=0 len=4 ack
			> WRITE_ONLY 1 1 va=0 len=1 ack
			at 1ms
			< ACK 1
			> READ 0 va=0 len=4 ack
			deadline 17.777216ms`},
		{"a response that is wrong ends the connection only when it is its turn", `
			post 1 READ 4
			post 2 READ 300
			> READ 0 va=0 len=4 ack
			> READ 1 va=0 len=300 ack
			< RONLY 1 256
			count drop_bad_response 1
			> READ 0 va=0 len=4 ack
			> READ 1 va=0 len=300 ack
			< RONLY 0 4
			wc 1 READ 4 ok
			< RONLY 1 256
			wc 2 bad response error
			state ERR`},
		{"... and so does memory that has gone", `
			set rd=4
			post 1 READ 4
			post 2 READ 4
			post 3 READ 4
			> READ 0 va=0 len=4 ack
			> READ 1 va=0 len=4 ack
			> READ 2 va=0 len=4 ack
			< RONLY 1 4
			> READ 0 va=0 len=4 ack
			dereg dst
			< RONLY 2 4
			> READ 2 va=0 len=4 ack         // of 0 there is no news since it was sent again
			count drop_bad_response 1
			state RTS
			< RONLY 0 4
			wc 1 local protection error
			wc 2 Work Request Flushed Error
			wc 3 Work Request Flushed Error
			state ERR`},
		{"what arrived early leaves its room in the window", `
			set rd=16 window=1264           // four full packets
			post 1 READ 256
			post 2 READ 256
			post 3 READ 256
			post 4 READ 256
			post 5 READ 256
			> READ 0 va=0 len=256 ack
			> READ 1 va=0 len=256 ack
			> READ 2 va=0 len=256 ack
			> READ 3 va=0 len=256 ack
			< RONLY 1 256
			> READ 0 va=0 len=256 ack
			window 1264`},
	})
}
