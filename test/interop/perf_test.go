//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// perfCase is one run of a program of perftest in the guest against `roce perf`.
type perfCase struct {
	test    string
	weServe bool
	family  string
	size    int
	cmpSwap bool   // atomics
	service string // RC (or empty), UC, UD
	rdmaCM  bool   // connect by rdma_cm
	qps     int    // 0 for latency tests, which have one
	newer   bool   // perftest of the guest's newer Debian
	more    string // further flags of both sides
}

var (
	perfTests = []string{"send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"}
	perfSizes = []int{2, 4096, 65537}
)

func (p perfCase) latency() bool { return strings.HasSuffix(p.test, "_lat") }
func (p perfCase) atomic() bool  { return strings.HasPrefix(p.test, "atomic_") }
func (p perfCase) fetches() bool { return strings.HasPrefix(p.test, "read_") || p.atomic() }

func (p perfCase) sends() bool { return strings.HasPrefix(p.test, "send_") }

// pingPongs reports whether both sides send in turn.
func (p perfCase) pingPongs() bool { return p.latency() && !p.fetches() }

// verifies says whether the data can be verified: what we get from a server of perftest.
func (p perfCase) verifies() bool { return p.fetches() && !p.weServe && !p.has("-b") }

// has reports whether a flag is among the further ones.
func (p perfCase) has(flag string) bool { return slices.Contains(strings.Fields(p.more), flag) }

// sizes is how many sizes are measured: with -a 2 to 2^23, or to what a datagram has.
func (p perfCase) sizes() int {
	switch {
	case !p.has("-a"):
		return 1
	case p.service == "UD":
		return 12
	}
	return 23
}

func (p perfCase) iters() int {
	switch {
	case p.has("-a"):
		return 5
	case p.size > 4096:
		return 20
	case p.latency():
		return 50
	}
	return 100
}

func (p perfCase) name() string {
	role := "rxe serves"
	if p.weServe {
		role = "we serve"
	}
	name := fmt.Sprintf("%s %s %s size %d", p.test, role, p.family, p.size)
	if p.cmpSwap {
		name += " CmpSwap"
	}
	if p.service != "" {
		name += " " + p.service
	}
	if p.rdmaCM {
		name += " rdma_cm"
	}
	if p.qps > 1 {
		name += fmt.Sprintf(" %d QPs", p.qps)
	}
	if p.more != "" {
		name += " " + p.more
	}
	if p.newer {
		name += " of Debian 13"
	}
	return name
}

// flags are those that perftest and roce perf share.
func (p perfCase) flags(port int) []string {
	f := append([]string{"-p", fmt.Sprint(port), "-u", "16"}, strings.Fields(p.more)...) // 0.27 s: emulation takes its time
	if !p.has("-D") {
		f = append(f, "-n", fmt.Sprint(p.iters()))
	}
	switch {
	case p.cmpSwap:
		f = append(f, "-A", "CMP_AND_SWAP")
	case !p.atomic() && !p.has("-a"):
		f = append(f, "-s", fmt.Sprint(p.size))
	}
	if p.service != "" {
		f = append(f, "-c", p.service)
	}
	if p.rdmaCM {
		f = append(f, "-R")
	}
	if p.qps > 1 {
		f = append(f, "-q", fmt.Sprint(p.qps))
	}
	return f
}

// perfServices are the tests of either version in both roles over each service that they have, with and without rdma_cm, which has no UC.
func perfServices() (all []perfCase) {
	for _, newer := range []bool{false, true} {
		for _, test := range perfTests {
			for _, serve := range []bool{true, false} {
				p := perfCase{test: test, weServe: serve, family: ipv4, size: 1000, newer: newer}
				if p.atomic() {
					p.size = 8
				}
				for _, p.service = range p.services() {
					for _, p.rdmaCM = range []bool{false, true} {
						if !p.rdmaCM || p.service != "UC" {
							all = append(all, p)
						}
					}
				}
			}
		}
	}
	return all
}

