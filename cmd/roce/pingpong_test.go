package main

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// The lines of ibv_rc_pingpong, which scripts read.
var pingpongLines = regexp.MustCompile(`^  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID (\S+)
  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID (\S+)
(\d+) bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec
(\d+) iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter
$`)

// Client and server play in one process, in every mode.
func TestPingpong(t *testing.T) {
	for _, tt := range []struct {
		name   string
		p      pingpong
		both   string // arguments of both sides
		bytes  string
		iters  string
		gids   [2]string // server, client
		checks bool
	}{
		{name: "defaults", both: "-n 200", bytes: "1638400", iters: "200", gids: [2]string{"::ffff:127.0.0.1", "::ffff:127.0.0.2"}},
		{name: "addresses chosen", p: pingpong{server: []string{"-a", "127.0.0.5"}, client: []string{"--addr", "127.0.0.6"}},
			both: "-n 20", bytes: "163840", iters: "20", gids: [2]string{"::ffff:127.0.0.5", "::ffff:127.0.0.6"}},
		{name: "IPv6, one address", p: pingpong{tcp: "::1"}, both: "-n 50 -c", bytes: "409600", iters: "50", gids: [2]string{"::1", "::1"}, checks: true},
		{name: "IPv6 data, IPv4 exchange", p: pingpong{client: []string{"-a", "::1"}}, both: "-n 20", bytes: "163840", iters: "20", gids: [2]string{"::1", "::1"}},
		{name: "events", both: "-n 100 -e", bytes: "819200", iters: "100"},
		{name: "check", both: "-n 100 -c -s 65537 -m 4096", bytes: "13107400", iters: "100", checks: true},
		{name: "server checks", p: pingpong{server: []string{"-c"}}, both: "-n 20 -s 5000", bytes: "200000", iters: "20"},
		{name: "client checks", p: pingpong{client: []string{"-c"}}, both: "-n 20 -s 5000", bytes: "200000", iters: "20"},
		{name: "empty messages", both: "-n 50 -s 0 -c", bytes: "0", iters: "50", checks: true},
		{name: "one byte", both: "-n 50 -s 1 -c", bytes: "100", iters: "50", checks: true},
		{name: "one receive at a time", both: "-n 100 -r 1", bytes: "819200", iters: "100"},
		{name: "few receives", both: "-n 100 -r 3 -s 100 -m 256", bytes: "20000", iters: "100"},
		{name: "one exchange", both: "-n 1", bytes: "8192", iters: "1"},
		{name: "UC", both: "--transport uc -n 100 -c -s 65537 -m 4096", bytes: "13107400", iters: "100", checks: true},
		{name: "UC, events, defaults", both: "--transport uc -n 100 -e", bytes: "819200", iters: "100"},
		{name: "UD, defaults", both: "--transport ud -n 100", bytes: "409600", iters: "100"},
		{name: "UD, IPv6, check", p: pingpong{tcp: "::1"}, both: "--transport ud -n 100 -c -s 4096", bytes: "819200", iters: "100", checks: true},
		{name: "UD, empty messages", both: "--transport ud -n 50 -s 0 -c", bytes: "0", iters: "50", checks: true},
		{name: "1 MiB at MTU 256", both: "-n 5 -s 0x100000 -m 256 -c", bytes: "10485760", iters: "5", checks: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := tt.p
			p.server = append(p.server, strings.Fields(tt.both)...)
			p.client = append(p.client, strings.Fields(tt.both)...)
			server, client := newWorld(t).play(p)
			server.want(t, "server", 0)
			client.want(t, "client", 0)
			if t.Failed() {
				return
			}
			for i, o := range []outcome{server, client} {
				out := o.out
				if tt.checks {
					out = strings.TrimSuffix(out, "data of all messages checked\n")
					if out == o.out {
						t.Errorf("no word of the check in\n%s", out)
					}
				}
				m := pingpongLines.FindStringSubmatch(strings.TrimSuffix(out, "data of all messages checked\n"))
				if m == nil {
					t.Fatalf("not the lines of ibv_rc_pingpong:\n%s", o.out)
				}
				if m[3] != tt.bytes || m[4] != tt.iters {
					t.Errorf("%s bytes in %s iterations, want %s in %s", m[3], m[4], tt.bytes, tt.iters)
				}
				if tt.gids[0] != "" && (m[1] != tt.gids[i] || m[2] != tt.gids[1-i]) {
					t.Errorf("GIDs %s and %s, want %v", m[1], m[2], tt.gids)
				}
				if o.err != "" {
					t.Errorf("stderr is not a terminal, yet: %s", o.err)
				}
			}
		})
	}
}

