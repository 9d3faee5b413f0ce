package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/roce"
)

const (
	mib  = 1 << 20
	gbit = 1e9 / 8 // bytes
)

// latencyDump says whether all times of a latency test are wanted.
type latencyDump int

const (
	dumpNothing latencyDump = iota
	dumpSorted
	dumpUnsorted
)

// perfResult is the measurement of one size.
type perfResult interface {
	// row is the line of perftest's table.
	row(o *perfOptions) string
}

// throughput is the result of a bandwidth test. Rates are of payload.
type throughput struct {
	Size       int     `json:"size"`  // bytes
	Iters      uint64  `json:"iters"` // messages, all queue pairs together
	Seconds    float64 `json:"seconds"`
	PeakMiB    float64 `json:"peak_mib_per_sec"` // 0: not measured
	MiB        float64 `json:"mib_per_sec"`
	PeakGbit   float64 `json:"peak_gbit_per_sec"`
	Gbit       float64 `json:"gbit_per_sec"`
	MsgPerUsec float64 `json:"mmsg_per_sec"`
}

// newThroughput computes rates; peak is in messages per second.
func newThroughput(size int, iters uint64, took time.Duration, peak float64) *throughput {
	t := &throughput{Size: size, Iters: iters, Seconds: took.Seconds()}
	if took > 0 {
		t.MsgPerUsec = float64(iters) / took.Seconds() / 1e6
	}
	t.setRates(t.MsgPerUsec*1e6*float64(size), peak*float64(size))
	return t
}

// setRates sets average and peak from bytes per second.
func (t *throughput) setRates(average, peak float64) {
	t.MiB, t.PeakMiB = average/mib, peak/mib
	t.Gbit, t.PeakGbit = average/gbit, peak/gbit
}

func (t *throughput) row(o *perfOptions) string {
	average, peak := t.MiB, t.PeakMiB
	if o.gbits {
		average, peak = t.Gbit, t.PeakGbit
	}
	return fmt.Sprintf(" %-7d    %-10d       %-7.2f            %-7.2f\t\t   %-7.6f", t.Size, t.Iters, peak, average, t.MsgPerUsec)
}

// latency is the result of a latency test: half a round trip for SEND and WRITE, a
// whole one for READ and atomics.
type latency struct {
	Size    int       `json:"size"`  // bytes
	Iters   uint64    `json:"iters"` // messages
	Seconds float64   `json:"seconds"`
	Min     float64   `json:"min_usec"`
	Max     float64   `json:"max_usec"`
	Typical float64   `json:"typical_usec"` // the median
	Average float64   `json:"avg_usec"`
	Stdev   float64   `json:"stdev_usec"`
	P50     float64   `json:"p50_usec"` // the same
	P99     float64   `json:"p99_usec"`
	P999    float64   `json:"p999_usec"`
	All     []float64 `json:"all_usec,omitempty"` // with -H sorted, with -U as they came
}

func (l *latency) row(o *perfOptions) string {
	return l.dump() + l.summary(o)
}

// dump is what -H and -U want: every time, before the summary.
func (l *latency) dump() string {
	var b strings.Builder
	for i, usec := range l.All {
		if i == 0 {
			b.WriteString("#, usec\n")
		}
		fmt.Fprintf(&b, "%d, %g\n", i+1, usec)
	}
	return b.String()
}

func (l *latency) summary(o *perfOptions) string {
	if o.duration > 0 {
		return fmt.Sprintf(" %-7d       %d            %-7.2f        %-7.2f", l.Size, l.Iters, l.Average, float64(l.Iters)/l.Seconds)
	}
	return fmt.Sprintf(" %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f",
		l.Size, l.Iters, l.Min, l.Max, l.Typical, l.Average, l.Stdev, l.P99, l.P999)
}

// latencies collects the times from one message of ours to the next, as perftest
// does.
type latencies struct {
	hist *hdrhistogram.Histogram // ns
	last int64                   // ns, when the last message left
	sent uint64
	sum  int64 // ns
	trip float64
	all  []int64 // ns, for -H and -U
	dump latencyDump
}

// newLatencies returns a collection of times up to a minute, 0.1 % exact.
func newLatencies(o *perfOptions, perTrip int) *latencies {
	l := &latencies{hist: hdrhistogram.New(1, int64(time.Minute), 3), trip: float64(perTrip), dump: o.dump}
	if l.dump != dumpNothing {
		l.all = make([]int64, 0, o.iters)
	}
	return l
}

