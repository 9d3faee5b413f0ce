//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// ucxPort is the TCP port of ucx_perftest.
const ucxPort = 13337

// ucx is a test of ucx_perftest over TCP.
type ucx struct {
	on     *network
	test   string
	size   int
	iters  int
	column int // of its last line
	factor float64
}

// Columns of ucx_perftest: the median of half a round trip in us, and MB/s (2^20).
const (
	ucxMedian    = 1
	ucxBandwidth = 5
)

func ucxThere() bool {
	_, err := exec.LookPath("ucx_perftest")
	return err == nil
}

func (u ucx) play(ctx context.Context, _ *testLab) (s sample, err error) {
	argv := []string{"env", "UCX_TLS=tcp", "ucx_perftest", "-p", strconv.Itoa(ucxPort)}
	o, err := u.on.play(ctx, ucxPort, argv, append(argv, "-t", u.test, "-s", strconv.Itoa(u.size), "-n", strconv.Itoa(u.iters), "-f", u.on.server.addr))
	if err != nil {
		return s, err
	}
	var last []string
	for line := range strings.Lines(string(o.client)) {
		if f := strings.Fields(line); len(f) > ucxBandwidth && f[0] == strconv.Itoa(u.iters) {
			last = f
		}
	}
	if last == nil {
		return s, fmt.Errorf("ucx_perftest -t %s printed no result: %s", u.test, o.client)
	}
	s.Value, err = strconv.ParseFloat(last[u.column], 64)
	s.Value *= u.factor
	s.perMessage(uint64(u.iters), u.size, o)
	return s, err
}
