//go:build linux

package interop

import (
	"os"
	"strings"
	"testing"
	"time"
)

// vlan runs this stack on VLAN interfaces, in the guest because not every host's kernel has them.
func (s *session) vlan(t *testing.T, bin binaries) {
	if s.mode == reference {
		return
	}
	s.run(t, "beside", "our backend on VLAN interfaces of the guest", func(c *testCase) {
		test, err := os.ReadFile(bin.netio)
		if err != nil {
			c.Fatal(err)
		}
		const path = "/tmp/netio.test"
		if err := c.s.guest.Put(path, 0o755, test); err != nil {
			c.Fatal(err)
		}
		prog, err := c.s.rxe.start(path, "-test.v", "-test.run", "^TestVLAN$")
		if err != nil {
			c.Fatal(err)
		}
		defer prog.Kill()
		exit, err := prog.Wait(60 * time.Second)
		if err != nil || exit != 0 || !strings.Contains(prog.Stdout(), "--- PASS: TestVLAN") {
			c.Errorf("exit status %d (%v):\n%s%s", exit, err, prog.Stdout(), prog.Stderr())
		}
	})
}

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
		s.vlan(t, bin)
	})
}
