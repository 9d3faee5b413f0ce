package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cc"
)

// rpingOffers are what `rping -s -P` does with each ping.
func rpingOffers() (offers []interopOffer) {
	sizes := func(mtu int) []int { return []int{64, mtu + 1, pingSizeMax} }
	for _, op := range []*interopOp{usSend, itSend, itRead, itWrite} {
		o := interopOffer{op: op, service: roce.RC, sizes: sizes, play: playRping}
		if op == usSend || op == itSend {
			o.sizes = func(int) []int { return []int{pingInfo} }
		}
		offers = append(offers, o)
	}
	return offers
}

// pingRounds is how many pings an operation is.
const pingRounds = 3

// playRping pings. A message that says where memory is has always 16 bytes: that size
// is no ping's.
func playRping(ctx context.Context, a *app, c *interopCell) error {
	o := &pingOptions{
		addr: c.run.peer.String(), source: c.run.local, port: c.run.o.port, count: pingRounds, size: max(c.Size, pingSizeMin),
		validate: true, mtu: c.mtu, ackTimeout: c.run.o.ackWait(), timeout: c.run.o.timeout,
	}
	if c.Size < pingSizeMin {
		o.size = 64
	}
	return a.pingClient(ctx, o, new(pingResult))
}

// perftestCell is a program of perftest that interop uses, with what it measures.
type perftestCell struct {
	test  string
	op    *interopOp
	sizes []int // bytes; the first is what the program is told
}

// perftestCells are the programs, in the order of their ports. Where the server sends as
// well, both sides have the same size; else it is the largest.
var perftestCells = []perftestCell{
	{"send_bw", usSend, []int{65536, 1, 4097}},
	{"write_bw", usWrite, []int{65536, 1, 4097}},
	{"read_bw", usRead, []int{65536, 1, 4097}},
	{"atomic_bw", usFetchAdd, []int{8}},
	{"send_lat", itSend, []int{16384}},
	{"write_lat", itWrite, []int{16384}},
}

// perftestIters is how many messages a test has.
const perftestIters = 20

// perftestScript is what has to run at the peer.
func perftestScript(port uint16) string {
	var b strings.Builder
	b.WriteString(`#!/bin/sh
# For 'roce interop --peer perftest': servers of perftest, again and again, until interrupted.
# DEV is the RDMA device, GID the index of a GID that is an IP address (ibv_devinfo -v).
: "${DEV:=rxe0}" "${GID:=1}"
trap 'trap - INT TERM; kill 0' INT TERM
forever() { while :; do "$@" >/dev/null 2>&1; sleep 0.1; done; }
`)
	for i, c := range perftestCells {
		size := fmt.Sprintf(" -s %d", c.sizes[0])
		if c.op == usFetchAdd {
			size = ""
		}
		fmt.Fprintf(&b, "forever ib_%s -d \"$DEV\" -x \"$GID\" -F -n %d%s -p %d &\n", c.test, perftestIters, size, int(port)+i)
	}
	b.WriteString("wait\n")
	return b.String()
}

// perftestOffers are the operations of those programs.
func perftestOffers() (offers []interopOffer) {
	for i, p := range perftestCells {
		offers = append(offers, interopOffer{
			op: p.op, service: roce.RC, sizes: func(int) []int { return p.sizes }, fixed: len(p.sizes) == 1, most: p.sizes[0],
			play: func(ctx context.Context, a *app, c *interopCell) error {
				return a.playPerftest(ctx, c, p.test, c.run.o.tcpPort+uint16(i))
			},
		})
	}
	return offers
}

// playPerftest runs one test as client.
func (a *app) playPerftest(ctx context.Context, c *interopCell, test string, port uint16) error {
	o := &perfOptions{
		server: c.run.peer.String(), addr: c.run.local, port: port, service: roce.RC, size: c.Size, iters: perftestIters, mtu: c.mtu,
		qps: 1, txDepth: 1, rxDepth: 512, postList: 1, outs: perfMaxOuts, ackTime: c.run.o.ackTime, cc: cc.DCQCN{}, timeout: c.run.o.timeout,
	}
	for _, t := range perfTests {
		if t.name == test {
			o.test = t
		}
	}
	if !o.test.latency {
		o.txDepth = 128
	}
	if o.test.fetches() {
		o.verify = perfVerify["each"]
	}
	pause := perftestStart
	if c.run.present[port] {
		pause = c.run.o.timeout / 2
	}
	for until := time.Now().Add(pause); ; {
		err := a.perf(ctx, o, nil)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			c.run.present[port] = true
			return err
		}
		if time.Now().After(until) {
			return &notOffered{fmt.Sprintf("nobody listens on TCP port %d: 'roce interop --script' prints how to start ib_%s there", port, test)}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// perftestStart is how long a program may take to start, where none has been seen yet.
const perftestStart = 200 * time.Millisecond
