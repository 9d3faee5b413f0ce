package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/spf13/cobra"
)

// demoSizes are the message sizes of the demo: around a packet of 4096 bytes, and
// up to many.
var demoSizes = []int{0, 1, 1 << 10, 4096, 4097, 64 << 10, 1 << 20, 64 << 20}

const (
	// captureMax is the longest message in the capture file.
	captureMax = 64 << 10
	// captureDepth is how many requests stand together in the capture file;
	// each operation is there once alone and once so, in each direction.
	captureDepth = 3
	// demoQuiet is how long nothing may arrive.
	demoQuiet = 10 * time.Second
)

// demoOptions are the flags of demo, checked.
type demoOptions struct {
	addr    netip.Addr // invalid: the default
	port    uint16
	askPort bool // port was asked for
	sizeMax int
	pcap    string
	seed    uint64
	budget  time.Duration
	json    bool
}

func (a *app) demoCommand() *cobra.Command {
	var (
		o       demoOptions
		addr    string
		sizeMax string
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Move data between two endpoints of this process, and check every byte",
		Long: `demo opens two endpoints in this process, on 127.0.0.1 and 127.0.0.2, connects
them over real UDP sockets, and moves data both ways with SEND, WRITE and READ,
from 0 bytes to 64 MiB: once over a clean path, once with 1 % of the packets
dropped, 1 % duplicated and 1 % reordered. Each byte is compared with what it has to
be; it depends on position, iteration, direction and operation.

Where 127.0.0.2 does not exist, or with --addr, one device with two queue pairs
plays with itself.

The table shows the latency of one request (median and 99th percentile, from post
to completion) and the throughput with many outstanding (16, or 1 MiB). Retries are
how often a requester had to send again. Small messages are also written to a file
that tshark and Wireshark read.

It needs no privileges. Exit status: 0 all bytes were right, 1 they were not or
something failed, 2 wrong usage.`,
		Args: maxArgs(0, "demo takes flags only"),
		RunE: func(cmd *cobra.Command, args []string) error {
			max, err := parseBytes(sizeMax)
			if err != nil {
				return usagef(cmd, "--size-max: %v", err)
			}
			if max > maxMessage {
				return usagef(cmd, "--size-max: a message has at most %d bytes", int64(maxMessage))
			}
			o.sizeMax = int(max)
			if o.addr, err = localAddrFlag(cmd, addr, ""); err != nil {
				return err
			}
			o.askPort = cmd.Flags().Changed("port")
			if o.port == 0 {
				return usagef(cmd, "--port 0: a UDP port is needed")
			}
			if o.budget <= 0 {
				return usagef(cmd, "--budget %v: it must be positive", o.budget)
			}
			return a.demo(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&addr, "addr", "a", "", "local IP address (default: 127.0.0.1 and 127.0.0.2)")
	f.StringVar(&sizeMax, "size-max", "64MiB", "longest message")
	f.StringVar(&o.pcap, "pcap", "", "capture `FILE` (default: a new one in the folder for temporary files; \"none\" for none)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the faults")
	f.Uint16Var(&o.port, "port", netio.Port, "UDP port of both endpoints")
	f.DurationVar(&o.budget, "budget", 40*time.Millisecond, "time for each of the 8 measurements of a row")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

// demoResult is what --json prints.
type demoResult struct {
	Endpoints    [2]string     `json:"endpoints"`
	Port         uint16        `json:"port"`
	Seed         uint64        `json:"seed"`
	FaultRate    float64       `json:"fault_rate"` // of each: dropped, duplicated, reordered
	Rows         []demoRow     `json:"rows"`
	Capture      *captureCheck `json:"capture,omitempty"`
	Operations   int           `json:"operations"`
	BytesChecked int64         `json:"bytes_checked"`
	Seconds      float64       `json:"seconds"`
	OK           bool          `json:"ok"`
}

type demoRow struct {
	Operation string     `json:"operation"`
	Size      int        `json:"size"` // bytes
	Clean     *demoStats `json:"clean"`
	Faulty    *demoStats `json:"faulty"`
}

type demoStats struct {
	Operations int     `json:"operations"`
	P50Usec    float64 `json:"p50_usec"`
	P99Usec    float64 `json:"p99_usec"`
	GbitPerSec float64 `json:"gbit_per_sec"`
	Retries    uint64  `json:"retries"`
}

func (a *app) demo(ctx context.Context, o *demoOptions) error {
	d := &demo{app: a, o: o, result: demoResult{Seed: o.seed, FaultRate: faultRate, Rows: []demoRow{}}}
	begin := time.Now()
	if err := d.prepare(); err != nil {
		return err
	}
	var file *os.File
	if o.pcap != "none" {
		var err error
		if file, err = createCapture(o.pcap); err != nil {
			return err
		}
		defer file.Close()
	}
	d.allocate()
	if file != nil {
		if err := d.captured(ctx, file); err != nil {
			return fmt.Errorf("%w (packets until then: %s)", err, file.Name())
		}
	}
	if err := d.measured(ctx); err != nil {
		return err
	}
	d.result.Seconds, d.result.OK = time.Since(begin).Seconds(), true
	if o.json {
		return printJSON(a.stdout, &d.result)
	}
	d.print()
	return nil
}

// demo is one run.
type demo struct {
	app    *app
	o      *demoOptions
	rig    rigConfig
	sizes  []int
	passes uint64
	result demoResult
}

// say prints a line for people.
func (d *demo) say(format string, args ...any) {
	if !d.o.json {
		fmt.Fprintf(d.app.stdout, format+"\n", args...)
	}
}

// prepare decides on addresses, port and sizes.
func (d *demo) prepare() error {
	one, two := d.o.addr, d.o.addr
	if !one.IsValid() {
		one, two = d.app.demoAddrs[0], d.app.demoAddrs[1]
	}
	port, err := d.choosePort(one)
	if err != nil {
		return err
	}
	d.rig = rigConfig{addrs: [2]netip.Addr{one, two}, port: port, seed: d.o.seed}
	if one != two {
		if err := d.probe(two, port); err != nil {
			d.say("%v cannot be used (%v): one device on %v plays with itself", two, err, one)
			d.rig.addrs[1] = one
		}
	}
	for _, n := range demoSizes {
		if n <= d.o.sizeMax {
			d.sizes = append(d.sizes, n)
		}
	}
	if last := d.sizes[len(d.sizes)-1]; d.o.sizeMax > last && d.o.sizeMax != demoSizes[len(demoSizes)-1] {
		d.sizes = append(d.sizes, d.o.sizeMax)
	}
	d.result.Endpoints = [2]string{d.rig.addrs[0].String(), d.rig.addrs[1].String()}
	d.result.Port = port
	d.say("RoCEv2 between %v and %v, UDP port %d, in one process", d.rig.addrs[0], d.rig.addrs[1], port)
	return nil
}

// allocate makes the memory of both endpoints.
func (d *demo) allocate() {
	for i := range d.rig.bufs {
		d.rig.bufs[i] = make([]byte, max(d.sizes[len(d.sizes)-1], pipelined+64*demoDepth))
		pattern.Fill(d.rig.bufs[i], 0) // so that no measurement pays for fresh pages
	}
}

// choosePort returns the UDP port: that of RoCE, or another one when it is taken
// and the user did not ask for it.
func (d *demo) choosePort(addr netip.Addr) (uint16, error) {
	err := d.probe(addr, d.o.port)
	if !errors.Is(err, syscall.EADDRINUSE) || d.o.askPort {
		return d.o.port, err
	}
	if d.probe(addr, fallback) != nil {
		return 0, err
	}
	d.say("%v: taking port %d instead", err, fallback)
	return fallback, nil
}

// probe opens a device and closes it.
func (d *demo) probe(addr netip.Addr, port uint16) error {
	dev, err := d.app.open(roce.Config{Addr: addr, Port: port})
	if err != nil {
		return err
	}
	return dev.Close()
}

// captured moves small messages with a tap below the first endpoint and checks the
// file.
func (d *demo) captured(ctx context.Context, f *os.File) error {
	d.rig.wire = func(be netio.Backend) netio.Backend { return netio.Tap(be, f) }
	defer func() { d.rig.wire = nil }()
	few := effort{budget: demoQuiet, most: 1, depth: captureDepth}
	for _, faults := range []bool{false, true} {
		d.app.status("capturing small messages")
		if _, err := d.run(ctx, faults, few, func(n int) bool { return n <= captureMax }); err != nil {
			return err
		}
	}
	d.app.status("")
	check, err := checkCapture(f.Name())
	if err != nil {
		return fmt.Errorf("capture file %s: %w", f.Name(), err)
	}
	d.result.Capture = check
	return nil
}

// measured fills the table.
func (d *demo) measured(ctx context.Context) error {
	for _, faults := range []bool{false, true} {
		cells, err := d.run(ctx, faults, effort{budget: d.o.budget, depth: demoDepth}, func(int) bool { return true })
		if err != nil {
			return err
		}
		i := 0
		for _, size := range d.sizes {
			for _, op := range demoOps {
				if !faults {
					d.result.Rows = append(d.result.Rows, demoRow{Operation: op.name, Size: size, Clean: newDemoStats(cells[i])})
				} else {
					d.result.Rows[i].Faulty = newDemoStats(cells[i])
				}
				i++
			}
		}
	}
	d.app.status("")
	return nil
}

func newDemoStats(c *cell) *demoStats {
	usec := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return &demoStats{c.ops, usec(c.percentile(50)), usec(c.percentile(99)), c.gbitPerSec(), c.retries}
}

// run opens a rig and moves data with every operation and wanted size.
func (d *demo) run(ctx context.Context, faults bool, e effort, want func(size int) bool) (cells []*cell, err error) {
	d.rig.faults = faults
	d.passes++
	r, err := d.app.newRig(&d.rig)
	if err != nil {
		return nil, err
	}
	defer r.close()
	ctx, stop := watch(ctx, demoQuiet, r.packets)
	defer stop()
	run := &demoRun{rig: r, ctx: ctx, pass: d.passes}
	for _, size := range d.sizes {
		for op := range demoOps {
			if !want(size) {
				continue
			}
			d.app.status("%s, %s of %s", faultText(faults), demoOps[op].name, bytesText(int64(size)))
			c, err := run.measure(op, size, e)
			if err != nil {
				d.app.status("")
				return nil, fmt.Errorf("%s: %w", faultText(faults), err)
			}
			cells = append(cells, c)
			d.result.Operations += c.ops
			d.result.BytesChecked += c.bytes
		}
	}
	return cells, nil
}

func faultText(faults bool) string {
	if faults {
		return "with faults"
	}
	return "clean"
}

// createCapture creates the capture file, in the folder for temporary files when no
// name is given.
func createCapture(name string) (*os.File, error) {
	if name == "" {
		return os.CreateTemp("", "roce-demo-*.pcapng")
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write the capture file: %w", err)
	}
	return f, nil
}
