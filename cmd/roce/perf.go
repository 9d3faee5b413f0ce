package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport/cc"
	"github.com/spf13/cobra"
)

// perfTest is one of the programs of perftest: ib_ and the name.
type perfTest struct {
	name    string
	title   string // in the table's head
	opcode  roce.WROpcode
	latency bool
	order   perftest.Order
	hangsUp bool // its exchange ends without a word
}

var perfTests = []*perfTest{
	{name: "send_bw", title: "Send BW Test", opcode: roce.WRSend, order: perftest.Order{Between: true}},
	{name: "send_lat", title: "Send Latency Test", opcode: roce.WRSend, latency: true},
	{name: "write_bw", title: "RDMA_Write BW Test", opcode: roce.WRWrite},
	{name: "write_lat", title: "RDMA_Write Latency Test", opcode: roce.WRWrite, latency: true, order: perftest.Order{Early: true}, hangsUp: true},
	{name: "read_bw", title: "RDMA_Read BW Test", opcode: roce.WRRead},
	{name: "read_lat", title: "RDMA_Read Latency Test", opcode: roce.WRRead, latency: true, order: perftest.Order{Early: true}},
	{name: "atomic_bw", title: "Atomic %s BW Test", opcode: roce.WRAtomicFetAdd},
	{name: "atomic_lat", title: "Atomic %s Latency Test", opcode: roce.WRAtomicFetAdd, latency: true, order: perftest.Order{Early: true}},
}

// sends reports whether messages go into receives.
func (t *perfTest) sends() bool { return t.opcode == roce.WRSend }

// atomic reports whether the operations are FetchAdd or CmpSwap, as -A says.
func (t *perfTest) atomic() bool { return t.opcode == roce.WRAtomicFetAdd }

// fetches reports whether the client gets something from the server's memory.
func (t *perfTest) fetches() bool { return t.opcode == roce.WRRead || t.atomic() }

// pingPongs reports whether both sides send messages in turn.
func (t *perfTest) pingPongs() bool { return t.latency && !t.fetches() }

// The limits and defaults of perftest.
const (
	perfMinIters  = 5
	perfMaxIters  = 100000000
	perfMaxDepth  = 15000
	perfMaxQPs    = 1024     // perftest has 16384
	perfMaxOuts   = 16       // READs and atomics that a queue pair may have under way
	perfMaxAll    = 1 << 23  // the largest size of -a
	perfPeakUpTo  = 20000    // more messages have no peak
	perfModerated = 8192     // longer messages are all signaled
	perfCQMod     = 100      // of shorter ones, one in so many
	perfMaxCQMod  = 1024     // with -Q
	perfMaxInline = 1024     // what a device has
	perfSpace     = 64 << 20 // bytes for messages that --verify tells apart
	perfSlots     = 128      // and their number
)

// perfOptions are the flags of a test, checked.
type perfOptions struct {
	test     *perfTest
	service  roce.QPType // RC, UC or UD
	server   string      // empty: be the server
	addr     netip.Addr
	port     uint16
	gidIndex int
	size     int // bytes of a message; with -a the largest
	all      bool
	anySize  bool // -s was not given
	iters    int
	duration time.Duration // instead of iters, 0 for those
	mtu      ib.MTU        // 0: the port's
	qps      int
	txDepth  int
	rxDepth  int
	srq      bool // one receive queue for all queue pairs
	postList int
	outs     int  // READs or atomics under way
	cmpSwap  bool // CmpSwap instead of FetchAdd
	both     bool // -b: both sides send
	events   bool // sleep on completions
	inline   int  // bytes of the largest message that is inline
	cqEach   int  // of so many messages one is signaled; 0 for the usual
	noPeak   bool
	dump     latencyDump
	leastBW  float64 // what the throughput has to be, in the unit of the table
	leastMsg float64 // and the rate of messages, in millions per second
	rdmaCM   bool    // connect by rdma_cm, and talk over it
	verify   perftest.Verify
	buffers  int     // bytes of the socket's, 0 for what netio.UDPConfig says
	ackTime  int     // a code: 4.096 us times 2 to this power
	tclass   int     // traffic class or TOS of what we send
	loss     float64 // percent of the packets that we send
	reorder  float64
	cc       cc.Algorithm
	gbits    bool
	json     bool
	timeout  time.Duration
}

func (o *perfOptions) client() bool { return o.server != "" }

