//go:build linux

// Command bottleneck lets processes of roce perf share a slow link: two network
// namespaces with a forwarder between them, which has a rate, a queue and RED on ECN,
// as a switch has. It prints what each control makes of it. It needs root, iproute2 and
// /dev/net/tun; `make bottleneck` runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/goroce/goroce/test/sim/network"
)

func main() {
	var (
		c        = config{queue: defaultQueue}
		mbits    = flag.Float64("rate", defaultQueue.rate/1e6, "of the link, in Mb/s")
		controls = flag.String("cc", "dcqcn,swift,none", "controls, one after the other")
		runs     = flag.Int("runs", 1, "of each")
	)
	flag.StringVar(&c.roce, "roce", "build/roce", "the program")
	flag.IntVar(&c.flows, "flows", 4, fmt.Sprintf("that share the link, at most %d", maxFlows))
	flag.IntVar(&c.seconds, "seconds", 6, "that they send")
	flag.IntVar(&c.queue.limit, "limit", defaultQueue.limit, "bytes that the queue holds")
	flag.IntVar(&c.queue.red.Kmin, "kmin", defaultQueue.red.Kmin, "bytes from which packets are marked")
	flag.IntVar(&c.queue.red.Kmax, "kmax", defaultQueue.red.Kmax, "bytes from which all are")
	flag.Float64Var(&c.queue.red.Pmax, "pmax", defaultQueue.red.Pmax, "share of those marked at -kmax")
	flag.Parse()
	c.queue.rate = *mbits * 1e6
	c.args = flag.Args()
	if c.flows < 1 || c.flows > maxFlows || c.seconds < 2 {
		fmt.Fprintf(os.Stderr, "bottleneck: allowed are 1 to %d flows and 2 seconds or more\n", maxFlows)
		os.Exit(2)
	}
	if err := table(c, strings.Split(*controls, ","), *runs); err != nil {
		fmt.Fprintln(os.Stderr, "bottleneck:", err)
		os.Exit(1)
	}
}

// defaultQueue holds 20 ms of a link that any machine forwards with ease.
var defaultQueue = queueConfig{rate: 400e6, limit: 1_000_000, red: network.RED{Kmin: 50_000, Kmax: 200_000, Pmax: 0.2}}

func table(c config, controls []string, runs int) error {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("A link of %.0f Mb/s with a queue of %d KB, RED from %d to %d KB, %g %%; WRITEs of 64 KiB for %d s; Linux %s, %d processors, load %s.\n\n%s\n",
		c.queue.rate/1e6, c.queue.limit/1000, c.queue.red.Kmin/1000, c.queue.red.Kmax/1000, 100*c.queue.red.Pmax, c.seconds,
		strings.TrimSpace(string(kernel)), runtime.NumCPU(), strings.Fields(string(load))[0], head)
	for range runs {
		for _, c.control = range controls {
			r, err := run(c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.control, err)
			}
			fmt.Println(r.row())
			if r.lost > 0 {
				fmt.Fprintf(os.Stderr, "bottleneck: the forwarder was too slow: %d packets were lost before it\n", r.lost)
			}
		}
	}
	return nil
}
