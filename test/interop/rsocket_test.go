//go:build linux

package interop

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rsocketCase is one run of an example program of librdmacm in the guest against ours over package rnet.
type rsocketCase struct {
	program string // rstream, riostream or rcopy
	weServe bool
	family  string
	size    int    // of a transfer
	option  string // -T of the program, besides those that it always has
}

var (
	rsocketSizes  = []int{16, 1000, 100000}
	rsocketWaits  = []string{"blocking", "async"}
	rsocketCount  = map[int]int{16: 100, 1000: 50, 100000: 3} // transfers in a row
	rsocketKinds  = map[string]string{"rstream": "stream", "riostream": "iostream", "rcopy": "copy"}
	rsocketSubset = []rsocketCase{
		{"rstream", true, ipv4, 1000, "blocking"},
		{"rstream", false, ipv6, 100000, "async"},
		{"riostream", true, ipv6, 1000, "blocking"},
		{"riostream", false, ipv4, 16, "blocking"},
		{"rcopy", true, ipv4, 0, ""},
		{"rcopy", false, ipv4, 0, ""},
	}
)

// rsocketFull is the whole product.
func rsocketFull() (all []rsocketCase) {
	for _, program := range []string{"rstream", "riostream", "rcopy"} {
		for _, serve := range []bool{true, false} {
			for _, family := range pingpongFamilies {
				c := rsocketCase{program: program, weServe: serve, family: family}
				if program == "rcopy" {
					if family == ipv4 { // in an IPv6 address it takes a colon for the end
						all = append(all, c)
					}
					continue
				}
				for _, c.size = range rsocketSizes {
					for _, c.option = range rsocketWaits {
						all = append(all, c)
					}
				}
			}
		}
	}
	return all
}

func (p rsocketCase) name() string {
	role := "rxe serves"
	if p.weServe {
		role = "we serve"
	}
	name := fmt.Sprintf("%s %s %s", p.program, role, p.family)
	if p.size > 0 {
		name += fmt.Sprintf(" size %d %s", p.size, p.option)
	}
	return name
}

func (s *session) rsockets(t *testing.T, bin binaries) {
	if s.mode == reference {
		return
	}
	cases := rsocketSubset
	if s.mode == full {
		cases = rsocketFull()
	}
	s.closePeers() // ours would have the port
	t.Run("rsocket", func(t *testing.T) {
		for _, p := range cases {
			s.run(t, "rsocket", p.name(), func(c *testCase) { c.rsocket(p, bin.rsock) })
		}
	})
}

// theirs is the command of the program in the guest.
func (p rsocketCase) theirs(s *session, port int) []string {
	us, rxe := s.us.addr(p.family), s.rxe.addr(p.family)
	argv := []string{p.program}
	switch p.program {
	case "rcopy":
		if !p.weServe {
			return append(argv, "-p", fmt.Sprint(port))
		}
		return append(argv, rcopyFile, us+":/stored", "-p", fmt.Sprint(port))
	case "riostream", "rstream":
		argv = append(argv, "-T", "verify", "-I", "2")
	}
	argv = append(argv, "-T", p.option, "-p", fmt.Sprint(port), "-S", fmt.Sprint(p.size), "-C", fmt.Sprint(rsocketCount[p.size]))
	if p.weServe {
		return append(argv, "-s", us)
	}
	return append(argv, "-b", rxe)
}

// ours is the command of our program.
func (p rsocketCase) ours(s *session, bin string, port int, file string) []string {
	argv := []string{
		bin, "-addr", s.us.addr(p.family), "-port", fmt.Sprint(port), "-iterations", "2",
		"-size", fmt.Sprint(p.size), "-count", fmt.Sprint(rsocketCount[p.size]), "-file", file, "-target", rcopyTarget,
	}
	if !p.weServe {
		argv = append(argv, "-to", s.rxe.addr(p.family))
	}
	return append(argv, rsocketKinds[p.program])
}

// What rcopy sends, and where it stores what it gets, in the guest.
const (
	rcopyFile   = "/usr/bin/rcopy"
	rcopyTarget = "/tmp/stored"
)

// rsocket runs a case. The server of rcopy does not end by itself.
func (c *testCase) rsocket(p rsocketCase, bin string) {
	s := c.s
	s.port++
	c.use(p.program, !p.weServe)
	file := filepath.Join(c.dir, "stored")
	if !p.weServe {
		file = rcopyFile
	}
	us := func() program { return c.begin(s.us, p.ours(s, bin, s.port, file)...) }
	rxe := func() program { return c.begin(s.rxe, p.theirs(s, s.port)...) }
	if p.weServe {
		server := us()
		c.says(server, "listening")
		client := rxe()
		c.ends(client)
		c.ends(server)
		if p.program == "rcopy" {
			data, err := os.ReadFile(file)
			if err != nil {
				c.Fatal(err)
			}
			c.sameFile(fmt.Sprintf("%x", sha256.Sum256(data)))
		}
		return
	}
	server := rxe()
	c.listens()
	c.ends(us())
	if p.program != "rcopy" {
		c.ends(server)
		return
	}
	sum := c.begin(s.rxe, "sha256sum", rcopyTarget)
	c.ends(sum)
	c.sameFile(strings.Fields(sum.Stdout() + " -")[0])
}

// listens waits until a program in the guest listens. Who connects at once is connected before the program has set its options.
func (c *testCase) listens() {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		ids := c.begin(c.s.rxe, "rdma", "resource", "show", "cm_id")
		c.ends(ids)
		if strings.Contains(ids.Stdout(), "LISTEN") {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("nobody listens:\n%s", ids.Stdout())
		}
	}
}

// sameFile compares the hash of what was stored.
func (c *testCase) sameFile(sum string) {
	c.Helper()
	data, err := os.ReadFile(rcopyFile)
	if err != nil {
		c.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); sum != want {
		c.Errorf("the file that was stored has the hash %s, want %s", sum, want)
	}
}
