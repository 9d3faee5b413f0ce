package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// serving runs serve until the test ends or stop is called, which returns its
// outcome.
func (w *world) serving(args ...string) (stop func() outcome) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	a, out, errs := w.app()
	done := make(chan outcome, 1)
	go func() {
		status := a.run(ctx, append([]string{"serve"}, args...))
		done <- outcome{status, out.String(), errs.String()}
	}()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "serving"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it does not serve: %s", errs)
		}
	}
	return func() outcome { cancel(); return <-done }
}

// A server answers doctor and ping, and its end by an interrupt is a success.
func TestServe(t *testing.T) {
	w := newWorld(t)
	stop := w.serving("--addr", "127.0.0.1")
	o := w.run("doctor", "-a", "127.0.0.2", "127.0.0.1")
	o.want(t, "doctor", 0)
	if !strings.Contains(o.out, "ok       nat      127.0.0.1 sees our address and port as they are\n") {
		t.Errorf("printed\n%s", o.out)
	}
	w.run("ping", "-c", "-a", "127.0.0.1", "-C", "3", "-V").want(t, "ping", 0)
	stop().want(t, "serve", 0)
}

// misbehave has a client of serve name memory that it has no key of, as its first request.
func (w *world) misbehave(server, from string) {
	w.t.Helper()
	c, err := rdmacm.Dial(w.t.Context(), server+":7174", rdmacm.Config{Device: w.device(from)})
	if err != nil {
		w.t.Fatal(err)
	}
	mr, err := c.PD().RegisterMR(make([]byte, 8), roce.LocalWrite)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.QP().PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{mr.SGE(0, 8)}, RKey: 0xbad}); err != nil {
		w.t.Fatal(err)
	}
	<-c.Done() // the server has let it go
}

// What ended a client's connection is in the server's journal, also when its first
// request was wrong, and the server serves on.
func TestServeNamesMistakes(t *testing.T) {
	w := newWorld(t)
	stop := w.serving("--addr", "127.0.0.1")
	w.misbehave("127.0.0.1", "127.0.0.2")
	w.run("ping", "-c", "-a", "127.0.0.1", "-I", "127.0.0.3", "-C", "1").want(t, "ping", 0)
	o := stop()
	o.want(t, "serve", 0)
	if n := strings.Count(o.err, "\n"); n != 1 || !strings.HasPrefix(o.err, "roce: client 127.0.0.2: it named memory that it may not use: its connection is over (local access violation work queue error, queue pair 0x") {
		t.Errorf("the journal is\n%s", o.err)
	}
}

// With --json the journal is lines of JSON.
func TestServeJSON(t *testing.T) {
	w := newWorld(t)
	stop := w.serving("--addr", "127.0.0.1", "--json")
	w.misbehave("127.0.0.1", "127.0.0.2")
	w.run("ping", "-c", "-a", "127.0.0.1", "-I", "127.0.0.3", "-C", "1").want(t, "ping", 0)
	o := stop()
	o.want(t, "serve", 0)
	lines := strings.SplitAfter(o.out, "\n")
	if len(lines) != 3 || o.err != "" {
		t.Fatalf("printed %q and %q", o.out, o.err)
	}
	wantSchema(t, schema(t, lines[0]), "time string\nevent string\naddr string")
	wantSchema(t, schema(t, lines[1]), "time string\nevent string\naddr string\nclient string\nerror string")
	if !strings.Contains(lines[0], `"event":"serving","addr":"127.0.0.1"`) || !strings.Contains(lines[1], `"event":"client_error","addr":"127.0.0.1","client":"127.0.0.2","error":"it named memory`) {
		t.Errorf("printed\n%s", o.out)
	}
}

// More connections than --clients are rejected.
func TestServeLimit(t *testing.T) {
	w := newWorld(t)
	defer w.serving("--addr", "127.0.0.1", "--clients", "1")()
	ctx, stop := withCancel(t)
	first := make(chan outcome)
	a, out, errs := w.app()
	go func() {
		status := a.run(ctx, []string{"ping", "-c", "-a", "127.0.0.1", "-I", "127.0.0.2", "-v"})
		first <- outcome{status, out.String(), errs.String()}
	}()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "ping data") && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	o := w.run("ping", "-c", "-a", "127.0.0.1", "-I", "127.0.0.3", "-C", "1")
	o.want(t, "the second client", 1)
	if !strings.Contains(o.err, "busy") && !strings.Contains(o.err, "reject") && !strings.Contains(o.err, "refuse") {
		t.Errorf("error %q", o.err)
	}
	stop()
	<-first
}

// A server answers nobody outside its networks, neither probes nor connections.
func TestServeAllow(t *testing.T) {
	w := newWorld(t)
	defer w.serving("--addr", "127.0.0.1", "--allow", "127.0.0.2/32")()
	w.run("doctor", "-a", "127.0.0.2", "--timeout", "500ms", "127.0.0.1").want(t, "who is allowed", 0)
	o := w.run("doctor", "-a", "127.0.0.3", "--timeout", "500ms", "127.0.0.1")
	o.want(t, "who is not", 1)
	if !strings.Contains(o.out, "failure  cm       127.0.0.1 answers nothing") {
		t.Errorf("printed\n%s", o.out)
	}
}

// A backend answers at most 1000 probes per second, whatever comes.
func TestEchoIsLimited(t *testing.T) {
	f := netio.NewFabric()
	open := func(a string) netio.Backend {
		be, err := f.Open(netip4791(a))
		if err != nil {
			t.Fatal(err)
		}
		return be
	}
	asker, server := open("10.0.0.1"), echo.Serve(open("10.0.0.2"), nil)
	var in [64]netio.Received
	answers := 0
	for n := range 3000 {
		b := make([]byte, echo.Size)
		flow := (&netio.Run{Dst: netip4791("10.0.0.2")}).Flow(netip4791("10.0.0.1"))
		echo.Put(b, 1, uint16(n), flow, 0)
		asker.Send(0, []netio.Run{{Dst: netip4791("10.0.0.2"), Buf: b}})
		server.Recv(time.Duration(n)*time.Microsecond, in[:])
		got, _ := asker.Recv(0, in[:])
		answers += got
	}
	if answers != 1000 {
		t.Errorf("%d answers in 3 ms", answers)
	}
}

// A client on whose connection nothing comes is let go, whatever others do: its place
// is free then.
func TestServeEndsIdleClients(t *testing.T) {
	w := newWorld(t)
	defer w.serving("--addr", "127.0.0.1", "--clients", "2", "--timeout", "2s")()
	ctx, stop := withCancel(t)
	busy := make(chan outcome)
	go func() { busy <- w.runIn(ctx, "ping", "-c", "-a", "127.0.0.1", "-I", "127.0.0.2") }()
	a, _, _ := w.app()
	dev, err := a.open(roce.Config{Addr: addr("127.0.0.3")})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	idle, err := rdmacm.Dial(t.Context(), "127.0.0.1:7174", rdmacm.Config{Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-idle.Done():
	case o := <-busy:
		t.Fatalf("the busy client has ended: %+v", o)
	case <-time.After(20 * time.Second):
		t.Error("the idle client is served for ever")
	}
	stop()
	<-busy
}
