package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
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
}

func (a *app) serveCommand() *cobra.Command {
	var (
		o            serveOptions
		addr, device string
		allow        []string
	)
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Be there for others to test against: doctor, ping, rping",
		Long: `serve waits at an address until it is interrupted. It tells 'roce doctor' what it sees
of packets from there, and serves 'roce ping' and rping: SEND, RDMA READ and RDMA WRITE
over connections of rdma_cm.

Who is in none of the networks of --allow gets no answer to anything. Without it
anybody may connect, up to --clients at a time, and read and write a buffer of 64 KiB
that his connection alone has.

Exit status: 0 interrupted, 1 failure, 2 wrong usage.`,
		Example: `  roce serve --addr 10.0.0.2
  roce doctor 10.0.0.2                          # elsewhere
  roce ping -c -a 10.0.0.2 -C 10 -V             # elsewhere`,
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
	return cmd
}

// serve answers until ctx ends.
func (a *app) serve(ctx context.Context, o *serveOptions) error {
	addr := o.addr
	if !addr.IsValid() {
		var err error
		if addr, err = firstAddr(); err != nil {
			return err
		}
	}
	dev, err := a.open(roce.Config{Addr: addr, AllowPeers: o.allow, Wrap: func(b netio.Backend) netio.Backend { return echo.Serve(b, o.allow) }})
	if err != nil {
		return err
	}
	defer dev.Close()
	l, err := rdmacm.Listen(net.JoinHostPort(addr.String(), strconv.Itoa(int(o.port))), rdmacm.ListenConfig{PortSpace: rdmacm.TCP, Device: dev})
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintf(a.stdout, "serving at %v\n", addr)
	err = a.serveClients(ctx, &pingOptions{server: true, timeout: o.timeout}, l, o.clients)
	if ctx.Err() != nil {
		return nil // that is how it ends
	}
	return err
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
