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

func TestRecoverProbe(t *testing.T) {
	runReqCases(t, []reqCase{
		{"a lost tail is sent again after SRTT + 4 RTTVAR, each time later; the ack timer and its retries are as without", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			deadline 16.777216ms        // nothing is known of the peer
			at 1ms
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 300
			> SEND_FIRST 1 256
			> SEND_LAST 2 44 ack
			deadline 4ms                // 1 + 4 * 0.5 ms
			at 3.999999ms
			at 4ms
			> SEND_FIRST 1 256 ack
			> SEND_LAST 2 44 ack
			count ack_probes 1
			deadline 10ms
			at 10ms
			> SEND_FIRST 1 256 ack
			> SEND_LAST 2 44 ack
			deadline 17.777216ms        // not 22ms
			at 17.777216ms
			> SEND_FIRST 1 256 ack
			> SEND_LAST 2 44 ack
			count local_ack_timeout_err 1
			count ack_probes 2
			deadline 29.777216ms
			at 29.777216ms
			> SEND_FIRST 1 256 ack
			> SEND_LAST 2 44 ack
			deadline 34.554432ms
			at 34.554432ms
			> SEND_FIRST 1 256 ack
			> SEND_LAST 2 44 ack
			at 51.331648ms
			wc 2 transport retry counter exceeded
			count local_ack_timeout_err 3
			count completer_retry_err 2`},
		{"a NAK that answers a probe is one of the retries only as any other", `
			set retry=1
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			post 3 SEND 2
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			at 1ms                      // minProbe
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			< NAK 1 seq
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			< NAK 1 seq
			at 3ms
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			< NAK 1 seq
			state RTS
			count completer_retry_err 1
			< ACK 2
			wc 2 SEND ok
			wc 3 SEND ok`},
		{"without retries nothing is probed", `
			set retry=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			deadline 16.777216ms
			at 16.777216ms
			wc 2 transport retry counter exceeded`},
		{"... nor without a timeout", `
			set timeout=0
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			deadline never`},
		{"an ack timeout shorter than any probe stays what it is", `
			set timeout=7               // 524.288 us
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			deadline 524.288µs`},
		{"a READ is probed for what is missing of it", `
			set rd=4
			post 1 READ 600
			post 2 READ 4
			> READ 0 va=0 len=600 ack
			> READ 3 va=0 len=4 ack
			at 1ms
			< RFIRST 0 256
			< RMID 1 256
			deadline 4ms
			at 4ms
			> READ 2 va=512 len=88 ack
			> READ 3 va=0 len=4 ack
			< RONLY 3 4
			< RONLY 2 88
			wc 1 READ 600 ok
			wc 2 READ 4 ok
			count ack_probes 1
			deadline never`},
		{"a probe is a few packets; the window stays when the first transmission had arrived", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 4ms
			< ACK 0
			wc 1 SEND ok
			window 65792
			post 2 SEND 1536
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_MIDDLE 3 256
			> SEND_MIDDLE 4 256
			> SEND_MIDDLE 5 256
			> SEND_LAST 6 256 ack
			at 16ms
			> SEND_FIRST 1 256 ack
			> SEND_MIDDLE 2 256 ack
			> SEND_MIDDLE 3 256 ack
			> SEND_MIDDLE 4 256 ack
			window 65792                // but four packets are all that is sent
			at 20ms
			< ACK 6                     // two more than were sent again
			wc 2 SEND ok
			count spurious_retrans 1
			window 67688`},
		{"... nor is more sent again then: it is on its way as well", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 4ms
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1536
			> SEND_FIRST 1 256
			> SEND_MIDDLE 2 256
			> SEND_MIDDLE 3 256
			> SEND_MIDDLE 4 256
			> SEND_MIDDLE 5 256
			> SEND_LAST 6 256 ack
			at 16ms
			> SEND_FIRST 1 256 ack
			> SEND_MIDDLE 2 256 ack
			> SEND_MIDDLE 3 256 ack
			> SEND_MIDDLE 4 256 ack
			at 20ms
			< ACK 2                     // of the first transmission: more will come
			< ACK 5
			count spurious_retrans 1
			post 3 SEND 1
			> SEND_ONLY 7 1 ack
			< NAK 6 seq                 // it was lost after all
			> SEND_LAST 6 256 ack
			> SEND_ONLY 7 1 ack
			< ACK 7
			wc 2 SEND ok
			wc 3 SEND ok`},
		{"... and halves when it had not", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 4ms
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			at 16ms
			> SEND_ONLY 1 1 ack
			at 20ms
			< ACK 1
			wc 2 SEND ok
			count spurious_retrans 0
			window 32896`},
		{"what a sequence NAK has sent again in vain leaves the window as it was", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 1ms
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			post 3 SEND 2
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			at 2ms
			< NAK 1 seq
			> SEND_ONLY 1 1 ack
			> SEND_ONLY 2 2 ack
			window 32896
			at 2.1ms
			< ACK 2
			wc 2 SEND ok
			wc 3 SEND ok
			count spurious_retrans 1
			window 66304`},
		{"Karn: what was sent again is no sample; the doubled time stays until there is one", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			at 1ms
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			at 4ms
			> SEND_ONLY 1 1 ack
			at 5ms
			< ACK 1
			wc 2 SEND ok
			post 3 SEND 1
			> SEND_ONLY 2 1 ack
			deadline 11ms
			at 6ms
			< ACK 2
			wc 3 SEND ok
			post 4 SEND 1
			> SEND_ONLY 3 1 ack
			deadline 8.5ms              // 1 + 4 * 0.375 ms`},
		{"an RNR wait is not cut short by a probe, and is exact", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			post 2 SEND 1
			> SEND_ONLY 1 1 ack
			< RNR 1 18                  // code 18: 5.12 ms
			deadline 5.12ms
			at 5.119999ms
			at 5.12ms
			> SEND_ONLY 1 1 ack
			deadline 6.12ms
			count ack_probes 0`},
	})
}
