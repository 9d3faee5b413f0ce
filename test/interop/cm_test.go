//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// cmCase is one run of a program of librdmacm in the guest against its counterpart here.
type cmCase struct {
	name   string
	full   bool     // only in the whole product
	server []string // arguments of each side besides its program and addresses
	client []string
	theirs string // the program of librdmacm
	ours   string // the counterpart
	lasts  bool   // the server of librdmacm does not end
	// theirAt and ourAt are the flags before the address to listen at, and before the one to connect to.
	theirAt, ourAt [2]string
	// check looks at our report.
	check func(out string, server bool) error
}

// pings checks the report of `roce ping`.
func pings(n, size int) func(string, bool) error {
	return func(out string, _ bool) error {
		var r struct {
			Pings int
			Bytes int
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return fmt.Errorf("the report is not JSON: %w", err)
		}
		if r.Pings != n {
			return fmt.Errorf("reports %d pings, want %d", r.Pings, n)
		}
		return nil
	}
}

// rpingCase pings n times with the given size; the client compares what comes back.
func rpingCase(n, size int, full bool) cmCase {
	return cmCase{
		name: fmt.Sprintf("rping, %d pings of %d bytes", n, size), full: full,
		server: []string{"-s", "-S", fmt.Sprint(size)}, client: []string{"-c", "-S", fmt.Sprint(size), "-C", fmt.Sprint(n), "-V"},
		theirs: "rping", ours: "ping --json", theirAt: [2]string{"-a", "-a"}, ourAt: [2]string{"-a", "-a"}, check: pings(n, size),
	}
}

// conns checks the report of `roce cm`.
func conns(n, messages int) func(string, bool) error {
	return func(out string, _ bool) error {
		var r struct{ Connections, Messages int }
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return fmt.Errorf("the report is not JSON: %w", err)
		}
		if r.Connections != n || r.Messages != messages {
			return fmt.Errorf("reports %d connections and %d messages, want %d and %d", r.Connections, r.Messages, n, messages)
		}
		return nil
	}
}

// cmatoseCase connects n times, by ucmatose or, as datagrams, udaddy.
func cmatoseCase(theirs, space string, n, messages, size int, full bool) cmCase {
	args := []string{"-c", fmt.Sprint(n), "-C", fmt.Sprint(messages), "-S", fmt.Sprint(size), "-P", space}
	return cmCase{
		name: fmt.Sprintf("%s, port space %s, %d connections, %d messages of %d bytes", theirs, space, n, messages, size), full: full,
		server: args, client: args, theirs: theirs, ours: "cm --json", theirAt: bindServer, ourAt: bindServer,
		check: conns(n, 2*n*messages),
	}
}

// bindServer are the flags of ucmatose and its relatives.
var bindServer = [2]string{"-b", "-s"}

var cmCases = []cmCase{
	rpingCase(20, 1000, false),
	cmatoseCase("ucmatose", "tcp", 5, 10, 100, false),
	cmatoseCase("udaddy", "udp", 3, 10, 100, false),
	{
		name: "rdma_client and rdma_server", server: []string{"-p", "7471"}, client: []string{"-p", "7471"},
		theirs: "rdma_", ours: "cm --json -F -C 1 -S 16", theirAt: [2]string{"-s", "-s"}, ourAt: bindServer, check: conns(1, 2),
	},
	{
		name: "cmtime, 20 connections", server: []string{"-c", "20"}, client: []string{"-c", "20"},
		theirs: "cmtime", ours: "cm --json -C 0", theirAt: bindServer, ourAt: bindServer, check: conns(20, 0), lasts: true,
	},
	rpingCase(1000, 64, true),
	rpingCase(100, 65535, true),
	cmatoseCase("ucmatose", "ib", 2, 1, 1, true),
	cmatoseCase("ucmatose", "tcp", 100, 50, 4096, true),
	cmatoseCase("udaddy", "udp", 5, 10, 4096, true),
}

