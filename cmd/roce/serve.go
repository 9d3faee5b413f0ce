package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
	"github.com/goroce/goroce/cmd/roce/internal/mirror"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/spf13/cobra"
)

// serveOptions are the flags of serve, checked.
type serveOptions struct {
	addr    netip.Addr // the zero value: the first device that is not loopback
	port    uint16
	clients int
	allow   []netip.Prefix
	timeout time.Duration
	json    bool
}

func (a *app) serveCommand() *cobra.Command {
	var (
		o            serveOptions
		addr, device string
		allow        []string
	)
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Be there for others to test against: interop, doctor, ping, rping",
		Long: `serve waits at an address until it is interrupted. It tells 'roce doctor' what it sees
of packets from there, serves 'roce ping' and rping (SEND, RDMA READ and RDMA WRITE
over connections of rdma_cm), and 'roce interop': all operations over RC, UC and UD,
requested by the client or, when that asks for it, by the server.

Who is in none of the networks of --allow gets no answer to anything. Without it
anybody may connect, up to --clients at a time, and read and write a buffer of 64 KiB,
with interop 128 KiB, that his connection alone has. What is sent back, and the
requests of the server, go to the client's address only.

Exit status: 0 interrupted, 1 failure, 2 wrong usage.`,
		Example: `  roce serve --addr 10.0.0.2
  roce doctor 10.0.0.2                          # elsewhere
  roce ping -c -a 10.0.0.2 -C 10 -V             # elsewhere
  roce interop 10.0.0.2                         # elsewhere`,
		Args: maxArgs(0, "the address is --addr"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.port == 0:
				return usagef(cmd, "-p 0: a port of the connection manager is needed")
			case o.clients < 1 || o.clients > 1024:
				return usagef(cmd, "--clients %d: allowed are 1 to 1024", o.clients)
			case o.timeout < 100*time.Millisecond:
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			for _, text := range allow {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					return usagef(cmd, "--allow %s: a network such as 10.0.0.0/24 is needed", text)
				}
				o.allow = append(o.allow, p)
			}
			var err error
			if o.addr, err = localAddrFlag(cmd, addr, device); err != nil {
				return err
			}
			return a.serve(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&addr, "addr", "a", "", "local address (default: the first one that is not loopback)")
	f.StringVarP(&device, "ib-dev", "d", "", "the same by the device's name")
	f.Uint16VarP(&o.port, "port", "p", 7174, "port of the connection manager (port space TCP)")
	f.IntVar(&o.clients, "clients", 16, "so many connections at a time; others are rejected")
	f.StringSliceVar(&allow, "allow", nil, "networks whose hosts are answered, such as 10.0.0.0/24 (default: all); may be repeated")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "end a connection on which nothing comes for this long")
	f.BoolVar(&o.json, "json", false, "print lines of JSON: that it serves, and what has ended clients' connections")
	return cmd
}

// serve answers until ctx ends.
func (a *app) serve(ctx context.Context, o *serveOptions) error {
	if !o.addr.IsValid() {
		var err error
		if o.addr, err = firstAddr(); err != nil {
			return err
		}
	}
	dev, err := a.open(roce.Config{Addr: o.addr, AllowPeers: o.allow, Wrap: func(b netio.Backend) netio.Backend { return echo.Serve(b, o.allow) }})
	if err != nil {
		return err
	}
	defer dev.Close()
	at := net.JoinHostPort(o.addr.String(), strconv.Itoa(int(o.port)))
	connections, err := rdmacm.Listen(at, rdmacm.ListenConfig{PortSpace: rdmacm.TCP, Device: dev})
	if err != nil {
		return err
	}
	defer connections.Close()
	datagrams, err := rdmacm.Listen(at, rdmacm.ListenConfig{PortSpace: rdmacm.UDP, Device: dev})
	if err != nil {
		return err
	}
	defer datagrams.Close()
	if o.json {
		o.say(a, serveLine{Event: "serving"})
	} else {
		fmt.Fprintf(a.stdout, "serving at %v\n", o.addr)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	journal := o.journal(a)
	clients := &room{limit: int64(o.clients)}
	var others sync.WaitGroup
	others.Go(func() { wrongClients(ctx, dev, journal) })
	others.Go(func() { cancel(a.serveClients(ctx, datagrams, clients, journal, o.serveDatagrams)) })
	defer func() {
		cancel(nil)
		others.Wait()
	}()
	err = a.serveClients(ctx, connections, clients, journal, func(ctx context.Context, req *rdmacm.Request) error { return a.serveConnection(ctx, o, req) })
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil // that is how it ends
	}
	return err
}

// serveConnection serves one client: the mirror if it asks for that, else pings.
func (a *app) serveConnection(ctx context.Context, o *serveOptions, req *rdmacm.Request) error {
	if mirror.Asked(req.PrivateData()) {
		return o.mirror(ctx, req, rdmacm.TCP)
	}
	_, err := a.serveClient(ctx, &pingOptions{server: true, timeout: o.timeout}, req)
	return err
}

// serveDatagrams serves a client over UD.
func (o *serveOptions) serveDatagrams(ctx context.Context, req *rdmacm.Request) error {
	if !mirror.Asked(req.PrivateData()) {
		return req.Reject([]byte("for roce interop only"))
	}
	return o.mirror(ctx, req, rdmacm.UDP)
}

func (o *serveOptions) mirror(ctx context.Context, req *rdmacm.Request, space rdmacm.PortSpace) error {
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	m, err := mirror.Accept(limited, req, space)
	if err != nil {
		return err
	}
	defer m.Close()
	ctx, stop := watch(ctx, o.timeout, m.Seen)
	defer stop()
	if err := m.Serve(ctx); !errors.Is(err, mirror.ErrOver) {
		return err
	}
	return nil
}

// firstAddr returns the first address of this machine that others can reach, or else
// that of loopback.
func firstAddr() (netip.Addr, error) {
	list, err := listDevices()
	if err != nil {
		return netip.Addr{}, err
	}
	if len(list) == 0 {
		return netip.Addr{}, fmt.Errorf("no interface that is up has an address")
	}
	for _, d := range list {
		if !d.addr.IsLoopback() && !d.addr.IsLinkLocalUnicast() {
			return d.addr, nil
		}
	}
	return list[0].addr, nil
}
