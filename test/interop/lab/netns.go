//go:build linux

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The addresses of the laboratory. Guest number i (from 0) has the host part 2+i.
const (
	HostAddr4 = "10.77.0.1"
	HostAddr6 = "fd77::1"
	LinkMTU   = 4300 // gives path MTU 4096
)

// GuestAddr4 is the IPv4 address of guest number i.
func GuestAddr4(i int) string { return fmt.Sprintf("10.77.0.%d", 2+i) }

// GuestAddr6 is the IPv6 address of guest number i.
func GuestAddr6(i int) string { return fmt.Sprintf("fd77::%x", 2+i) }

// Tap is the name of the tap device of guest number i inside the namespace.
func Tap(i int) string { return fmt.Sprintf("tap%d", i) }

const nsPrefix = "goroce-interop-"

// Netns is a network namespace of our own where this machine is 10.77.0.1 and fd77::1, with a tap device per guest.
type Netns struct{ Name string }

// NewNetns makes the namespace with taps for n guests: one tap has the addresses itself, several are ports of a bridge.
// Namespaces left by dead runs are removed first.
func NewNetns(ctx context.Context, n int) (*Netns, error) {
	removeStale(ctx)
	ns := &Netns{Name: nsPrefix + strconv.Itoa(os.Getpid())}
	ip := func(args string) error {
		_, err := command(ctx, "/", "ip", strings.Fields(args)...)
		return err
	}
	in := "-n " + ns.Name + " "
	cmds := []string{"netns add " + ns.Name, in + "link set lo up"}
	dev := Tap(0)
	if n > 1 {
		dev = "br0"
		cmds = append(cmds, fmt.Sprintf("%slink add br0 type bridge mcast_snooping 0", in))
	}
	for i := range n {
		cmds = append(cmds, in+"tuntap add "+Tap(i)+" mode tap", fmt.Sprintf("%slink set %s mtu %d", in, Tap(i), LinkMTU))
		if n > 1 {
			cmds = append(cmds, in+"link set "+Tap(i)+" master br0")
		}
		cmds = append(cmds, in+"link set "+Tap(i)+" up")
	}
	cmds = append(cmds, fmt.Sprintf("%saddr add %s/24 dev %s", in, HostAddr4, dev), fmt.Sprintf("%saddr add %s/64 dev %s nodad", in, HostAddr6, dev),
		fmt.Sprintf("%slink set %s up mtu %d", in, dev, LinkMTU))
	for _, c := range cmds {
		if err := ip(c); err != nil {
			ns.Close()
			return nil, err
		}
	}
	// Packets must reach the capture one by one, as on a wire, not as one super-packet per segmented send.
	for i := range n {
		if _, err := command(ctx, "/", "ip", "netns", "exec", ns.Name, "ethtool", "-K", Tap(i), "gso", "off", "gro", "off", "tx-udp-segmentation", "off"); err != nil {
			ns.Close()
			return nil, err
		}
	}
	return ns, nil
}

// removeStale deletes namespaces whose owner is gone (a run that was killed).
func removeStale(ctx context.Context) {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		if pid, err := strconv.Atoi(strings.TrimPrefix(e.Name(), nsPrefix)); err == nil && strings.HasPrefix(e.Name(), nsPrefix) && !exists(pid) {
			command(ctx, "/", "ip", "netns", "del", e.Name())
		}
	}
}

// Close deletes the namespace; what runs in it keeps it alive until it ends.
func (ns *Netns) Close() error {
	_, err := command(context.Background(), "/", "ip", "netns", "del", ns.Name)
	return err
}

// Argv is the command line that runs argv inside the namespace.
func (ns *Netns) Argv(argv ...string) []string {
	return append([]string{"ip", "netns", "exec", ns.Name}, argv...)
}

// Run runs a program in the namespace to its end and returns its standard output.
func (ns *Netns) Run(ctx context.Context, argv ...string) (string, error) {
	full := ns.Argv(argv...)
	return command(ctx, "/", full[0], full[1:]...)
}

// do calls f on a thread that is inside the namespace; sockets that f makes stay there. The thread ends with the call.
func (ns *Netns) do(f func() error) error {
	res := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not given back to the others
		fd, err := unix.Open("/run/netns/"+ns.Name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			res <- fmt.Errorf("namespace %s: %w", ns.Name, err)
			return
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			res <- fmt.Errorf("enter namespace %s: %w", ns.Name, err)
			return
		}
		res <- f()
	}()
	return <-res
}

// Dial connects to a TCP address (numeric) from inside the namespace.
func (ns *Netns) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	var c net.Conn
	err := ns.do(func() (err error) {
		c, err = net.DialTimeout("tcp", addr, timeout)
		return err
	})
	return c, err
}
