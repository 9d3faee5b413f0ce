//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// perfPort is the TCP port of roce perf.
const perfPort = 18515

// perfReport is what we need of the JSON of roce perf.
type perfReport struct {
	Results []struct {
		Size    int     `json:"size"`
		Iters   uint64  `json:"iters"`
		Seconds float64 `json:"seconds"`
		Gbit    float64 `json:"gbit_per_sec"`
		Rate    float64 `json:"mmsg_per_sec"`
		P50     float64 `json:"typical_usec"`
		P99     float64 `json:"p99_usec"`
		P999    float64 `json:"p999_usec"`
	} `json:"results"`
	Verified struct {
		Messages uint64 `json:"messages"`
	} `json:"verified"`
	Counters map[string]uint64 `json:"counters"`
}

// perf is a test of roce perf with flags for both sides.
type perf struct {
	on     *network
	test   string
	flags  []string
	metric func(r *perfReport) (value, p99, p999 float64)
}

func gbits(r *perfReport) (value, p99, p999 float64) { return r.Results[0].Gbit, 0, 0 }
func mmsgs(r *perfReport) (value, p99, p999 float64) { return r.Results[0].Rate, 0, 0 }
func usecs(r *perfReport) (value, p99, p999 float64) {
	return r.Results[0].P50, r.Results[0].P99, r.Results[0].P999
}
func (p perf) argv(l *testLab, e end, more ...string) []string {
	argv := append([]string{l.roce, "perf", p.test, "--addr", e.addr, "--json", "--verify=last", "-u", "16"}, p.flags...)
	return append(argv, more...)
}

// play runs the test and verifies that data have been verified.
func (p perf) play(ctx context.Context, l *testLab) (s sample, err error) {
	o, err := p.on.play(ctx, perfPort, p.argv(l, p.on.server), p.argv(l, p.on.client, p.on.server.addr))
	if err != nil {
		return s, err
	}
	var server, client perfReport
	for _, side := range []struct {
		text []byte
		into *perfReport
	}{{o.server, &server}, {o.client, &client}} {
		if err := json.Unmarshal(side.text, side.into); err != nil {
			return s, fmt.Errorf("the report of %s is not what it should be: %w", p.test, err)
		}
	}
	if len(client.Results) != 1 || client.Results[0].Iters == 0 {
		return s, fmt.Errorf("%s has measured nothing", p.test)
	}
	if server.Verified.Messages+client.Verified.Messages == 0 {
		return s, fmt.Errorf("%s has verified nothing", p.test)
	}
	s.Value, s.P99, s.P999 = p.metric(&client)
	r := client.Results[0]
	s.perMessage(r.Iters, r.Size, o)
	if sent := client.Counters["sent_pkts"] + server.Counters["sent_pkts"]; sent > 0 {
		s.Retransmitted = float64(client.Counters["retransmitted_pkts"]+server.Counters["retransmitted_pkts"]) / float64(sent)
	}
	return s, nil
}

// size returns the flags for messages of n bytes.
func size(n int, more ...string) []string { return append([]string{"-s", strconv.Itoa(n)}, more...) }