// With a shared receive queue all queue pairs take part, and the lines are those of
// ibv_srq_pingpong: an address for each queue pair, bytes and iterations of all.
func TestPingpongSRQ(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags string
		qps   int
		bytes string
		loss  float64
	}{
		{"defaults", "-n 400", 16, "3276800", 0},
		{"one queue pair", "-n 100 -q 1", 1, "819200", 0},
		{"events", "-n 200 -q 5 -e -s 10000", 5, "4000000", 0},
		{"as few receives as queue pairs", "-n 200 -q 8 -r 8", 8, "1638400", 0},
		{"all slots", "-n 1000 -q 256 -s 100", 256, "200000", 0},
		{"fewer exchanges than queue pairs", "-n 3 -q 8", 8, "24576", 0},
		{"loss", "-n 100 -q 4 -s 20000", 4, "4000000", 0.02},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.loss > 0 {
				w.wrap = lossy(tt.loss)
			}
			args := strings.Fields("--transport srq " + tt.flags)
			server, client := w.play(pingpong{server: args, client: args})
			server.want(t, "server", 0)
			client.want(t, "client", 0)
			for _, o := range []outcome{server, client} {
				local, remote := strings.Count(o.out, "  local address:  "), strings.Count(o.out, "  remote address: ")
				if local != tt.qps || remote != tt.qps || !strings.Contains(o.out, "\n"+tt.bytes+" bytes in ") {
					t.Errorf("%d local and %d remote addresses, want %d and %s bytes:\n%s", local, remote, tt.qps, tt.bytes, o.out)
				}
			}
			if t.Failed() {
				return
			}
			// What one side calls local is remote to the other, in the same order.
			if a, b := addresses(server.out, "local"), addresses(client.out, "remote"); a != b {
				t.Errorf("the server's queue pairs\n%sare to the client\n%s", a, b)
			}
		})
	}
}

// addresses returns what stands in the lines of addresses.
func addresses(out, which string) (s string) {
	for line := range strings.Lines(out) {
		if _, d, ok := strings.Cut(line, which+" address:"); ok {
			s += strings.TrimSpace(d) + "\n"
		}
	}
	return s
}

// The lines are computed as in the original.
func TestResultLines(t *testing.T) {
	got := resultLines(4096, 1000, 1500*time.Millisecond)
	want := "8192000 bytes in 1.50 seconds = 43.69 Mbit/sec\n1000 iters in 1.50 seconds = 1500.00 usec/iter\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// 2 % of the packets are lost in each direction on both sides: it goes through,
// and the data is right.
func TestPingpongLoss(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "-e"} {
		w := newWorld(t)
		w.wrap = lossy(0.02)
		args := strings.Fields("-n 40 -s 20000 -c --json " + mode)
		server, client := w.play(pingpong{server: args, client: args})
		server.want(t, "server", 0)
		client.want(t, "client", 0)
		if !strings.Contains(client.out+server.out, `"fault_drop"`) {
			t.Errorf("nothing was lost:\n%s", client.out)
		}
	}
}

// A peer that dies in the middle ends the game: a send that nobody acknowledges
// with retries exceeded, a wait for a message with the timeout.
func TestPingpongPeerDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	var died time.Time
	kill := sync.OnceFunc(func() {
		died = time.Now()
		cancel()
	})
	w.wrap = func(be netio.Backend) netio.Backend { return &dying{be, 1000, kill} } // in the middle, however slow the machine is
	args := strings.Fields("-n 100000000 --timeout 1s")
	server, client := w.play(pingpong{server: args, client: args, serverCtx: ctx})
	server.want(t, "server", 1)
	if server.err != "roce: interrupted\n" {
		t.Errorf("server says %q", server.err)
	}
	client.want(t, "client", 1)
	if !strings.Contains(client.err, "transport retry counter exceeded (12): 127.0.0.1 ") &&
		!strings.Contains(client.err, "nothing came from the peer for 1s") {
		t.Errorf("client says %q", client.err)
	}
	if took := time.Since(died); died.IsZero() || took > 10*time.Second {
		t.Errorf("it took %v after the death at %v", took, died)
	}
}

// dying is a backend that calls kill when it has received so often.
type dying struct {
	netio.Backend
	left int // below the engine's lock, as Recv
	kill func()
}

func (d *dying) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := d.Backend.Recv(now, dst)
	if d.left -= n; d.left < 0 {
		d.kill()
	}
	return n, err
}

