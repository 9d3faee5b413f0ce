package transport

import (
	"fmt"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/goroce/goroce/mem"
)

// TestResponderFault lets memory that was registered vanish, as memory of a C
// program may: the connection ends, nothing else. Our own failure is a remote
// operational error (IBTA 9.7.5.2).
func TestResponderFault(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	const (
		fatal = `
			event local work queue catastrophic error
			count resp_remote_op_errors 1
			state ERR`
		gone = "key=gone va=1879048192"
	)
	for _, script := range []string{
		"> RDMA_WRITE_ONLY 0 4 " + gone + "\n< NAK 0 remote operational error" + fatal,
		"> RDMA_READ_REQUEST 0 4 " + gone + "\n< NAK 0 remote operational error" + fatal,
		"! recvgone\n> SEND_ONLY 0 4\n< NAK 0 remote operational error\nwc RECV 1 local protection error\nstate ERR",
	} {
		page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		w := newRspWorld(t, rspAttr())
		r, err := w.tab.Register(page, 1, mem.LocalWrite|mem.RemoteRead|mem.RemoteWrite, rspIOVA)
		if err != nil {
			t.Fatal(err)
		}
		w.alias["gone"] = r.Key()
		w.run(script)
		if err := syscall.Munmap(page); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResponderHugeRead reads 2^31 bytes, the longest message, at the smallest
// MTU: 2^23 packets, half of the PSN space. Its responses are a cursor: here
// only some of them are taken, from the start and, repeated, from the end.
func TestResponderHugeRead(t *testing.T) {
	w := newRspWorld(t, rspAttr())
	// A mapping that nobody touches costs only address space.
	big, err := syscall.Mmap(-1, 0, maxMessage, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(big)
	r, err := w.tab.Register(big, 1, mem.RemoteRead, rspIOVA)
	if err != nil {
		t.Fatal(err)
	}
	w.alias["big"] = r.Key()
	const last = 1<<23 - 1
	w.run(fmt.Sprintf(`
		> RDMA_READ_REQUEST 0 0 len=2147483648 key=big
		> RDMA_WRITE_ONLY %d 4 ack
		! hold
		! data 500
		< FIRST 0 256 msn=1 @-1
		< MIDDLE 1 256 @-1
		! hold
		! control
		nothing
		> RDMA_READ_REQUEST %d 0 len=300 va=%d key=big
		! hold
		nothing
		count drop_duplicate 1
		> RDMA_READ_REQUEST %d 0 len=512 va=%d key=big
		< FIRST %d 256 msn=1 @-1
		< LAST %d 256 msn=1 @-1
		< ACK -8388608 msn=2`, last+1, last-1, rspIOVA+maxMessage-300, last-1, rspIOVA+maxMessage-512, last-1, last))
}
