package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// meet runs a server and a client of the connection manager; the client is run again
// until the server listens.
func (w *world) meet(server, client string) (s, c outcome) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	done := make(chan outcome, 1)
	go func() { done <- w.runIn(ctx, strings.Fields(server)...) }()
	if c = w.knock(ctx, strings.Fields(client)...); c.status != 0 {
		cancel() // the server may wait for ever
	}
	return <-done, c
}

// knock runs a client until it is not refused because nobody listens yet.
func (w *world) knock(ctx context.Context, args ...string) (o outcome) {
	for ctx.Err() == nil {
		if o = w.runIn(ctx, args...); !strings.Contains(o.err, "nobody listens on this port") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return o
}

// TestPing: pings of several sizes arrive, come back and are compared, with loss as
// well.
func TestPing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		loss float64
		args string
	}{
		{0, "-C 20 -S 26"},
		{0, "-C 3 -S 65535"},
		{0.02, "-C 50 -S 500"},
	} {
		w := newWorld(t)
		if tt.loss > 0 {
			w.wrap = lossy(tt.loss)
		}
		s, c := w.meet("ping -s -v -a 127.0.0.51", "ping -c -V -v -a 127.0.0.51 -I 127.0.0.52 "+tt.args)
		s.want(t, "server", 0)
		c.want(t, "client", 0)
		var n int
		fmt.Sscanf(tt.args, "-C %d", &n)
		if strings.Count(c.out, "ping data: rdma-ping-") != n || strings.Count(s.out, "server ping data: rdma-ping-") != n {
			t.Errorf("%s: the client prints\n%.500s\nthe server\n%.500s", tt.args, c.out, s.out)
		}
		if !strings.HasPrefix(c.out, "ping data: rdma-ping-0: ABCDEFGHIJKL\n") && tt.loss == 0 && n == 20 {
			t.Errorf("the first ping is %.80q", c.out)
		}
	}
}

// TestPingJSON: what --json prints.
func TestPingJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c := w.meet("ping -s --json -a 127.0.0.53", "ping -c -C 5 -V --json -a 127.0.0.53 -I 127.0.0.54")
	s.want(t, "server", 0)
	c.want(t, "client", 0)
	for _, o := range []outcome{s, c} {
		wantSchema(t, schema(t, o.out, "counters"), `
			role string
			clients number
			pings number
			size number
			bytes number
			seconds number
			usec_per_ping number
			validated bool
			counters.* number`)
		var r pingResult
		if err := json.Unmarshal([]byte(o.out), &r); err != nil || r.Pings != 5 {
			t.Errorf("%v: %+v", err, r)
		}
	}
}

// TestPingPersistent: with -P the server serves one client after the other and several
// at a time.
func TestPingPersistent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan outcome, 1)
	go func() { done <- w.runIn(ctx, strings.Fields("ping -s -P -a 127.0.0.55")...) }()
	clients := make(chan outcome)
	for i := range 3 {
		go func() {
			clients <- w.knock(t.Context(), strings.Fields(fmt.Sprintf("ping -c -C 10 -V -a 127.0.0.55 -I 127.0.0.%d", 56+i))...)
		}()
	}
	for range 3 {
		c := <-clients
		c.want(t, "client", 0)
	}
	cancel()
	if s := <-done; s.status != 1 || !strings.Contains(s.err, "interrupted") {
		t.Errorf("the server ends with %+v", s)
	}
}

// TestPingBusy: without -P, whoever comes second is turned away; a client that is
// interrupted ends the server.
func TestPingBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, out, errs := w.app()
	done, client := make(chan int, 1), make(chan outcome, 1)
	go func() { done <- server.run(t.Context(), strings.Fields("ping -s -v -a 127.0.0.59")) }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { client <- w.knock(ctx, strings.Fields("ping -c -a 127.0.0.59 -I 127.0.0.60")...) }()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "server ping data"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no ping: %s", errs)
		}
	}
	if o := w.run("ping", "-c", "-C", "1", "-a", "127.0.0.59", "-I", "127.0.0.61"); o.status != 1 || !strings.Contains(o.err, "the program there rejects the connection") {
		t.Errorf("the second client: %+v", o)
	}
	stop()
	if c := <-client; c.status != 1 || !strings.Contains(c.err, "interrupted") {
		t.Errorf("the first client ends with %+v", c)
	}
	if status := <-done; status != 0 {
		t.Errorf("the server ends with %d: %s", status, errs)
	}
}

// TestPingFailures: a server that is not there, or does not want us.
func TestPingFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if o := w.run("ping", "-c", "-a", "127.0.0.62", "-I", "127.0.0.63", "--timeout", "200ms"); o.status != 1 ||
		!strings.Contains(o.err, "127.0.0.62 does not answer within 200ms: 127.0.0.62 cannot be reached on UDP port 4791") {
		t.Errorf("nobody there: %+v", o)
	}
}

// TestCM: connections and messages, in each port space, whichever side sends first.
func TestCM(t *testing.T) {
	t.Parallel()
	for i, args := range []string{"-c 5 -C 3", "-P ib -S 5000", "-P udp -c 3", "-F -C 1 -S 16", "-C 0 -c 20"} {
		server, client := fmt.Sprintf("127.0.0.%d", 64+2*i), fmt.Sprintf("127.0.0.%d", 65+2*i)
		w := newWorld(t)
		s, c := w.meet("cm --json -b "+server+" "+args, "cm --json -s "+server+" -b "+client+" "+args)
		s.want(t, "server of "+args, 0)
		c.want(t, "client of "+args, 0)
		for _, o := range []outcome{s, c} {
			wantSchema(t, schema(t, o.out, "counters"), `
				role string
				port_space string
				connections number
				messages number
				size number
				connect_usec number
				connections_per_sec number
				seconds number
				counters.* number`)
		}
		var r [2]cmResult
		json.Unmarshal([]byte(s.out), &r[0])
		json.Unmarshal([]byte(c.out), &r[1])
		if r[0].Connections != r[1].Connections || r[0].Messages != r[1].Messages || r[0].Role != "server" || r[1].Role != "client" {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

// TestCMDisagree: when both sides want something else, the line says so.
func TestCMDisagree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c := w.meet("cm -b 127.0.0.76 -S 50", "cm -s 127.0.0.76 -b 127.0.0.77 -S 60 --timeout 5s")
	if c.status != 1 || !strings.Contains(c.err, "sent a message of 50 bytes instead of 60: do both sides use the same -S?") {
		t.Errorf("client %+v, server %+v", c, s)
	}
	s, c = w.meet("cm -b 127.0.0.78 -c 2 --timeout 500ms", "cm -s 127.0.0.78 -b 127.0.0.79 -c 1")
	if s.status != 1 || !strings.Contains(s.err, "1 of 2 connections have come") || c.status != 1 || strings.Contains(c.err, "nothing came") {
		t.Errorf("server %+v, client %+v", s, c)
	}
}

// TestSourceFor: on loopback the client takes a neighbour of the server's address; a
// link-local address keeps its zone.
func TestSourceFor(t *testing.T) {
	if got, err := sourceFor(t.Context(), "127.0.0.1"); err != nil || got != addr("127.0.0.2") {
		t.Errorf("to 127.0.0.1: %v, %v", got, err)
	}
	local, err := netio.LocalAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range local {
		if a.Zone() == "" {
			continue
		}
		if got, err := sourceFor(t.Context(), a.String()); err != nil || got.Zone() != a.Zone() {
			t.Errorf("to %v: %v, %v", a, got, err)
		}
	}
}