// Sides that do not fit together say so on at least one side and do not hang.
func TestPingpongMismatch(t *testing.T) {
	for _, tt := range []struct {
		name, server, client, want string
	}{
		{"sizes, client's longer", "-s 1000", "-s 5000", "do both sides use the same"},
		{"sizes, client's shorter", "-s 5000", "-s 1000", "a message of 1000 bytes came instead of 5000"},
		{"MTUs", "-m 256", "-m 1024", "do both sides use the same -m"},
		{"IP versions", "-a 127.0.0.1", "-a ::1", "different IP versions"},
		{"iterations", "-n 5", "-n 50", "roce: "},
		{"UD sizes, client's longer", "--transport ud -s 100", "--transport ud -s 101", "UD does not repeat what is lost"},
		{"UD sizes, client's shorter", "--transport ud -s 101", "--transport ud -s 100", "a message of 100 bytes came instead of 101"},
		{"UD size beyond a packet", "-a 127.0.0.1 --transport ud -s 4097", "-a 127.0.0.2 --transport ud -s 4097", "carries 4096 bytes"},
		{"services", "--transport uc", "--transport ud -s 4096", "does not repeat what is lost"},
		{"queue pairs", "--transport srq -q 3", "--transport srq -q 4", "the other side has 4 queue pairs and we have 3: use the same -q"},
		{"transports", "--transport srq", "--transport rc", "which may have one queue pair only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			common := " --timeout 1s"
			newWorld(t).disagree(pingpong{server: strings.Fields(tt.server + common), client: strings.Fields(tt.client + common)}, tt.want)
		})
	}
}

// What a server does with clients that are none.
func TestPingpongStrangeClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, _, errs := w.app()
	a.listen = func(context.Context, uint16) (net.Listener, error) { return l, nil }
	done := make(chan int)
	go func() { done <- a.run(t.Context(), []string{"pingpong", "-n", "5"}) }()
	say := func(text string) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, text)
		if text != "" {
			c.Read(make([]byte, 1)) // until the server closes
		}
	}
	say("") // a port scanner: ignored
	say(exchange.Dest{QPN: 5}.String() + "\x00")
	if status := <-done; status != 1 {
		t.Errorf("exit status %d", status)
	}
	for _, want := range []string{"connected and said nothing; still waiting\n", "roce: the other side sent no GID: start ibv_rc_pingpong with -g INDEX"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("no %q in %q", want, errs)
		}
	}
}

func TestCheckPeer(t *testing.T) {
	for _, tt := range []struct {
		local, gid string
		qpn        ib.QPN
		want       string
	}{
		{"10.0.0.1", "10.0.0.2", 17, ""},
		{"fd00::1", "fd00::2", 17, ""},
		{"127.0.0.1", "127.0.0.2", 17, ""},
		{"fe80::1%eth0", "fe80::2", 17, ""},
		{"10.0.0.1", "", 17, "sent no GID"},
		{"10.0.0.1", "fd00::2", 17, "different IP versions"},
		{"10.0.0.1", "224.0.0.1", 17, "not the address of a host"},
		{"10.0.0.1", "10.0.0.2", 0, "queue pair number 0"},
		{"10.0.0.1", "127.0.0.1", 17, "do not reach each other"},
		{"fd00::1", "fe80::2", 17, "link-local"},
	} {
		peer := exchange.Dest{QPN: tt.qpn, GID: gid(tt.gid)}
		err := (&pingpongOptions{transport: "rc"}).checkPeer(addr(tt.local), peer)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %s: error %v, want %q", tt.local, tt.gid, err, tt.want)
		}
	}
	for _, transport := range []string{"rc", "uc", "ud", "srq"} {
		err := (&pingpongOptions{transport: transport}).checkPeer(addr("10.0.0.1"), exchange.Dest{QPN: 17})
		if want := "start ibv_" + transport + "_pingpong with -g INDEX"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", transport, err, want)
		}
	}
}

func TestPingpongJSON(t *testing.T) {
	t.Parallel()
	server, client := newWorld(t).play(pingpong{server: []string{"--json", "-n", "10"}, client: []string{"--json", "-n", "10", "-c"}})
	for who, o := range map[string]outcome{"server": server, "client": client} {
		o.want(t, who, 0)
		wantSchema(t, schema(t, o.out, "counters"), `
			role string
			transport string
			num_qp number
			local.lid number
			local.qpn number
			local.psn number
			local.gid string
			remote.lid number
			remote.qpn number
			remote.psn number
			remote.gid string
			mtu number
			size number
			iters number
			bytes number
			seconds number
			mbit_per_sec number
			usec_per_iter number
			data_checked bool
			counters.* number`)
		if !strings.Contains(o.out, `"role": "`+who+`"`) {
			t.Errorf("%s: wrong role in %s", who, o.out)
		}
	}
}
