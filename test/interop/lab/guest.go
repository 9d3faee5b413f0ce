//go:build linux

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// Guest is a running guest with an agent that answers.
type Guest struct {
	Index  int
	Kernel *Kernel
	ns     *Netns
	qemu   *Process
	dir    string
	logs   *console
}

// GuestConfig says how to boot. Agent is the path of the static agent binary. Log, if set, is told about retries. The folder Root, if set,
// is another system whose programs can be run (see InRoot).
type GuestConfig struct {
	Kernel *Kernel
	Netns  *Netns
	Index  int // number of the guest in the namespace, from 0
	Agent  string
	Root   string
	Log    func(format string, args ...any)
}

// bootTimeout is generous: software emulation on a busy machine.
const bootTimeout = 120 * time.Second

// BootGuest boots and waits for the agent. A boot that dies before the agent answers is tried once more (about one in twenty does).
func BootGuest(ctx context.Context, c GuestConfig) (*Guest, error) {
	var first error
	for try := range 2 {
		g, err := bootOnce(ctx, c)
		if err == nil {
			return g, nil
		}
		if try > 0 || ctx.Err() != nil {
			return nil, errors.Join(first, err)
		}
		first = err
		if c.Log != nil {
			c.Log("the boot of %s failed and is tried once more: %v", c.Kernel.Release, err)
		}
	}
	panic("unreachable")
}

// cpu is the processor that QEMU emulates: all that it can, but for the flags that say REP MOVSB
// is fast. Emulated it moves a byte at a time, and Linux copies to and from programs with it:
// 4096 bytes take a read(2) 9.3 us, 3.9 without.
const cpu = "max,-erms,-fsrm"

