package roce_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// bomb is a backend that panics when it is told to.
type bomb struct {
	netio.Backend
	recv, send atomic.Bool
}

func (b *bomb) Recv(now time.Duration, dst []netio.Received) (int, error) {
	if b.recv.Load() {
		panic("recv")
	}
	return b.Backend.Recv(now, dst)
}

func (b *bomb) Send(now time.Duration, runs []netio.Run) (int, error) {
	if len(runs) > 0 && b.send.Load() {
		panic("send")
	}
	return b.Backend.Send(now, runs)
}

// logBook is a writer that can be read meanwhile.
type logBook struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestPanicIsContained: a panic under the engine's lock, whoever runs it, ends the
// devices of that engine and nothing else: requests are flushed, each device is told
// once, and the error says what has happened. Close works as ever.
func TestPanicIsContained(t *testing.T) {
	write := func(e, peer *rocetest.Endpoint) {
		e.QP.PostSend(roce.SendWR{ID: 5, Opcode: roce.WRWrite, SGE: []roce.SGE{e.MR.SGE(0, 8)}, RemoteAddr: peer.MR.Addr(), RKey: peer.MR.RKey()})
	}
	for _, c := range []struct {
		name   string
		manual bool
		light  func(b *bomb, a, peer *rocetest.Endpoint)
	}{
		{"Progress", true, func(b *bomb, a, peer *rocetest.Endpoint) {
			b.recv.Store(true)
			if next := a.Dev.Progress(1); next != roce.Never {
				t.Errorf("next %v after the panic", next)
			}
			a.Dev.Progress(2) // harmless
		}},
		{"goroutine", false, func(b *bomb, a, peer *rocetest.Endpoint) {
			b.recv.Store(true)
			write(peer, a)
		}},
		{"poster", false, func(b *bomb, a, peer *rocetest.Endpoint) {
			b.send.Store(true)
			write(a, peer)
		}},
		{"Modify", true, func(b *bomb, a, peer *rocetest.Endpoint) {
			write(a, peer)
			b.send.Store(true)
			must(t, a.QP.Modify(&roce.Attr{State: roce.StateRTS, MinRNRTimer: 3}, roce.MaskState|roce.MaskMinRNRTimer))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fabric := netio.NewFabric()
			open := func(addr string, cfg roce.Config) (*rocetest.Endpoint, *bomb) {
				b := &bomb{Backend: openFabric(t, fabric, addr)}
				cfg.Backend = b
				d, err := roce.Open(cfg)
				must(t, err)
				t.Cleanup(func() { d.Close() })
				return rocetest.New(t, d, rocetest.Options{}), b
			}
			log := new(logBook)
			a, fuse := open("10.0.0.1", roce.Config{Manual: c.manual, Spin: -1, Logger: slog.New(slog.NewTextHandler(log, nil))})
			peer, _ := open("10.0.0.2", roce.Config{})
			rocetest.Connect(t, a, peer, roce.Conn{})
			must(t, a.QP.PostRecv(roce.RecvWR{ID: 7}))
			gsi, err := a.Dev.GSI()
			must(t, err)
			c.light(fuse, a, peer)

			next(t, a.Dev, roce.EventDeviceFatal)
			var wc roce.WC
			for wc.ID != 7 { // a request of the test may come before it
				if wc = a.Next(t); wc.Status != roce.WCWRFlushErr {
					t.Fatalf("completion %+v", wc)
				}
			}
			var fatal *roce.FatalError
			_, err = a.CQ.Wait(context.Background(), make([]roce.WC, 1))
			if !errors.As(err, &fatal) || !errors.Is(err, net.ErrClosed) || fatal.Panic == nil || !strings.Contains(string(fatal.Stack), "bomb") {
				t.Errorf("Wait: %v", err)
			}
			for what, err := range map[string]error{
				"CreateCQ": func() error { _, err := a.Dev.CreateCQ(1); return err }(),
				"CreateQP": func() error { _, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ}); return err }(),
				"GSI":      func() error { _, err := a.Dev.GSI(); return err }(),
			} {
				if !errors.As(err, &fatal) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := a.QP.Modify(&roce.Attr{}, 0); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Modify: %v", err)
			}
			if _, err := a.Dev.NextEvent(context.Background()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("NextEvent after the event: %v", err)
			}
			<-gsi.Done()
			if !c.manual {
				eventually(t, "the logger is told before Close", func() bool { return strings.Contains(log.String(), "level=ERROR") })
			}
			must(t, a.Dev.Close())
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "bomb") {
				t.Errorf("%d errors were logged:\n%s", n, log)
			}

			other, _ := open("10.0.0.3", roce.Config{})
			live := rocetest.New(t, peer.Dev, rocetest.Options{})
			rocetest.Connect(t, other, live, roce.Conn{})
			write(other, live)
			must(t, live.QP.PostSend(roce.SendWR{ID: 6, Opcode: roce.WRRead, Flags: roce.Signaled, SGE: []roce.SGE{live.MR.SGE(0, 8)}, RemoteAddr: other.MR.Addr(), RKey: other.MR.RKey()}))
			want(t, live.Next(t), 6, roce.WCRead, roce.WCSuccess)
		})
	}
}

