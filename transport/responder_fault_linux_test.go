package transport

import (
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/goroce/goroce/mem"
)

// TestResponderFault lets memory that was registered vanish, as memory of a C
// program may: the connection ends, nothing else. Our own failure is a remote
// operational error (IBTA 9.7.5.2.6).
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
