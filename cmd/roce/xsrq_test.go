package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/goroce/goroce/roce/netio"
)

// The lines of ibv_xsrq_pingpong: one of each side for each client.
var xsrqLine = regexp.MustCompile(`(?m)^  (?: local|remote): LID 0000, QPN RECV [0-9a-f]{6} SEND [0-9a-f]{6}, PSN [0-9a-f]{6}, SRQN [0-9a-f]{6}, GID (\S+)$`)

// Server and clients play in one process; several clients are devices on one address
// that share an XRC domain, and messages to one come by the connections of all.
func TestXSRQ(t *testing.T) {
	for _, tt := range []struct {
		name    string
		p       pingpong
		flags   string
		clients int
		loss    float64
	}{
		{"defaults", pingpong{}, "", 1, 0},
		{"IPv6, one address", pingpong{tcp: "::1"}, "-n 50", 1, 0},
		{"long messages", pingpong{}, "-n 20 -s 65537 -m 4096", 1, 0},
		{"empty messages, events", pingpong{}, "-n 20 -s 0 -e", 1, 0},
		{"one message", pingpong{}, "-n 1", 1, 0},
		{"three clients", pingpong{}, "-c 3 -n 40", 3, 0},
		{"more clients than messages", pingpong{}, "-c 8 -n 3 -s 10000", 8, 0},
		{"addresses chosen", pingpong{server: []string{"-a", "127.0.0.5"}, client: []string{"--addr", "127.0.0.6"}}, "-c 2", 2, 0},
		{"loss", pingpong{}, "-n 40 -s 20000", 1, 0.02},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.loss > 0 {
				w.wrap = lossy(tt.loss)
			}
			p := tt.p
			p.command = "pingpong xsrq"
			p.server = append(p.server, strings.Fields(tt.flags)...)
			p.client = append(p.client, strings.Fields(tt.flags)...)
			server, client := w.play(p)
			server.want(t, "server", 0)
			client.want(t, "client", 0)
			if t.Failed() {
				return
			}
			seen := map[string]int{}
			for _, o := range []outcome{server, client} {
				lines := xsrqLine.FindAllString(o.out, -1)
				if len(lines) != 2*tt.clients || !strings.HasSuffix(o.out, "\nsuccess\n") || strings.Count(o.out, "\n") != len(lines)+1 {
					t.Errorf("not the lines of ibv_xsrq_pingpong:\n%s", o.out)
				}
				for _, l := range lines {
					_, where, _ := strings.Cut(l, ": ")
					seen[where]++
				}
			}
			if len(seen) != 2*tt.clients { // what is local here is remote there
				t.Errorf("%d places, want %d:\n%s%s", len(seen), 2*tt.clients, server.out, client.out)
			}
		})
	}
}

// tshark reads all that the two say, without complaint.
func TestXSRQCapture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "xrc.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var once sync.Once
	w.wrap = func(be netio.Backend) netio.Backend {
		once.Do(func() { be = netio.Tap(be, f) }) // one side sees both
		return be
	}
	args := strings.Fields("-n 20 -s 3001")
	server, client := w.play(pingpong{command: "pingpong xsrq", server: args, client: args})
	server.want(t, "server", 0)
	client.want(t, "client", 0)
	tshark(t, file)
}

func TestXSRQJSON(t *testing.T) {
	t.Parallel()
	args := strings.Fields("--json -c 2 -n 10")
	server, client := newWorld(t).play(pingpong{command: "pingpong xsrq", server: args, client: args})
	for who, o := range map[string]outcome{"server": server, "client": client} {
		o.want(t, who, 0)
		wantSchema(t, schema(t, o.out, "counters"), `
			role string
			clients number
			num_tests number
			local.lid number
			local.recv_qpn number
			local.send_qpn number
			local.psn number
			local.srqn number
			local.gid string
			remote.lid number
			remote.recv_qpn number
			remote.send_qpn number
			remote.psn number
			remote.srqn number
			remote.gid string
			mtu number
			size number
			counters.* number`)
		if !strings.Contains(o.out, `"role": "`+who+`"`) {
			t.Errorf("%s: wrong role in %s", who, o.out)
		}
	}
}

// Sides that do not fit together say so on at least one side and do not hang.
func TestXSRQMismatch(t *testing.T) {
	for _, tt := range []struct{ name, server, client, want string }{
		{"sizes, server's longer", "-s 5000", "-s 1000", "the other side refused the message: do both sides use the same -m and -s?"},
		{"sizes, server's shorter", "-s 1000", "-s 5000", "a message of 1000 bytes came instead of 5000"},
		{"server counts more", "-n 9", "-n 5", "roce: "},
		{"IP versions", "-a 127.0.0.1", "-a ::1", "different IP versions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			newWorld(t).disagree(pingpong{
				command: "pingpong xsrq", server: strings.Fields(tt.server + " --timeout 1s"), client: strings.Fields(tt.client + " --timeout 1s"),
			}, tt.want)
		})
	}
}
