package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/spf13/cobra"
)

// doctorOptions are the flags of doctor, checked.
type doctorOptions struct {
	host    string // or empty
	program string // or empty: one that is to run on the drop-in libraries
	wish    string // address or prefix of its device, or empty
	name    string // of its device
	addr    netip.Addr
	mtu     ib.MTU // wanted path MTU
	timeout time.Duration
	json    bool
}

func (a *app) doctorCommand() *cobra.Command {
	var (
		o            doctorOptions
		addr, device string
		mtu          int
	)
	cmd := &cobra.Command{
		Use:   "doctor [flags] [HOST] [-- PROGRAM]",
		Short: "Find out why RoCE does not work, here or to a host",
		Long: `doctor checks what RoCE needs of this machine: an address, port 4791, an interface
MTU with room for the path MTU, UDP segmentation, ECN, socket buffers, and that an
ICRC sealed by a process is right on the wire. With HOST it checks the way there and
back: route, firewalls, address translation, path MTU, ECN.

With -- PROGRAM it checks as well whether that would find a device with 'roce exec':
the drop-in libraries, what the program is and loads, and which address its device
would get. The program is not run.

HOST runs 'roce serve', which tells what it sees of packets from here. With anything
else doctor asks its connection manager for a connection, which it is to refuse.

Each line says what was found, and of a warning or failure what it means and what to
do.

Exit status: 0 success, also with warnings; 1 failure; 2 wrong usage.`,
		Example: `  roce doctor                                   # this machine
  roce doctor 10.0.0.2                          # there: roce serve --addr 10.0.0.2
  roce doctor -- ibv_devices                    # why does it show nothing?`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				if len(args) == dash {
					return usagef(cmd, "no program behind --")
				}
				o.program, args = args[dash], args[:dash]
			}
			if err := maxArgs(1, "one host at a time")(cmd, args); err != nil {
				return err
			}
			if len(args) > 0 {
				o.host = args[0]
			}
			var ok bool
			switch o.mtu, ok = ib.MTUFromBytes(mtu); {
			case !ok:
				return usagef(cmd, "-m %d: path MTUs are 256, 512, 1024, 2048 and 4096", mtu)
			case o.timeout < 100*time.Millisecond:
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			o.name = cmp.Or(os.Getenv("ROCE_NAME"), "roce0")
			if o.program != "" && device == "" {
				o.wish, addr = cmp.Or(addr, os.Getenv("ROCE_ADDR")), ""
			}
			var err error
			if o.addr, err = localAddrFlag(cmd, addr, device); err != nil {
				return err
			}
			return a.doctor(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&addr, "addr", "a", "", "local address (default: that of the route to HOST, else the first one); with PROGRAM also a prefix, as for roce exec")
	f.StringVarP(&device, "ib-dev", "d", "", "the same by the device's name")
	f.IntVarP(&mtu, "mtu", "m", 4096, "wanted path MTU")
	f.DurationVar(&o.timeout, "timeout", 2*time.Second, "how long to wait for an answer of HOST")
	f.BoolVar(&o.json, "json", false, "print as JSON")
	return cmd
}

// finding is the outcome of a check.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warning, failure
	What   string `json:"what"`
	Means  string `json:"means,omitempty"` // of a warning or failure
	Do     string `json:"do,omitempty"`
}

// Statuses of a finding.
const (
	statusOK      = "ok"
	statusWarning = "warning"
	statusFailure = "failure"
)

// diagnosis collects findings.
type diagnosis struct {
	app  *app
	o    *doctorOptions
	list []finding

	local netip.Addr
	peer  netip.Addr
	be    netio.Backend // the local port, nil when it cannot be had
}

func (d *diagnosis) ok(check, what string, args ...any) {
	d.add(finding{Check: check, Status: statusOK, What: fmt.Sprintf(what, args...)})
}

func (d *diagnosis) warn(check, means, do, what string, args ...any) {
	d.add(finding{check, statusWarning, fmt.Sprintf(what, args...), means, do})
}

func (d *diagnosis) fail(check, means, do, what string, args ...any) {
	d.add(finding{check, statusFailure, fmt.Sprintf(what, args...), means, do})
}

// add shows a finding at once: the next check may take its time.
func (d *diagnosis) add(f finding) {
	d.list = append(d.list, f)
	if d.o.json {
		return
	}
	fmt.Fprintf(d.app.stdout, "%-8s %-8s %s\n", f.Status, f.Check, f.What)
	for _, more := range []struct{ word, text string }{{"means", f.Means}, {"do", f.Do}} {
		if more.text != "" {
			fmt.Fprintf(d.app.stdout, "%18s%s: %s\n", "", more.word, more.text)
		}
	}
}

func (d *diagnosis) count(status string) (n int) {
	for _, f := range d.list {
		if f.Status == status {
			n++
		}
	}
	return n
}

// doctor runs all checks that make sense after those before.
func (a *app) doctor(ctx context.Context, o *doctorOptions) error {
	d := &diagnosis{app: a, o: o}
	if (o.program == "" || d.checkProgram(ctx)) && d.checkAddress(ctx) {
		d.checkInterface()
		d.checkKernel()
		d.checkPort()
	}
	if d.be != nil {
		d.checkSocket()
		d.checkICRC(ctx)
		if d.peer.IsValid() {
			d.checkPeer(ctx)
		}
		d.be.Close()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	failures := d.count(statusFailure)
	if o.json {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(struct {
			Checks   []finding `json:"checks"`
			Failures int       `json:"failures"`
			Warnings int       `json:"warnings"`
		}{d.list, failures, d.count(statusWarning)}); err != nil {
			return err
		}
	}
	if failures > 0 {
		var names []string
		for _, f := range d.list {
			if f.Status == statusFailure {
				names = append(names, f.Check)
			}
		}
		return fmt.Errorf("%d of %d checks failed: %s", failures, len(d.list), strings.Join(names, ", "))
	}
	return nil
}
