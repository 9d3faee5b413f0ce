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

// pingpongOptions are the flags of pingpong and pingpong xsrq, checked.
type pingpongOptions struct {
	server    string // empty: be the server
	transport string // rc, uc, ud or srq; empty for xsrq
	numQP     int    // queue pairs, 1 but with srq; clients of xsrq
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
		o     pingpongOptions
		given pingpongFlags
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
all of them. The counterpart of ibv_xsrq_pingpong is 'roce pingpong xsrq'.

Exit status: 0 success, 1 failure (an address that cannot be used, a peer that
does not answer, wrong data), 2 wrong usage.`,
		Example: `  roce pingpong                                 # here: be the server
  roce pingpong -n 5000 10.0.0.1                # there: play with it
  ibv_rc_pingpong -d rxe0 -g 1 10.0.0.1         # or there: Linux rxe or a NIC
  roce pingpong -a 127.0.0.2 127.0.0.1          # both on one machine`,
		Args: maxArgs(1, "give one SERVER, or none to be the server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkTransport(cmd); err != nil {
				return err
			}
			if o.rxDepth < 1 {
				return usagef(cmd, "-r %d: at least one receive is needed", o.rxDepth)
			}
			if o.numQP > o.rxDepth {
				return usagef(cmd, "-r %d: at least one receive for each of the %d queue pairs is needed", o.rxDepth, o.numQP)
			}
			if err := given.check(cmd, args, &o); err != nil {
				return err
			}
			if o.transport == "ud" && !cmd.Flags().Changed("size") {
				o.size = 2048 // as the original
			}
			return a.pingpong(cmd.Context(), &o)
		},
	}
	given.add(cmd, &o)
	f := cmd.Flags()
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "receives to post at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "number of exchanges")
	f.BoolVarP(&o.check, "chk", "c", false, "check the data")
	f.StringVar(&o.transport, "transport", "rc", "rc, uc, ud, or srq for several RC queue pairs on one shared receive queue")
	f.IntVarP(&o.numQP, "num-qp", "q", 16, "queue pairs, with --transport srq")
	cmd.AddCommand(a.xsrqCommand())
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

// original is the program of rdma-core that plays over the same transport.
func (o *pingpongOptions) original() string { return "ibv_" + o.transport + "_pingpong" }

// slots is how many addresses each side says.
func (o *pingpongOptions) slots() int {
	if o.transport == "srq" {
		return exchange.SRQSlots
	}
	return 1
}

// lines are the result as ibv_rc_pingpong prints it.
func resultLines(size, iters int, took time.Duration) string {
	bytes := 2 * int64(size) * int64(iters)
	usec := float64(took) / float64(time.Microsecond)
	return fmt.Sprintf("%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		bytes, usec/1e6, float64(bytes)*8/usec, iters, usec/1e6, usec/float64(iters))
}