// posted notes that a message leaves at a time in ns. It allocates nothing.
func (l *latencies) posted(now int64) {
	if l.sent > 0 {
		ns := min(now-l.last, int64(time.Minute))
		l.hist.RecordValue(ns)
		l.sum += ns
		if l.dump != dumpNothing {
			l.all = append(l.all, ns)
		}
	}
	l.sent++
	l.last = now
}

func (l *latencies) result(size int, took time.Duration) *latency {
	usec := func(ns float64) float64 { return ns / 1e3 / l.trip }
	r := &latency{
		Size: size, Iters: l.sent, Seconds: took.Seconds(),
		Min: usec(float64(l.hist.Min())), Max: usec(float64(l.hist.Max())),
		Typical: usec(float64(l.hist.ValueAtPercentile(50))), Stdev: usec(l.hist.StdDev()),
		P99: usec(float64(l.hist.ValueAtPercentile(99))), P999: usec(float64(l.hist.ValueAtPercentile(99.9))),
	}
	if n := l.hist.TotalCount(); n > 0 {
		r.Average = usec(float64(l.sum) / float64(n))
	}
	r.P50 = r.Typical
	if l.dump == dumpSorted {
		slices.Sort(l.all)
	}
	for _, ns := range l.all {
		r.All = append(r.All, usec(float64(ns)))
	}
	return r
}

// add takes a result and shows it.
func (r *perfRun) add(res perfResult) {
	r.results = append(r.results, res)
	r.show("%s\n", res.row(r.o))
}

// report is what the peer is told of a result.
func (r *perfRun) report(t *throughput) perftest.Report {
	p := perftest.Report{Size: uint64(t.Size), Iters: t.Iters, Peak: t.PeakMiB, Average: t.MiB, Rate: t.MsgPerUsec}
	if r.o.gbits {
		p.Peak, p.Average = t.PeakGbit, t.Gbit
	}
	return p
}

// reported is what the peer tells of a result: rates are in the unit of the flag,
// which is taken to be the same on both sides.
func (r *perfRun) reported(p perftest.Report) *throughput {
	unit := float64(mib)
	if r.o.gbits {
		unit = gbit
	}
	finite := func(v float64) float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return 0
		}
		return v
	}
	t := &throughput{Size: int(min(p.Size, maxMessage)), Iters: p.Iters, MsgPerUsec: finite(p.Rate)}
	if t.MsgPerUsec > 0 {
		t.Seconds = float64(t.Iters) / (t.MsgPerUsec * 1e6)
	}
	t.setRates(finite(p.Average)*unit, finite(p.Peak)*unit)
	return t
}

// add adds the other direction of -b. Iterations remain our own, as in perftest.
func (t *throughput) add(o *throughput) {
	t.setRates((t.MiB+o.MiB)*mib, (t.PeakMiB+o.PeakMiB)*mib)
	t.MsgPerUsec += o.MsgPerUsec
}

// show prints text, unless the result is wanted as JSON.
func (r *perfRun) show(format string, args ...any) {
	if !r.o.json {
		fmt.Fprintf(r.app.stdout, format, args...)
	}
}

var perfRule = strings.Repeat("-", 87) + "\n"

// head prints what stands above the rows of perftest's table.
func (r *perfRun) head() {
	o, t := r.o, r.o.test
	r.show("%s                    %s\n", perfRule, o.title())
	r.show(" Device          : %v\n", r.ep.dev.Addr())
	r.show(" Number of qps   : %d\t\tTransport type : IB\n", o.qps)
	r.show(" Connection type : %v\n", o.service)
	switch {
	case t.latency:
	case o.requests():
		r.show(" TX depth        : %d\n Post List       : %d\n CQ Moderation   : %d\n", o.txDepth, o.postList, o.cqMod(o.size))
	}
	if t.sends() && !t.latency && (!o.client() || o.both) {
		r.show(" RX depth        : %d\n", o.rxDepth)
	}
	r.show(" Mtu             : %d[B]\n Link type       : Ethernet\n GID index       : %d\n", r.mtu.Bytes(), o.gidIndex)
	if t.fetches() {
		r.show(" Outstand reads  : %d\n", o.outs)
	}
	states, methods := map[bool]string{false: "OFF", true: "ON"}, map[bool]string{false: "Ethernet", true: "rdma_cm"}
	r.show(" rdma_cm QPs     : %s\n Data ex. method : %s\n%s", states[o.rdmaCM], methods[o.rdmaCM], perfRule)
	for i, side := range [][]perftest.Dest{r.ep.mine, r.ep.peers} {
		for _, d := range side {
			r.show(" %s address: %s\n", []string{"local", "remote"}[i], destLine(t, d))
		}
	}
	r.show("%s", perfRule)
	switch unit := map[bool]string{false: "MiB", true: "Gb"}[o.gbits]; {
	case !t.latency:
		r.show(" #bytes     #iterations    BW peak[%s/sec]    BW average[%s/sec]   MsgRate[Mpps]\n", unit, unit)
	case o.duration > 0:
		r.show(" #bytes        #iterations       t_avg[usec]    tps average\n")
	default:
		r.show(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec] \n")
	}
}

