package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// perfRow finds the rows of perftest's table: bytes, iterations, and the numbers.
var perfRow = regexp.MustCompile(`(?m)^ (\d+) +(\d+) +(\d+\.\d\d.*)$`)

// playPerf plays a test with the arguments of both sides and wants success. Without
// loss the ACK timeout is a second, so that a busy machine may take its time.
func (w *world) playPerf(test, both string, server, client []string) (s, c outcome) {
	w.t.Helper()
	if w.wrap == nil {
		both += " -u 18"
	}
	if slices.Contains(strings.Fields(both), "-R") {
		args := "perf " + test + " " + both
		s, c = w.meet(args+" --addr 127.0.0.1 "+strings.Join(server, " "), args+" "+strings.Join(client, " ")+" 127.0.0.1")
	} else {
		s, c = w.play(pingpong{command: "perf " + test, server: append(strings.Fields(both), server...), client: append(strings.Fields(both), client...)})
	}
	s.want(w.t, "server", 0)
	c.want(w.t, "client", 0)
	for _, o := range []outcome{s, c} {
		if o.err != "" {
			w.t.Errorf("stderr is not a terminal, yet: %s", o.err)
		}
	}
	return s, c
}

// perfLocal plays both sides of a test in one process, with the patience of playPerf.
func (w *world) perfLocal(args string) outcome {
	return w.run(append([]string{"perf"}, strings.Fields(args+" --local -u 18")...)...)
}

// sized adds -s to arguments, but atomics have none.
func (t *perfTest) sized(args string, size int) string {
	if t.atomic() {
		return args
	}
	return fmt.Sprintf("%s -s %d", args, size)
}

