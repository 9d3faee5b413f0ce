package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// With -b both sides show the sum of what they have measured.
func TestPerfBothWays(t *testing.T) {
	for _, test := range []string{"send_bw", "write_bw", "read_bw", "atomic_bw"} {
		for _, both := range []string{"-b -n 50", "-b -D 1"} {
			t.Run(test+" "+both, func(t *testing.T) {
				t.Parallel()
				server, client := newWorld(t).playPerf(test, both, nil, nil)
				if !strings.Contains(client.out, "Bidirectional BW Test") || !strings.Contains(client.out, " TX depth") || !strings.Contains(server.out, " TX depth") {
					t.Errorf("the heads are\n%s%s", client.out, server.out)
				}
				s, c := perfRow.FindStringSubmatch(server.out), perfRow.FindStringSubmatch(client.out)
				if s == nil || c == nil {
					t.Fatalf("no row in\n%s%s", server.out, client.out)
				}
				if both == "-b -n 50" && s[3] != c[3] {
					t.Errorf("the server's sum is %q, the client's %q", s[3], c[3])
				}
			})
		}
	}
	t.Run("a peer that has finished long ago", func(t *testing.T) {
		t.Parallel()
		newWorld(t).playPerf("send_bw", "-b", []string{"-D", "1"}, []string{"-D", "2"})
	})
	server, client := newWorld(t).playPerf("write_bw", "-b -a -n 5", nil, nil)
	for _, o := range []outcome{server, client} {
		if rows := perfRow.FindAllString(o.out, -1); len(rows) != 23 {
			t.Errorf("%d rows, want 23", len(rows))
		}
	}
}

// -H and -U print all times, one less than messages, -H sorted.
func TestPerfAllTimes(t *testing.T) {
	for _, tt := range []struct {
		test, flag string
		sorted     bool
	}{{"send_lat", "-H", true}, {"read_lat", "-U", false}, {"write_lat", "-U -H", false}} {
		_, client := newWorld(t).playPerf(tt.test, "-n 200 "+tt.flag, nil, nil)
		_, list, _ := strings.Cut(client.out, "#, usec\n")
		var all []float64
		for line := range strings.Lines(list) {
			var i int
			var usec float64
			if n, _ := fmt.Sscanf(line, "%d, %g", &i, &usec); n != 2 {
				break
			}
			if all = append(all, usec); i != len(all) || usec <= 0 {
				t.Errorf("line %d is %q", len(all), line)
			}
		}
		if len(all) != 199 || slices.IsSorted(all) != tt.sorted {
			t.Errorf("%s %s: %d times, sorted: %v", tt.test, tt.flag, len(all), slices.IsSorted(all))
		}
		if perfRow.FindString(list) == "" && !strings.Contains(list, " 2       200") {
			t.Errorf("no summary in\n%s", list)
		}
	}
}

// --local needs nobody else.
func TestPerfLocal(t *testing.T) {
	for _, args := range []string{
		"send_lat -n 50 --verify", "write_bw -n 50 -b --verify --json", "atomic_lat -n 50 -R",
		"read_bw -n 50 --addr 127.0.0.61 --verify",
	} {
		o := newWorld(t).perfLocal(args)
		if o.status != 0 || o.err != "" || o.out == "" {
			t.Errorf("%s: %+v", args, o)
		}
	}
	if o := newWorld(t).run("perf", "write_bw", "--local", "--addr", "198.51.100.7"); o.status != 1 || !strings.Contains(o.err, "not one of this machine's") {
		t.Errorf("%+v", o)
	}
}

// On a terminal a long test shows that it goes on, and its table is as it is elsewhere.
func TestPerfProgress(t *testing.T) {
	w := newWorld(t)
	a, out, errs := w.app()
	a.progress = true
	if status := a.run(t.Context(), strings.Fields("perf write_bw --local -D 2")); status != 0 {
		t.Fatalf("exit status %d: %s", status, errs)
	}
	if want := regexp.MustCompile(`\r\x1b\[Kwrite_bw, 65536 bytes: [0-9.]+ of 2 s, [0-9.]+ Gbit/s on the wire\r`); !want.MatchString(errs.String()) {
		t.Errorf("shown is %q", errs)
	}
	if !strings.HasSuffix(errs.String(), "\r\x1b[K") {
		t.Errorf("the line stays: %q", errs)
	}
	if rows := perfRow.FindAllString(out.String(), -1); len(rows) != 1 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("the table is\n%s", out)
	}
}

// -w and -y fail a test that is too slow, after its table.
func TestPerfLimits(t *testing.T) {
	for args, want := range map[string]string{
		"-w 1e9":                "-w wants 1e+09",
		"-w 1e9 --report_gbits": "Gbit/s with messages of 65536 bytes: -w wants",
		"-y 1000":               "-y wants 1000",
		"-w 1e-9 -y 1e-9":       "",
	} {
		o := newWorld(t).perfLocal("write_bw -n 20 " + args)
		if (o.status == 0) != (want == "") || !strings.Contains(o.err, want) || perfRow.FindString(o.out) == "" {
			t.Errorf("%s: %+v", args, o)
		}
	}
}

// classes counts what a device sends by traffic class.
type classes struct {
	netio.Backend
	of *[256]atomic.Int64
}

func (c classes) Send(now time.Duration, runs []netio.Run) (int, error) {
	n, err := c.Backend.Send(now, runs)
	for _, r := range runs[:n] {
		c.of[r.TOS].Add(int64(r.Segments()))
	}
	return n, err
}

// --tclass is the traffic class of the side that has it, over every service; DCQCN adds
// ECT(0) where the ECN bits are 0. With -R what connects has none.
func TestPerfTrafficClass(t *testing.T) {
	for _, tt := range []struct {
		test, flags string
		want        uint8
		others      bool // there are packets of other classes
	}{
		{"write_bw", "--tclass 0x68 --cc none", 0x68, false},
		{"write_bw", "--tclass 0x68", 0x6a, false},
		{"send_bw", "-c UC --tclass 105", 0x69, false},
		{"send_bw", "-c UD --tclass 0x68 --cc none", 0x68, false},
		{"read_lat", "-R --tclass 0x68", 0x6a, true},
		{"send_lat", "-R -c UD --tclass 0x68", 0x6a, true},
		{"write_bw", "--cc none", 0, false},
	} {
		t.Run(tt.test+" "+tt.flags, func(t *testing.T) {
			var sent [256]atomic.Int64
			w := newWorld(t)
			w.wrap = func(be netio.Backend) netio.Backend { return classes{be, &sent} }
			if o := w.perfLocal(tt.test + " -n 20 " + tt.flags); o.status != 0 {
				t.Fatalf("%+v", o)
			}
			for class := range sent {
				if n := sent[class].Load(); (n > 0) != (class == int(tt.want)) && !tt.others || n == 0 && class == int(tt.want) {
					t.Errorf("%d packets of class %#x, want class %#x", n, class, tt.want)
				}
			}
		})
	}
}