func bootOnce(ctx context.Context, c GuestConfig) (_ *Guest, err error) {
	image, err := c.Kernel.Image()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "goroce-guest-")
	if err != nil {
		return nil, err
	}
	g := &Guest{Index: c.Index, Kernel: c.Kernel, ns: c.Netns, dir: dir, logs: &console{ready: make(chan struct{})}}
	defer func() {
		if err != nil {
			g.Kill()
		}
	}()
	initrd := filepath.Join(dir, "initrd")
	if err := writeInitrd(ctx, initrd, c.Kernel, c.Agent, wire.GuestConfig{
		Kernel: c.Kernel.Release, MTU: LinkMTU, Addrs: []string{GuestAddr4(c.Index) + "/24", GuestAddr6(c.Index) + "/64"},
	}); err != nil {
		return nil, err
	}
	argv := []string{"qemu-system-x86_64",
		"-machine", "pc,nvdimm=on", "-accel", "tcg,thread=multi", "-cpu", cpu, "-m", "1024,slots=1,maxmem=2G", "-smp", "2",
		"-kernel", image, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none",
		"-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path=" + c.Kernel.Modules() + ",mount_tag=modules,security_model=none,readonly=on",
		"-netdev", "tap,id=n0,script=no,downscript=no,ifname=" + Tap(c.Index),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:77:00:%02x,host_mtu=%d", 2+c.Index, LinkMTU),
		"-object", "memory-backend-ram,id=pmem,size=64M", "-device", "nvdimm,memdev=pmem"}
	if c.Root != "" {
		argv = append(argv, "-virtfs", "local,path="+c.Root+",mount_tag="+rootTag+",security_model=none,readonly=on")
	}
	if g.qemu, err = StartProcess(g.logs, c.Netns.Argv(argv...)...); err != nil {
		return nil, err
	}
	timeout := time.NewTimer(bootTimeout)
	defer timeout.Stop()
	select {
	case <-g.logs.ready:
	case <-g.qemu.Done():
		return nil, fmt.Errorf("QEMU ended before the agent was up: %s\nconsole: %s", g.qemu.Stderr(), lastLines(g.Console(), 15))
	case <-timeout.C:
		return nil, fmt.Errorf("no agent after %v; console: %s", bootTimeout, lastLines(g.Console(), 15))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := g.Ping(); err != nil {
		return nil, fmt.Errorf("the agent does not answer: %w; console: %s", err, lastLines(g.Console(), 15))
	}
	if c.Root != "" {
		if _, err := g.Run(ctx, "sh", "-c", mountRoot, rootTag); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// The other system of a guest: the tag of its share, which is also its folder's name, and what makes it usable there.
const (
	rootTag   = "newer"
	mountRoot = `mkdir /$0 && mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro $0 /$0 || exit 1
		for d in dev proc sys tmp; do mount --rbind /$d /$0/$d || exit 1; done`
)

// InRoot is the command line that runs a program of the guest's other system.
func InRoot(argv ...string) []string { return append([]string{"chroot", "/" + rootTag}, argv...) }

// console keeps what the guest prints and notices the agent's ready line.
type console struct {
	buf   syncBuffer
	ready chan struct{}
	once  sync.Once
}

func (c *console) Write(b []byte) (int, error) {
	c.buf.Write(b)
	if strings.Contains(c.buf.String(), wire.ReadyLine) {
		c.once.Do(func() { close(c.ready) })
	}
	return len(b), nil
}

// Console is everything that the guest has printed so far.
func (g *Guest) Console() string { return g.logs.buf.String() }

// kernelTrouble are the words with which a kernel reports that it is broken.
var kernelTrouble = []string{"Oops", "BUG:", "general protection fault", "Kernel panic", "refcount_t:", "KASAN:", "WARNING: CPU", "WARNING: drivers/infiniband"}

// Trouble returns the console lines in which the guest's kernel reports a fault of its own.
func (g *Guest) Trouble() []string {
	var found []string
	sc := bufio.NewScanner(strings.NewReader(g.Console()))
	for sc.Scan() {
		for _, w := range kernelTrouble {
			if strings.Contains(sc.Text(), w) {
				found = append(found, sc.Text())
				break
			}
		}
	}
	return found
}

// Alive says whether the guest still runs.
func (g *Guest) Alive() bool {
	select {
	case <-g.qemu.Done():
		return false
	default:
		return true
	}
}

// Addr4 and Addr6 are the guest's addresses.
func (g *Guest) Addr4() string { return GuestAddr4(g.Index) }

// Addr6 is the guest's IPv6 address.
func (g *Guest) Addr6() string { return GuestAddr6(g.Index) }

// dial connects to the agent.
func (g *Guest) dial() (net.Conn, error) {
	return g.ns.Dial(net.JoinHostPort(g.Addr4(), fmt.Sprint(wire.AgentPort)), 10*time.Second)
}

// Close powers the guest off, and kills it when that takes too long.
func (g *Guest) Close() {
	if c, err := g.dial(); err == nil {
		wire.WriteJSON(c, wire.FrameCommand, wire.Command{Op: "poweroff"})
		c.SetDeadline(time.Now().Add(2 * time.Second))
		wire.ReadFrame(c)
		c.Close()
		g.qemu.Wait(10 * time.Second)
	}
	g.Kill()
}

// Kill ends the guest at once.
func (g *Guest) Kill() {
	if g.qemu != nil {
		g.qemu.Kill()
	}
	os.RemoveAll(g.dir)
}

// Heartbeat asks the agent for an answer again and again and remembers how long the longest took.
type Heartbeat struct {
	stop    chan struct{}
	longest chan time.Duration
}

// StartHeartbeat begins; the pause is between one answer and the next question.
func (g *Guest) StartHeartbeat(pause time.Duration) *Heartbeat {
	h := &Heartbeat{make(chan struct{}), make(chan time.Duration)}
	go func() {
		var longest time.Duration
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			asked := time.Now()
			g.Ping()
			longest = max(longest, time.Since(asked))
			select {
			case <-h.stop:
				h.longest <- longest
				return
			case <-tick.C:
			}
		}
	}()
	return h
}

// Stop ends it and returns the longest time that an answer took.
func (h *Heartbeat) Stop() time.Duration {
	close(h.stop)
	return <-h.longest
}
