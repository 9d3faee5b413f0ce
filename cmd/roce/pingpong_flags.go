package main

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
	"github.com/spf13/cobra"
)

// pingpongFlags are the flags that pingpong and pingpong xsrq have in common, as
// they are given.
type pingpongFlags struct {
	addr, dev string
	size      uint64
	mtu       int
	ibPort    int
	sl        uint8
}

// add defines the flags; those that need no translation go to o at once.
func (p *pingpongFlags) add(cmd *cobra.Command, o *pingpongOptions) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&p.addr, "addr", "a", "", "local IP address (default: the one that leads to the other side)")
	f.StringVarP(&p.dev, "ib-dev", "d", "", "the same by name of the device, see 'roce devinfo'")
	f.IntVarP(&p.ibPort, "ib-port", "i", 1, "port of the device")
	f.Uint16VarP(&o.port, "port", "p", exchange.Port, "TCP port to listen on or connect to")
	f.Uint64VarP(&p.size, "size", "s", 4096, "bytes of a message")
	f.IntVarP(&p.mtu, "mtu", "m", 1024, "path MTU")
	f.Uint8VarP(&p.sl, "sl", "l", 0, "service level, without effect on Ethernet")
	f.BoolVarP(&o.events, "events", "e", false, "sleep while waiting for completions (default: poll)")
	f.IntVarP(&o.gidIndex, "gid-idx", "g", 0, "index of the local GID")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when nothing comes for this long (a server waits for its client without limit)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	for _, n := range notHere {
		f.BoolP(n.long, n.short, false, "")
		f.MarkHidden(n.long)
	}
}

// check checks the flags and the argument, and puts them into o.
func (p *pingpongFlags) check(cmd *cobra.Command, args []string, o *pingpongOptions) error {
	if len(args) == 1 {
		if o.server = args[0]; o.server == "" {
			return usagef(cmd, "SERVER is empty")
		}
	}
	for _, f := range notHere {
		if cmd.Flags().Changed(f.long) {
			return usagef(cmd, "-%s (--%s) is not supported: %s", f.short, f.long, f.why)
		}
	}
	var ok bool
	o.mtu, ok = ib.MTUFromBytes(p.mtu)
	switch {
	case p.ibPort != 1:
		return usagef(cmd, "-i %d: a device has one port, number 1", p.ibPort)
	case p.sl > 15:
		return usagef(cmd, "-l %d: service levels are 0 to 15 (and mean nothing on Ethernet)", p.sl)
	case p.size > maxMessage:
		return usagef(cmd, "-s %d: a message has at most %d bytes", p.size, maxMessage)
	case !ok:
		return usagef(cmd, "-m %d: path MTUs are 256, 512, 1024, 2048 and 4096", p.mtu)
	case o.iters < 1:
		return usagef(cmd, "-n %d: at least one exchange is needed", o.iters)
	case o.port == 0:
		return usagef(cmd, "-p 0: a TCP port is needed, on both sides the same")
	case o.timeout < 100*time.Millisecond:
		return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
	}
	o.size = int(p.size)
	var err error
	o.addr, err = localAddrFlag(cmd, p.addr, p.dev)
	return err
}

// notHere are the options of ibv_rc_pingpong that name hardware we do not have.
var notHere = []struct{ short, long, why string }{
	{"o", "odp", "memory needs no pinning here, so there is no on-demand paging"},
	{"O", "iodp", "memory needs no pinning here, so there is no on-demand paging"},
	{"P", "prefetch", "memory needs no pinning here, so there is no on-demand paging"},
	{"t", "ts", "completions carry no hardware time stamp"},
	{"j", "dm", "there is no device memory"},
	{"N", "new_send", "there is one interface for posting requests, the default"},
}

// localAddrFlag returns the local address that --addr or --ib-dev names, or none.
func localAddrFlag(cmd *cobra.Command, addr, dev string) (netip.Addr, error) {
	var ip netip.Addr
	if addr != "" {
		var err error
		if ip, err = netip.ParseAddr(addr); err != nil {
			return ip, usagef(cmd, "--addr %s is not an IP address", addr)
		}
		ip = ip.Unmap()
	}
	if dev == "" {
		return ip, nil
	}
	named, err := deviceAddr(dev)
	if err != nil {
		return ip, err
	}
	if ip.IsValid() && ip != named {
		return ip, usagef(cmd, "--addr %v and --ib-dev %s (%v) are different addresses: give one of them", ip, dev, named)
	}
	return named, nil
}
