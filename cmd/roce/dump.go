package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/capture"
	"github.com/goroce/goroce/ib/layers"
	"github.com/spf13/cobra"
)

// dumpOptions are the flags of dump, checked.
type dumpOptions struct {
	files    []string
	iface    string
	count    int // RoCE packets; 0: all
	duration time.Duration
	verbose  bool
	summary  bool
	json     bool
}

func (a *app) dumpCommand() *cobra.Command {
	var (
		o     dumpOptions
		ports []uint
	)
	cmd := &cobra.Command{
		Use:   "dump [flags] FILE... | - | -i INTERFACE",
		Short: "Show the RoCE packets of a capture, judge their ICRCs, sum up by flow",
		Long: `dump reads captures (pcap or pcapng, also gzipped; - is standard input) or captures
itself with -i, and shows RoCEv2, RoCEv1 and native InfiniBand packets, one line
each, then a summary by flow. Datagrams of the connection manager and of
performance management are decoded; -v shows all fields. Every ICRC is computed.

A host that segments UDP in its network card is captured before that happens:
several packets in one piece. They are shown one by one, as they leave.

The last line is: packets N roce N icrc-ok N icrc-bad N. What a capture has cut off
cannot be judged, and is in neither of the last two.

Exit status: 0 success, 1 failure (an ICRC is wrong, a file cannot be read), 2 wrong
usage.`,
		Example: `  tcpdump -i eth0 -w - udp port 4791 | roce dump -
  roce dump -i eth0 --duration 10s -q`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = args
			switch {
			case o.iface == "" && len(args) == 0:
				return usagef(cmd, "give files, - for standard input, or -i and an interface")
			case o.iface != "" && len(args) > 0:
				return usagef(cmd, "unexpected argument %q beside -i", args[0])
			case o.count < 0:
				return usagef(cmd, "-c %d: a number of packets is needed, 0 for no limit", o.count)
			case o.duration < 0 || o.duration > 0 && o.iface == "":
				return usagef(cmd, "--duration %v: a time to capture is needed, with -i", o.duration)
			}
			for _, p := range ports {
				if p == 0 || p > 65535 {
					return usagef(cmd, "--port %d: a UDP port is needed", p)
				}
				layers.RegisterPort(uint16(p))
			}
			return a.dump(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.iface, "interface", "i", "", "capture on this interface (Linux; root or CAP_NET_RAW) until interrupted")
	f.DurationVar(&o.duration, "duration", 0, "capture for this long")
	f.IntVarP(&o.count, "count", "c", 0, "stop after this many RoCE packets")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show all fields of all headers")
	f.BoolVarP(&o.summary, "summary", "q", false, "show the summary only")
	f.UintSliceVar(&ports, "port", nil, "UDP destination port that carries RoCEv2, besides 4791; may be repeated")
	f.BoolVar(&o.json, "json", false, "print packets and summary as JSON")
	return cmd
}

// dump shows all captures, then the summary.
func (a *app) dump(ctx context.Context, o *dumpOptions) error {
	d := newDumper(a.stdout, o)
	err := a.dumpSources(ctx, o, d)
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err := d.finish(); err != nil {
		return err
	}
	if d.sum.Wrong > 0 {
		return fmt.Errorf("%d of %d packets have a wrong ICRC", d.sum.Wrong, d.sum.RoCE)
	}
	return nil
}

func (a *app) dumpSources(ctx context.Context, o *dumpOptions, d *dumper) error {
	if o.iface != "" {
		if o.duration > 0 {
			limited, cancel := context.WithTimeout(ctx, o.duration)
			defer cancel()
			ctx = limited
		}
		src, err := capture.Live(ctx, o.iface)
		if err != nil {
			return err
		}
		a.progressf("capturing on %s", o.iface)
		return dumpSource(src, d)
	}
	for _, name := range o.files {
		if err := a.dumpFile(ctx, name, d); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if d.full() {
			break
		}
	}
	return nil
}

func (a *app) dumpFile(ctx context.Context, name string, d *dumper) error {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return errors.Unwrap(err) // without the name
		}
		defer f.Close()
		in = f
	}
	src, err := capture.Read(interruptible{ctx, in})
	if err != nil {
		return err
	}
	return dumpSource(src, d)
}

// interruptible is a reader that ends with a context.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, io.EOF
	}
	return i.r.Read(b)
}

func dumpSource(src capture.Source, d *dumper) error {
	defer src.Close()
	for !d.full() {
		f, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := d.frame(f); err != nil {
			return err
		}
	}
	if l, ok := src.(interface{ Dropped() uint64 }); ok {
		d.sum.Dropped += l.Dropped()
	}
	return nil
}