// Client and server of every test, in every mode; where data can be verified, all
// of it is.
func TestPerf(t *testing.T) {
	for _, tt := range []struct {
		test, both string
		size       string
		iters      string // of the row
		verified   [2]int // messages: server, client
	}{
		{"send_bw", "-n 300", "65536", "300", [2]int{}},
		{"send_bw", "-n 50 -s 65537 --verify", "65537", "50", [2]int{50, 0}},
		{"send_bw", "-n 500 -s 1 --verify -m 256", "1", "500", [2]int{500, 0}},
		{"send_bw", "-n 203 -s 3000 -q 3 -l 8 --verify -r 5", "3000", "609", [2]int{609, 0}},
		{"send_bw", "-n 20 -s 10 -t 1 -r 1", "10", "20", [2]int{}},
		{"write_bw", "-n 300", "65536", "300", [2]int{}},
		{"write_bw", "-n 500 -s 4097 --verify -m 1024", "4097", "500", [2]int{0, 128}},
		{"write_bw", "-n 77 -s 8 -q 2 -l 16 -t 40 --verify", "8", "154", [2]int{0, 154}},
		{"write_bw", "-n 20 -s 0x400001 --verify", "4194305", "20", [2]int{0, 15}},
		{"read_bw", "-n 100", "65536", "100", [2]int{}},
		{"read_bw", "-n 300 -s 5001 -q 2 --verify -m 512", "5001", "600", [2]int{0, 600}},
		{"read_bw", "-n 200 -s 100 -l 3 -t 4 -o 1 --verify", "100", "200", [2]int{0, 200}},
		{"send_lat", "-n 200", "2", "200", [2]int{}},
		{"send_lat", "-n 300 -s 1500 --verify", "1500", "300", [2]int{300, 300}},
		{"send_lat", "-n 5 -s 100000 -r 1 --verify", "100000", "5", [2]int{5, 5}},
		{"write_lat", "-n 200", "2", "200", [2]int{}},
		{"write_lat", "-n 600 -s 1 --verify", "1", "600", [2]int{600, 600}},
		{"write_lat", "-n 100 -s 4097 --verify", "4097", "100", [2]int{100, 100}},
		{"read_lat", "-n 200", "2", "200", [2]int{}},
		{"read_lat", "-n 200 -s 4099 --verify", "4099", "200", [2]int{0, 200}},
		{"atomic_bw", "-n 300 -A CMP_AND_SWAP", "8", "300", [2]int{}},
		{"atomic_bw", "-n 300 -q 3 --verify", "8", "900", [2]int{0, 900}},
		{"atomic_bw", "-n 300 -o 1 -l 7 -A CMP_AND_SWAP --verify", "8", "300", [2]int{0, 300}},
		{"atomic_lat", "-n 200", "8", "200", [2]int{}},
		{"atomic_lat", "-n 200 -A CMP_AND_SWAP --verify", "8", "200", [2]int{0, 200}},
		{"send_bw", "-c UC -n 30 -s 5000 -q 2 --verify", "5000", "60", [2]int{60, 0}},
		{"send_bw", "-c UD -n 40 -q 2 --verify", "4096", "80", [2]int{80, 0}},
		{"send_lat", "-c UC -n 50 -s 5000 --verify", "5000", "50", [2]int{50, 50}},
		{"send_lat", "-c UD -n 50 -s 100 --verify", "100", "50", [2]int{50, 50}},
		{"write_bw", "-c UC -n 60 -s 5000", "5000", "60", [2]int{}},
		{"write_lat", "-c UC -n 50 -s 1000 --verify", "1000", "50", [2]int{50, 50}},
		{"send_bw", "-R -n 60 -s 5000 -q 3 --verify", "5000", "180", [2]int{180, 0}},
		{"send_lat", "-R -n 50 -s 3 --verify", "3", "50", [2]int{50, 50}},
		{"write_bw", "-R -n 60 -s 5000 -q 3 --verify", "5000", "180", [2]int{0, 180}},
		{"write_lat", "-R -n 50 -s 3 --verify", "3", "50", [2]int{50, 50}},
		{"read_bw", "-R -n 60 -s 5000 -q 3 -o 4 --verify", "5000", "180", [2]int{0, 180}},
		{"read_lat", "-R -n 50 -s 3 --verify", "3", "50", [2]int{0, 50}},
		{"atomic_bw", "-R -n 60 -q 3 --verify", "8", "180", [2]int{0, 180}},
		{"atomic_lat", "-R -n 50 --verify", "8", "50", [2]int{0, 50}},
		{"send_bw", "-R -c UD -n 60 -q 3 --verify", "4096", "180", [2]int{180, 0}},
		{"send_lat", "-R -c UD -n 50 -s 100 -e --verify", "100", "50", [2]int{50, 50}},
		{"send_bw", "-b -R -c UD -n 50 -s 100 -q 2 --verify=last", "100", "100", [2]int{2, 2}},
		{"send_bw", "-b -n 203 -s 3000 -q 3 -l 8 --verify -r 5", "3000", "609", [2]int{609, 609}},
		{"send_bw", "-b -n 50 -c UD -e", "4096", "50", [2]int{}},
		{"send_bw", "-b -n 50 -s 4097 --verify=last", "4097", "50", [2]int{1, 1}},
		{"write_bw", "-b -n 77 -s 8 -q 2 -l 16 -t 40 --verify", "8", "154", [2]int{154, 154}},
		{"read_bw", "-b -n 300 -s 5001 -q 2 --verify -m 512", "5001", "600", [2]int{600, 600}},
		{"atomic_bw", "-b -n 300 -q 3 --verify", "8", "900", [2]int{900, 900}},
		{"atomic_bw", "-b -R -n 60 -A CMP_AND_SWAP --verify=last", "8", "60", [2]int{1, 1}},
		{"send_bw", "-n 300 -s 64 -I 64 -Q 7 -N --verify", "64", "300", [2]int{300, 0}},
		{"write_bw", "-n 300 -s 64 -I 100 -Q 300 -e --verify", "64", "300", [2]int{0, 128}},
		{"send_lat", "-n 200 -s 30 -I 30 -e --verify", "30", "200", [2]int{200, 200}},
		{"write_lat", "-n 200 -s 30 -I 30 --verify", "30", "200", [2]int{200, 200}},
		{"read_lat", "-n 200 -e --verify", "2", "200", [2]int{0, 200}},
		{"send_bw", "-n 50 -s 5000 -q 2 --verify=last", "5000", "100", [2]int{2, 0}},
		{"send_bw", "-c UD -n 50 --verify=last", "4096", "50", [2]int{1, 0}},
		{"send_lat", "-n 50 -s 3 --verify=last", "3", "50", [2]int{1, 1}},
		{"write_bw", "-n 50 -s 5000 -q 2 --verify=last", "5000", "100", [2]int{0, 2}},
		{"write_lat", "-n 300 -s 9 --verify=last", "9", "300", [2]int{1, 1}},
		{"read_bw", "-n 50 -s 5000 -q 2 --verify=last", "5000", "100", [2]int{0, 2}},
		{"read_lat", "-n 50 -s 5000 --verify=last", "5000", "50", [2]int{0, 1}},
		{"atomic_bw", "-n 50 -q 2 --verify=last", "8", "100", [2]int{0, 2}},
		{"atomic_lat", "-n 50 -A CMP_AND_SWAP --verify=last", "8", "50", [2]int{0, 1}},
	} {
		t.Run(tt.test+" "+tt.both, func(t *testing.T) {
			t.Parallel()
			server, client := newWorld(t).playPerf(tt.test, tt.both, nil, nil)
			for i, o := range []outcome{server, client} {
				rows := perfRow.FindAllStringSubmatch(o.out, -1)
				want := 1
				if (tt.test == "read_lat" || tt.test == "atomic_lat") && i == 0 {
					want = 0 // it has nothing to measure
				}
				if len(rows) != want || want == 1 && (rows[0][1] != tt.size || rows[0][2] != tt.iters) {
					t.Errorf("rows %q, want %d with %s bytes and %s iterations in\n%s", rows, want, tt.size, tt.iters, o.out)
				}
				says := fmt.Sprintf("data of %d messages verified", tt.verified[i])
				if tt.verified[i] > 0 != strings.Contains(o.out, "messages verified") || tt.verified[i] > 0 && !strings.Contains(o.out, says) {
					t.Errorf("want %q in\n%s", says, o.out)
				}
			}
		})
	}
}

