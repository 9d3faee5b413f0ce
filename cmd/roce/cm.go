package main

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/spf13/cobra"
)

// cmOptions are the flags of cm, checked.
type cmOptions struct {
	server   string     // empty: be the server
	bind     netip.Addr // our address
	space    rdmacm.PortSpace
	port     uint16
	conns    int
	messages int // of each connection, in each direction
	size     int // bytes of a message
	tos      uint8
	first    bool // the client sends first
	json     bool
	timeout  time.Duration
}

func (a *app) cmCommand() *cobra.Command {
	var (
		o           cmOptions
		bind, space string
	)
	cmd := &cobra.Command{
		Use:   "cm [flags]",
		Short: "Make connections by the connection manager, with ucmatose, udaddy, cmtime or itself",
		Long: `cm makes connections and sends messages over them, as ucmatose of rdma-core does;
the other side may be ucmatose, in either role. With -s it is the client of that
server. The server sends the messages first, the client answers with as many, and
the server disconnects. Without messages (-C 0) the client disconnects at once:
the other side may be cmtime then.

With -P udp it uses datagram queue pairs, as udaddy does: the client sends first.
So it does with -F, and then with -C 1 -S 16 the other side may be rdma_client or
rdma_server.

Both sides need the same -c, -C and -S.

Exit status: 0 success, 1 failure (an address that cannot be used, a server that
refuses or does not answer, messages that do not come), 2 wrong usage.`,
		Example: `  roce cm -b 10.0.0.1                            # here: the server
  roce cm -s 10.0.0.1                            # there: the client
  ucmatose -s 10.0.0.1                           # or there: Linux rxe or a NIC
  roce cm -c 100 -C 0 -s 10.0.0.1                # with cmtime there`,
		Args: maxArgs(0, "the server's address is -s"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.bind, err = localAddrFlag(cmd, bind, ""); err != nil {
				return err
			}
			switch space {
			case "tcp":
				o.space = rdmacm.TCP
			case "ib":
				o.space = rdmacm.IB
			case "udp":
				o.space = rdmacm.UDP
			default:
				return usagef(cmd, "-P %s: tcp, ib and udp are possible", space)
			}
			o.first = o.first || o.space == rdmacm.UDP
			if o.space == rdmacm.UDP && !cmd.Flags().Changed("port") {
				o.port = 7174 // as udaddy
			}
			switch {
			case o.port == 0:
				return usagef(cmd, "-p 0: a port is needed, on both sides the same")
			case o.conns < 1 || o.conns > 10000:
				return usagef(cmd, "-c %d: 1 to 10000 connections are possible", o.conns)
			case o.messages < 0 || o.messages > 10000:
				return usagef(cmd, "-C %d: 0 to 10000 messages are possible", o.messages)
			case o.size < 1 || o.size > 1<<20:
				return usagef(cmd, "-S %d: allowed are 1 to 1048576 bytes", o.size)
			case o.timeout < 100*time.Millisecond:
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			return a.cm(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.server, "server", "s", "", "be the client of this server")
	f.StringVarP(&bind, "addr", "b", "", "local IP address (default: a server listens at all, a client takes the one that leads to the server)")
	f.StringVarP(&space, "port-space", "P", "tcp", "tcp or ib for connections, udp for datagrams")
	f.Uint16VarP(&o.port, "port", "p", 7471, "port of the connection manager (with -P udp 7174)")
	f.IntVarP(&o.conns, "connections", "c", 1, "number of connections")
	f.IntVarP(&o.messages, "messages", "C", 10, "messages of each connection, in each direction")
	f.IntVarP(&o.size, "size", "S", 100, "bytes of a message")
	f.BoolVarP(&o.first, "client-first", "F", false, "the client sends first")
	f.Uint8VarP(&o.tos, "tos", "t", 0, "IPv4 TOS or IPv6 traffic class of both sides, the client's to say")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when nothing comes for this long (a server waits for its first client without limit)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}
