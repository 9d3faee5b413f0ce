package roce_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestMemoryFault: memory that was given by a mapping and is gone is a protection
// error of the requests that touch it, whichever side and whoever runs the engine;
// the process goes on.
func TestMemoryFault(t *testing.T) {
	hole := func(e *rocetest.Endpoint) *roce.MR {
		t.Helper()
		m, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		mr, err := e.PD.RegisterMR(m, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead)
		must(t, err)
		must(t, unix.Mprotect(m, unix.PROT_NONE))
		t.Cleanup(func() { unix.Munmap(m) })
		return mr
	}
	for _, c := range []struct {
		name   string
		op     roce.WROpcode
		ours   bool // the hole is in our memory
		status roce.WCStatus
	}{
		{"WRITE from a hole", roce.WRWrite, true, roce.WCLocProtErr},
		{"READ into a hole", roce.WRRead, true, roce.WCLocProtErr},
		{"WRITE into a hole", roce.WRWrite, false, roce.WCRemOpErr},
		{"READ from a hole", roce.WRRead, false, roce.WCRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rocetest.Pair(t)
			local, remote := a.MR, b.MR
			if c.ours {
				local = hole(a)
			} else {
				remote = hole(b)
			}
			must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: c.op, Flags: roce.Signaled,
				SGE: []roce.SGE{local.SGE(0, 1<<16)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}))
			want(t, a.Next(t), 1, 0, c.status)
		})
	}
}