// stuck is a backend that does not return from one of its methods.
type stuck struct {
	netio.Backend
	in         string
	here, free chan struct{}
	once       sync.Once
}

func (s *stuck) block(in string) {
	if s.in == in {
		s.once.Do(func() { close(s.here) })
		<-s.free
	}
}

func (s *stuck) Recv(now time.Duration, dst []netio.Received) (int, error) {
	s.block("Recv")
	return s.Backend.Recv(now, dst)
}

func (s *stuck) Wait(timeout time.Duration, write bool) error {
	s.block("Wait")
	return s.Backend.Wait(timeout, write)
}

func (s *stuck) Close() error {
	s.block("Close")
	return s.Backend.Close()
}

// TestCloseTimeout: Close returns after its bound from a backend that does not
// return, whoever waits on the device does so too, other devices are opened and
// closed meanwhile; and when the backend returns, nothing is left.
func TestCloseTimeout(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	for _, in := range []string{"Recv", "Wait", "Close"} {
		s := &stuck{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1"), in: in, here: make(chan struct{}), free: make(chan struct{})}
		d, err := roce.Open(roce.Config{Backend: s, CloseTimeout: 20 * time.Millisecond, Spin: -1})
		must(t, err)
		cq, err := d.CreateCQ(1)
		must(t, err)
		if in != "Close" {
			<-s.here // it is the engine's goroutine that is held up
		}
		waited := make(chan error)
		go func() {
			_, err := cq.Wait(context.Background(), make([]roce.WC, 1))
			waited <- err
		}()
		if err := d.Close(); !errors.Is(err, roce.ErrCloseTimeout) {
			t.Errorf("%s: Close: %v", in, err)
		}
		if err := <-waited; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: Wait: %v", in, err)
		}
		if err := d.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: second Close: %v", in, err)
		}
		must(t, openUDP(t, "127.0.0.1", roce.Config{}).Close())
		close(s.free)
	}
	noMoreGoroutines(t, goroutines)
	if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), CloseTimeout: -1}); err == nil || !strings.Contains(err.Error(), "CloseTimeout") {
		t.Errorf("a negative CloseTimeout: %v", err)
	}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 10 seconds", what)
		}
	}
}

// noMoreGoroutines waits until there are no more goroutines than before.
func noMoreGoroutines(t testing.TB, before int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
			return
		}
	}
}

// TestCloseFreesBuffers: what the program still holds of a closed device keeps none
// of its buffers: a socket's, of more than a megabyte, a fabric's, the staging
// buffers.
func TestCloseFreesBuffers(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const memory = 512 << 10
	var held []*rocetest.Endpoint
	use := func(d *roce.Device) {
		o := rocetest.Options{Memory: memory, CQEntries: 1}
		a, b := rocetest.New(t, d, o), rocetest.New(t, d, o)
		rocetest.Connect(t, a, b, roce.Conn{AckTimeout: 5 * time.Millisecond, PathMTU: roce.MTU1024})
		must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, memory)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
		want(t, a.Next(t), 1, roce.WCWrite, roce.WCSuccess)
		held = append(held, a, b)
		must(t, d.Close())
	}
	both := func() {
		use(openUDP(t, "127.0.0.1", roce.Config{Engines: 1}))
		d, err := roce.Open(roce.Config{Engines: 1, Backend: openFabric(t, netio.NewFabric(), "10.0.0.1")})
		must(t, err)
		use(d)
	}
	both()
	before := heap()
	const n = 10
	for range n {
		both()
	}
	if per := (heap()-before)/n - 4*memory; per > 250<<10 {
		t.Errorf("two closed devices keep %d bytes", per)
	}
	runtime.KeepAlive(held)
}
