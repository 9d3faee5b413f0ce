package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/spf13/cobra"
)

// maxMessage is the longest RC message in bytes (IBTA 9.2.8: 2^31).
const maxMessage = 1 << 31

// pingpongOptions are the flags of pingpong, checked.
type pingpongOptions struct {
	server    string // empty: be the server
	transport string // rc, uc, ud or srq
	numQP     int    // queue pairs, 1 but with srq
	addr      netip.Addr
	port      uint16
	size      int // bytes of a message
	mtu       ib.MTU
	iters     int
	rxDepth   int
	gidIndex  int
	events    bool
	check     bool
	json      bool
	timeout   time.Duration
}

func (a *app) pingpongCommand() *cobra.Command {
	var (
		o         pingpongOptions
		addr, dev string
		size      uint64
		mtu       int
		ibPort    int
		sl        uint8
	)
	cmd := &cobra.Command{
		Use:   "pingpong [flags] [SERVER]",
		Short: "Send messages to and fro over RC, UC or UD, with ibv_rc_pingpong and its relatives or itself",
		Long: `pingpong sends messages to and fro, over a reliable connection (RC) if --transport
says nothing else. Without SERVER it is the server: it waits for one client, plays
with it and ends.

The other side may be ibv_rc_pingpong of rdma-core: the options mean the same
there (it needs -g with the index of a GID that is an IP address). Both sides need
the same -s, -m and -n. The addresses are exchanged over TCP.

With -c each message that comes back is compared with what was sent: contents
depend on position and iteration, whatever the other side is; a server also checks
what a client with -c sends. Filling and comparing counts as part of an iteration.

With --transport uc (unreliable connection) it plays with ibv_uc_pingpong, with
--transport ud (datagrams) with ibv_ud_pingpong, which sends 2048 bytes if -s says
nothing else, and no more than fit one packet. Both end when a packet is lost.

With --transport srq it plays with ibv_srq_pingpong: several queue pairs (-q, the
same on both sides) receive from one shared queue, and -n counts the exchanges of
all of them.

Exit status: 0 success, 1 failure (an address that cannot be used, a peer that
does not answer, wrong data), 2 wrong usage.`,
		Example: `  roce pingpong                                 # here: be the server
  roce pingpong -n 5000 10.0.0.1                # there: play with it
  ibv_rc_pingpong -d rxe0 -g 1 10.0.0.1         # or there: Linux rxe or a NIC
  roce pingpong -a 127.0.0.2 127.0.0.1          # both on one machine`,
		Args: maxArgs(1, "give one SERVER, or none to be the server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if o.server = args[0]; o.server == "" {
					return usagef(cmd, "SERVER is empty")
				}
			}
			if err := o.checkTransport(cmd); err != nil {
				return err
			}
			for _, f := range notHere {
				if cmd.Flags().Changed(f.long) {
					return usagef(cmd, "-%s (--%s) is not supported: %s", f.short, f.long, f.why)
				}
			}
			if ibPort != 1 {
				return usagef(cmd, "-i %d: a device has one port, number 1", ibPort)
			}
			if sl > 15 {
				return usagef(cmd, "-l %d: service levels are 0 to 15 (and mean nothing on Ethernet)", sl)
			}
			if size > maxMessage {
				return usagef(cmd, "-s %d: a message has at most %d bytes", size, maxMessage)
			}
			o.size = int(size)
			if o.transport == "ud" && !cmd.Flags().Changed("size") {
				o.size = 2048 // as the original
			}
			var ok bool
			if o.mtu, ok = ib.MTUFromBytes(mtu); !ok {
				return usagef(cmd, "-m %d: path MTUs are 256, 512, 1024, 2048 and 4096", mtu)
			}
			if o.iters < 1 {
				return usagef(cmd, "-n %d: at least one exchange is needed", o.iters)
			}
			if o.rxDepth < 1 {
				return usagef(cmd, "-r %d: at least one receive is needed", o.rxDepth)
			}
			if o.numQP > o.rxDepth {
				return usagef(cmd, "-r %d: at least one receive for each of the %d queue pairs is needed", o.rxDepth, o.numQP)
			}
			if o.port == 0 {
				return usagef(cmd, "-p 0: a TCP port is needed, on both sides the same")
			}
			if o.timeout < 100*time.Millisecond {
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			var err error
			if o.addr, err = localAddrFlag(cmd, addr, dev); err != nil {
				return err
			}
			return a.pingpong(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&addr, "addr", "a", "", "local IP address (default: the one that leads to the other side)")
	f.StringVarP(&dev, "ib-dev", "d", "", "the same by name of the device, see 'roce devinfo'")
	f.IntVarP(&ibPort, "ib-port", "i", 1, "port of the device")
	f.Uint16VarP(&o.port, "port", "p", exchange.Port, "TCP port to listen on or connect to")
	f.Uint64VarP(&size, "size", "s", 4096, "bytes of a message")
	f.IntVarP(&mtu, "mtu", "m", 1024, "path MTU")
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "receives to post at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "number of exchanges")
	f.Uint8VarP(&sl, "sl", "l", 0, "service level, without effect on Ethernet")
	f.BoolVarP(&o.events, "events", "e", false, "sleep while waiting for completions (default: poll)")
	f.IntVarP(&o.gidIndex, "gid-idx", "g", 0, "index of the local GID")
	f.BoolVarP(&o.check, "chk", "c", false, "check the data")
	f.StringVar(&o.transport, "transport", "rc", "rc, uc, ud, or srq for several RC queue pairs on one shared receive queue")
	f.IntVarP(&o.numQP, "num-qp", "q", 16, "queue pairs, with --transport srq")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when nothing comes for this long (a server waits for its client without limit)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	for _, n := range notHere {
		f.BoolP(n.long, n.short, false, "")
		f.MarkHidden(n.long)
	}
	return cmd
}

// checkTransport checks the transport and what depends on it.
func (o *pingpongOptions) checkTransport(cmd *cobra.Command) error {
	switch o.transport {
	case "rc", "uc", "ud":
		if cmd.Flags().Changed("num-qp") {
			return usagef(cmd, "-q %d: several queue pairs go with --transport srq", o.numQP)
		}
		if o.transport == "ud" && cmd.Flags().Changed("mtu") {
			return usagef(cmd, "-m %s: a datagram is one packet: its limit is the MTU of the interface", cmd.Flag("mtu").Value)
		}
		o.numQP = 1
	case "srq":
		if o.numQP < 1 || o.numQP > exchange.SRQSlots {
			return usagef(cmd, "-q %d: 1 to %d queue pairs are possible", o.numQP, exchange.SRQSlots)
		}
		if o.check {
			return usagef(cmd, "-c: with --transport srq all queue pairs share one buffer, as in ibv_srq_pingpong, so data cannot be checked")
		}
	default:
		return usagef(cmd, "--transport %s: rc, uc, ud and srq are possible", o.transport)
	}
	return nil
}

// service is the kind of the queue pairs.
func (o *pingpongOptions) service() roce.QPType {
	switch o.transport {
	case "uc":
		return roce.UC
	case "ud":
		return roce.UD
	}
	return roce.RC
}

// header is how many bytes stand before the message in a receive.
func (o *pingpongOptions) header() int {
	if o.transport == "ud" {
		return ib.GRHSize
	}
	return 0
}

// slots is how many addresses each side says.
func (o *pingpongOptions) slots() int {
	if o.transport == "srq" {
		return exchange.SRQSlots
	}
	return 1
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

// lines are the result as ibv_rc_pingpong prints it.
func resultLines(size, iters int, took time.Duration) string {
	bytes := 2 * int64(size) * int64(iters)
	usec := float64(took) / float64(time.Microsecond)
	return fmt.Sprintf("%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		bytes, usec/1e6, float64(bytes)*8/usec, iters, usec/1e6, usec/float64(iters))
}
