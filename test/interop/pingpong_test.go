//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// pingpongCase is one run of ibv_rc_pingpong in the guest against ours.
type pingpongCase struct {
	weServe  bool
	family   string
	mtu      int
	size     int
	events   bool // -e: wait for completion events
	validate bool // -c: look at the received buffer (a weak check, see the verbs cases for a real one)
}

var (
	pingpongFamilies = []string{ipv4, ipv6}
	pingpongMTUs     = []int{256, 1024, 4096}
	pingpongSizes    = []int{1, 4096, 65537, 1 << 20}
)

func (p pingpongCase) iters() int {
	if p.size <= 4096 {
		return 1000
	}
	return 20
}

func (p pingpongCase) name() string {
	role := "rxe serves"
	if p.weServe {
		role = "we serve"
	}
	return fmt.Sprintf("%s %s mtu %d size %d", role, p.family, p.mtu, p.size)
}

// flags are those that ibv_rc_pingpong and roce pingpong share.
func (p pingpongCase) flags(port int) []string {
	f := []string{"-p", fmt.Sprint(port), "-m", fmt.Sprint(p.mtu), "-s", fmt.Sprint(p.size), "-n", fmt.Sprint(p.iters())}
	if p.events {
		f = append(f, "-e")
	}
	if p.validate {
		f = append(f, "-c")
	}
	return f
}

// pingpongFull is the whole product.
func pingpongFull() (all []pingpongCase) {
	for _, serve := range []bool{true, false} {
		for _, family := range pingpongFamilies {
			for _, mtu := range pingpongMTUs {
				for _, size := range pingpongSizes {
					all = append(all, pingpongCase{weServe: serve, family: family, mtu: mtu, size: size})
				}
			}
		}
	}
	return all
}

// pingpongSubset has each value of every parameter, and each size in both roles.
var pingpongSubset = []pingpongCase{
	{weServe: true, family: ipv4, mtu: 1024, size: 1, events: true},
	{weServe: true, family: ipv6, mtu: 4096, size: 4096},
	{weServe: true, family: ipv4, mtu: 256, size: 65537, validate: true},
	{weServe: true, family: ipv6, mtu: 4096, size: 1 << 20},
	{weServe: false, family: ipv6, mtu: 256, size: 1},
	{weServe: false, family: ipv4, mtu: 1024, size: 4096, validate: true},
	{weServe: false, family: ipv6, mtu: 1024, size: 65537, events: true},
	{weServe: false, family: ipv4, mtu: 4096, size: 1 << 20},
}

func (s *session) pingpong(t *testing.T) {
	cases := pingpongSubset
	if s.mode == full {
		cases = append(pingpongFull(), pingpongSubset...)
	}
	t.Run("pingpong", func(t *testing.T) {
		seen := map[string]bool{}
		for _, p := range cases {
			name := p.name()
			if p.events {
				name += " events"
			}
			if p.validate {
				name += " validate"
			}
			if !seen[name] {
				seen[name] = true
				s.run(t, "pingpong", name, func(c *testCase) { c.pingpong(p) })
			}
		}
	})
}

// pingpongTimeout bounds one program; software emulation needs up to 10 s for the largest.
const pingpongTimeout = 120 * time.Second

func (c *testCase) pingpong(p pingpongCase) {
	c.s.port++
	server, client := c.s.us, c.s.rxe
	if !p.weServe {
		server, client = client, server
	}
	sp := c.start(server, p, "")
	defer sp.Kill()
	if err := sp.WaitPort(c.s.port, 30*time.Second); err != nil {
		c.Fatalf("server (%s): %v", server.name, err)
	}
	// The TCP exchange is always IPv4; the GIDs in it say which family carries the RoCE packets.
	cp := c.start(client, p, server.addr4)
	defer cp.Kill()
	c.ended("client", client, cp, p)
	c.ended("server", server, sp, p)
}

func (c *testCase) start(s *side, p pingpongCase, server string) program {
	c.Helper()
	argv, err := s.pingpong(p, c.s.port, server)
	if err != nil {
		c.Fatal(err)
	}
	c.Logf("%s: %s", s.name, strings.Join(argv, " "))
	prog, err := s.start(argv...)
	if err != nil {
		c.Fatalf("%s: %v", s.name, err)
	}
	return prog
}

// ended waits for a program and looks at what it reports: all bytes in both directions, all iterations.
func (c *testCase) ended(role string, s *side, prog program, p pingpongCase) {
	c.Helper()
	exit, err := prog.Wait(pingpongTimeout)
	c.keep(role+".txt", prog.Stdout()+prog.Stderr())
	if err != nil || exit != 0 {
		c.Errorf("%s (%s): exit status %d, %v\n%s%s", role, s.name, exit, err, prog.Stdout(), prog.Stderr())
		return
	}
	if s == c.s.us && c.s.mode != reference {
		c.checkOurReport(role, prog.Stdout(), p)
		return
	}
	for _, want := range []string{fmt.Sprintf("%d bytes in ", 2*p.size*p.iters()), fmt.Sprintf("%d iters in ", p.iters())} {
		if !strings.Contains(prog.Stdout(), want) {
			c.Errorf("%s (%s) does not report %q:\n%s", role, s.name, want, prog.Stdout())
		}
	}
}

// checkOurReport reads the JSON report of roce pingpong.
func (c *testCase) checkOurReport(role, out string, p pingpongCase) {
	c.Helper()
	var report struct {
		Bytes int64 `json:"bytes"`
		Iters int   `json:"iters"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		c.Errorf("%s: the report is not JSON: %v\n%s", role, err, out)
		return
	}
	if want := 2 * int64(p.size) * int64(p.iters()); report.Bytes != want || report.Iters != p.iters() {
		c.Errorf("%s: reports %d bytes and %d iterations, want %d and %d", role, report.Bytes, report.Iters, want, p.iters())
	}
}
