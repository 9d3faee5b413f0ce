//go:build linux

package interop

import (
	"strings"
	"testing"
	"time"
)

// cmFailures are connections that do not come about, or end before their time.
func (s *session) cmFailures(t *testing.T, bin binaries) {
	roce := func(args ...string) []string { return append([]string{bin.roce}, args...) }
	for _, f := range []struct {
		name string
		full bool
		run  func(c *testCase)
	}{
		{"rxe refuses us: nobody listens", false, func(c *testCase) {
			c.contains(c.outcome("client", c.begin(s.us, roce("ping", "-c", "-a", s.rxe.addr4, "-p", "9999")...), 1), "nobody listens on this port")
		}},
		{"we refuse rxe: nobody listens", false, func(c *testCase) {
			c.begin(s.us, roce("ping", "-s", "-a", s.us.addr6)...) // until it is there, nobody answers at all
			c.contains(c.outcome("client", c.begin(s.rxe, "rping", "-c", "-a", s.us.addr6, "-p", "9999"), -1), "RDMA_CM_EVENT_REJECTED, error 8")
		}},
		{"rxe's program rejects us", true, func(c *testCase) {
			server := c.begin(s.rxe, "ucmatose", "-b", s.rxe.addr4, "-c", "1", "-C", "1000")
			client := c.knock(server, s.us, roce("cm", "-s", s.rxe.addr4, "-c", "2", "-C", "1000"))
			c.contains(c.outcome("client", client, 1), "the program there rejects the connection")
		}},
		{"our program rejects rxe", true, func(c *testCase) {
			server := c.begin(s.us, roce("ping", "-s", "-v", "-a", s.us.addr4)...)
			c.knock(server, s.rxe, []string{"rping", "-c", "-a", s.us.addr4})
			c.says(server, "server ping data: rdma-ping-5")
			c.contains(c.outcome("client", c.begin(s.rxe, "rping", "-c", "-a", s.us.addr4), -1), "RDMA_CM_EVENT_REJECTED, error 28")
		}},
		{"a host without RoCE does not answer us", false, func(c *testCase) {
			began := time.Now()
			c.contains(c.outcome("client", c.begin(s.us, roce("ping", "-c", "-a", "10.77.0.99", "--timeout", "1s")...), 1), "10.77.0.99")
			if took := time.Since(began); took > 20*time.Second {
				c.Errorf("it took %v", took)
			}
		}},
		{"rxe's client is killed in the middle", false, func(c *testCase) {
			server := c.begin(s.us, roce("ping", "-s", "-v", "-a", s.us.addr6)...)
			client := c.knock(server, s.rxe, []string{"rping", "-c", "-a", s.us.addr6})
			c.says(server, "server ping data: rdma-ping-5")
			client.Kill()
			// Its kernel disconnects, and deregisters its memory. What we ask for in between is
			// refused: a READ or WRITE of that memory (NAK of class C), or a SEND whose receive
			// request names it (class A, IBTA 9.9.3; rxe_responder does both).
			if exit, err := server.Wait(programTimeout); err == nil && exit == 0 {
				c.outcome("server", server, 0)
				return
			}
			if out := c.outcome("server", server, 1); !strings.Contains(out, "a request failed: remote operation error") {
				c.contains(out, "a request failed: remote access error")
			}
		}},
		{"rxe's server is killed in the middle", false, func(c *testCase) {
			server := c.begin(s.rxe, "rping", "-s", "-a", s.rxe.addr4)
			client := c.knock(server, s.us, roce("ping", "-c", "-v", "-a", s.rxe.addr4))
			c.says(client, "ping data: rdma-ping-5")
			server.Kill()
			c.contains(c.outcome("client", client, 1), "the other side has disconnected")
		}},
	} {
		if s.mode == full || !f.full {
			s.run(t, "cm", f.name, f.run)
		}
	}
}

// contains fails the case unless a program has said something.
func (c *testCase) contains(out, want string) {
	c.Helper()
	if !strings.Contains(out, want) {
		c.Errorf("no %q in\n%s", want, out)
	}
}
