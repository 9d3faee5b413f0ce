//go:build linux

package interop

import (
	"strings"
	"testing"
	"time"
)

// multicast lets mckey of librdmacm and our program send to each other's group. mckey joins it on the host and attaches its queue pair.
func (s *session) multicast(t *testing.T, bin binaries) {
	if s.mode == reference {
		return
	}
	const group = "239.77.1.1"
	start := func(c *testCase, side *side, argv ...string) program {
		c.Helper()
		p, err := side.start(argv...)
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(p.Kill)
		return p
	}
	// says waits for a program's output.
	says := func(c *testCase, p program, text string) {
		c.Helper()
		for end := time.Now().Add(20 * time.Second); !strings.Contains(p.Stdout(), text); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				c.Fatalf("never says %q:\n%s%s", text, p.Stdout(), p.Stderr())
			}
		}
	}
	ends := func(c *testCase, p program) {
		c.Helper()
		if exit, err := p.Wait(40 * time.Second); exit != 0 || err != nil {
			c.Errorf("exit status %d (%v):\n%s%s", exit, err, p.Stdout(), p.Stderr())
		}
	}
	s.closePairs() // ours would have the port
	t.Run("multicast", func(t *testing.T) {
		s.run(t, "multicast", "mckey sends, two of our queue pairs receive", func(c *testCase) {
			us := start(c, s.us, bin.mcast, "-addr", s.us.addr4, "-group", group, "-from", s.rxe.addr4, "-n", "1")
			says(c, us, "joined")
			ends(c, start(c, s.rxe, "mckey", "-m", group, "-b", s.rxe.addr4, "-s", "-C", "1"))
			ends(c, us)
		})
		s.run(t, "multicast", "we send, mckey receives", func(c *testCase) {
			mckey := start(c, s.rxe, "mckey", "-m", group, "-b", s.rxe.addr4)
			start(c, s.us, bin.mcast, "-addr", s.us.addr4, "-group", group, "-n", "4000") // until mckey has what it wants
			ends(c, mckey)
		})
	})
}
