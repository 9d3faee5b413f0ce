package roce

import (
	"time"

	"golang.org/x/sys/unix"
)

// yieldThread lets other threads of this processor run, each for its turn (sched_yield(2)).
func yieldThread() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// pauseThread lets them run for a moment, without losing the turn.
func pauseThread() {
	moment := unix.NsecToTimespec(int64(50 * time.Microsecond))
	unix.Nanosleep(&moment, nil) // a signal ends it early, which is fine
}