// destLine is an address as perftest prints it.
func destLine(t *perfTest, d perftest.Dest) string {
	s := fmt.Sprintf("LID %s QPN %s PSN %s", cHex(4, uint64(d.LID)), cHex(6, uint64(d.QPN)), cHex(6, uint64(d.PSN)))
	if t.opcode == roce.WRRead {
		s += " OUT " + cHex(4, uint64(d.OutReads))
	}
	if t.opcode == roce.WRRead || t.opcode == roce.WRWrite {
		s += fmt.Sprintf(" RKey %s VAddr %s", cHex(8, uint64(d.RKey)), cHex(16, d.VAddr))
	}
	var gid []string
	for _, b := range d.GID {
		gid = append(gid, fmt.Sprintf("%02d", b)) // decimal, as there
	}
	return s + "\n GID: " + strings.Join(gid, ":")
}

// cHex is %#0nx of C: the prefix counts, and zero has none.
func cHex(width int, v uint64) string {
	if v == 0 {
		return strings.Repeat("0", width)
	}
	return fmt.Sprintf("0x%0*x", width-2, v)
}

// perfJSON is what --json prints.
type perfJSON struct {
	Test      string            `json:"test"`
	Role      string            `json:"role"` // client or server
	Transport string            `json:"transport"`
	RDMACM    bool              `json:"rdma_cm"` // connected it
	Peer      jsonPerfPeer      `json:"peer"`
	MTU       int               `json:"mtu"` // bytes
	QPs       int               `json:"qps"`
	TxDepth   int               `json:"tx_depth"`
	RxDepth   int               `json:"rx_depth"`
	PostList  int               `json:"post_list"`
	OutReads  int               `json:"outstanding_reads"`
	Local     []jsonPerfDest    `json:"local"`
	Remote    []jsonPerfDest    `json:"remote"`
	Results   []perfResult      `json:"results"`
	Verified  verified          `json:"verified"`
	Counters  map[string]uint64 `json:"counters"` // those that are not 0
}

type jsonPerfPeer struct {
	Program string `json:"program"` // roce or perftest
	Version string `json:"version"` // of the exchange
}

type jsonPerfDest struct {
	QPN   uint32 `json:"qpn"`
	PSN   uint32 `json:"psn"`
	RKey  uint32 `json:"rkey"`
	VAddr uint64 `json:"vaddr"`
	GID   string `json:"gid"`
}

func newJSONPerfDests(ds []perftest.Dest) (all []jsonPerfDest) {
	for _, d := range ds {
		all = append(all, jsonPerfDest{uint32(d.QPN), uint32(d.PSN), d.RKey, d.VAddr, d.GID.String()})
	}
	return all
}

// tail prints what stands below the rows, or everything as JSON.
func (r *perfRun) tail() error {
	o := r.o
	r.show("%s", perfRule)
	switch v := r.check.verified; {
	case v.What == otherSideVerifies:
		r.show(" data: %s\n", v.What)
	case o.verifies():
		r.show(" data of %d messages verified, %d bytes: %s\n", v.Messages, v.Bytes, v.What)
	}
	if !o.json {
		return nil
	}
	j := perfJSON{
		Test: o.test.name, Role: "server", Transport: strings.ToLower(fmt.Sprint(o.service)), RDMACM: o.rdmaCM,
		Peer: jsonPerfPeer{"perftest", r.peer.Version},
		MTU:  r.mtu.Bytes(), QPs: o.qps, TxDepth: o.txDepth, RxDepth: o.rxDepth, PostList: o.postList, OutReads: o.outs,
		Local: newJSONPerfDests(r.ep.mine), Remote: newJSONPerfDests(r.ep.peers),
		Results: r.results, Verified: r.check.verified, Counters: nonZero(r.ep.dev.Counters()),
	}
	if o.client() {
		j.Role = "client"
	}
	if r.peer.Ours {
		j.Peer.Program = "roce"
	}
	if j.Results == nil {
		j.Results = []perfResult{}
	}
	return printJSON(r.app.stdout, j)
}
