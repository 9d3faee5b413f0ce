package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// servingThrough is serving with something between the server and its socket.
func (w *world) servingThrough(wrap func(netio.Backend) netio.Backend, addr string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	a, out, errs := w.app()
	open := a.open
	a.open = func(cfg roce.Config) (*roce.Device, error) {
		inner := cfg.Wrap
		cfg.Wrap = func(be netio.Backend) netio.Backend { return inner(wrap(be)) }
		return open(cfg)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(ctx, []string{"serve", "--addr", addr})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "serving"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it does not serve: %s", errs)
		}
	}
}

func interopJSON(t *testing.T, o outcome) (r interopReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.out), &r); err != nil {
		t.Fatalf("not JSON: %v\n%s%s", err, o.out, o.err)
	}
	return r
}

// Every operation of serve passes, and it survives all that we do wrong.
func TestInterop(t *testing.T) {
	w := newWorld(t)
	stop := w.serving("--addr", "127.0.0.1", "--clients", "2")
	o := w.run("interop", "--json", "--peer", "serve", "-m", "256,1024", "-s", "1,1025", "-u", "12", "--label", "us", "127.0.0.1")
	o.want(t, "interop", 0)
	stop().want(t, "serve", 0)
	wantSchema(t, schema(t, o.out), `
		host string
		label string
		peer_addr string
		local_addr string
		began string
		peers[] string
		passed number
		failed number
		not_offered number
		seconds number
		cells[].peer string
		cells[].transport string
		cells[].operation string
		cells[].requested_by string
		cells[].mtu number
		cells[].size number
		cells[].fault string
		cells[].expected string
		cells[].rule string
		cells[].result string
		cells[].seconds number
		version string`)
	r := interopJSON(t, o)
	tried := map[string]bool{}
	for _, c := range r.Cells {
		if c.Result != resultOK {
			t.Errorf("%+v", c)
		}
		tried[c.Fault] = true
		tried[c.Transport+" "+c.Operation+" "+c.By] = true
	}
	for _, m := range misdeeds {
		if !tried[m.name] {
			t.Errorf("fault %s was not tried", m.name)
		}
	}
	for _, op := range interopAll {
		if name := op.service.String() + " " + op.op.name + " " + op.op.by(); !tried[name] {
			t.Errorf("%s was not tried", name)
		}
	}
	// 2 path MTUs and 2 sizes, but atomics have one size and UD has one path MTU, where
	// 1025 bytes fit; then the faults.
	if want := 12*4 + 4*2 + 2*2; r.Passed < want+len(misdeeds) || r.Failed+r.NotOffered > 0 {
		t.Errorf("passed %d failed %d not offered %d", r.Passed, r.Failed, r.NotOffered)
	}
}

func script(f netio.Fault) func(netio.Backend) netio.Backend {
	return func(be netio.Backend) netio.Backend {
		return netio.WithFaults(be, netio.FaultConfig{Script: []netio.Fault{f}})
	}
}

func isNAK(p *ib.Packet) bool {
	return p.Info().Op == ib.KindAck && p.AETH().Syndrome.Kind() == ib.SynNAK
}

// A peer whose NAK is not seen once, as when it is away until all is repaired, is not
// wrong.
func TestInteropTriesAgain(t *testing.T) {
	w := newWorld(t)
	w.servingThrough(script(netio.Fault{Match: isNAK, Nth: 1}), "127.0.0.1")
	o := w.run(strings.Fields("interop --peer serve -m 1024 -u 12 --fault psn-ahead -s 1 127.0.0.1")...)
	o.want(t, "interop", 0)
}