// Everything is there and right when packets are lost.
func TestPerfWithLoss(t *testing.T) {
	for _, test := range perfTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.wrap = lossy(0.02)
			// Timeouts of 0.3 s: the tests share the processors, and all of them poll.
			w.playPerf(test.name, test.sized("-n 80 -m 1024 -u 16 --verify", 3000), nil, nil)
		})
	}
}

// -a measures all sizes.
func TestPerfAllSizes(t *testing.T) {
	t.Parallel()
	_, client := newWorld(t).playPerf("send_bw", "-a -n 5", nil, nil)
	rows := perfRow.FindAllStringSubmatch(client.out, -1)
	if len(rows) != 23 {
		t.Fatalf("%d rows, want 23", len(rows))
	}
	for i, row := range rows {
		if row[1] != strconv.Itoa(2<<i) || row[2] != "5" {
			t.Errorf("row %d is %q", i, row)
		}
	}
}

// --loss and --reorder do to packets what they say, and nothing is lost by it.
func TestPerfFaults(t *testing.T) {
	t.Parallel()
	const flags = "-n 100 -s 16384 -u 16 --loss 2 --reorder 2 --verify --json"
	_, client := newWorld(t).playPerf("write_bw", flags, nil, nil)
	var r struct{ Counters map[string]uint64 }
	if err := json.Unmarshal([]byte(client.out), &r); err != nil {
		t.Fatal(err)
	}
	if c := r.Counters; c["fault_drop"] == 0 || c["fault_reorder"] == 0 || c["retransmitted_pkts"] == 0 {
		t.Errorf("%v", c)
	}
}