// requests reports whether this side posts requests that it measures by itself.
func (o *perfOptions) requests() bool { return o.client() || o.both }

// inlines reports whether messages of a size are inline.
func (o *perfOptions) inlines(size int) bool { return size <= o.inline }

// spin is how long a wait for a completion polls: with -e it sleeps at once.
func (o *perfOptions) spin() time.Duration {
	if o.events {
		return -1
	}
	return 0
}

// perfVerify are the values of --verify.
var perfVerify = map[string]perftest.Verify{"": perftest.VerifyNothing, "each": perftest.VerifyEach, "last": perftest.VerifyLast}

func (o *perfOptions) verifies() bool     { return o.verify != perftest.VerifyNothing }
func (o *perfOptions) verifiesEach() bool { return o.verify == perftest.VerifyEach }

// opcode returns the operation of the client's requests.
func (o *perfOptions) opcode() roce.WROpcode {
	if o.cmpSwap {
		return roce.WRAtomicCmpSwp
	}
	return o.test.opcode
}

// faults returns what damages the packets that we send, nil for nothing.
func (o *perfOptions) faults() func(netio.Backend) netio.Backend {
	if o.loss == 0 && o.reorder == 0 {
		return nil
	}
	return func(be netio.Backend) netio.Backend {
		return netio.WithFaults(be, netio.FaultConfig{Seed: 1, Tx: netio.Faults{
			Loss: o.loss / 100, Reorder: o.reorder / 100, ReorderBy: 3, ReorderTo: 50,
		}})
	}
}

// perfControls are the algorithms of congestion control, by the name for --cc.
var perfControls = map[string]cc.Algorithm{"none": cc.None{}, "dcqcn": cc.DCQCN{}, "swift": cc.Swift{}}

// title is what stands above the table.
func (o *perfOptions) title() string {
	title := o.test.title
	if o.test.atomic() {
		title = fmt.Sprintf(title, atomicTypes[o.cmpSwap])
	}
	if o.both {
		title = strings.Replace(title, "BW", "Bidirectional BW", 1)
	}
	return title
}

// atomicTypes are the values of -A, by whether they mean CmpSwap.
var atomicTypes = map[bool]string{false: "FETCH_AND_ADD", true: "CMP_AND_SWAP"}

// sizes are the sizes of the messages to measure.
func (o *perfOptions) sizes() []int {
	if !o.all {
		return []int{o.size}
	}
	var all []int
	for n := 2; n <= o.size; n *= 2 {
		all = append(all, n)
	}
	return all
}

func (a *app) perfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "perf TEST [flags] [SERVER]",
		Short: "Measure throughput and latency, with perftest or itself",
		Long: `perf measures like the programs of the perftest package, and with them: the other
side of 'roce perf write_bw' may be ib_write_bw (4.5 or newer), in either role. The
flags mean the same, and the table is the same. Without SERVER it is the server:
it waits for one client, serves it and ends.

Exit status: 0 success, 1 failure (an address that cannot be used, a peer that
does not answer, wrong data), 2 wrong usage.`,
		Example: `  roce perf write_bw                            # here: be the server
  roce perf write_bw -s 4096 10.0.0.1           # there: write to it
  ib_write_bw -F -x 1 10.0.0.1                  # or there: Linux rxe or a NIC
  roce perf send_lat --verify --json 127.0.0.1  # both on one machine`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef(cmd, "there is no test %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return usagef(cmd, "which test?") },
	}
	for _, t := range perfTests {
		cmd.AddCommand(a.perfTestCommand(t))
	}
	return cmd
}