// What a peer does wrong is seen, said with the rule, and shown with its packets.
func TestInteropWrongPeer(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrong netio.Fault
		args  string
		want  []string
	}{
		{
			"its atomics add too much",
			netio.Fault{Direction: netio.Rx, Match: netio.OfKind(ib.KindFetchAdd), Action: netio.Edit, Edit: func(b []byte) { b[ib.BTHSize+19]++ }},
			"--fault none -s 1", []string{"FETCH_ADD us               FAILED 1 of 1", "the atomic has found", "RC_FETCH_ADD"},
		},
		{
			"it never says that a packet is missing",
			netio.Fault{Match: isNAK},
			"--fault drop -s 1", []string{"SEND      us   drop        FAILED", "the peer has sent no sequence NAK", "expected: a NAK for the gap", "IBTA 9.7.5.2", "RC_SEND_MIDDLE"},
		},
		{
			"it sends other data",
			netio.Fault{Match: netio.OfKind(ib.KindReadResponse), Nth: 2, Action: netio.Edit, Edit: func(b []byte) { b[ib.BTHSize+ib.AETHSize+1]++ }},
			"--fault none -s 2048", []string{"READ      us               FAILED 1 of 1", "wrong data, from byte 1025 of 2048 on"},
		},
		{
			"it minds no R_Key",
			netio.Fault{Direction: netio.Rx, Match: withRKey(ib.KindWrite), Action: netio.Edit, Edit: func(b []byte) { b[offRKey] ^= 0xff }},
			"--fault bad-rkey -s 1", []string{"WRITE     us   bad-rkey    FAILED", "instead of ending with remote access error"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			layers.RegisterPort(w.port)
			w.servingThrough(script(c.wrong), "127.0.0.1")
			page := filepath.Join(t.TempDir(), "report.html")
			args := append([]string{"interop", "--peer", "serve", "-m", "1024", "-u", "12", "--timeout", "1s", "--html", page}, strings.Fields(c.args)...)
			o := w.run(append(args, "127.0.0.1")...)
			o.want(t, "interop", 1)
			html, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(o.out, want) {
					t.Errorf("%q is not in\n%s", want, o.out)
				}
			}
			if !strings.Contains(string(html), "<pre>") || !strings.Contains(string(html), `class="bad"`) {
				t.Errorf("the page does not show what failed:\n%s", html)
			}
		})
	}
}

// Nothing of a peer gets into the page as HTML.
func TestInteropPageEscapes(t *testing.T) {
	const evil = `<script>alert("x")</script>`
	r := interopReport{Host: evil, Cells: []*interopCell{{Peer: evil, Operation: evil, Result: resultFailed, Reason: evil, Expected: evil, Rule: evil, Fault: evil, Packets: []string{evil, "</pre>" + evil}}}}
	r.finish()
	name := filepath.Join(t.TempDir(), "x.html")
	if err := r.writeHTML(name); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(name)
	if strings.Contains(string(b), "<script>") || strings.Count(string(b), "</pre>") != 1 || !strings.Contains(string(b), "&lt;script&gt;") {
		t.Errorf("page\n%s", b)
	}
}

// A server of pings is found and tested as rping is.
func TestInteropRping(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := withCancel(t)
	done := make(chan outcome, 1)
	go func() { done <- w.runIn(ctx, "ping", "-s", "-P", "-a", "127.0.0.1") }()
	var r interopReport
	for deadline := time.Now().Add(20 * time.Second); len(r.Cells) == 0; {
		o := w.run("interop", "--json", "--timeout", "2s", "--tcp-port", closedPort(t), "-m", "512", "-u", "12", "127.0.0.1")
		if o.status == 0 {
			r = interopJSON(t, o)
		} else if time.Now().After(deadline) {
			t.Fatal(o.err)
		}
	}
	if !slices.Equal(r.Kinds, []string{peerRping}) || r.Failed > 0 || r.Passed < 20 || r.NotOffered == 0 {
		t.Errorf("found %v, passed %d failed %d not offered %d", r.Kinds, r.Passed, r.Failed, r.NotOffered)
	}
	o := w.run("interop", "--peer", "serve", "127.0.0.1")
	o.want(t, "rping instead of serve", 1)
	if !strings.Contains(o.err, "is not 'roce serve'") || !strings.Contains(o.err, "leave --peer out") {
		t.Errorf("error %q", o.err)
	}
	cancel()
	<-done
}

