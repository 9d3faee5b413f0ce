package transport

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
)

func TestRequesterPackets(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.2, 9.3.3: one packet is an ONLY, with AckReq and pad", `
			post 1 SEND 5
			> SEND_ONLY 0 5 ack
			post 2 WRITE 6 va=100
			> WRITE_ONLY 1 6 va=100 len=6 ack
			post 3 SENDI 7 imm=77
			> SEND_ONLY_IMM 2 7 imm=77 ack
			post 4 WRITEI 8 imm=4294967295
			> WRITE_ONLY_IMM 3 8 va=0 len=8 imm=4294967295 ack
			post 5 READ 9 va=3
			> READ 4 va=3 len=9 ack
			< ACK 3
			wc 1 SEND ok
			wc 2 WRITE ok
			wc 3 SEND ok
			wc 4 WRITE ok
			< RONLY 4 9
			wc 5 READ 9 ok
			deadline never
			count sent_pkts 5
			count rcvd_pkts 2
			count rdma_sends 2`},
		{"IBTA 9.4.1-9.4.3: RETH in the FIRST, immediate in the LAST", `
			post 1 WRITEI 600 imm=9
			> WRITE_FIRST 0 256 va=0 len=600
			> WRITE_MIDDLE 1 256
			> WRITE_LAST_IMM 2 88 imm=9 ack
			post 2 SENDI 513 imm=8
			> SEND_FIRST 3 256
			> SEND_MIDDLE 4 256
			> SEND_LAST_IMM 5 1 imm=8 ack
			< ACK 5
			wc 1 WRITE ok
			wc 2 SEND ok`},
		{"IBTA 9.2.3: solicited event only in the last packet of what consumes a receive", `
			post 1 SEND 300 se
			> SEND_FIRST 0 256
			> SEND_LAST 1 44 ack se
			post 2 WRITE 1 se
			> WRITE_ONLY 2 1 va=0 len=1 ack
			post 3 WRITEI 1 se
			> WRITE_ONLY_IMM 3 1 va=0 len=1 imm=0 ack se
			post 4 READ 1 se
			> READ 4 va=0 len=1 ack`},
		{"ibv_post_send(3): inline data and lists of segments", `
			post 1 SEND 300 inline
			> SEND_FIRST 0 256
			> SEND_LAST 1 44 ack
			post 2 WRITE 700 sges=32
			> WRITE_FIRST 2 256 va=0 len=700
			> WRITE_MIDDLE 3 256
			> WRITE_LAST 4 188 ack
			post 3 READ 300 sges=7
			> READ 5 va=0 len=300 ack
			< RFIRST 5 256
			wc 1 SEND ok
			wc 2 WRITE ok
			< RLAST 6 44
			wc 3 READ 300 ok`},
		{"outbox without room: nothing is lost and nothing is sent twice", `
			room 1
			post 1 SEND 600
			> SEND_FIRST 0 256
			room 0
			kick
			room 1
			> SEND_MIDDLE 1 256
			room 1
			> SEND_LAST 2 88 ack
			room 0
			post 2 READ 4
			room 9
			> READ 3 va=0 len=4 ack`},
	})
}

func TestRequesterSizes(t *testing.T) {
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		m := mtu.Bytes()
		for _, n := range []int{0, 1, 3, m - 1, m, m + 1, 2 * m, 2*m + 1, 4*m - 3} {
			for _, op := range []string{"SEND", "WRITE"} {
				want := []string{fmt.Sprintf("post 1 %s %d", op, n)}
				packets := max(1, (n+m-1)/m)
				for i := range packets {
					pos, l, more := "MIDDLE", m, ""
					if i == 0 {
						pos = "FIRST"
					}
					if i == packets-1 {
						pos, l = "LAST", n-i*m
					}
					if packets == 1 {
						pos = "ONLY"
					}
					if op == "WRITE" && i == 0 {
						more = fmt.Sprintf(" va=0 len=%d", n)
					}
					if i == packets-1 {
						more += " ack"
					}
					want = append(want, fmt.Sprintf("> %s_%s %d %d%s", op, pos, i, l, more))
				}
				want = append(want, fmt.Sprintf("< ACK %d", packets-1), fmt.Sprintf("wc 1 %s ok", op))
				name := fmt.Sprintf("IBTA 9.7.2: %s of %d bytes at MTU %d", op, n, m)
				t.Run(name, func(t *testing.T) {
					newReqWorld(t, 0xfffffe).run(fmt.Sprintf("set mtu=%d\n", m) + strings.Join(want, "\n"))
				})
			}
			// The same as a READ: one request, as many PSNs as it has responses.
			script := fmt.Sprintf("set mtu=%d\npost 1 READ %d\n> READ 0 va=0 len=%d ack\n", m, n, n)
			packets := max(1, (n+m-1)/m)
			for i := range packets {
				kind, l := "RMID", m
				if i == 0 {
					kind = "RFIRST"
				}
				if i == packets-1 {
					kind, l = "RLAST", n-i*m
				}
				if packets == 1 {
					kind = "RONLY"
				}
				script += fmt.Sprintf("< %s %d %d\n", kind, i, l)
			}
			script += fmt.Sprintf("wc 1 READ %d ok\npost 2 SEND 1\n> SEND_ONLY %d 1 ack\n", n, packets)
			t.Run(fmt.Sprintf("IBTA 9.7.2: READ of %d bytes at MTU %d", n, m), func(t *testing.T) {
				newReqWorld(t, 0xfffffe).run(script)
			})
		}
	}
}

func TestRequesterOrder(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 10.8.3.3: a fenced request waits for earlier READs, later ones wait behind it", `
			post 1 READ 300
			post 2 SEND 1
			post 3 SEND 2 fence
			post 4 SEND 3
			> READ 0 va=0 len=300 ack
			> SEND_ONLY 2 1 ack
			< RFIRST 0 256
			< RLAST 1 44
			> SEND_ONLY 3 2 ack
			> SEND_ONLY 4 3 ack
			wc 1 READ 300 ok`},
		{"IBTA 9.7.3.1: no more READs outstanding than the initiator depth, and what follows waits", `
			set rd=1
			post 1 READ 1
			post 2 READ 2
			post 3 SEND 3
			> READ 0 va=0 len=1 ack
			< RONLY 0 1
			> READ 1 va=0 len=2 ack
			> SEND_ONLY 2 3 ack
			wc 1 READ 1 ok`},
		{"IBTA 9.7.3.1: more READs outstanding than there were before, some of them answered, and all of them again", `
			set rd=128
			post 1 READ 1
			post 2 READ 2
			post 3 READ 3
			post 4 READ 4
			> READ 0 va=0 len=1 ack
			> READ 1 va=0 len=2 ack
			> READ 2 va=0 len=3 ack
			> READ 3 va=0 len=4 ack
			< RONLY 0 1
			< RONLY 1 2
			post 5 READ 5
			post 6 READ 6
			post 7 READ 7
			> READ 4 va=0 len=5 ack
			> READ 5 va=0 len=6 ack
			> READ 6 va=0 len=7 ack
			wc 1 READ 1 ok
			wc 2 READ 2 ok
			< NAK 2 seq
			> READ 2 va=0 len=3 ack
			> READ 3 va=0 len=4 ack
			> READ 4 va=0 len=5 ack
			> READ 5 va=0 len=6 ack
			> READ 6 va=0 len=7 ack
			< RONLY 2 3
			< RONLY 3 4
			< RONLY 4 5
			< RONLY 5 6
			< RONLY 6 7
			wc 3 READ 3 ok
			wc 4 READ 4 ok
			wc 5 READ 5 ok
			wc 6 READ 6 ok
			wc 7 READ 7 ok`},
		{"a READ larger than the window is several requests, each ending where its retry ends", `
			set rd=2 window=3160        // ten full packets of 316
			post 1 READ 3000
			> READ 0 va=0 len=1280 ack
			> READ 5 va=1280 len=1280 ack
			< RFIRST 0 256
			< RMID 1 256
			< RMID 2 256
			< RMID 3 256
			at 16.777216ms
			> READ 4 va=1024 len=256 ack      // the window is down to four packets
			< RONLY 4 256
			> READ 5 va=1280 len=1280 ack
			< RFIRST 5 256
			< RMID 6 256
			< RMID 7 256
			< RMID 8 256
			< RLAST 9 256
			> READ 10 va=2560 len=440 ack
			< RFIRST 10 256
			< RLAST 11 184
			wc 1 READ 3000 ok`},
		{"the window holds the bytes in flight; AckReq each quarter of it and when it is full", `
			set window=2528             // eight full packets of 316
			post 1 SEND 5120
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256 ack
			> SEND_MIDDLE 2 256
			> SEND_MIDDLE 3 256 ack
			> SEND_MIDDLE 4 256
			> SEND_MIDDLE 5 256 ack
			> SEND_MIDDLE 6 256
			> SEND_MIDDLE 7 256 ack
			< ACK 0
			> SEND_MIDDLE 8 256 ack
			< ACK 3
			> SEND_MIDDLE 9 256
			> SEND_MIDDLE 10 256 ack
			> SEND_MIDDLE 11 256 ack`},
		{"a window smaller than a packet lets one packet out at a time", `
			set window=100
			post 1 SEND 300
			> SEND_FIRST 0 256 ack
			< ACK 0
			> SEND_LAST 1 44 ack
			< ACK 1
			wc 1 SEND ok
			post 2 READ 600
			> READ 2 va=0 len=256 ack
			< RONLY 2 256
			> READ 3 va=256 len=256 ack
			< RONLY 3 256
			> READ 4 va=512 len=88 ack
			< RONLY 4 88
			wc 2 READ 600 ok`},
		{"the window opens with success, halves with a loss, and shrinks to four packets with a timeout", `
			set window=70000
			window 65536
			post 1 WRITE 2048
			> WRITE_FIRST 0 256 va=0 len=2048
			> WRITE_MIDDLE 1 256
			> WRITE_MIDDLE 2 256
			> WRITE_MIDDLE 3 256
			> WRITE_MIDDLE 4 256
			> WRITE_MIDDLE 5 256
			> WRITE_MIDDLE 6 256
			> WRITE_LAST 7 256 ack
			< ACK 2
			window 66484
			< NAK 3 seq
			> WRITE_MIDDLE 3 256
			> WRITE_MIDDLE 4 256
			> WRITE_MIDDLE 5 256
			> WRITE_MIDDLE 6 256
			> WRITE_LAST 7 256 ack
			window 33242
			< NAK 5 seq                 // a second loss of the same flight
			> WRITE_MIDDLE 5 256
			> WRITE_MIDDLE 6 256
			> WRITE_LAST 7 256 ack
			window 33242
			at 16.777216ms
			> WRITE_MIDDLE 5 256 ack    // each is a quarter
			> WRITE_MIDDLE 6 256 ack
			> WRITE_LAST 7 256 ack
			window 1264`},
		{"ibv_create_qp(3): requests beyond the depth wait for room; unsignaled ones return their entries", `
			set depth=4
			post 1 SEND 1 uns
			post 2 WRITE 2 uns
			post 3 SEND 3
			post 4 SEND 4 uns
			> SEND_ONLY 0 1 ack
			> WRITE_ONLY 1 2 va=0 len=2 ack
			> SEND_ONLY 2 3 ack
			> SEND_ONLY 3 4 ack
			< ACK 1
			freed 2
			< ACK 3
			wc 3 SEND ok
			freed 4
			post 5 SEND 5
			> SEND_ONLY 4 5 ack`},
		{"ibv_create_qp(3): sq_sig_all makes each request complete", `
			set sigall=1
			post 1 SEND 1 uns
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok`},
	})
}

func TestRequesterLocalErrors(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 10.8.5, 11.6.2: a bad key is a local protection error, after the requests before it", `
			post 1 SEND 1
			post 2 SEND 2 key=99
			post 3 SEND 3
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			wc 2 local protection error
			wc 3 Work Request Flushed Error
			state ERR
			count req_cqe_error 1
			count req_cqe_flush_error 1
			deadline never`},
		{"... at once when nothing is before it", `
			post 1 READ 2 key=99
			wc 1 local protection error
			state ERR`},
		{"... and not before retransmissions of those before it are through", `
			post 1 SEND 1
			post 2 SEND 2 key=99
			> SEND_ONLY 0 1 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok
			wc 2 local protection error`},
		{"a region deregistered in mid-message ends the message", `
			room 1
			post 1 SEND 600
			> SEND_FIRST 0 256
			dereg src
			room 9
			wc 1 local protection error
			state ERR`},
		{"a region deregistered before a retransmission ends the request", `
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			dereg src
			at 16.777216ms
			wc 1 local protection error
			wc 2 Work Request Flushed Error`},
		{"... unless its first transmission is acknowledged in time", `
			post 1 SEND 0
			post 2 SEND 1
			> SEND_ONLY 0 0 ack
			> SEND_ONLY 1 1 ack
			dereg src
			at 16.777216ms
			> SEND_ONLY 0 0 ack
			< ACK 1
			wc 1 SEND ok
			wc 2 SEND ok
			state RTS
			post 3 SEND 0
			> SEND_ONLY 2 0 ack`},
		{"a region deregistered before READ data comes is a local protection error", `
			post 1 READ 300
			post 2 SEND 0
			> READ 0 va=0 len=300 ack
			> SEND_ONLY 2 0 ack
			dereg dst
			< RFIRST 0 256
			wc 1 local protection error
			wc 2 Work Request Flushed Error
			state ERR`},
		{"IBTA 11.6.2: operations that do not exist here are local QP operation errors", `
			post 1 NONE 8
			wc 1 local QP operation error
			state ERR`},
		{"IBTA 9.7.3.1: a READ without initiator depth is a local QP operation error", `
			set rd=0
			post 1 READ 8
			wc 1 local QP operation error`},
		{"IBTA 10.3.1.7: what is posted in ERR is flushed", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			modify err
			wc 1 Work Request Flushed Error
			post 2 SEND 1 uns
			wc 2 Work Request Flushed Error
			< ACK 0
			count drop_qp_state 1
			freed 2`},
	})
}

