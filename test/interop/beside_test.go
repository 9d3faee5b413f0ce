//go:build linux

package interop

import (
	"os"
	"strings"
	"testing"
	"time"
)

// beside runs this stack in the guest, where the rxe module has port 4791: the error says so.
func (s *session) beside(t *testing.T, bin binaries) {
	if s.mode == reference {
		return
	}
	t.Run("beside", func(t *testing.T) {
		s.run(t, "beside", "our program names the module that has the port", func(c *testCase) {
			// The guest sees the host's files, but not what is mounted there: a checkout may lie below such a place.
			roce, err := os.ReadFile(bin.roce)
			if err != nil {
				c.Fatal(err)
			}
			const path = "/tmp/roce"
			if err := c.s.guest.Put(path, 0o755, roce); err != nil {
				c.Fatal(err)
			}
			prog, err := c.s.rxe.start(path, "pingpong", "--addr", c.s.guest.Addr4())
			if err != nil {
				c.Fatal(err)
			}
			defer prog.Kill()
			exit, err := prog.Wait(30 * time.Second)
			if err != nil || exit != 1 {
				c.Errorf("exit status %d (%v), want 1", exit, err)
			}
			if msg := prog.Stderr(); strings.Count(msg, "\n") != 1 || !strings.Contains(msg, "rxe module") || !strings.Contains(msg, "4791") {
				c.Errorf("it says %q, want one line that names the rxe module and port 4791", msg)
			}
		})
	})
}
