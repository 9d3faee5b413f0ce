package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// outcome is what one command line did.
type outcome struct {
	status   int
	out, err string
}

// syncBuffer is a buffer that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// world is what commands of one test share: a UDP port that no other test uses.
type world struct {
	t    *testing.T
	port uint16
	wrap func(netio.Backend) netio.Backend // around each device's socket
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return &world{t: t, port: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
}

// app returns the commands on the world's UDP port.
func (w *world) app() (a *app, out, err *syncBuffer) {
	out, err = new(syncBuffer), new(syncBuffer)
	a = newApp(out, err)
	a.port = w.port
	a.open = func(cfg roce.Config) (*roce.Device, error) {
		if cfg.Port == 0 || cfg.Port == netio.Port {
			cfg.Port = w.port
		}
		if cfg.Wrap == nil {
			cfg.Wrap = w.wrap
		}
		return roce.Open(cfg)
	}
	return a, out, err
}

// run runs one command line to its end.
func (w *world) run(args ...string) outcome {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	return w.runIn(ctx, args...)
}

// runIn runs one command line until it ends by itself or with ctx.
func (w *world) runIn(ctx context.Context, args ...string) outcome {
	a, out, err := w.app()
	status := a.run(ctx, args)
	return outcome{status, out.String(), err.String()}
}

// pingpong is one game; the TCP port is the system's choice.
type pingpong struct {
	command        string // "pingpong" if empty
	tcp            string // address to listen on, "127.0.0.1" if empty
	server, client []string
	serverCtx      context.Context // nil: the test's
}

func (w *world) play(p pingpong) (server, client outcome) {
	w.t.Helper()
	if p.tcp == "" {
		p.tcp = "127.0.0.1"
	}
	command := []string{"pingpong"}
	if p.command != "" {
		command = strings.Fields(p.command)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(p.tcp, "0"))
	if err != nil {
		w.t.Skipf("no TCP on %s: %v", p.tcp, err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if p.serverCtx == nil {
		p.serverCtx = ctx
	}
	done := make(chan outcome)
	go func() {
		a, out, err := w.app()
		a.listen = func(context.Context, uint16) (net.Listener, error) { return l, nil }
		status := a.run(p.serverCtx, slices.Concat(command, p.server))
		l.Close()
		done <- outcome{status, out.String(), err.String()}
	}()
	a, out, errs := w.app()
	status := a.run(ctx, slices.Concat(command, []string{"-p", port}, p.client, []string{p.tcp}))
	return <-done, outcome{status, out.String(), errs.String()}
}

// want fails the test unless both sides did well.
func (o outcome) want(t *testing.T, who string, status int) {
	t.Helper()
	if o.status != status {
		t.Errorf("%s: exit status %d, want %d\n%s%s", who, o.status, status, o.out, o.err)
	}
}

// disagree plays a game that has to fail on at least one side, which says why.
func (w *world) disagree(p pingpong, want string) {
	w.t.Helper()
	server, client := w.play(p)
	if server.status == 0 && client.status == 0 {
		w.t.Error("both sides are content")
	}
	if all := server.err + client.err; !strings.Contains(all, want) {
		w.t.Errorf("want %q on one side, got\n%s", want, all)
	}
}

// lossy makes a wrapper that loses packets in both directions.
func lossy(rate float64) func(netio.Backend) netio.Backend {
	var mu sync.Mutex
	seed := uint64(0)
	return func(be netio.Backend) netio.Backend {
		mu.Lock()
		defer mu.Unlock()
		seed++
		return netio.WithFaults(be, netio.FaultConfig{Seed: seed, Tx: netio.Faults{Loss: rate}, Rx: netio.Faults{Loss: rate}})
	}
}

// schema returns the sorted paths of a JSON text with their types; array elements
// share one path, and so do the values of the named maps.
func schema(t *testing.T, text string, maps ...string) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	seen := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				for _, m := range maps {
					if path == m {
						k = "*"
					}
				}
				walk(strings.TrimPrefix(path+"."+k, "."), e)
			}
		case []any:
			for _, e := range v {
				walk(path+"[]", e)
			}
		case string:
			seen[path+" string"] = true
		case float64:
			seen[path+" number"] = true
		case bool:
			seen[path+" bool"] = true
		default:
			seen[path+" null"] = true
		}
	}
	walk("", v)
	var paths []string
	for p := range seen {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	return paths
}

func wantSchema(t *testing.T, got []string, want string) {
	t.Helper()
	wanted := strings.Split(strings.TrimSpace(want), "\n")
	for i := range wanted {
		wanted[i] = strings.TrimSpace(wanted[i])
	}
	sort.Strings(wanted)
	if strings.Join(got, "\n") != strings.Join(wanted, "\n") {
		t.Errorf("JSON schema is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

// busyUDP occupies a UDP port of an address.
func busyUDP(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func gid(s string) ib.GID {
	if s == "" {
		return ib.GID{}
	}
	return ib.GIDFromAddr(addr(s))
}

func withCancel(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}

func netip4791(a string) netip.AddrPort { return netip.AddrPortFrom(addr(a), netio.Port) }