// closedPort returns a TCP port at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// The programs of perftest are talked to one by one; those that do not run are not
// offered, which is said with what to do.
func TestInteropPerftest(t *testing.T) {
	w := newWorld(t)
	port := closedPort(t)
	ctx, cancel := withCancel(t)
	done := make(chan struct{})
	go func() { // the first of them, as the script runs it
		defer close(done)
		for ctx.Err() == nil {
			w.runIn(ctx, "perf", "send_bw", "-n", strconv.Itoa(perftestIters), "-p", port, "-s", "65536", "--addr", "127.0.0.1")
		}
	}()
	o := w.run("interop", "--peer", "perftest", "--json", "--tcp-port", port, "-m", "1024", "-s", "65536", "--fault", "none", "127.0.0.1")
	cancel()
	<-done
	o.want(t, "interop", 0)
	r := interopJSON(t, o)
	if r.Passed != 1 {
		t.Errorf("passed %d, want the SEND", r.Passed)
	}
	said := false
	for _, c := range r.Cells {
		said = said || c.Operation == "WRITE" && strings.Contains(c.Reason, "'roce interop --script' prints how to start ib_write_bw there")
	}
	if !said {
		t.Errorf("printed\n%s", o.out)
	}
}

// When nothing answers, the error says what to start there; an interrupt ends a run.
func TestInteropSilence(t *testing.T) {
	w := newWorld(t)
	port := closedPort(t)
	o := w.run("interop", "--timeout", "300ms", "--tcp-port", port, "127.0.0.1")
	o.want(t, "nobody there", 1)
	for _, want := range []string{"roce serve --addr 127.0.0.1", "rping -s -P", "roce interop --script", "TCP port " + port} {
		if !strings.Contains(o.err, want) {
			t.Errorf("%q is not in %s", want, o.err)
		}
	}
	for peer, start := range map[string]string{"serve": "'roce serve --addr 127.0.0.1'", "rping,perftest": "'rping -s -P -S 65535'"} {
		o := w.run("interop", "--peer", peer, "--timeout", "300ms", "127.0.0.1")
		o.want(t, "no "+peer+" there", 1)
		if !strings.Contains(o.err, "nothing at 127.0.0.1 answers on port 7174 of rdma_cm") || !strings.Contains(o.err, start) || !strings.Contains(o.err, "roce doctor 127.0.0.1") {
			t.Errorf("error %q", o.err)
		}
	}
	if o := w.run("interop", "--peer", "serve", "--html", "/nonexistent/x.html", "127.0.0.1"); o.status != 1 || !strings.Contains(o.err, "cannot write the report: open /nonexistent/x.html") {
		t.Errorf("%+v", o)
	}
	defer w.serving("--addr", "127.0.0.1")()
	ctx, cancel := withCancel(t)
	time.AfterFunc(100*time.Millisecond, cancel)
	o = w.runIn(ctx, "interop", "--peer", "serve", "127.0.0.1")
	o.want(t, "interrupted", 1)
	if o.err != "roce: interrupted\n" {
		t.Errorf("error %q", o.err)
	}
}

func TestInteropUsage(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ args, want string }{
		{"", "give one HOST"},
		{"--peer x h", "--peer x: there are serve, rping, perftest"},
		{"-m 100 h", "-m 100: path MTUs are"},
		{"-s 200000 h", "-s 200000: a message has 0 to 131072 bytes"},
		{"--fault x h", "--fault x: it is unknown"},
		{"--fault drop=0 h", "--fault drop=0: a number from 1 to 1000 is needed"},
		{"--fault none,drop h", "--fault none: give no other one beside it"},
		{"-u 0 h", "-u 0: allowed are 1 to 20"},
		{"-p 0 h", "-p 0: a port of rdma_cm is needed"},
		{"--tcp-port 65535 h", "--tcp-port 65535: it and the 5 ports after it are needed"},
		{"--timeout 1ms h", "--timeout 1ms: at least 100ms is needed"},
	} {
		o := w.run(append([]string{"interop"}, strings.Fields(c.args)...)...)
		if o.status != 2 || !strings.Contains(o.err, c.want) {
			t.Errorf("%s: status %d, %s", c.args, o.status, o.err)
		}
	}
	o := w.run("interop", "--script", "h")
	o.want(t, "script", 0)
	if n := strings.Count(o.out, "forever ib_"); n != len(perftestCells) {
		t.Errorf("%d programs in\n%s", n, o.out)
	}
}