// services are those that the test has; empty for RC.
func (p perfCase) services() []string {
	switch {
	case p.sends():
		return []string{"", "UC", "UD"}
	case p.fetches():
		return []string{""}
	}
	return []string{"", "UC"}
}

// perfFull is the product of what else there is.
func perfFull() (all []perfCase) {
	for _, test := range perfTests {
		for _, serve := range []bool{true, false} {
			for _, family := range pingpongFamilies {
				p := perfCase{test: test, weServe: serve, family: family, size: 8}
				if !p.fetches() {
					all = append(all, perfCase{test: test, weServe: serve, family: family, size: 1000, service: "UC"})
				}
				if strings.HasPrefix(test, "send_") {
					all = append(all, perfCase{test: test, weServe: serve, family: family, size: 1000, service: "UD"})
				}
				if p.atomic() {
					all = append(all, p)
					p.cmpSwap = true
					all = append(all, p)
					continue
				}
				for _, p.size = range perfSizes {
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// perfFlags are the tests with one more flag each, as far as they have it, in both roles.
func perfFlags() (all []perfCase) {
	add := func(p perfCase, more ...string) {
		for _, p.more = range more {
			all = append(all, p)
		}
	}
	for _, test := range perfTests {
		for _, serve := range []bool{true, false} {
			p := perfCase{test: test, weServe: serve, family: ipv4, size: 1000}
			if p.atomic() {
				p.size = 8
			}
			add(p, "-D 4") // perftest leaves out 2 seconds at either end unless told otherwise
			if p.latency() {
				add(p, "-H", "-U")
			} else {
				add(p, "-b", "-N", "-Q 7", "-l 10 -t 40", "-t 3") // 25.01 wants full lists
				several := p
				several.qps = 3
				add(several, "-b")
			}
			if p.fetches() {
				add(p, "-o 1", "-e")
			} else {
				short := p
				short.size = 100
				add(short, "-I 100")
			}
			if p.sends() {
				add(p, "-r 17", "-e", "--use-srq")
				ud := p
				ud.service = "UD"
				add(ud, "-a", "-e")
			}
			if p.sends() && !p.latency() {
				ud := p
				ud.service = "UD"
				add(ud, "-b")
			}
			if !p.latency() && p.test != "write_bw" {
				add(p, "-b -e") // its WRITEs have no events
			}
			if !p.atomic() {
				add(p, "-a")
			}
			if !p.atomic() && !p.latency() {
				add(p, "-b -a")
			}
		}
	}
	return all
}

// perfSubset has each test in both roles, and each value of the other parameters.
var perfSubset = []perfCase{
	{test: "send_bw", weServe: true, family: ipv4, size: 65537, qps: 2},
	{test: "send_bw", weServe: false, family: ipv6, size: 4096, more: "-b -e"},
	{test: "send_lat", weServe: true, family: ipv6, size: 2},
	{test: "send_lat", weServe: false, family: ipv4, size: 4096},
	{test: "write_bw", weServe: true, family: ipv6, size: 4096, more: "-b"},
	{test: "write_bw", weServe: false, family: ipv4, size: 65537, qps: 2},
	{test: "write_lat", weServe: true, family: ipv4, size: 2},
	{test: "write_lat", weServe: false, family: ipv6, size: 4096},
	{test: "read_bw", weServe: true, family: ipv4, size: 65537},
	{test: "read_bw", weServe: false, family: ipv6, size: 4096, qps: 2},
	{test: "read_lat", weServe: true, family: ipv6, size: 4096},
	{test: "read_lat", weServe: false, family: ipv4, size: 2},
	{test: "atomic_bw", weServe: true, family: ipv6, size: 8},
	{test: "atomic_bw", weServe: false, family: ipv4, size: 8, cmpSwap: true, qps: 2},
	{test: "atomic_lat", weServe: true, family: ipv4, size: 8, cmpSwap: true},
	{test: "atomic_lat", weServe: false, family: ipv6, size: 8},
	{test: "send_bw", weServe: true, family: ipv4, size: 1000, service: "UC"},
	{test: "write_lat", weServe: false, family: ipv6, size: 1000, service: "UC"},
	{test: "send_bw", weServe: false, family: ipv6, size: 1000, service: "UD"},
	{test: "send_lat", weServe: true, family: ipv4, size: 1000, service: "UD"},
	{test: "send_bw", weServe: true, family: ipv4, size: 4096, rdmaCM: true, qps: 2},
	{test: "read_bw", weServe: false, family: ipv4, size: 4096, rdmaCM: true, qps: 2},
}

// perfNewer are cases for perftest 25.01 only: 4.5 has rdma_cm over IPv4 only.
var perfNewer = []perfCase{
	{test: "write_lat", weServe: true, family: ipv6, size: 2, rdmaCM: true, newer: true},
	{test: "send_lat", weServe: false, family: ipv6, size: 65537, rdmaCM: true, newer: true},
}

func (s *session) perf(t *testing.T) {
	cases := perfSubset
	switch s.mode {
	case perftests:
		cases = perfServices()
	case full:
		// What others measure with is either version, with all flags.
		both := slices.Concat(perfSubset, perfFlags())
		cases = slices.Concat(perfServices(), perfFull(), both, perfNewer)
		for _, p := range both {
			p.newer = true
			cases = append(cases, p)
		}
	}
	t.Run("perf", func(t *testing.T) {
		seen := map[string]bool{}
		for _, p := range cases {
			if name := p.name(); !seen[name] {
				seen[name] = true
				s.run(t, "perf", name, func(c *testCase) { c.play(p) })
			}
		}
	})
}

func (p perfCase) program() string {
	version := "4.5"
	if p.newer {
		version = "25.01"
	}
	return "ib_" + p.test + " of perftest " + version
}

func (p perfCase) server() bool { return p.weServe }

// meets: over TCP it is always IPv4, as with pingpong.
func (p perfCase) meets(server *side) (string, bool) {
	if p.rdmaCM {
		return server.addr(p.family), true
	}
	return server.addr4, false
}

func (p perfCase) argv(s *side, port int, at string) ([]string, error) { return s.perf(p, port, at) }

// rows is how many sizes a side reports. The server of a one-sided test has nothing to tell, or what the client has told it of the last size.
func (p perfCase) rows(server bool) int {
	switch {
	case server && p.latency() && p.fetches():
		return 0
	case server && !p.has("-b") && !p.pingPongs() && !p.sends():
		return 1
	}
	return p.sizes()
}

// report looks for a row with the size and the number of messages.
func (p perfCase) report(s *side, server bool, out string) error {
	want := p.rows(server)
	messages := p.iters() * max(1, p.qps)
	if s.rxe {
		size, count := strconv.Itoa(p.size), strconv.Itoa(messages)
		if p.has("-a") {
			size = `\d+`
		}
		if p.has("-D") {
			count = `[1-9]\d*`
		}
		row := regexp.MustCompile(`(?m)^ ` + size + ` +` + count + ` +\S+ +\S`) // perhaps "inf": it may fail to find the guest's clock rate
		if got := len(row.FindAllString(out, -1)); got != want {
			return fmt.Errorf("%d rows with %s bytes and %s iterations, want %d", got, size, count, want)
		}
		return nil
	}
	var r struct {
		Results  []struct{ Size, Iters int }
		Verified struct{ Messages int }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("the report is not JSON: %w", err)
	}
	if len(r.Results) != want {
		return fmt.Errorf("reports %+v, want %d", r.Results, want)
	}
	verified := 0
	for i, got := range r.Results {
		verified += got.Iters
		if !p.has("-a") && got.Size != p.size || !p.has("-D") && got.Iters != messages || got.Iters == 0 {
			return fmt.Errorf("reports %+v as number %d, want %d bytes and %d messages", got, i, p.size, messages)
		}
	}
	if p.verifies() && r.Verified.Messages != verified {
		return fmt.Errorf("verified %d messages of %d", r.Verified.Messages, verified)
	}
	return nil
}
