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

// pingpongCase is one run of ibv_rc_pingpong, or another of its family, in the guest against ours.
type pingpongCase struct {
	srqQPs   int    // ibv_srq_pingpong with so many queue pairs; 0: another
	service  string // uc or ud: ibv_uc_pingpong, ibv_ud_pingpong; empty: ibv_rc_pingpong
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
	if p.service != "" && p.size <= 4096 {
		return 100
	}
	if p.size <= 4096 {
		return 1000
	}
	return max(20, 5*p.srqQPs)
}

// transport is what the programs call it.
func (p pingpongCase) transport() string {
	if p.srqQPs > 0 {
		return "srq"
	}
	if p.service != "" {
		return p.service
	}
	return "rc"
}

func (p pingpongCase) name() string {
	role := "rxe serves"
	if p.weServe {
		role = "we serve"
	}
	if p.srqQPs > 0 {
		role = fmt.Sprintf("srq %d queue pairs, %s", p.srqQPs, role)
	}
	if p.service == "ud" {
		return fmt.Sprintf("ud, %s %s size %d", role, p.family, p.size)
	}
	if p.service != "" {
		role = p.service + ", " + role
	}
	return fmt.Sprintf("%s %s mtu %d size %d", role, p.family, p.mtu, p.size)
}

// flags are those that ibv_rc_pingpong, ibv_srq_pingpong and roce pingpong share.
func (p pingpongCase) flags(port int) []string {
	f := []string{"-p", fmt.Sprint(port), "-s", fmt.Sprint(p.size), "-n", fmt.Sprint(p.iters())}
	if p.service != "ud" {
		f = append(f, "-m", fmt.Sprint(p.mtu))
	}
	if p.srqQPs > 0 {
		f = append(f, "-q", fmt.Sprint(p.srqQPs))
	}
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
	for _, serve := range []bool{true, false} {
		for _, family := range pingpongFamilies {
			for _, size := range pingpongSizes[:3] { // a megabyte in one burst overruns the tap, and UC does not repeat it
				for _, mtu := range pingpongMTUs {
					all = append(all, pingpongCase{service: "uc", weServe: serve, family: family, mtu: mtu, size: size})
				}
			}
			for _, size := range []int{0, 1, 2048, 4096} {
				all = append(all, pingpongCase{service: "ud", weServe: serve, family: family, size: size})
			}
			for _, qps := range []int{1, 16, 256} {
				for _, size := range []int{1, 65537} {
					all = append(all, pingpongCase{srqQPs: qps, weServe: serve, family: family, mtu: 1024, size: size})
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
	{service: "uc", weServe: true, family: ipv4, mtu: 1024, size: 4096, validate: true},
	{service: "uc", weServe: false, family: ipv6, mtu: 4096, size: 65537, events: true},
	{service: "ud", weServe: true, family: ipv6, size: 4096},
	{service: "ud", weServe: false, family: ipv4, size: 1, events: true},
	{srqQPs: 16, weServe: true, family: ipv4, mtu: 1024, size: 4096},
	{srqQPs: 5, weServe: false, family: ipv6, mtu: 4096, size: 65537, events: true},
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
				s.run(t, "pingpong", name, func(c *testCase) { c.play(p) })
			}
		}
	})
}

// stall is how long a guest must have been deaf to excuse that the other side gave up: with the timeouts of ibv_rc_pingpong, 67 ms and 7
// retries, that happens after 0.54 s, and a busy machine can hold up a guest for longer.
const stall = 400 * time.Millisecond

// match is a case with a program on each side; the two find each other over TCP or rdma_cm.
type match interface {
	// program is what plays on rxe's side.
	program() string
	// server returns whether this stack is the server.
	server() bool
	// meets returns where the client goes to a server, and whether rdma_cm takes it there.
	meets(server *side) (at string, cm bool)
	// argv is the command line of a side; at is empty for the server, its address for the client.
	argv(s *side, port int, at string) ([]string, error)
	// report looks at what a side has printed.
	report(s *side, server bool, out string) error
}

