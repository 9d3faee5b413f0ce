package transport

import "testing"

// TestResponderErrors is what violations draw that TestViolations has not: in the
// midst of things, of other sizes, one after another.
func TestResponderErrors(t *testing.T) {
	const (
		invalid = `
			event invalid request local work queue error
			count resp_remote_invalid_request 1
			count resp_remote_access_errors 0
			state ERR`
		access = `
			event local access violation work queue error
			count resp_remote_access_errors 1
			state ERR`
	)
	talks := []rspTalk{
		{name: "region deregistered in mid-WRITE", rule: "IBTA 9.7.5.2; the NAK has the PSN of the packet", script: `
			> RDMA_WRITE_FIRST 0 256 len=300
			! dereg mr
			> RDMA_WRITE_LAST 1 44
			< NAK 1 remote access error
			mem mr@0 0:256` + access},
		{name: "empty WRITE without the QP's right", rule: "IBTA 9.7.4.1.4: needs no key, but the right", script: `
			! access read
			> RDMA_WRITE_ONLY 0 0
			< NAK 0 invalid request` + invalid},
		{name: "more READs than resources", rule: "IBTA 9.7.5.2: the requester must not exceed what was agreed", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_READ_REQUEST 1 4 @8
			> RDMA_READ_REQUEST 2 4 @16
			< ONLY 0 4 msn=1 @0
			< ONLY 1 4 msn=2 @8
			< NAK 2 invalid request` + invalid},
		{name: "READ of 2^31 out of range", rule: "IBTA 9.7.5.2: 2^31 itself is a legal length", script: `
			> RDMA_READ_REQUEST 0 0 len=2147483648
			< NAK 0 remote access error` + access},
		{name: "WRITE shorter than announced", rule: "IBTA 9.7.4.1.6", script: `
			> RDMA_WRITE_FIRST 0 256 len=300
			> RDMA_WRITE_LAST 1 43
			< NAK 1 invalid request
			mem mr@0 0:256` + invalid},
		{name: "MIDDLE beyond the WRITE", rule: "IBTA 9.7.4.1.6", script: `
			> RDMA_WRITE_FIRST 0 256 len=511
			> RDMA_WRITE_MIDDLE 1 256
			< NAK 1 invalid request
			mem mr@0 0:256` + invalid},
		{name: "FIRST longer than the WRITE", rule: "IBTA 9.7.4.1.6", script: `
			> RDMA_WRITE_FIRST 0 256 len=255
			< NAK 0 invalid request
			mem mr@0` + invalid},
		{name: "ONLY longer than announced", rule: "IBTA 9.7.4.1.6", script: `
			> RDMA_WRITE_ONLY 0 6 len=5
			< NAK 0 invalid request
			mem mr@0` + invalid},
		{name: "payload where none was announced", rule: "IBTA 9.7.4.1.6; length 0 opens no memory", script: `
			! recv 10
			> RDMA_WRITE_FIRST 0 256 len=0 key=bad
			< NAK 0 invalid request
			wc RECV 1 Work Request Flushed Error` + invalid},
		{name: "SEND into an empty receive", rule: "IBTA 9.7.4.1.7", script: `
			! recv
			> SEND_ONLY 0 1 ack
			< NAK 0 invalid request
			wc RECV 1 local length error`},
		{name: "region deregistered in mid-READ", rule: "IBTA 9.7.5.2: the NAK has the PSN of the response that is missing", script: `
			> RDMA_READ_REQUEST 0 1000 @0
			> RDMA_READ_REQUEST 4 4 @0
			> RDMA_WRITE_ONLY 5 4 key=wo ack
			! hold
			! data 300
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			! dereg mr
			! control
			< NAK 2 remote access error` + access},
		{name: "region deregistered before a READ behind a NAK", rule: "IBTA 9.9.3: the QP fails once", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> SEND_LAST 1 4
			! dereg mr
			< NAK 0 remote access error
			event invalid request local work queue error
			state ERR`},
		{name: "silent after a fatal NAK", rule: "IBTA 10.3.1.7: ERR takes no packets", script: `
			> RDMA_WRITE_ONLY 0 4 key=bad
			> RDMA_WRITE_ONLY 0 4 ack
			< NAK 0 remote access error
			event local access violation work queue error
			count drop_qp_state 1
			> RDMA_WRITE_ONLY 0 4 ack
			> RDMA_WRITE_ONLY 1 4 ack
			count drop_qp_state 2
			! recv 10
			wc RECV 1 Work Request Flushed Error`},
	}
	// IBTA 9.7.4.1.3: which opcodes may follow which.
	starts := []string{"SEND_FIRST", "SEND_ONLY", "SEND_ONLY_WITH_IMMEDIATE", "SEND_ONLY_WITH_INVALIDATE", "RDMA_WRITE_FIRST",
		"RDMA_WRITE_ONLY", "RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RDMA_READ_REQUEST", "COMPARE_SWAP", "FETCH_ADD", "FLUSH", "ATOMIC_WRITE"}
	sends := []string{"SEND_MIDDLE", "SEND_LAST", "SEND_LAST_WITH_IMMEDIATE", "SEND_LAST_WITH_INVALIDATE"}
	writes := []string{"RDMA_WRITE_MIDDLE", "RDMA_WRITE_LAST", "RDMA_WRITE_LAST_WITH_IMMEDIATE"}
	follow := func(before, first, flushed string, ops ...[]string) {
		for _, list := range ops {
			for _, op := range list {
				psn := "0"
				if first != "" {
					psn = "1"
				}
				talks = append(talks, rspTalk{name: op + before, rule: "IBTA 9.7.4.1.3", script: `
					! recv 1000
					` + first + `
					> ` + op + " " + psn + ` 256 len=300
					< NAK ` + psn + ` invalid request
					` + flushed + `
					count resp_cqe_flush_error 1` + invalid})
			}
		}
	}
	const flushed = "wc RECV 1 Work Request Flushed Error"
	follow(" without FIRST", "", flushed, sends, writes)
	follow(" in a SEND", "> SEND_FIRST 0 256", flushed, starts, writes)
	follow(" in a WRITE", "> RDMA_WRITE_FIRST 0 256 len=1000", flushed, starts, sends)
	follow(" after an ONLY", "> RDMA_WRITE_ONLY 0 4", flushed, sends, writes)
	// IBTA 9.7.4.1.6, Linux rxe_resp.c check_length: payload by position.
	length := func(n, psn, script string) {
		talks = append(talks, rspTalk{name: "length: " + script, rule: "IBTA 9.7.4.1.6", script: `
			! recv 10000
			` + script + n + `
			< NAK ` + psn + ` invalid request
			wc RECV 1 Work Request Flushed Error` + invalid})
	}
	for _, n := range []string{"0", "1", "255", "257", "512"} {
		length(n, "0", "> SEND_FIRST 0 ")
		length(n, "1", "> SEND_FIRST 0 256\n> SEND_MIDDLE 1 ")
		length(n, "0", "> RDMA_WRITE_FIRST 0 len=1000 ")
		length(n, "1", "> RDMA_WRITE_FIRST 0 256 len=1000\n> RDMA_WRITE_MIDDLE 1 ")
	}
	for _, n := range []string{"257", "4096"} {
		length(n, "0", "> SEND_ONLY 0 ")
		length(n, "0", "> RDMA_WRITE_ONLY 0 ")
		length(n, "0", "> RDMA_WRITE_ONLY_WITH_IMMEDIATE 0 ")
	}
	for _, n := range []string{"0", "257"} {
		length(n, "1", "> SEND_FIRST 0 256\n> SEND_LAST 1 ")
		length(n, "1", "> SEND_FIRST 0 256\n> SEND_LAST_WITH_IMMEDIATE 1 ")
		length(n, "1", "> RDMA_WRITE_FIRST 0 256 len=513\n> RDMA_WRITE_LAST 1 ")
		length(n, "1", "> RDMA_WRITE_FIRST 0 256 len=513\n> RDMA_WRITE_LAST_WITH_IMMEDIATE 1 ")
	}
	runTalks(t, talks)
}