// -D measures for so long, on both sides.
func TestPerfDuration(t *testing.T) {
	t.Parallel()
	for _, test := range perfTests {
		t.Run(test.name, func(t *testing.T) {
			begin := time.Now()
			server, client := newWorld(t).playPerf(test.name, test.sized("-D 1 --verify --json", 1000), nil, nil)
			took := time.Since(begin)
			if took < time.Second {
				t.Errorf("it took %v", took)
			}
			for who, o := range map[string]outcome{"server": server, "client": client} {
				var r struct {
					Results []struct {
						Iters   uint64
						Seconds float64
					}
				}
				if err := json.Unmarshal([]byte(o.out), &r); err != nil {
					t.Fatal(err)
				}
				if who == "server" && test.latency && test.fetches() {
					continue
				}
				if len(r.Results) != 1 || r.Results[0].Iters < 2 || r.Results[0].Seconds <= 0 || r.Results[0].Seconds > took.Seconds() {
					t.Errorf("%s: %+v", who, r)
				}
			}
		})
	}
}

// Over UD sizes end with the path MTU, and a message that is lost ends the test, with
// the reason.
func TestPerfDatagrams(t *testing.T) {
	server, _ := newWorld(t).playPerf("send_lat", "-c UD -a -n 5 -m 512 --verify", nil, nil)
	if rows := perfRow.FindAllStringSubmatch(server.out, -1); len(rows) != 9 || rows[8][1] != "512" {
		t.Errorf("rows %q", rows)
	}
	w := newWorld(t)
	w.disagree(pingpong{command: "perf send_bw", server: []string{"-c", "UD", "-s", "1025"}, client: []string{"-c", "UD", "-s", "1025", "-m", "1024"}}, "-s 1025: a datagram has up to the path MTU here, 1024 bytes")
	w = newWorld(t)
	w.wrap = lossy(0.5)
	w.disagree(pingpong{command: "perf send_bw", server: []string{"-c", "UD", "--timeout", "500ms"}, client: []string{"-c", "UD"}}, "UD repeats nothing")
}

// The table has the lines of perftest, which scripts read.
func TestPerfTable(t *testing.T) {
	server, client := newWorld(t).playPerf("read_bw", "-n 20 --report_gbits", nil, nil)
	for _, want := range []string{
		"                    RDMA_Read BW Test\n",
		" Number of qps   : 1\t\tTransport type : IB\n",
		" TX depth        : 128\n",
		" Outstand reads  : 16\n",
		" GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:00:00:02\n",
		" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n",
	} {
		if !strings.Contains(client.out, want) {
			t.Errorf("no %q in\n%s", want, client.out)
		}
	}
	if address := regexp.MustCompile(`(?m)^ local address: LID 0000 QPN 0x[0-9a-f]+ PSN 0x[0-9a-f]+ OUT 0x10 RKey 0x[0-9a-f]+ VAddr 0x[0-9a-f]{14}$`); !address.MatchString(client.out) {
		t.Errorf("no address in\n%s", client.out)
	}
	// The server shows what the client has measured.
	if s, c := perfRow.FindString(server.out), perfRow.FindString(client.out); s != c || s == "" {
		t.Errorf("server's row is %q, client's %q", s, c)
	}
}

func TestPerfJSON(t *testing.T) {
	const head = `
		counters.* number
		local[].gid string
		local[].psn number
		local[].qpn number
		local[].rkey number
		local[].vaddr number
		mtu number
		outstanding_reads number
		peer.program string
		peer.version string
		post_list number
		qps number
		rdma_cm bool
		remote[].gid string
		remote[].psn number
		remote[].qpn number
		remote[].rkey number
		remote[].vaddr number
		role string
		rx_depth number
		test string
		transport string
		tx_depth number
		verified.bytes number
		verified.messages number
		verified.what string
		results[].size number
		results[].iters number
		results[].seconds number`
	for test, results := range map[string]string{
		"write_bw": `
			results[].peak_mib_per_sec number
			results[].mib_per_sec number
			results[].peak_gbit_per_sec number
			results[].gbit_per_sec number
			results[].mmsg_per_sec number`,
		"send_lat": `
			results[].min_usec number
			results[].max_usec number
			results[].typical_usec number
			results[].avg_usec number
			results[].stdev_usec number
			results[].p50_usec number
			results[].p99_usec number
			results[].p999_usec number`,
	} {
		server, client := newWorld(t).playPerf(test, "-n 20 --json", nil, nil)
		for _, o := range []outcome{server, client} {
			wantSchema(t, schema(t, o.out, "counters"), head+results)
		}
	}
}