// play runs the case, and once more if a retry limit was reached while the guest did not even answer its agent's heartbeat.
func (c *testCase) play(m match) {
	c.use(m.program(), !m.server())
	for try := 1; ; try++ {
		beat := c.s.guest.StartHeartbeat(50 * time.Millisecond)
		problems := strings.Join(c.playOnce(m), "\n")
		longest := beat.Stop()
		switch {
		case problems == "":
			return
		case try == 1 && longest > stall && retriesEnded.MatchString(problems):
			c.note = fmt.Sprintf("run twice: the guest stood still for %.1f s", longest.Seconds())
			c.Logf("%s\n%s", c.note, problems)
		default:
			c.Fatalf("%s\n(longest answer to a heartbeat: %v)", problems, longest)
		}
	}
}

// retriesEnded is how programs say that a retry limit was reached: status 12, IBV_WC_RETRY_EXC_ERR.
var retriesEnded = regexp.MustCompile(`(?i)transport retry counter exceeded|failed status 12\b`)

// playOnce returns what went wrong.
func (c *testCase) playOnce(m match) (problems []string) {
	c.s.port++
	server, client := c.s.us, c.s.rxe
	if !m.server() {
		server, client = client, server
	}
	sp := c.start(server, m, "")
	defer sp.Kill()
	at, cm := m.meets(server)
	var cp program
	if cm {
		cp = c.knock(sp, client, c.argv(client, m, at))
	} else if err := sp.WaitPort(c.s.port, 30*time.Second); err != nil {
		return []string{fmt.Sprintf("server (%s): %v", server.name, err)}
	} else {
		cp = c.start(client, m, at)
	}
	defer cp.Kill()
	select {
	case <-sp.Done():
	case <-cp.Done():
	case <-time.After(pingpongTimeout):
	}
	// Once one has ended, the other has nothing to wait for.
	for _, e := range []struct {
		role string
		side *side
		prog program
	}{{"client", client, cp}, {"server", server, sp}} {
		exit, err := e.prog.Wait(afterFirst)
		out := e.prog.Stdout() + e.prog.Stderr()
		c.keep(e.role+".txt", out)
		if err == nil && exit != 0 {
			err = fmt.Errorf("exit status %d", exit)
		}
		if err == nil {
			err = m.report(e.side, e.side == server, e.prog.Stdout())
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s (%s): %v\n%s", e.role, e.side.name, err, out))
		}
	}
	return problems
}

// pingpongTimeout bounds the run until one side has ended, afterFirst the rest: software emulation needs up to 20 s in all.
const (
	pingpongTimeout = 120 * time.Second
	afterFirst      = 10 * time.Second
)

func (c *testCase) start(s *side, m match, server string) program {
	c.Helper()
	return c.begin(s, c.argv(s, m, server)...)
}

func (c *testCase) argv(s *side, m match, server string) []string {
	c.Helper()
	argv, err := m.argv(s, c.s.port, server)
	if err != nil {
		c.Fatal(err)
	}
	return argv
}

func (p pingpongCase) program() string { return "ibv_" + p.transport() + "_pingpong" }
func (p pingpongCase) server() bool    { return p.weServe }

// meets: the TCP exchange is always IPv4; the GIDs in it say which family carries the RoCE packets.
func (p pingpongCase) meets(server *side) (string, bool) { return server.addr4, false }

func (p pingpongCase) argv(s *side, port int, at string) ([]string, error) {
	return s.pingpong(p, port, at)
}

// report looks for all bytes in both directions and all iterations.
func (p pingpongCase) report(s *side, _ bool, out string) error {
	bytes := 2 * p.size * p.iters()
	if s.rxe {
		for _, want := range []string{fmt.Sprintf("%d bytes in ", bytes), fmt.Sprintf("%d iters in ", p.iters())} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("does not report %q", want)
			}
		}
		return nil
	}
	var r struct{ Bytes, Iters int }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("the report is not JSON: %w", err)
	}
	if r.Bytes != bytes || r.Iters != p.iters() {
		return fmt.Errorf("reports %d bytes and %d iterations, want %d and %d", r.Bytes, r.Iters, bytes, p.iters())
	}
	return nil
}
