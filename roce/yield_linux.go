package roce

import "golang.org/x/sys/unix"

// yieldThread lets other threads of this processor run (sched_yield(2)).
func yieldThread() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
