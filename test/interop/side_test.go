//go:build linux

package interop

import (
	"context"
	"fmt"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
)

// program is a running program on either side.
type program interface {
	WaitPort(port int, timeout time.Duration) error
	Wait(timeout time.Duration) (exit int, err error)
	Done() <-chan struct{}
	Stdout() string
	Stderr() string
	Kill()
}

// side is one end of a case: where its programs run and what they are called there.
type side struct {
	name         string
	rxe          bool // rdma-core on a kernel's rxe, not this stack
	addr4, addr6 string
	start        func(argv ...string) (program, error)
	pingpong     func(p pingpongCase, port int, server string) ([]string, error) // server "" for the server itself
	perf         func(p perfCase, port int, server string) ([]string, error)     // the same
	peer         func(newer bool) (*lab.Peer, error)                             // newer: of the guest's newer rdma-core
}

// addr is the side's address of a family.
func (s *side) addr(family string) string {
	if family == ipv6 {
		return s.addr6
	}
	return s.addr4
}

const (
	ipv4 = "ipv4"
	ipv6 = "ipv6"
)

// guestProgram adds the guest's own way to look for a listener.
type guestProgram struct {
	*lab.Remote
	g *lab.Guest
}

func (p guestProgram) WaitPort(port int, timeout time.Duration) error {
	return p.g.WaitPort(port, timeout)
}

// guestSide runs programs of rdma-core in a guest.
func guestSide(ctx context.Context, name string, g *lab.Guest) *side {
	s := &side{name: name, rxe: true, addr4: g.Addr4(), addr6: g.Addr6()}
	s.start = func(argv ...string) (program, error) {
		r, err := g.Start(nil, argv...)
		if err != nil {
			return nil, err
		}
		return guestProgram{r, g}, nil
	}
	s.pingpong = func(p pingpongCase, port int, server string) ([]string, error) {
		index, err := g.GIDIndex(ctx, s.addr(p.family))
		if err != nil {
			return nil, err
		}
		argv := append([]string{p.program(), "-d", "rxe0", "-g", fmt.Sprint(index)}, p.flags(port)...)
		if server != "" {
			argv = append(argv, server)
		}
		return argv, nil
	}
	s.perf = func(p perfCase, port int, server string) ([]string, error) {
		index, err := g.GIDIndex(ctx, s.addr(p.family))
		if err != nil {
			return nil, err
		}
		argv := append([]string{"ib_" + p.test, "-d", "rxe0", "-x", fmt.Sprint(index), "-F"}, p.flags(port)...)
		if p.rdmaCM && p.family == ipv6 {
			argv = append(argv, "--ipv6-addr")
		}
		if p.newer {
			argv = lab.InRoot(argv...)
		}
		if server != "" {
			argv = append(argv, server)
		}
		return argv, nil
	}
	s.peer = func(newer bool) (*lab.Peer, error) {
		argv := []string{"/usr/bin/python3", "-u", verbsPath}
		if newer {
			argv = lab.InRoot(argv...)
		}
		return g.StartPeer(name, argv...)
	}
	return s
}

// ourSide runs this stack's programs in the namespace.
func ourSide(ns *lab.Netns, bin binaries) *side {
	s := &side{name: "goroce", addr4: lab.HostAddr4, addr6: lab.HostAddr6}
	s.start = func(argv ...string) (program, error) { return lab.StartProcess(nil, ns.Argv(argv...)...) }
	s.pingpong = func(p pingpongCase, port int, server string) ([]string, error) {
		argv := append([]string{bin.roce, "pingpong", "--json", "--transport", p.transport(), "--addr", s.addr(p.family)}, p.flags(port)...)
		if server != "" {
			argv = append(argv, server)
		}
		return argv, nil
	}
	s.perf = func(p perfCase, port int, server string) ([]string, error) {
		// Before it speaks, perftest 25.01 fills 16 MiB with random numbers for -a: seconds, in emulation.
		argv := append([]string{bin.roce, "perf", p.test, "--json", "--timeout", "40s", "--addr", s.addr(p.family)}, p.flags(port)...)
		if p.verifies() {
			argv = append(argv, "--verify")
		}
		if server != "" {
			argv = append(argv, server)
		}
		return argv, nil
	}
	s.peer = func(bool) (*lab.Peer, error) { return ns.StartPeer(s.name, bin.peer) }
	return s
}
