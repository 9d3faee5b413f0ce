package transport

import "testing"

func TestResponderAtomics(t *testing.T) {
	const (
		invalid = `
			event invalid request local work queue error
			count resp_remote_invalid_request 1
			state ERR`
		access = `
			event local access violation work queue error
			count resp_remote_access_errors 1
			state ERR`
	)
	runTalks(t, []rspTalk{
		{name: "FETCH_ADD", rule: "IBTA 9.4.5: the sum is stored, what was there before is the answer; the sum wraps", script: `
			! word mr@8 40
			> FETCH_ADD 0 0 @8 add=2
			< AACK 0 found=40 msn=1
			word mr@8 42
			> FETCH_ADD 1 0 @8 add=0xffffffffffffffff
			< AACK 1 found=42 msn=2
			word mr@8 41
			mem mr@0`},
		{name: "CMP_SWAP", rule: "IBTA 9.4.5: swapped only if equal; what was there is the answer in both cases", script: `
			! word mr@4088 7
			> COMPARE_SWAP 0 0 @4088 cmp=7 swap=0x8000000000000001
			< AACK 0 found=7 msn=1
			word mr@4088 0x8000000000000001
			> COMPARE_SWAP 1 0 @4088 cmp=7 swap=9
			< AACK 1 found=9223372036854775809 msn=2
			word mr@4088 0x8000000000000001
			mem mr@0`},
		{name: "ATOMIC_WRITE", rule: "IBTA A19: 8 bytes as they lie; answered by a READ response without payload", script: `
			> ATOMIC_WRITE 0 8 len=8 @16
			< ONLY 0 0 msn=1
			mem mr@16 0:8`},
		{name: "in order with WRITEs", rule: "IBTA 9.5: executed in PSN order; an ACK has to wait for answers before it only", script: `
			! word mr@0 5
			! word mr@8 6
			> FETCH_ADD 0 0 @0 add=1
			> RDMA_WRITE_ONLY 1 8 @0 ack
			> FETCH_ADD 2 0 @8 add=0
			< AACK 0 found=5 msn=1
			< AACK 2 found=6 msn=3
			< ACK 1 msn=2
			mem mr@0 1:8`},
		{name: "behind a READ that is not answered", rule: "IBTA 9.7.5.1: answers in PSN order, the READ's first", script: `
			! word mr@1024 5
			> RDMA_READ_REQUEST 0 600 @0
			> FETCH_ADD 3 0 @1024 add=1
			> RDMA_WRITE_ONLY 4 4 @2048 ack
			< FIRST 0 256 msn=1 @0
			< MIDDLE 1 256 @256
			< LAST 2 88 msn=1 @512
			< AACK 3 found=5 msn=2
			< ACK 4 msn=3
			word mr@1024 6`},
		{name: "no room", rule: "what the outbox has no room for stays due, executed once", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			! hold
			! room 0
			word mr@0 6
			! room 1
			< AACK 0 found=5 msn=1
			word mr@0 6`},
		{name: "duplicate FETCH_ADD", rule: "IBTA 9.4.5, C9-150: not executed again; the answer is what the first execution found", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1
			word mr@0 6
			> FETCH_ADD 1 0 @0 add=1
			> FETCH_ADD 0 0 @0 add=1
			> FETCH_ADD 1 0 @0 add=1
			< AACK 0 found=5 msn=1
			< AACK 1 found=6 msn=2
			word mr@0 7
			count duplicate_request 2`},
		{name: "duplicate CMP_SWAP that would now fail", rule: "IBTA 9.4.5: the answer of the first execution", script: `
			! word mr@0 5
			> COMPARE_SWAP 0 0 @0 cmp=5 swap=6
			< AACK 0 found=5 msn=1
			> COMPARE_SWAP 0 0 @0 cmp=5 swap=6
			< AACK 0 found=5 msn=1
			word mr@0 6`},
		{name: "duplicate ATOMIC_WRITE", rule: "IBTA A19: not executed again: something else may have been stored since", script: `
			> ATOMIC_WRITE 0 8 len=8 @0
			< ONLY 0 0 msn=1
			! word mr@0 77
			> ATOMIC_WRITE 0 8 len=8 @0 dup=1
			< ONLY 0 0 msn=1
			word mr@0 77`},
		{name: "duplicate after its memory has gone", rule: "the stored answer needs no memory", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1
			! dereg mr
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1
			state RTS`},
		{name: "duplicates of something else", rule: "IBTA 9.9.3 class D: what does not repeat the original is dropped", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			> ATOMIC_WRITE 1 8 len=8 @8
			< AACK 0 found=5 msn=1
			< ONLY 1 0 msn=2
			> COMPARE_SWAP 0 0 @0 cmp=6 swap=9
			> FETCH_ADD 0 0 @8 add=1
			> FETCH_ADD 0 0 @0 add=1 key=ro
			> RDMA_READ_REQUEST 0 8 @0
			> ATOMIC_WRITE 0 8 len=8 @0
			> ATOMIC_WRITE 1 8 len=7 @8
			> ATOMIC_WRITE 1 8 len=8 @0
			> FETCH_ADD 1 0 @8
			> RDMA_WRITE_ONLY 0 4 ack
			> FLUSH 0 0 len=8 global
			count drop_duplicate 10
			word mr@0 6`},
		{name: "recycled resources", rule: "IBTA 9.7.5.1: the oldest goes when MaxDestRdAtomic later ones have come; READs and atomics share them", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			> RDMA_READ_REQUEST 1 4 @64
			< AACK 0 found=5 msn=1
			< ONLY 1 4 msn=2 @64
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1
			> FETCH_ADD 2 0 @0 add=1
			< AACK 2 found=6 msn=3
			> FETCH_ADD 0 0 @0 add=1
			count drop_no_resource 1
			word mr@0 7`},
		{name: "FLUSHes recycle nothing", rule: "Linux rxe_req.c: FLUSHes are not counted against the initiator depth, so a peer may send any number behind an atomic whose answer is lost", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			> FLUSH 1 0 len=8 global
			> FLUSH 2 0 len=8 global
			> FLUSH 3 0 len=8 global
			< AACK 0 found=5 msn=1
			< ONLY 1 0 msn=2
			< ONLY 2 0 msn=3
			< ONLY 3 0 msn=4
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1`},
		{name: "more than agreed on", rule: "IBTA 9.7.5.2: READs and atomics together exceed the resources; nothing is executed", script: `
			! word mr@0 5
			> RDMA_READ_REQUEST 0 4 @8
			> FETCH_ADD 1 0 @0 add=1
			> FETCH_ADD 2 0 @0 add=1
			< ONLY 0 4 msn=1 @8
			< AACK 1 found=5 msn=2
			< NAK 2 invalid request
			word mr@0 6` + invalid},
		{name: "ATOMIC_WRITE beyond what was agreed on", rule: "IBTA A19: counted like an atomic", script: `
			> RDMA_READ_REQUEST 0 4 @8
			> RDMA_READ_REQUEST 1 4 @16
			> ATOMIC_WRITE 2 8 len=8 @0
			< ONLY 0 4 msn=1 @8
			< ONLY 1 4 msn=2 @16
			< NAK 2 invalid request
			mem mr@0` + invalid},
		{name: "ATOMIC_WRITE of another length", rule: "IBTA A19: exactly 8; a length of 0 has leaked memory elsewhere", script: `
			> ATOMIC_WRITE 0 8 len=0 @0
			< NAK 0 invalid request
			mem mr@0` + invalid},
		{name: "ATOMIC_WRITE longer than its payload", rule: "IBTA A19", script: `
			> ATOMIC_WRITE 0 8 len=16 @0
			< NAK 0 invalid request
			mem mr@0` + invalid},
		{name: "misaligned behind the region", rule: "Linux rxe_resp.c: the key is judged before the alignment", script: `
			> FETCH_ADD 0 0 @65532
			< NAK 0 remote access error` + access},
		{name: "FETCH_ADD without the region's right", rule: "IBTA 9.7.5.2: the right to write is not enough", script: `
			> FETCH_ADD 0 0 key=wo add=1
			< NAK 0 remote access error
			mem wo@0` + access},
		{name: "ATOMIC_WRITE needs the right to write only", rule: "Linux rxe_resp.c check_rkey", script: `
			> ATOMIC_WRITE 0 8 len=8 key=wo
			< ONLY 0 0 msn=1
			mem wo@0 0:8`},
		{name: "duplicate after the QP's right was taken", rule: "no right, no answer", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0 add=1
			< AACK 0 found=5 msn=1
			! access read write
			> FETCH_ADD 0 0 @0 add=1
			count drop_no_resource 1`},
		{name: "before the expected PSN", rule: "IBTA 9.7.5.2: nothing is executed out of order", script: `
			> FETCH_ADD 1 0 @0 add=1
			< NAK 0 PSN sequence error
			mem mr@0`},
		{name: "SEND with the PSN of an atomic", rule: "never acknowledge the PSN of an atomic (Linux rxe_comp.c)", script: `
			! word mr@0 5
			> FETCH_ADD 0 0 @0
			< AACK 0 found=5 msn=1
			> SEND_ONLY 0 4 ack
			count drop_duplicate 1`},
		{name: "duplicate WRITE before an atomic", rule: "Linux hw/hfi1/rc.c: the ACK stops before the atomic, whose answer may be lost too", script: `
			! word mr@0 5
			> RDMA_WRITE_ONLY 0 4 @64
			> FETCH_ADD 1 0 @0
			> RDMA_WRITE_ONLY 2 4 @64 ack
			< AACK 1 found=5 msn=2
			< ACK 2 msn=3
			> RDMA_WRITE_ONLY 0 4 @64
			< ACK 0 msn=1`},
	})
}

func TestResponderFlush(t *testing.T) {
	const (
		invalid = `
			event invalid request local work queue error
			count resp_remote_invalid_request 1
			state ERR`
		access = `
			event local access violation work queue error
			count resp_remote_access_errors 1
			state ERR`
	)
	runTalks(t, []rspTalk{
		{name: "global", rule: "IBTA A19: answered by a READ response without payload; WRITEs are visible anyway", script: `
			> RDMA_WRITE_ONLY 0 8 @16
			> FLUSH 1 0 len=8 @16 global
			< ONLY 1 0 msn=2
			mem mr@16 0:8`},
		{name: "persistent", rule: "IBTA A19: exactly the range is made persistent before the answer", script: `
			> FLUSH 0 0 len=100 @16 persistent
			< ONLY 0 0 msn=1
			sync mr@16 100`},
		{name: "both", rule: "IBTA A19: placement types may be combined", script: `
			> FLUSH 0 0 len=100 @16 persistent global
			< ONLY 0 0 msn=1
			sync mr@16 100`},
		{name: "whole region", rule: "IBTA A19: at this level address and length mean nothing", script: `
			> FLUSH 0 0 len=4294967295 va=1 persistent level=1
			< ONLY 0 0 msn=1
			sync mr@0 65536`},
		{name: "of nothing", rule: "an empty range needs no key (IBTA C9-88)", script: `
			> FLUSH 0 0 len=0 persistent key=bad
			< ONLY 0 0 msn=1`},
		{name: "in pieces", rule: "the engine must not stand still: a piece per turn, then the answer", script: `
			! big
			> FLUSH 0 0 len=2500000 @8 persistent key=big
			! hold
			! data 1
			sync big@8 1048576
			! hold
			! data 1
			sync big@1048584 1048576
			! hold
			! data 1
			< ONLY 0 0 msn=1
			sync big@2097160 402848`},
		{name: "in PSN order", rule: "IBTA 9.7.5.1: behind READs before it, before READs after it; no ACK passes it", script: `
			> RDMA_READ_REQUEST 0 300 @0
			> FLUSH 2 0 len=1 @8 persistent
			> RDMA_WRITE_ONLY 3 4 @1024 ack
			> RDMA_READ_REQUEST 4 4 @512
			! hold
			! control
			! data 100000
			! control
			< FIRST 0 256 msn=1 @0
			< LAST 1 44 msn=1 @256
			< ONLY 2 0 msn=2
			< ONLY 4 4 msn=4 @512
			< ACK 3 msn=3
			sync mr@8 1`},
		{name: "duplicate", rule: "IBTA A19: a FLUSH may be executed again", script: `
			> FLUSH 0 0 len=8 @8 persistent
			> FLUSH 0 0 len=8 @8 persistent
			< ONLY 0 0 msn=1
			sync mr@8 8
			> RDMA_WRITE_ONLY 1 4 ack
			< ACK 1 msn=2
			> FLUSH 0 0 len=8 @8 persistent
			< ONLY 0 0 msn=2
			sync mr@8 8`},
		{name: "duplicate in mid-READ", rule: "IBTA 9.7.5.1: the answer to an older request first; the READ goes on", script: `
			> FLUSH 0 0 len=8 @8 global
			> RDMA_READ_REQUEST 1 600 @0
			! hold
			! data 100
			< ONLY 0 0 msn=1
			< FIRST 1 256 msn=2 @0
			> FLUSH 0 0 len=8 @8 global
			< ONLY 0 0 msn=2
			< MIDDLE 2 256 @256
			< LAST 3 88 msn=2 @512`},
		{name: "late duplicate whose memory has gone", rule: "a duplicate ends no connection", script: `
			> FLUSH 0 0 len=8 persistent
			< ONLY 0 0 msn=1
			sync mr@0 8
			! dereg mr
			> FLUSH 0 0 len=8 persistent
			count drop_duplicate 1
			state RTS`},
		{name: "flood", rule: "what waits is bounded: the rest is as good as lost", script: `
			> FLUSH 0 0 len=1 global
			> FLUSH 1 0 len=1 global
			> FLUSH 2 0 len=1 global
			> FLUSH 3 0 len=1 global
			> FLUSH 4 0 len=1 global
			> FLUSH 5 0 len=1 global
			> FLUSH 6 0 len=1 global
			> FLUSH 7 0 len=1 global
			> FLUSH 8 0 len=1 global
			> FLUSH 9 0 len=1 global
			> FLUSH 10 0 len=1 global
			> FLUSH 11 0 len=1 global
			> FLUSH 12 0 len=1 global
			> FLUSH 13 0 len=1 global
			> FLUSH 14 0 len=1 global
			> FLUSH 15 0 len=1 global
			> FLUSH 16 0 len=1 global
			> FLUSH 17 0 len=1 global
			! hold
			! control
			count drop_no_resource 1
			count out_of_seq_request 1
			! data 10000
			< ONLY 0 0 msn=1
			< ONLY 1 0 msn=2
			< ONLY 2 0 msn=3
			< ONLY 3 0 msn=4
			< ONLY 4 0 msn=5
			< ONLY 5 0 msn=6
			< ONLY 6 0 msn=7
			< ONLY 7 0 msn=8
			< ONLY 8 0 msn=9
			< ONLY 9 0 msn=10
			< ONLY 10 0 msn=11
			< ONLY 11 0 msn=12
			< ONLY 12 0 msn=13
			< ONLY 13 0 msn=14
			< ONLY 14 0 msn=15
			< ONLY 15 0 msn=16
			< NAK 16 PSN sequence error
			state RTS`},
		{name: "no resources", rule: "Linux rxe_resp.c check_resource: FLUSH needs none", attr: func(a *Attr) { a.MaxDestRdAtomic = 0 }, script: `
			> FLUSH 0 0 len=8 global
			< ONLY 0 0 msn=1`},
		{name: "that fails", rule: "IBTA 9.7.5.2: our failure, remote operational error", script: `
			! syncfails
			> FLUSH 0 0 len=8 persistent
			> RDMA_WRITE_ONLY 1 4 ack
			< NAK 0 remote operational error
			sync mr@0 8
			event local work queue catastrophic error
			count resp_remote_op_errors 1
			state ERR`},
		{name: "of nothing known", rule: "IBTA A19: some placement type is needed", script: `
			> FLUSH 0 0 len=8
			< NAK 0 invalid request` + invalid},
		{name: "of an unknown level", rule: "IBTA A19: reserved selectivity level", script: `
			> FLUSH 0 0 len=8 global level=2
			< NAK 0 invalid request` + invalid},
		{name: "persistent without the QP's right", rule: "IBTA A19, 9.7.4.1.4", script: `
			! access read write atomic global
			> FLUSH 0 0 len=8 persistent global
			< NAK 0 invalid request` + invalid},
		{name: "without the region's right", rule: "IBTA A19, 9.7.5.2", script: `
			> FLUSH 0 0 len=8 global key=wo
			< NAK 0 remote access error` + access},
		{name: "persistent without the region's right", rule: "IBTA A19, 9.7.5.2", script: `
			! big
			> FLUSH 0 0 len=8 global persistent key=big
			< NAK 0 remote access error` + access},
		{name: "whole region with a wrong key", rule: "IBTA 9.7.5.2", script: `
			> FLUSH 0 0 global level=1 key=bad
			< NAK 0 remote access error` + access},
		{name: "whole region of another domain", rule: "IBTA 10.2.3, 9.7.5.2", script: `
			> FLUSH 0 0 global level=1 key=pd
			< NAK 0 remote access error` + access},
		{name: "region deregistered before the answer", rule: "IBTA 9.7.5.2", script: `
			> FLUSH 0 0 len=8 persistent
			> RDMA_WRITE_ONLY 1 4 key=wo ack
			! dereg mr
			< NAK 0 remote access error` + access},
	})
}
