package transport

import "testing"

func TestResponderDuplicates(t *testing.T) {
	runTalks(t, []rspTalk{
		{name: "SEND", rule: "IBTA C9-105: acknowledged again, not executed again", script: `
			! recv 10
			> SEND_ONLY 0 4
			wc RECV 1 4
			! recv 10
			> SEND_ONLY 0 4 dup=1
			< ACK 0 msn=1
			mem rb@0 0:4
			count duplicate_request 1`},
		{name: "WRITE", rule: "IBTA C9-105", script: `
			> RDMA_WRITE_ONLY 0 4
			> RDMA_WRITE_ONLY 1 4 @4
			nothing
			> RDMA_WRITE_ONLY 0 4 dup=1
			< ACK 1 msn=2
			mem mr@0 0:4 1:4`},
		{name: "with immediate", rule: "IBTA C9-105: no second completion", script: `
			! recv 10
			> RDMA_WRITE_ONLY_WITH_IMMEDIATE 0 4 imm=5 ack
			< ACK 0 msn=1
			wc RECV_RDMA_WITH_IMM 1 4 imm=5
			! recv 10
			> RDMA_WRITE_ONLY_WITH_IMMEDIATE 0 4 imm=5 ack
			< ACK 0 msn=1`},
		{name: "in mid-message", rule: "IBTA C9-105: the latest PSN executed", script: `
			> RDMA_WRITE_FIRST 0 256 len=600
			> RDMA_WRITE_MIDDLE 1 256
			> RDMA_WRITE_FIRST 0 256 len=600 dup=1
			< ACK 1 msn=0
			> RDMA_WRITE_LAST 2 88 ack
			< ACK 2 msn=1
			mem mr@0 0:256 1:256 2:88`},
		{name: "before a READ", rule: "Linux hw/hfi1/rc.c, rxe_comp.c: an ACK past the READ would be an implied NAK, one of its own PSN would complete it without data", script: `
			> RDMA_WRITE_ONLY 0 4 @8 ack
			> RDMA_READ_REQUEST 1 300 @256
			> RDMA_WRITE_ONLY 3 4 @8 ack
			< FIRST 1 256 msn=2 @256
			< LAST 2 44 msn=2 @512
			< ACK 3 msn=3
			> RDMA_WRITE_ONLY 0 4 @8 ack
			< ACK 0 msn=1
			> RDMA_READ_REQUEST 1 300 @256
			> RDMA_WRITE_ONLY 3 4 @8 ack
			< FIRST 1 256 msn=2 @256
			< LAST 2 44 msn=2 @512
			< ACK 3 msn=3`},
		{name: "before two READs", rule: "the ACK stops before the first READ after the duplicate", script: `
			> RDMA_WRITE_ONLY 0 4 @8
			> RDMA_WRITE_ONLY 1 4 @8
			> RDMA_READ_REQUEST 2 4 @256
			> RDMA_READ_REQUEST 3 4 @260
			> RDMA_WRITE_ONLY 4 4 @8 ack
			< ONLY 2 4 msn=3 @256
			< ONLY 3 4 msn=4 @260
			< ACK 4 msn=5
			> RDMA_WRITE_ONLY 0 4 @8
			< ACK 1 msn=2
			> RDMA_WRITE_ONLY 4 4 @8
			< ACK 4 msn=5`},
		{name: "READ", rule: "IBTA 9.4.4: executed again, from memory as it is now", script: `
			> RDMA_READ_REQUEST 0 300 @0
			< FIRST 0 256 msn=1 @0
			< LAST 1 44 msn=1 @256
			! store mr
			> RDMA_READ_REQUEST 0 300 @0
			< FIRST 0 256 msn=1 @0
			< LAST 1 44 msn=1 @256
			count duplicate_request 1
			> RDMA_WRITE_ONLY 2 4 ack
			< ACK 2 msn=2`},
		{name: "rest of a READ", rule: "IBTA 9.4.4; Linux rxe_comp.c: the answer begins with FIRST or ONLY at exactly that PSN", script: `
			> RDMA_READ_REQUEST 0 1000 @0
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< MIDDLE 2 256 @512
			< LAST 3 232 msn=1 @768
			> RDMA_READ_REQUEST 1 744 @256
			< FIRST 1 256 msn=1 @256
			< MIDDLE 2 256 @512
			< LAST 3 232 msn=1 @768
			> RDMA_READ_REQUEST 3 232 @768
			< ONLY 3 232 msn=1 @768`},
		{name: "READ in mid-answer", rule: "IBTA 9.4.4: starts where the requester asks", script: `
			> RDMA_READ_REQUEST 0 1000 @0
			! hold
			! data 300
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			> RDMA_READ_REQUEST 1 744 @256
			< FIRST 1 256 msn=1 @256
			< MIDDLE 2 256 @512
			< LAST 3 232 msn=1 @768`},
		{name: "READ before one in mid-answer", rule: "IBTA 9.7.5.1: responses in PSN order; the later READ goes on where it was", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_READ_REQUEST 1 600 @256
			! hold
			! data 100
			< ONLY 0 4 msn=1 @0
			< FIRST 1 256 msn=2 @256
			> RDMA_READ_REQUEST 0 4 @0
			< ONLY 0 4 msn=1 @0
			< MIDDLE 2 256 @512
			< LAST 3 88 msn=2 @768`},
		{name: "duplicate SEND while a READ is in mid-answer", rule: "Linux rxe_comp.c: no acknowledgement between the responses of a READ", script: `
			! recv 4
			> SEND_ONLY 0 4 ack
			wc RECV 1 4
			< ACK 0 msn=1
			> RDMA_READ_REQUEST 1 600 @256
			! hold
			! data 100
			< FIRST 1 256 msn=2 @256
			> SEND_ONLY 0 4 ack
			! hold
			! control
			nothing
			! data 10000
			! control
			< MIDDLE 2 256 @512
			< LAST 3 88 msn=2 @768
			< ACK 0 msn=1`},
		{name: "duplicate SEND while a READ in mid-answer is interrupted", rule: "Linux rxe_comp.c: no acknowledgement between the responses of a READ", script: `
			! recv 4
			> SEND_ONLY 0 4 ack
			wc RECV 1 4
			< ACK 0 msn=1
			> RDMA_READ_REQUEST 1 4 @0
			< ONLY 1 4 msn=2 @0
			> RDMA_READ_REQUEST 2 600 @256
			! hold
			! data 100
			< FIRST 2 256 msn=3 @256
			> RDMA_READ_REQUEST 1 4 @0
			> SEND_ONLY 0 4 ack
			! hold
			! control
			nothing
			! data 10000
			! control
			< ONLY 1 4 msn=2 @0
			< MIDDLE 3 256 @512
			< LAST 4 88 msn=3 @768
			< ACK 0 msn=1`},
		{name: "READ behind its repetition", rule: "Linux hw/hfi1/rc.c: a requester does not back up", script: `
			> RDMA_READ_REQUEST 0 600 @0
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< LAST 2 88 msn=1 @512
			> RDMA_READ_REQUEST 1 344 @256
			> RDMA_READ_REQUEST 0 600 @0
			< FIRST 1 256 msn=1 @256
			< LAST 2 88 msn=1 @512
			count drop_duplicate 1`},
		{name: "READ with another key", rule: "Linux rxe_resp.c duplicate_request: the key must be the same", script: `
			> RDMA_READ_REQUEST 0 4 @0
			< ONLY 0 4 msn=1 @0
			> RDMA_READ_REQUEST 0 4 @0 key=ro
			count drop_duplicate 1`},
		{name: "READ of other memory", rule: "IBTA 9.4.4: a repetition names the rest of the original", script: `
			> RDMA_READ_REQUEST 0 300 @256
			< FIRST 0 256 msn=1 @256
			< LAST 1 44 msn=1 @512
			> RDMA_READ_REQUEST 0 300 @0
			> RDMA_READ_REQUEST 0 301 @256
			> RDMA_READ_REQUEST 1 300 @256
			> RDMA_READ_REQUEST 1 45 @512
			> RDMA_READ_REQUEST 1 0 @512
			count drop_duplicate 5`},
		{name: "READ whose resource was recycled", rule: "IBTA 9.9.3 class D, Linux rxe_resp.c: dropped", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_READ_REQUEST 1 4 @16
			< ONLY 0 4 msn=1 @0
			< ONLY 1 4 msn=2 @16
			> RDMA_READ_REQUEST 2 4 @32
			< ONLY 2 4 msn=3 @32
			> RDMA_READ_REQUEST 0 4 @0
			count drop_no_resource 1
			> RDMA_READ_REQUEST 1 4 @16
			< ONLY 1 4 msn=2 @16`},
		{name: "late duplicate READ and new READs", rule: "IBTA 9.7.5.2: only READs never answered count against the depth; a new READ proves that the oldest was completed", script: `
			> RDMA_READ_REQUEST 0 600 @0
			> RDMA_READ_REQUEST 3 4 @1024
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< LAST 2 88 msn=1 @512
			< ONLY 3 4 msn=2 @1024
			> RDMA_READ_REQUEST 0 600 @0
			> RDMA_READ_REQUEST 3 4 @1024
			! hold
			! data 100
			< FIRST 0 256 msn=1 @0
			> RDMA_READ_REQUEST 4 4 @1028
			! hold
			! data 1
			< ONLY 3 4 msn=2 @1024
			> RDMA_READ_REQUEST 5 4 @1032
			> RDMA_READ_REQUEST 0 600 @0
			> RDMA_READ_REQUEST 3 4 @1024
			< ONLY 4 4 msn=3 @1028
			< ONLY 5 4 msn=4 @1032
			count drop_no_resource 2
			state RTS`},
		{name: "late duplicate READ and too many new ones", rule: "IBTA 9.7.5.2: READs never answered are not forgotten", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_READ_REQUEST 1 4 @1024
			< ONLY 0 4 msn=1 @0
			< ONLY 1 4 msn=2 @1024
			> RDMA_READ_REQUEST 1 4 @1024
			> RDMA_READ_REQUEST 2 4 @1028
			> RDMA_READ_REQUEST 3 4 @1032
			> RDMA_READ_REQUEST 4 4 @1036
			< ONLY 2 4 msn=3 @1028
			< ONLY 3 4 msn=4 @1032
			< NAK 4 invalid request
			event invalid request local work queue error`},
		{name: "READ that the QP no longer allows", rule: "rights are checked at every execution", script: `
			> RDMA_READ_REQUEST 0 4 @0
			< ONLY 0 4 msn=1 @0
			! access write
			> RDMA_READ_REQUEST 0 4 @0
			count drop_no_resource 1`},
		{name: "READ of memory that has gone", rule: "IBTA 9.9.3 class D: it may be late, so it does no harm (Linux rxe_resp.c rxe_recheck_mr refuses it)", script: `
			> RDMA_READ_REQUEST 0 4 @0
			< ONLY 0 4 msn=1 @0
			! dereg mr
			> RDMA_READ_REQUEST 0 4 @0
			count drop_no_resource 1
			state RTS`},
		{name: "READ of memory that has gone before it was answered", rule: "IBTA 9.7.5.2", script: `
			! hold
			> RDMA_READ_REQUEST 0 600 @0
			! data 1
			< FIRST 0 256 msn=1 @0
			! dereg mr
			> RDMA_READ_REQUEST 0 600 @0
			< NAK 0 remote access error
			event local access violation work queue error
			state ERR`},
		{name: "SEND with the PSN of a READ", rule: "never acknowledge the PSN of a READ (Linux rxe_comp.c)", script: `
			> RDMA_READ_REQUEST 0 300 @0
			< FIRST 0 256 msn=1 @0
			< LAST 1 44 msn=1 @256
			> SEND_ONLY 1 4 ack
			> RDMA_WRITE_ONLY 0 4 ack
			count drop_duplicate 2`},
		{name: "atomic", rule: "IBTA 9.9.3 class D: no record, no answer", script: `
			> RDMA_WRITE_ONLY 0 4
			> FETCH_ADD 0 0
			> COMPARE_SWAP 0 0
			> ATOMIC_WRITE 0 8
			count drop_no_resource 3
			state RTS`},
		{name: "while RNR", rule: "IBTA C9-105", script: `
			> RDMA_WRITE_ONLY 0 4
			> SEND_ONLY 1 4
			< RNR 1 640µs
			> RDMA_WRITE_ONLY 0 4
			< ACK 0 msn=1
			> RDMA_WRITE_ONLY 2 4
			nothing`},
		{name: "before an ACK that has not left", rule: "IBTA 9.7.5.1: the later ACK stands for both, the READ between was answered", script: `
			> RDMA_WRITE_ONLY 0 4 @8
			> RDMA_READ_REQUEST 1 4 @16
			! data 100
			> RDMA_WRITE_ONLY 2 4 @8 ack
			> RDMA_WRITE_ONLY 0 4 @8
			< ONLY 1 4 msn=2 @16
			< ACK 2 msn=3`},
		{name: "ACK past a READ that is answered again", rule: "IBTA 9.7.5.1, implied NAK", script: `
			> RDMA_READ_REQUEST 0 4 @0
			> RDMA_WRITE_ONLY 1 4 @8 ack
			! hold
			! data 100
			< ONLY 0 4 msn=1 @0
			> RDMA_READ_REQUEST 0 4 @0
			! control
			< ONLY 0 4 msn=1 @0
			< ACK 1 msn=2`},
	})
}