// Numbers fit each other.
func TestPerfNumbers(t *testing.T) {
	_, client := newWorld(t).playPerf("write_bw", "-n 100 -s 4096 -q 2 --json", nil, nil)
	var bw struct{ Results []throughput }
	if err := json.Unmarshal([]byte(client.out), &bw); err != nil || len(bw.Results) != 1 {
		t.Fatal(err, client.out)
	}
	r := bw.Results[0]
	if want := 200 * 4096 / r.Seconds / (1 << 20); r.MiB < 0.99*want || r.MiB > 1.01*want {
		t.Errorf("%v MiB/s, want %v", r.MiB, want)
	}
	if want := r.MiB * 8 * (1 << 20) / 1e9; r.Gbit < 0.99*want || r.Gbit > 1.01*want {
		t.Errorf("%v Gbit/s, want %v", r.Gbit, want)
	}
	if r.PeakMiB < r.MiB {
		t.Errorf("peak %v is below the average %v", r.PeakMiB, r.MiB)
	}
	_, client = newWorld(t).playPerf("read_lat", "-n 100 --json", nil, nil)
	var lat struct{ Results []latency }
	if err := json.Unmarshal([]byte(client.out), &lat); err != nil || len(lat.Results) != 1 {
		t.Fatal(err, client.out)
	}
	l := lat.Results[0]
	if !(0 < l.Min && l.Min <= l.Typical && l.Typical <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max && l.Min <= l.Average && l.Average <= l.Max) {
		t.Errorf("%+v", l)
	}
	if sum := l.Average * 99 / 1e6; sum > l.Seconds {
		t.Errorf("99 of %v us do not fit %v s", l.Average, l.Seconds)
	}
}

// The peak is the best rate from any posting to any later completion.
func TestPerfPeak(t *testing.T) {
	b := &requests{postedAt: []int64{0, 10, 100, 110}, doneAt: []progress{{50, 1}, {60, 2}, {1000, 4}}}
	if got, want := b.peak(), 2.0/60*1e9; got != want {
		t.Errorf("peak %v, want %v", got, want)
	}
	if got := new(requests).peak(); got != 0 {
		t.Errorf("peak %v without any", got)
	}
}

// Messages of a test make no garbage.
func TestPerfAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t)
	mallocs := func(test *perfTest, n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w.playPerf(test.name, test.sized(fmt.Sprintf("-n %d", n), 64), nil, nil)
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	for _, test := range perfTests {
		mallocs(test, 100)
		per := math.Inf(1)
		for try := 0; per > 0.1 && try < 3; try++ { // others of the process allocate as well
			few, many := mallocs(test, 100), mallocs(test, 5100)
			per = min(per, (float64(many)-float64(few))/5000)
		}
		if per > 0.1 {
			t.Errorf("%s: %.2f allocations a message", test.name, per)
		}
	}
}

