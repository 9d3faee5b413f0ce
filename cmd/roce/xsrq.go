package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/roce"
	"github.com/spf13/cobra"
)

// maxClients is how many clients a server of xsrq waits for at most.
const maxClients = 128

func (a *app) xsrqCommand() *cobra.Command {
	var (
		o     pingpongOptions
		given pingpongFlags
	)
	cmd := &cobra.Command{
		Use:   "xsrq [flags] [SERVER]",
		Short: "Send messages to and fro over XRC, with ibv_xsrq_pingpong or itself",
		Long: `xsrq sends messages to and fro over extended reliable connections (XRC), as
ibv_xsrq_pingpong of rdma-core does and with it. Without SERVER it is the server: it
waits for its clients (-c), plays with all of them at a time and ends. Its sends to
one client go out by the connections of all clients in turn: each client receives what
arrives by any of them, because all are in one XRC domain.

Both sides need the same -s, -m and -n. A client with -c plays that many clients, each
with a device of its own; they share an XRC domain by its name. Clients that are
processes of their own cannot do that: give one client as many as the server has.

Exit status: 0 success, 1 failure, 2 wrong usage.`,
		Example: `  roce pingpong xsrq                            # here: be the server
  roce pingpong xsrq 10.0.0.1                   # there: play with it
  roce pingpong xsrq -c 3                       # here: a server for three clients
  roce pingpong xsrq -c 3 10.0.0.1              # there: the three of them`,
		Args: maxArgs(1, "give one SERVER, or none to be the server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.numQP < 1 || o.numQP > maxClients {
				return usagef(cmd, "-c %d: 1 to %d clients are possible", o.numQP, maxClients)
			}
			if err := given.check(cmd, args, &o); err != nil {
				return err
			}
			if o.server == "" {
				return a.xsrqServer(cmd.Context(), &o)
			}
			return a.xsrqClients(cmd.Context(), &o)
		},
	}
	given.add(cmd, &o)
	cmd.Flags().IntVarP(&o.numQP, "clients", "c", 1, "number of clients: to wait for, or to be")
	cmd.Flags().IntVarP(&o.iters, "num_tests", "n", 5, "messages to each client, and from it")
	return cmd
}

// xsrqServer plays with all clients.
func (a *app) xsrqServer(ctx context.Context, o *pingpongOptions) error {
	s := &xsrqSide{app: a, o: o}
	defer s.close()
	if o.addr.IsValid() {
		if err := s.open(o.addr, o.numQP); err != nil {
			return err
		}
	}
	next := 0
	err := a.acceptClients(ctx, o.port, o.numQP, func(conn net.Conn) error {
		peer, err := exchange.XRCServer(ctx, conn, o.timeout, func(peer exchange.XRCDest) (exchange.XRCDest, error) {
			return s.answer(conn, next, peer)
		})
		if err != nil {
			conn.Close()
			return err
		}
		s.meet(next, conn, peer)
		next++
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.play(ctx, true); err != nil {
		return err
	}
	for _, talk := range []func(context.Context, net.Conn) error{s.awaitEnd, s.sayEnd} {
		for i := range s.pairs {
			if err := talk(ctx, s.pairs[i].conn); err != nil {
				return err
			}
		}
	}
	return s.report()
}

// answer connects the pair i with a client, and returns where it is.
func (s *xsrqSide) answer(conn net.Conn, i int, peer exchange.XRCDest) (mine exchange.XRCDest, err error) {
	if s.dev == nil {
		if peer.GID.IsZero() {
			return mine, s.checkPeer(netip.Addr{}, peer)
		}
		addr, err := serverAddr(conn, peer.GID)
		if err != nil {
			return mine, err
		}
		if err := s.open(addr, s.o.numQP); err != nil {
			return mine, err
		}
	}
	return s.dest(i), s.connect(i, peer)
}

// xsrqClients plays as many clients as are asked for, until all are done or one
// fails.
func (a *app) xsrqClients(ctx context.Context, o *pingpongOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sides := make([]*xsrqSide, o.numQP)
	var wg sync.WaitGroup
	for i := range sides {
		own := *o // the path MTU is found out for each
		sides[i] = &xsrqSide{app: a, o: &own}
		defer sides[i].close()
		wg.Go(func() {
			if err := sides[i].client(ctx); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return sides[0].report()
}

// client plays one client, to the end of all.
func (s *xsrqSide) client(ctx context.Context) error {
	s.app.progressf("connecting to %s, TCP port %d", s.o.server, s.o.port)
	conn, err := dial(ctx, tcpServer{s.o.server, s.o.port, s.o.timeout, "roce pingpong xsrq, or ibv_xsrq_pingpong -g INDEX"})
	if err != nil {
		return err
	}
	addr := s.o.addr
	if !addr.IsValid() {
		addr = clientAddr(conn)
	}
	if err := s.open(addr, 1); err != nil {
		return errors.Join(err, conn.Close())
	}
	peer, err := exchange.XRCClient(ctx, conn, s.o.timeout, s.dest(0))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.meet(0, conn, peer)
	if err := s.connect(0, peer); err != nil {
		return err
	}
	if err := s.play(ctx, false); err != nil {
		return err
	}
	if err := s.sayEnd(ctx, conn); err != nil {
		return err
	}
	return s.awaitEnd(ctx, conn)
}

func (s *xsrqSide) sayEnd(ctx context.Context, conn net.Conn) error {
	return exchange.SayEnd(ctx, conn, s.o.timeout)
}

func (s *xsrqSide) awaitEnd(ctx context.Context, conn net.Conn) error {
	return exchange.AwaitEnd(ctx, conn, s.o.timeout)
}

// xsrqResult is what --json prints.
type xsrqResult struct {
	Role     string            `json:"role"` // client or server
	Clients  int               `json:"clients"`
	NumTests int               `json:"num_tests"`
	Local    jsonXRCDest       `json:"local"` // of the first client
	Remote   jsonXRCDest       `json:"remote"`
	MTU      int               `json:"mtu"`  // bytes
	Size     int               `json:"size"` // bytes
	Counters map[string]uint64 `json:"counters"`
}

type jsonXRCDest struct {
	LID     uint16 `json:"lid"`
	RecvQPN uint32 `json:"recv_qpn"`
	SendQPN uint32 `json:"send_qpn"`
	PSN     uint32 `json:"psn"`
	SRQN    uint32 `json:"srqn"`
	GID     string `json:"gid"`
}

func newJSONXRCDest(d exchange.XRCDest) jsonXRCDest {
	return jsonXRCDest{d.LID, uint32(d.Target), uint32(d.Sender), uint32(d.PSN), uint32(d.SRQN), d.GID.String()}
}

func (s *xsrqSide) report() error {
	s.show("success\n")
	if !s.o.json {
		return nil
	}
	r := xsrqResult{
		Role: "server", Clients: s.o.numQP, NumTests: s.o.iters, MTU: s.o.mtu.Bytes(), Size: s.o.size,
		Local: newJSONXRCDest(s.dest(0)), Remote: newJSONXRCDest(s.pairs[0].peer), Counters: nonZero(s.dev.Counters()),
	}
	if s.o.server != "" {
		r.Role = "client"
	}
	return printJSON(s.app.stdout, r)
}

// explain says what ended the game with pair i.
func (s *xsrqSide) explain(i int, err error) error {
	return explain(err, roce.XRCSend, s.pairs[i].peer.GID.Addr(), s.dev)
}