func TestRequesterDrain(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 10.3.1.5: SQD finishes what it had begun, tells, and takes up no more until RTS", `
			room 1
			post 1 SEND 300
			post 2 SEND 1
			> SEND_FIRST 0 256
			modify sqd notify
			room 9
			> SEND_LAST 1 44 ack
			state SQD
			< ACK 1
			wc 1 SEND ok
			event send queue drained
			post 3 SEND 1
			deadline never
			modify rts
			> SEND_ONLY 2 1 ack
			> SEND_ONLY 3 1 ack`},
		{"... and a request of which nothing was sent is not begun", `
			room 0
			post 1 SEND 300
			deadline never
			modify sqd notify
			room 9
			event send queue drained
			modify rts
			> SEND_FIRST 0 256
			> SEND_LAST 1 44 ack`},
		{"... and, taken up again, does not wait for itself when it is a READ with a fence", `
			room 0
			post 1 READ 300 fence
			deadline never
			modify sqd notify
			room 9
			event send queue drained
			modify rts
			> READ 0 va=0 len=300 ack`},
		{"... retransmitting if need be", `
			post 1 SEND 1
			> SEND_ONLY 0 1 ack
			modify sqd
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			< ACK 0
			wc 1 SEND ok`},
		{"IBTA 10.3.1.1: RESET forgets requests without completions", `
			post 1 SEND 1
			post 2 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			modify reset
			freed 2
			deadline never
			< ACK 1
			count drop_qp_state 1`},
	})
}

// An entry that changes after it was posted, as one in shared memory can, ends
// the request; nothing is sent twice with different lengths.
func TestRequesterChangedEntry(t *testing.T) {
	w := newReqWorld(t, 100)
	w.run("post 1 SEND 300\n> SEND_FIRST 0 256\n> SEND_LAST 1 44 ack\npost 2 SEND 1\n> SEND_ONLY 2 1 ack")
	w.sq.sge[0][0].Length++
	w.run("at 16.777216ms\nwc 1 local QP operation error\nwc 2 Work Request Flushed Error\nstate ERR")
}