func (a *app) perfTestCommand(t *perfTest) *cobra.Command {
	var (
		o         = perfOptions{test: t, qps: 1, txDepth: 1, postList: 1}
		dev, addr string
		conn      string
		atomic    string
		verify    string
		control   string
		mtu       int
		size      uint64
		seconds   int
		ibPort    int
		ignored   bool
		sorted    bool
		unsorted  bool
		local     bool
	)
	what := map[roce.WROpcode]string{roce.WRSend: "SEND", roce.WRWrite: "RDMA WRITE", roce.WRRead: "RDMA READ", roce.WRAtomicFetAdd: "atomic operations"}[t.opcode]
	short, defSize, defIters := "Latency of "+what, 2, 1000
	if !t.latency {
		short, defSize = "Throughput of "+what, 65536
		o.txDepth = 128
		if t.opcode == roce.WRWrite {
			defIters = 5000
		}
	}
	if t.atomic() {
		defSize = 8
	}
	cmd := &cobra.Command{
		Use:   t.name + " [flags] [SERVER]",
		Short: short + ", like ib_" + t.name,
		Long: short + ", measured like ib_" + t.name + ` and with it, in either role. Both sides need
the same test, -s or -a, -n or -D, and -q.

Exit status: 0 success, 1 failure (an address that cannot be used, a peer that
does not answer, wrong data), 2 wrong usage.`,
		Args: maxArgs(1, "give one SERVER, or none to be the server"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				if o.server = args[0]; o.server == "" {
					return usagef(cmd, "SERVER is empty")
				}
			}
			if o.service = perfServices[conn]; !t.over(o.service) {
				return usagef(cmd, "-c %s: %s goes over %s", conn, t.name, strings.Join(t.services(), ", "))
			}
			if ibPort != 1 {
				return usagef(cmd, "-i %d: a device has one port, number 1", ibPort)
			}
			if mtu != 0 {
				var ok bool
				if o.mtu, ok = ib.MTUFromBytes(mtu); !ok {
					return usagef(cmd, "-m %d: path MTUs are 256, 512, 1024, 2048 and 4096", mtu)
				}
			}
			if size < 1 || size > maxMessage {
				return usagef(cmd, "-s %d: a message has 1 to %d bytes", size, maxMessage)
			}
			var known bool
			if o.verify, known = perfVerify[verify]; !known {
				return usagef(cmd, "--verify=%s: there are each and last", verify)
			}
			if o.cmpSwap = atomic == atomicTypes[true]; !o.cmpSwap && atomic != atomicTypes[false] && t.atomic() {
				return usagef(cmd, "-A %s: there are %s and %s", atomic, atomicTypes[false], atomicTypes[true])
			}
			switch {
			case unsorted:
				o.dump = dumpUnsorted
			case sorted:
				o.dump = dumpSorted
			}
			o.size = int(size)
			o.duration = time.Duration(seconds) * time.Second
			if o.cc = perfControls[control]; o.cc == nil {
				return usagef(cmd, "--cc %s: known are %s", control, strings.Join(slices.Sorted(maps.Keys(perfControls)), ", "))
			}
			if err := o.check(cmd); err != nil {
				return err
			}
			if o.addr, err = localAddrFlag(cmd, addr, dev); err != nil {
				return err
			}
			if local && o.client() {
				return usagef(cmd, "--local: this process is the server, too")
			}
			if local && !o.rdmaCM && !cmd.Flags().Changed("port") {
				o.port = 0 // any that is free
			}
			if o.rdmaCM && !local && !o.client() && !o.addr.IsValid() {
				return usagef(cmd, "-R: a server needs to know where to listen, give --addr or -d")
			}
			if local {
				return a.perfLocal(cmd.Context(), &o)
			}
			return a.perf(cmd.Context(), &o, nil)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&addr, "addr", "", "local IP address (default: the one that leads to the other side)")
	f.StringVarP(&dev, "ib-dev", "d", "", "the same by name of the device, see 'roce devinfo'")
	f.IntVarP(&ibPort, "ib-port", "i", 1, "port of the device")
	f.Uint16VarP(&o.port, "port", "p", perftest.Port, "TCP port to listen on or connect to; with -R that of rdma_cm")
	f.IntVarP(&o.gidIndex, "gid-index", "x", 0, "index of the local GID")
	f.StringVarP(&conn, "connection", "c", "RC", "transport service: "+strings.Join(t.services(), ", "))
	if size = uint64(defSize); t.atomic() {
		f.StringVarP(&atomic, "atomic_type", "A", atomicTypes[false], "or "+atomicTypes[true])
	} else {
		f.Uint64VarP(&size, "size", "s", size, "bytes of a message")
		f.BoolVarP(&o.all, "all", "a", false, "all sizes from 2 to 2^23 in powers of two")
	}
	f.IntVarP(&o.iters, "iters", "n", defIters, "messages of each queue pair")
	f.IntVarP(&seconds, "duration", "D", 0, "seconds to run, instead of -n")
	f.IntVarP(&mtu, "mtu", "m", 0, "path MTU, at most (default: what the interface allows)")
	if !t.latency {
		f.IntVarP(&o.qps, "qp", "q", o.qps, "queue pairs")
		f.IntVarP(&o.txDepth, "tx-depth", "t", o.txDepth, "requests of a queue pair under way")
		f.IntVarP(&o.postList, "post_list", "l", o.postList, "requests to post at a time")
		f.IntVarP(&o.cqEach, "cq-mod", "Q", 0, "signal one of so many messages (default: of 100, of -l, or each one above 8192 bytes)")
		f.BoolVarP(&o.both, "bidirectional", "b", false, "both sides send, the results are added")
		f.BoolVarP(&o.noPeak, "noPeak", "N", false, "measure no peak")
		f.Float64VarP(&o.leastBW, "limit_bw", "w", 0, "fail when the average is below this, in the unit of the table")
		f.Float64VarP(&o.leastMsg, "limit_msgrate", "y", 0, "fail when there are fewer millions of messages per second")
		f.BoolVar(&o.gbits, "report_gbits", false, "report Gbit/s instead of MiB/s")
	}
	if t.latency {
		f.BoolVarP(&sorted, "report-histogram", "H", false, "print all times, sorted")
		f.BoolVarP(&unsorted, "report-unsorted", "U", false, "print all times as they were measured")
	}
	if !t.fetches() {
		f.IntVarP(&o.inline, "inline_size", "I", 0, "messages up to so many bytes are inline")
	}
	if !t.pingPongs() || t.sends() {
		f.BoolVarP(&o.events, "events", "e", false, "sleep while waiting for completions (default: poll)")
	}
	if t.sends() {
		f.IntVarP(&o.rxDepth, "rx-depth", "r", 512, "receives of a queue pair, with --use-srq of all")
		f.BoolVar(&o.srq, "use-srq", false, "receive by a shared receive queue")
	}
	if t.fetches() {
		f.IntVarP(&o.outs, "outs", "o", perfMaxOuts, "READs and atomics of a queue pair under way on the wire")
	}
	f.IntVarP(&o.ackTime, "qp-timeout", "u", 14, "how long to wait for an acknowledgement: 4.096 us times 2 to the power of this, 0 for ever")
	f.IntVar(&o.tclass, "tclass", 0, "IPv4 TOS or IPv6 traffic class of what this side sends, as 0x6a: DSCP 26 and ECT(0)")
	f.IntVar(&o.buffers, "socket-buffer", 0, "bytes to ask for for each of the socket's buffers (default: 8 MiB to receive, 4 MiB to send)")
	f.Float64Var(&o.loss, "loss", 0, "lose so many percent of the packets that this side sends")
	f.Float64Var(&o.reorder, "reorder", 0, "let so many percent of them be overtaken by 3 to 50 others, 1 ms at most")
	f.StringVar(&control, "cc", "dcqcn", "how this side adapts its rate to the network: "+strings.Join(slices.Sorted(maps.Keys(perfControls)), ", "))
	f.BoolVarP(&o.rdmaCM, "rdma_cm", "R", false, "connect the queue pairs by rdma_cm, on both sides; RC and UD")
	f.BoolVarP(&ignored, "CPU-freq", "F", false, "accepted, without effect: perftest looks at the processor's clock without it")
	f.StringVar(&verify, "verify", "", "verify the data, on both sides: of each message, or with 'last' what is there in the end, without a part in the time")
	f.Lookup("verify").NoOptDefVal = "each"
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when nothing comes for this long (a server waits for its client without limit)")
	f.BoolVar(&local, "local", false, "run both ends in this process")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

// check checks what can be checked without looking at anything.
func (o *perfOptions) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	for _, f := range []struct {
		flag         string
		n, low, high int
	}{
		{"n", o.iters, perfMinIters, perfMaxIters},
		{"q", o.qps, 1, perfMaxQPs},
		{"t", o.txDepth, 1, perfMaxDepth},
		{"l", o.postList, 1, o.txDepth},
		{"u", o.ackTime, 0, 31},
	} {
		if f.n < f.low || f.n > f.high {
			return usagef(cmd, "-%s %d: allowed are %d to %d", f.flag, f.n, f.low, f.high)
		}
	}
	for _, f := range []struct {
		flag    string
		percent float64
	}{{"loss", o.loss}, {"reorder", o.reorder}} {
		if !(f.percent >= 0 && f.percent <= 100) {
			return usagef(cmd, "--%s %v: allowed are 0 to 100 percent", f.flag, f.percent)
		}
	}
	switch {
	case o.test.sends() && (o.rxDepth < 1 || o.rxDepth > perfMaxDepth):
		return usagef(cmd, "-r %d: allowed are 1 to %d", o.rxDepth, perfMaxDepth)
	case o.test.fetches() && (o.outs < 1 || o.outs > perfMaxOuts):
		return usagef(cmd, "-o %d: allowed are 1 to %d", o.outs, perfMaxOuts)
	case given("duration") && o.duration <= 0:
		return usagef(cmd, "-D %d: at least one second is needed", int(o.duration/time.Second))
	case given("duration") && given("iters"):
		return usagef(cmd, "-n and -D: give one of them")
	case o.all && given("size"):
		return usagef(cmd, "-a and -s: give one of them")
	case o.all && given("duration"):
		return usagef(cmd, "-a and -D: all sizes are measured by messages, give -n")
	case o.verifies() && o.service == roce.UC && o.test.opcode == roce.WRWrite && !o.test.latency:
		return usagef(cmd, "-c UC and --verify: the client cannot read what it has written")
	case o.verify == perftest.VerifyLast && o.test.pingPongs() && o.duration > 0:
		return usagef(cmd, "--verify=last and -D: neither side knows which message is the last one, give -n")
	case o.srq && o.service == roce.UC:
		return usagef(cmd, "-c UC and --use-srq: RC and UD have shared receive queues")
	case o.srq && o.verifies():
		return usagef(cmd, "--use-srq and --verify: what is received has no place that belongs to its queue pair")
	case o.rdmaCM && o.service == roce.UC:
		return usagef(cmd, "-c UC and -R: rdma_cm connects RC and UD only, give one of these or leave -R out")
	case o.port == 0:
		return usagef(cmd, "-p 0: a port is needed, on both sides the same")
	case o.inline < 0 || o.inline > perfMaxInline:
		return usagef(cmd, "-I %d: allowed are 0 to %d", o.inline, perfMaxInline)
	case given("cq-mod") && (o.cqEach < 1 || o.cqEach > perfMaxCQMod):
		return usagef(cmd, "-Q %d: allowed are 1 to %d", o.cqEach, perfMaxCQMod)
	case o.dump != dumpNothing && o.duration > 0:
		return usagef(cmd, "-D and -H or -U: all times are kept for -n only")
	case !(o.leastBW >= 0) || !(o.leastMsg >= 0):
		return usagef(cmd, "-w and -y: a limit is not negative")
	case o.tclass < 0 || o.tclass > 0xff:
		return usagef(cmd, "--tclass %d: allowed are 0 to 255", o.tclass)
	case o.buffers < 0 || o.buffers > 1<<30:
		return usagef(cmd, "--socket-buffer %d: allowed are 0 to %d", o.buffers, 1<<30)
	case o.timeout < 100*time.Millisecond:
		return usagef(cmd, "--timeout %v: at least 100ms is needed", o.timeout)
	}
	if o.all {
		o.size = perfMaxAll
	}
	o.anySize = !given("size")
	return nil
}