// Data that is wrong is found and ends the test on both sides.
func TestPerfWrongData(t *testing.T) {
	c := &perfCheck{}
	b := make([]byte, 100)
	r := &perfRun{o: &perfOptions{qps: 1}, ep: &perfEndpoint{o: &perfOptions{qps: 1}, buf: make([]byte, 512), area: 256}}
	c.fill(r, 0, 1, 100, 7, 0)
	copy(b, r.ep.buf[128:])
	if err := c.data(b, dataKey(0, 100, 7, 0), 0, 7); err != nil || c.Messages != 1 || c.Bytes != 100 {
		t.Errorf("right data: %v, %+v", err, c.verified)
	}
	b[99] ^= 1
	if err := c.data(b, dataKey(0, 100, 7, 0), 0, 7); err == nil || !strings.Contains(err.Error(), "wrong data in message 8 of queue pair 0: byte 99") {
		t.Errorf("wrong data: %v", err)
	}
	b[99] ^= 1
	for name, key := range map[string]uint64{
		"another message": dataKey(0, 100, 6, 0), "another queue pair": dataKey(1, 100, 7, 0), "another size": dataKey(0, 101, 7, 0), "the other side": dataKey(0, 100, 7, 1),
	} {
		if err := c.data(b, key, 0, 7); err == nil {
			t.Errorf("data of %s is taken", name)
		}
	}
}

// Both sides must agree on --verify.
func TestPerfVerifyOnOneSide(t *testing.T) {
	for _, p := range []pingpong{{server: []string{"--verify"}}, {client: []string{"--verify"}}} {
		p.command = "perf write_bw"
		server, client := newWorld(t).play(p)
		for _, o := range []outcome{server, client} {
			o.want(t, "side", 1)
			if !strings.Contains(o.err, "only one side has --verify") && !strings.Contains(o.err, "the peer closed the connection") {
				t.Errorf("%q", o.err)
			}
		}
		if !strings.Contains(server.err+client.err, "only one side has --verify") {
			t.Errorf("%q, %q", server.err, client.err)
		}
	}
}

// perftestHello is a server that says what a program of perftest says first, and ends.
func perftestHello(t *testing.T) (port string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 16)
		for _, s := range []string{"6.06" + strings.Repeat("\x00", 12), "\x00\x00\x10\x00", "\x00\x00\x00@", "3\x00"} {
			c.Read(b[:len(s)])
			c.Write([]byte(s))
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// What perftest cannot verify is refused, and its end is noticed.
func TestPerfWithAnOriginal(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"write_bw --verify", "--verify needs roce perf write_bw on the other side"},
		{"send_lat --verify", "--verify needs roce perf send_lat on the other side"},
		{"read_bw --verify", "the peer closed the connection"},
		{"write_bw", "the peer closed the connection"},
	} {
		args := append([]string{"perf"}, strings.Fields(tt.args+" -p "+perftestHello(t)+" 127.0.0.1")...)
		if o := newWorld(t).run(args...); o.status != 1 || !strings.Contains(o.err, tt.want) || strings.Count(o.err, "\n") != 1 {
			t.Errorf("%s: %+v, want %q", tt.args, o, tt.want)
		}
	}
}

// A server that dies ends the client, and the other way round.
func TestPerfPeerDies(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, client := newWorld(t).play(pingpong{command: "perf write_bw", serverCtx: ctx, server: []string{"-D", "30"}, client: []string{"-D", "30"}})
	client.want(t, "client", 1)
	if !strings.Contains(client.err, "a send failed: transport retry counter exceeded (12)") {
		t.Errorf("%q", client.err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Different -q or sizes are found.
func TestPerfMismatch(t *testing.T) {
	for _, tt := range []struct{ test, server, client, want string }{
		{"send_bw", "-s 100 -n 20", "-s 200 -n 20", "-s or -a"},
		{"send_bw", "-s 200 -n 20", "-s 100 -n 20", "use the same -s"},
		{"write_bw", "-s 100 -n 20", "-s 100000 -n 20", "do both sides use the same test"},
		{"write_bw", "-q 1 -n 20", "-q 2 -n 20", "the same -q"},
	} {
		p := pingpong{command: "perf " + tt.test, server: strings.Fields(tt.server + " --timeout 1s"), client: strings.Fields(tt.client + " --timeout 1s")}
		server, client := newWorld(t).play(p)
		if server.status != 1 || client.status != 1 || !strings.Contains(server.err+client.err, tt.want) {
			t.Errorf("%+v: %+v, %+v", tt, server, client)
		}
	}
}
