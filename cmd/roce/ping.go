package main

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/spf13/cobra"
)

// Limits of rping: what "rdma-ping-2147483647: " needs, and its buffer.
const (
	pingSizeMin = 26
	pingSizeMax = 64<<10 - 1
)

// pingOptions are the flags of ping, checked.
type pingOptions struct {
	server     bool
	addr       string     // of the server; empty: any of ours
	source     netip.Addr // of a client; the zero value: that of the route
	port       uint16
	count      int // pings; 0: without end
	size       int // bytes of a ping
	verbose    bool
	validate   bool
	persistent bool
	debug      bool
	json       bool
	timeout    time.Duration
	mtu        ib.MTU        // of the path; 0: what fits
	ackTimeout time.Duration // 0: what rdmacm has
}

func (a *app) pingCommand() *cobra.Command {
	var (
		o         pingOptions
		client, q bool
		source    string
	)
	cmd := &cobra.Command{
		Use:   "ping -s|-c [flags]",
		Short: "Ping over a connection that rdma_cm makes, with rping or itself",
		Long: `ping connects by the connection manager and sends pings, as rping of rdma-core
does; the other side may be rping, in either role. The client tells the server
where its data are, the server reads them (RDMA READ) and writes them into another
buffer of the client (RDMA WRITE).

With -s it is the server, with -c the client; -a is the server's address in both:
where to listen, or what to connect to. The server ends when its client has
disconnected, with -P it serves clients until it is interrupted.

Exit status: 0 success, 1 failure (an address that cannot be used, a server that
refuses or does not answer, wrong data), 2 wrong usage.`,
		Example: `  roce ping -s -a 10.0.0.1                      # here
  roce ping -c -a 10.0.0.1 -C 10 -V -v          # there
  rping -c -a 10.0.0.1 -C 10 -V -v              # or there: Linux rxe or a NIC`,
		Args: maxArgs(0, "the server's address is -a"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.server == client:
				return usagef(cmd, "give one of -s (server) and -c (client)")
			case client && o.addr == "":
				return usagef(cmd, "-a is missing: the server's address")
			case o.port == 0:
				return usagef(cmd, "-p 0: a port is needed, on both sides the same")
			case o.count < 0:
				return usagef(cmd, "-C %d: a number of pings is needed, 0 for no end", o.count)
			case o.size < pingSizeMin || o.size > pingSizeMax:
				return usagef(cmd, "-S %d: allowed are %d to %d bytes", o.size, pingSizeMin, pingSizeMax)
			case o.persistent && client:
				return usagef(cmd, "-P is the server's")
			case source != "" && o.server:
				return usagef(cmd, "-I is the client's: a server's address is -a")
			case o.timeout < 100*time.Millisecond:
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			var err error
			if o.source, err = localAddrFlag(cmd, source, ""); err != nil {
				return err
			}
			return a.ping(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.server, "server", "s", false, "be the server")
	f.BoolVarP(&client, "client", "c", false, "be the client")
	f.StringVarP(&o.addr, "addr", "a", "", "the server's address: to listen at (default: all) or to connect to")
	f.StringVarP(&source, "source", "I", "", "the client's own address (default: that of the route)")
	f.Uint16VarP(&o.port, "port", "p", 7174, "port of the connection manager (port space TCP)")
	f.IntVarP(&o.count, "count", "C", 0, "number of pings (default: no end)")
	f.IntVarP(&o.size, "size", "S", 64, "bytes of a ping")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print the data")
	f.BoolVarP(&o.validate, "validate", "V", false, "compare what came back with what was sent")
	f.BoolVarP(&o.persistent, "persistent", "P", false, "serve one client after the other, and several at a time")
	f.BoolVarP(&o.debug, "debug", "d", false, "say on standard error what happens")
	f.BoolVarP(&q, "self-created-qp", "q", false, "accepted, without effect")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when nothing comes for this long (a server waits for its client without limit)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}
