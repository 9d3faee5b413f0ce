package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/mirror"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/spf13/cobra"
)

// interopOptions are the flags of interop, checked.
type interopOptions struct {
	host    string
	peers   []string // kinds; empty: whatever answers
	addr    netip.Addr
	port    uint16 // of rdma_cm
	tcpPort uint16 // of the first perftest program
	mtus    []ib.MTU
	sizes   []int // bytes; nil: those that suit the MTU
	faults  []interopFault
	ackTime int
	timeout time.Duration
	json    bool
	html    string
	label   string // what the peer is, for the report
}

// interopFault is a fault of --fault: about the nth packet, 0 for the usual one.
type interopFault struct {
	*misdeed
	nth int
}

// The kinds of peers, in the order in which they are tried.
const (
	peerServe    = "serve"
	peerRping    = "rping"
	peerPerftest = "perftest"
)

var interopKinds = []string{peerServe, peerRping, peerPerftest}

func (a *app) interopCommand() *cobra.Command {
	var (
		o            interopOptions
		addr, device string
		mtus, sizes  []int
		faults       []string
		script       bool
	)
	cmd := &cobra.Command{
		Use:   "interop [flags] HOST",
		Short: "Test whether a peer does what the standard says, also when we do not",
		Long: `interop runs operations of many sizes and path MTUs against what answers at HOST, then
the same with faults of our own making, and says of each whether the peer has done
what the standard asks for. What has failed is shown with its packets.

One or several of these have to run at HOST; --peer chooses, without it each is tried:

  serve     roce serve --addr HOST
            all operations over RC, UC and UD, requested by us and by the peer
  rping     rping -s -P -S 65535             (Linux rxe or a NIC; package rdmacm-utils)
            SEND by both, READ and WRITE by the peer; connected by rdma_cm
  perftest  what 'roce interop --script HOST' prints: a shell script that keeps six programs
            of the package perftest running
            SEND, WRITE, READ and atomics by us, SEND and WRITE by the peer

Faults, all of our side (--fault NAME, or NAME=K for the K-th packet; over RC):

` + misdeedList() + `
Exit status: 0 all that the peer offers has passed, 1 something has failed or HOST does
not answer, 2 wrong usage.`,
		Example: `  roce interop 10.0.0.2
  roce interop --html report.html --fault none -m 1024 10.0.0.2
  roce interop --peer perftest --fault drop=2,rnr=50 10.0.0.2
  roce interop --script 10.0.0.2 | ssh 10.0.0.2 sh   # perftest there, until interrupted`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef(cmd, "give one HOST, the peer to test")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.host = args[0]
			if script {
				fmt.Fprint(a.stdout, perftestScript(o.tcpPort))
				return nil
			}
			switch {
			case o.port == 0:
				return usagef(cmd, "-p 0: a port of rdma_cm is needed")
			case o.tcpPort == 0 || int(o.tcpPort)+len(perftestCells) > 1<<16:
				return usagef(cmd, "--tcp-port %d: it and the %d ports after it are needed", o.tcpPort, len(perftestCells)-1)
			case o.ackTime < 1 || o.ackTime > 20:
				return usagef(cmd, "-u %d: allowed are 1 to 20", o.ackTime)
			case o.timeout < 100*time.Millisecond:
				return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
			}
			for _, p := range o.peers {
				if !slices.Contains(interopKinds, p) {
					return usagef(cmd, "--peer %s: there are %s", p, strings.Join(interopKinds, ", "))
				}
			}
			for _, m := range mtus {
				mtu, ok := ib.MTUFromBytes(m)
				if !ok {
					return usagef(cmd, "-m %d: path MTUs are 256, 512, 1024, 2048 and 4096", m)
				}
				o.mtus = append(o.mtus, mtu)
			}
			for _, s := range sizes {
				if s < 0 || s > mirror.Size {
					return usagef(cmd, "-s %d: a message has 0 to %d bytes", s, mirror.Size)
				}
			}
			o.sizes = sizes
			if o.faults, err = parseFaults(faults); err != nil {
				return usagef(cmd, "--fault %v", err)
			}
			if o.addr, err = localAddrFlag(cmd, addr, device); err != nil {
				return err
			}
			return a.interop(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.peers, "peer", nil, "what runs at HOST: "+strings.Join(interopKinds, ", ")+" (default: whatever answers)")
	f.StringVarP(&addr, "addr", "a", "", "local address (default: that of the route to HOST)")
	f.StringVarP(&device, "ib-dev", "d", "", "the same by the device's name")
	f.Uint16VarP(&o.port, "port", "p", 7174, "port of rdma_cm of serve and rping")
	f.Uint16Var(&o.tcpPort, "tcp-port", perftest.Port, "TCP port of the first perftest program, the others have the next ones")
	f.IntSliceVarP(&mtus, "mtu", "m", nil, "path MTUs (default: all that fit the interface)")
	f.IntSliceVarP(&sizes, "size", "s", nil, "bytes of messages (default: some around the path MTU, and long ones)")
	f.StringSliceVar(&faults, "fault", []string{"all"}, "faults, 'all' or 'none'")
	f.IntVarP(&o.ackTime, "qp-timeout", "u", 14, "how long both sides wait for an acknowledgement: 4.096 us times 2 to the power of this")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give an operation up after this long")
	f.StringVar(&o.html, "html", "", "write a report to this file, one page of HTML")
	f.StringVar(&o.label, "label", "", "what the peer is, for the report: \"Linux 6.12, rxe\"")
	f.BoolVar(&script, "script", false, "print what to run at HOST for --peer perftest, and do nothing")
	f.BoolVar(&o.json, "json", false, "print the report as JSON")
	return cmd
}

// parseFaults reads the values of --fault.
func parseFaults(list []string) (faults []interopFault, err error) {
	for _, text := range list {
		switch text {
		case "all":
			for i := range misdeeds {
				faults = append(faults, interopFault{&misdeeds[i], 0})
			}
			continue
		case "none":
			if len(list) > 1 {
				return nil, fmt.Errorf("none: give no other one beside it")
			}
			continue
		}
		name, number, given := strings.Cut(text, "=")
		i := slices.IndexFunc(misdeeds, func(m misdeed) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("%s: it is unknown, see the list", text)
		}
		f := interopFault{&misdeeds[i], 0}
		if given {
			if f.nth, err = strconv.Atoi(number); err != nil || f.nth < 1 || f.nth > 1000 {
				return nil, fmt.Errorf("%s: a number from 1 to 1000 is needed", text)
			}
		}
		faults = append(faults, f)
	}
	return faults, nil
}