// cm runs librdmacm's programs against ours in both roles.
func (s *session) cm(t *testing.T, bin binaries) {
	if s.mode == reference {
		return
	}
	s.closePeers() // ours would have the port
	t.Run("cm", func(t *testing.T) {
		for i, m := range cmCases {
			for _, weServe := range []bool{true, false} {
				for _, family := range pingpongFamilies {
					if s.mode == subset && (m.full || (family == ipv6) != (weServe == (i%2 == 0))) {
						continue
					}
					role := "rxe serves"
					if weServe {
						role = "we serve"
					}
					s.run(t, "cm", fmt.Sprintf("%s, %s %s", m.name, role, family), func(c *testCase) { c.meet(m, bin, weServe, family) })
				}
			}
		}
		s.cmFailures(t, bin)
	})
}

// argv is the command line of a side.
func (m *cmCase) argv(bin binaries, ours, server bool, at string) []string {
	argv, flags := []string{m.theirs}, m.theirAt
	if strings.HasSuffix(m.theirs, "_") { // a program for each role
		argv[0] += map[bool]string{true: "server", false: "client"}[server]
	}
	if ours {
		argv, flags = append([]string{bin.roce}, strings.Fields(m.ours)...), m.ourAt
	}
	if server {
		return append(append(argv, m.server...), flags[0], at)
	}
	return append(append(argv, m.client...), flags[1], at)
}

// meet runs a server, then a client; both again, if the server did not listen yet: nothing else tells.
func (c *testCase) meet(m cmCase, bin binaries, weServe bool, family string) {
	c.use(m.theirs, !weServe)
	server, client := c.s.us, c.s.rxe
	if !weServe {
		server, client = client, server
	}
	at := server.addr(family)
	for _, head := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
		sp := c.begin(server, m.argv(bin, weServe, true, at)...)
		time.Sleep(head)
		cp := c.begin(client, m.argv(bin, !weServe, false, at)...)
		if exit, err := cp.Wait(programTimeout); err == nil && exit != 0 && refused.MatchString(cp.Stdout()+cp.Stderr()) {
			sp.Kill()
			continue
		}
		c.outcome("client", cp, 0)
		if m.lasts && !weServe {
			sp.Kill()
		} else {
			c.outcome("server", sp, 0)
		}
		ours := sp
		if !weServe {
			ours = cp
		}
		if err := m.check(ours.Stdout(), weServe); err != nil {
			c.Errorf("%v\n%s", err, ours.Stdout())
		}
		return
	}
	c.Fatal("the server never listens")
}

// programTimeout bounds a program: with the timeouts of Linux a peer that is gone is noticed after a minute.
const programTimeout = 120 * time.Second

// outcome waits for the end of a program, which has the exit status want; -1 means any but 0. It returns what the program said.
func (c *testCase) outcome(role string, p program, want int) string {
	c.Helper()
	exit, err := p.Wait(programTimeout)
	out := p.Stdout() + p.Stderr()
	c.keep(role+".txt", out)
	if err != nil || exit != want && (want >= 0 || exit == 0) {
		c.Errorf("%s: exit status %d (%v)\n%s", role, exit, err, out)
	}
	return out
}

// refused is what clients say when nobody listens yet.
var refused = regexp.MustCompile(`nobody listens on this port|RDMA_CM_EVENT_REJECTED|Unexpected CM event bl blka 8\b`)

// knock starts a client, again until the server listens, which nothing else tells, and waits until our side prints something or the client
// ends.
func (c *testCase) knock(server program, side *side, argv []string) program {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		p := c.begin(side, argv...)
		for running := true; running && time.Now().Before(end); {
			select {
			case <-p.Done():
				running = false
			case <-server.Done():
				return p
			case <-time.After(10 * time.Millisecond):
				if side.rxe && server.Stdout() != "" || !side.rxe && p.Stdout() != "" { // one of ours
					return p
				}
			}
		}
		if !refused.MatchString(p.Stdout()+p.Stderr()) || time.Now().After(end) {
			return p
		}
	}
}
