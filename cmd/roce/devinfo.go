package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/goroce/goroce/ib"
	"github.com/spf13/cobra"
)

func (a *app) devinfoCommand() *cobra.Command {
	var (
		addr, dev       string
		asJSON, verbose bool
	)
	cmd := &cobra.Command{
		Use:   "devinfo",
		Short: "List the addresses of this machine as RoCE devices, like ibv_devinfo",
		Long: `devinfo lists what can be opened as a device: one for each address of an
interface that is up, with its state, MTUs and GID. It opens nothing, so it says
the same while another program uses the address.

Exit status: 0 success, 1 failure (an address that is not local), 2 wrong usage.`,
		Args: maxArgs(0, "choose a device with --addr"),
		RunE: func(cmd *cobra.Command, args []string) error {
			only, err := localAddrFlag(cmd, addr, dev)
			if err != nil {
				return err
			}
			var list []deviceInfo
			if only.IsValid() {
				d, err := describe(only)
				if err != nil {
					return err
				}
				list = []deviceInfo{d}
			} else if list, err = listDevices(); err != nil {
				return err
			}
			if len(list) == 0 {
				return errors.New("no address of this machine can be used: bring an interface up and give it an address")
			}
			if verbose {
				for i := range list {
					if list[i].Limits, err = limitsOf(list[i].addr); err != nil {
						return err
					}
				}
			}
			if asJSON {
				return printJSON(a.stdout, map[string][]deviceInfo{"devices": list})
			}
			for i := range list {
				printDevice(a.stdout, &list[i])
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&addr, "addr", "a", "", "only the device of this local IP address")
	f.StringVarP(&dev, "ib-dev", "d", "", "only the device of this name")
	f.BoolVarP(&verbose, "verbose", "v", false, "print limits as well")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printDevice prints a device in the manner of ibv_devinfo.
func printDevice(w io.Writer, d *deviceInfo) {
	line := func(indent, name string, format string, args ...any) {
		fmt.Fprintf(w, "%s%-*s %s\n", indent, 24-len(indent), name+":", fmt.Sprintf(format, args...))
	}
	mtu := func(bytes int) string {
		if m, ok := ib.MTUFromBytes(bytes); ok {
			return fmt.Sprintf("%d (%d)", bytes, m)
		}
		return fmt.Sprintf("none fits, %d bytes are needed for 256", 256+headers(d.addr))
	}
	line("", "hca_id", "%s", d.Name)
	line("  ", "transport", "RoCE v2 over UDP")
	line("  ", "addr", "%s", d.Addr)
	line("  ", "interface", "%s, MTU %d", d.Interface, d.LinkMTU)
	if l := d.Limits; l != nil {
		line("  ", "max_mr_size", "%#x", l.MaxMRSize)
		line("  ", "max_qp", "%d", l.MaxQP)
		line("  ", "max_qp_wr", "%d", l.MaxQPWR)
		line("  ", "max_sge", "%d", l.MaxSGE)
		line("  ", "max_cqe", "%d", l.MaxCQE)
		line("  ", "max_srq_wr", "%d", l.MaxSRQWR)
		line("  ", "max_inline_data", "%d", l.MaxInline)
		line("  ", "max_qp_rd_atom", "%d", l.MaxQPRdAtom)
		line("  ", "max_qp_init_rd_atom", "%d", l.MaxQPInitRdAt)
		line("  ", "atomic_cap", "%s", l.AtomicCap)
		line("  ", "phys_port_cnt", "%d", l.PhysPortCount)
	}
	line("  ", "port", "1")
	line("    ", "state", "%s (%d)", d.State, uint8(d.state))
	line("    ", "max_mtu", "%s", mtu(d.MaxMTU))
	line("    ", "active_mtu", "%s", mtu(d.ActiveMTU))
	line("    ", "link_layer", "%s", d.LinkLayer)
	if d.Limits != nil {
		line("    ", "max_msg_sz", "%#x", d.Limits.MaxMsgSize)
	}
	for _, g := range d.GIDs {
		line("    ", fmt.Sprintf("GID[%d]", g.Index), "%s, %s", g.GID, g.Type)
	}
	fmt.Fprintln(w)
}