// cqMod returns of how many messages of a size one is signaled.
func (o *perfOptions) cqMod(size int) int {
	switch {
	case o.cqEach > 0:
		return min(o.cqEach, o.txDepth)
	case o.postList > 1:
		return o.postList
	case size > perfModerated:
		return 1
	}
	return min(perfCQMod, o.txDepth)
}

// slots returns how many messages of a size have memory of their own, so that
// they can be told apart; both sides must come to the same number.
func (o *perfOptions) slots(size int) int {
	if !o.verifiesEach() || o.test.pingPongs() && !o.test.sends() {
		return 1
	}
	return max(1, min(perfSlots, perfSpace/o.qps/o.stride(size)))
}

// area returns how many bytes the messages of all sizes need.
func (o *perfOptions) area(cycle int) int {
	most := max(perftest.CycleBuffer, cycle)
	for _, size := range o.sizes() {
		most = max(most, o.slots(size)*o.stride(size))
	}
	return (most + 63) &^ 63
}

// stride is the distance between slots: no two share a cache line.
func (o *perfOptions) stride(size int) int { return (o.header() + size + 63) &^ 63 }

// how names the programs of the other side, for messages.
func (t *perfTest) how() string { return fmt.Sprintf("roce perf %s, or ib_%s -F", t.name, t.name) }
