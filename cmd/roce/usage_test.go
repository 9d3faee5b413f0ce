package main

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/spf13/cobra"
)

// Bad input gives one line that says what to do, and the documented exit status.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, deadPort, _ := net.SplitHostPort(closed.Addr().String())
	closed.Close()
	const foreign = "198.51.100.7" // TEST-NET-2: nobody's

	for _, tt := range []struct {
		args   string
		status int
		want   string // in the line
	}{
		{"frobnicate", 2, `unknown command "frobnicate"`},
		{"help frobnicate", 2, `unknown command "frobnicate"`},
		{"--nosuch", 2, "unknown flag: --nosuch"},
		{"devinfo --nosuch", 2, "unknown flag: --nosuch (see 'roce devinfo --help')"},
		{"devinfo extra", 2, `unexpected argument "extra"`},
		{"devinfo --addr nonsense", 2, "--addr nonsense is not an IP address"},
		{"devinfo --addr " + foreign, 1, foreign + " is not an address of this machine: 'roce devinfo' lists those"},
		{"devinfo -d roce999", 1, "no device roce999"},
		{"devinfo -d 127.0.0.1 -a 127.0.0.2", 2, "are different addresses"},
		{"pingpong a b", 2, `unexpected argument "b"`},
		{"pingpong -s", 2, "needs an argument"},
		{"pingpong -s -1", 2, "invalid argument"},
		{"pingpong -s 2147483649", 2, "at most 2147483648 bytes"},
		{"pingpong -m 1000", 2, "path MTUs are 256, 512, 1024, 2048 and 4096"},
		{"pingpong -m 0", 2, "path MTUs are"},
		{"pingpong -n 0", 2, "at least one exchange"},
		{"pingpong -r 0", 2, "at least one receive"},
		{"pingpong -p 0", 2, "TCP port"},
		{"pingpong -p 65536", 2, "invalid argument"},
		{"pingpong -i 2", 2, "one port, number 1"},
		{"pingpong -l 16", 2, "service levels"},
		{"pingpong --timeout 1ms", 2, "at least 100ms"},
		{"pingpong --transport xrc", 2, "rc, uc, ud and srq are possible"},
		{"pingpong --transport ud -m 256", 2, "a datagram is one packet"},
		{"pingpong --transport uc -q 2", 2, "go with --transport srq"},
		{"pingpong -q 4", 2, "go with --transport srq"},
		{"pingpong --transport srq -q 0", 2, "1 to 256 queue pairs"},
		{"pingpong --transport srq -q 257", 2, "1 to 256 queue pairs"},
		{"pingpong --transport srq -c", 2, "data cannot be checked"},
		{"pingpong --transport srq -q 20 -r 19", 2, "at least one receive for each of the 20 queue pairs"},
		{"pingpong xsrq a b", 2, `unexpected argument "b"`},
		{"pingpong xsrq -c 0", 2, "-c 0: 1 to 128 clients"},
		{"pingpong xsrq -c 129", 2, "1 to 128 clients"},
		{"pingpong xsrq -n 0", 2, "at least one exchange"},
		{"pingpong xsrq -m 1000", 2, "path MTUs are"},
		{"pingpong xsrq -o", 2, "on-demand paging"},
		{"pingpong xsrq -r 5", 2, "unknown shorthand flag: 'r'"},
		{"pingpong xsrq -a 127.0.0.9 -g 1", 1, "no GID with index 1"},
		{"pingpong xsrq -p " + deadPort + " 127.0.0.1", 1, "start a server there first (roce pingpong xsrq, or ibv_xsrq_pingpong -g INDEX)"},
		{"pingpong -o", 2, "on-demand paging"},
		{"pingpong -t", 2, "time stamp"},
		{"pingpong -j", 2, "no device memory"},
		{"pingpong -N", 2, "one interface"},
		{"pingpong --addr nonsense", 2, "not an IP address"},
		{"pingpong --addr " + foreign, 1, "the address is not one of this machine's"},
		{"pingpong --addr 0.0.0.0", 1, "a concrete one"},
		{"pingpong --addr 224.0.0.1", 1, "unicast"},
		{"pingpong -d roce999", 1, "no device roce999: 'roce devinfo' lists them"},
		{"pingpong -a 127.0.0.9 -g 1", 1, "no GID with index 1"},
		{"pingpong -a 127.0.0.9 -g -1", 1, "no GID with index -1"},
		{"pingpong -a 127.0.0.9 -r 100000", 1, "-r 100000: "},
		{"pingpong -p " + deadPort + " 127.0.0.1", 1, "nobody listens on TCP port " + deadPort + " of 127.0.0.1: start a server there first"},
		{"perf", 2, "which test?"},
		{"perf nosuch_bw", 2, `there is no test "nosuch_bw"`},
		{"perf write_bw a b", 2, `unexpected argument "b"`},
		{"perf write_bw -c UD", 2, "write_bw goes over RC, UC"},
		{"perf read_bw -c UC", 2, "read_bw goes over RC"},
		{"perf send_bw -c XRC", 2, "send_bw goes over RC, UC, UD"},
		{"perf write_bw -c UC --verify", 2, "cannot read what it has written"},
		{"perf write_lat -e", 2, "unknown shorthand flag: 'e'"},
		{"perf read_bw -I 1", 2, "unknown shorthand flag: 'I'"},
		{"perf write_bw -I 1025", 2, "-I 1025: allowed are 0 to 1024"},
		{"perf write_bw -Q 0", 2, "-Q 0: allowed are 1 to"},
		{"perf send_lat -D 1 -H", 2, "all times are kept for -n only"},
		{"perf write_bw -w -1", 2, "a limit is not negative"},
		{"perf write_bw --local 127.0.0.1", 2, "this process is the server, too"},
		{"perf write_bw --verify=all", 2, "there are each and last"},
		{"perf send_lat --verify=last -D 1", 2, "neither side knows which message is the last one"},
		{"perf write_bw --tclass 256", 2, "--tclass 256: allowed are 0 to 255"},
		{"perf write_bw --tclass -1", 2, "--tclass -1: allowed are"},
		{"perf write_bw --socket-buffer -1", 2, "--socket-buffer -1: allowed are"},
		{"perf write_bw -i 2", 2, "one port, number 1"},
		{"perf write_bw -m 1000", 2, "path MTUs are 256, 512, 1024, 2048 and 4096"},
		{"perf write_bw -s 0", 2, "1 to 2147483648 bytes"},
		{"perf write_bw -s 2147483649", 2, "1 to 2147483648 bytes"},
		{"perf write_bw -n 4", 2, "-n 4: allowed are 5 to"},
		{"perf write_bw -D 0", 2, "at least one second"},
		{"perf write_bw -D 1 -n 9", 2, "give one of them"},
		{"perf write_bw -a -s 9", 2, "give one of them"},
		{"perf write_bw -a -D 1", 2, "give -n"},
		{"perf write_bw -q 0", 2, "-q 0: allowed are 1 to"},
		{"perf write_bw -t 0", 2, "-t 0: allowed are 1 to"},
		{"perf write_bw -t 4 -l 5", 2, "-l 5: allowed are 1 to 4"},
		{"perf write_bw -u 32", 2, "-u 32: allowed are 0 to 31"},
		{"perf write_bw --loss 101", 2, "--loss 101: allowed are 0 to 100 percent"},
		{"perf write_bw --reorder NaN", 2, "--reorder NaN: allowed are 0 to 100 percent"},
		{"perf send_bw -r 0", 2, "-r 0: allowed are 1 to"},
		{"perf read_lat -o 17", 2, "-o 17: allowed are 1 to 16"},
		{"perf atomic_bw -A ADD", 2, "-A ADD: there are FETCH_AND_ADD and CMP_AND_SWAP"},
		{"perf atomic_bw -s 8", 2, "unknown shorthand flag: 's'"},
		{"perf send_lat -q 2", 2, "unknown shorthand flag: 'q'"},
		{"perf write_bw -c UC -R 127.0.0.1", 2, "-c UC and -R"},
		{"perf send_bw -R", 2, "give --addr or -d"},
		{"perf send_bw -R --timeout 300ms --addr 127.0.0.8 127.0.0.9", 1, "127.0.0.9 does not answer"},
		{"perf write_bw -p 0", 2, "a port is needed"},
		{"perf write_bw --timeout 1ms", 2, "at least 100ms"},
		{"perf write_bw --addr " + foreign, 1, "the address is not one of this machine's"},
		{"perf write_bw --addr 127.0.0.9 -x 1", 1, "no GID with index 1"},
		{"perf write_bw -p " + deadPort + " 127.0.0.1", 1, "start a server there first (roce perf write_bw, or ib_write_bw -F)"},
		{"ping", 2, "give one of -s (server) and -c (client)"},
		{"ping -s -c", 2, "give one of -s (server) and -c (client)"},
		{"ping -c", 2, "-a is missing"},
		{"ping -s extra", 2, "the server's address is -a"},
		{"ping -c -a 127.0.0.9 -p 0", 2, "-p 0: a port is needed"},
		{"ping -c -a 127.0.0.9 -C -1", 2, "a number of pings is needed"},
		{"ping -c -a 127.0.0.9 -S 25", 2, "allowed are 26 to 65535 bytes"},
		{"ping -c -a 127.0.0.9 -S 65536", 2, "allowed are 26 to 65535 bytes"},
		{"ping -c -a 127.0.0.9 -P", 2, "-P is the server's"},
		{"ping -s -I 127.0.0.9", 2, "-I is the client's"},
		{"ping -c -a 127.0.0.9 -I nonsense", 2, "not an IP address"},
		{"ping -s --timeout 1ms", 2, "at least 100ms"},
		{"ping -s -a nonsense", 1, "no device nonsense"},
		{"ping -s -a " + foreign, 1, "the address is not one of this machine's"},
		{"ping -c -a 127.0.0.9 -I " + foreign, 1, "the address is not one of this machine's"},
		{"cm extra", 2, "the server's address is -s"},
		{"cm -P sctp", 2, "tcp, ib and udp are possible"},
		{"cm -b nonsense", 2, "not an IP address"},
		{"cm -p 0", 2, "-p 0: a port is needed"},
		{"cm -c 0", 2, "1 to 10000 connections"},
		{"cm -C -1", 2, "0 to 10000 messages"},
		{"cm -S 0", 2, "allowed are 1 to 1048576 bytes"},
		{"cm -P udp -S 100000 -b 127.0.0.9 -s 127.0.0.9", 1, "datagram"},
		{"cm --timeout 1ms", 2, "at least 100ms"},
		{"cm -b " + foreign, 1, "the address is not one of this machine's"},
		{"demo extra", 2, "demo takes flags only"},
		{"demo --size-max huge", 2, "not a number of bytes"},
		{"demo --size-max 3GiB", 2, "at most 2147483648 bytes"},
		{"demo --port 0", 2, "a UDP port is needed"},
		{"demo --budget 0s", 2, "must be positive"},
		{"demo --addr " + foreign, 1, "the address is not one of this machine's"},
		{"demo --addr 127.0.0.9 --pcap /nonexistent/x.pcapng", 1, "cannot write the capture file"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			begin := time.Now()
			o := w.run(strings.Fields(tt.args)...)
			if o.status != tt.status || !strings.Contains(o.err, tt.want) {
				t.Errorf("exit status %d, want %d, with %q in\n%s", o.status, tt.status, tt.want, o.err)
			}
			if strings.Count(o.err, "\n") != 1 || !strings.HasPrefix(o.err, "roce: ") {
				t.Errorf("not one line: %q", o.err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// The version names the build.
func TestVersion(t *testing.T) {
	o := newWorld(t).run("--version")
	o.want(t, "--version", 0)
	if want := regexp.MustCompile(`^roce \S+, go1\.\d+\S* ` + runtime.GOOS + "/" + runtime.GOARCH + "\n$"); !want.MatchString(o.out) || o.err != "" {
		t.Errorf("%q %q", o.out, o.err)
	}
}

// Without a command, or asked for help, each command explains itself.
func TestHelp(t *testing.T) {
	w := newWorld(t)
	if o := w.run(); o.status != 2 || !strings.Contains(o.err, "Available Commands") || o.out != "" {
		t.Errorf("no command: %+v", o)
	}
	if o := w.run("help", "demo"); o.status != 0 || !strings.Contains(o.out, "--size-max") {
		t.Errorf("help demo: %+v", o)
	}
	for _, cmd := range []string{"", "devinfo", "pingpong", "perf", "perf send_bw", "perf read_lat", "ping", "cm", "demo"} {
		o := w.run(append(strings.Fields(cmd), "--help")...)
		o.want(t, cmd, 0)
		if !strings.Contains(o.out, "2 wrong usage") || o.err != "" {
			t.Errorf("%s: help does not name the exit statuses:\n%s%s", cmd, o.out, o.err)
		}
	}
}

// With --json an error is a line of JSON, of each command that has the flag, and nothing
// is on standard output.
func TestErrorsInJSON(t *testing.T) {
	w := newWorld(t)
	a, _, _ := w.app()
	var commands []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Flags().Lookup("json") != nil {
			commands = append(commands, strings.TrimPrefix(c.CommandPath(), "roce "))
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(a.command())
	if len(commands) < 18 {
		t.Errorf("--json is a flag of %q only", commands)
	}
	check := func(args string, want failure) {
		o := w.run(strings.Fields(args)...)
		var got failure
		if err := json.Unmarshal([]byte(o.err), &got); err != nil || strings.Count(o.err, "\n") != 1 {
			t.Errorf("%s: %v: %q", args, err, o.err)
		}
		if !strings.Contains(got.Error, want.Error) || got.Status != want.Status || o.status != want.Status || got.See != want.See || o.out != "" {
			t.Errorf("%s: %+v, want %+v; exit status %d, printed %q", args, got, want, o.status, o.out)
		}
	}
	for _, c := range commands {
		for _, flags := range []string{" --json --nosuch", " --nosuch --json"} {
			check(c+flags, failure{"unknown flag: --nosuch", 2, "roce " + c + " --help"})
		}
	}
	check("devinfo --json -a 198.51.100.7", failure{"198.51.100.7 is not an address of this machine", 1, ""})
	check("perf write_bw --json --addr 198.51.100.7", failure{"the address is not one of this machine's", 1, ""})
	check("dump --json /nonexistent/x.pcap", failure{"/nonexistent/x.pcap", 1, ""})
}

// A port in use is refused with the name of who has it.
func TestPortInUse(t *testing.T) {
	w := newWorld(t)
	busyUDP(t, netip.AddrPortFrom(addr("127.0.0.21"), w.port))
	o := w.run("pingpong", "--addr", "127.0.0.21")
	o.want(t, "pingpong", 1)
	for _, want := range []string{"the port is in use by", filepath.Base(os.Args[0]), "needs an address of its own"} {
		if !strings.Contains(o.err, want) {
			t.Errorf("no %q in %q", want, o.err)
		}
	}
	if o := w.run("demo", "--addr", "127.0.0.21", "--port", "4791", "--pcap", "none"); o.status != 1 || !strings.Contains(o.err, "in use") {
		t.Errorf("demo with a chosen port that is taken: %+v", o)
	}
}

// A TCP port in use is refused with the way out.
func TestTCPPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	o := newWorld(t).run("pingpong", "-p", port)
	if o.status != 1 || !strings.Contains(o.err, "TCP port "+port+" is in use") || !strings.Contains(o.err, "-p") {
		t.Errorf("%+v", o)
	}
}

// narrow is a backend on a link with a small MTU.
type narrow struct {
	netio.Backend
	mtu int
}

func (n narrow) Caps() netio.Caps {
	c := n.Backend.Caps()
	c.MTU = n.mtu
	return c
}

// A path MTU that does not fit the interface is refused with one that does.
func TestMTUDoesNotFit(t *testing.T) {
	var errs syncBuffer
	a := newApp(new(syncBuffer), &errs)
	a.open = func(cfg roce.Config) (*roce.Device, error) {
		be, err := netio.NewFabric().Open(netip.AddrPortFrom(cfg.Addr, netio.Port))
		if err != nil {
			return nil, err
		}
		cfg.Backend = narrow{be, 1500}
		return roce.Open(cfg)
	}
	status := a.run(t.Context(), strings.Fields("pingpong --addr 10.0.0.1 -m 2048"))
	for _, want := range []string{"path MTU 2048 does not fit", "MTU is 1500", "use -m 1024 on both sides", "2112"} {
		if status != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("status %d, no %q in %q", status, want, errs.String())
		}
	}
}

// An interrupt ends a waiting server.
func TestInterrupt(t *testing.T) {
	a, _, errs := newWorld(t).app()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.listen = func(context.Context, uint16) (net.Listener, error) { return l, nil }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if status := a.run(ctx, []string{"pingpong"}); status != 1 {
		t.Errorf("exit status %d", status)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if !strings.HasPrefix(errs.String(), "roce: ") {
		t.Errorf("stderr %q", errs)
	}
}

// A peer that answers on TCP and is not there on UDP: retries run out.
func TestUnreachablePeer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 52)
		c.Read(b)
		c.Write([]byte("0000:000011:000001:00000000000000000000ffff7f00000b\x00")) // 127.0.0.11
		c.Read(b)
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	begin := time.Now()
	o := newWorld(t).run("pingpong", "-p", port, "127.0.0.1")
	o.want(t, "client", 1)
	if want := "a send failed: transport retry counter exceeded (12): 127.0.0.11 cannot be reached on UDP port 4791: is its program still running"; !strings.Contains(o.err, want) {
		t.Errorf("no %q in %q", want, o.err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// What the device has counted makes the hint better.
func TestSilenceHint(t *testing.T) {
	for name, want := range map[string]string{
		"":               "10.0.0.2 does not answer on UDP port 4791",
		"tx_too_big":     "3 packets did not fit the path to 10.0.0.2: use a smaller -m",
		"tx_refused":     "a firewall of this machine refused 3 packets",
		"drop_icrc":      "3 packets came with a wrong ICRC",
		"drop_ip_id":     "3 packets came with a wrong ICRC",
		"tx_unreachable": "10.0.0.2 cannot be reached",
		"icmp_errors":    "10.0.0.2 cannot be reached",
	} {
		if got := silenceHint(addr("10.0.0.2"), map[string]uint64{name: 3}); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		} else if asks := "'roce doctor 10.0.0.2'"; strings.Contains(got, asks) != (name != "tx_too_big" && name != "tx_refused") {
			t.Errorf("%s: %q and %q", name, got, asks)
		}
	}
}

// The counters that the hints and the demo look at exist.
func TestCountersExist(t *testing.T) {
	a, _, _ := newWorld(t).app()
	dev, err := a.open(roce.Config{Addr: addr("127.0.0.38")})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	all := dev.Counters()
	for _, name := range []string{"tx_too_big", "tx_refused", "tx_unreachable", "icmp_errors", "drop_icrc", "drop_ip_id", "rcvd_pkts", "completer_retry_err"} {
		if _, ok := all[name]; !ok {
			t.Errorf("no counter %s", name)
		}
	}
}
