package roce_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// lockedLog is a text that is written and read by different goroutines.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Config.Logger is told of queue pairs' states, by its level, and of nothing when it
// listens to nothing; all is told when the device has been closed.
func TestLoggerIsToldOfStates(t *testing.T) {
	for _, c := range []struct {
		name      string
		logger    func(*lockedLog) *slog.Logger
		want, not []string
	}{
		{"debug", func(l *lockedLog) *slog.Logger {
			return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}, []string{"from=RESET to=INIT", "from=INIT to=RTR", "from=RTR to=RTS", "level=INFO msg=\"queue pair changes its state\" name=roce0 addr=10.0.0.1 qpn=0x", "from=RTS to=ERR", "type=UD"}, nil},
		{"info", func(l *lockedLog) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) },
			[]string{"from=RTS to=ERR", "device open", "device closed"}, []string{"to=INIT"}},
		{"error", func(l *lockedLog) *slog.Logger {
			return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelError}))
		}, nil, []string{"msg"}},
		{"nobody", func(*lockedLog) *slog.Logger { return nil }, nil, []string{"msg"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
			if err != nil {
				t.Fatal(err)
			}
			log := new(lockedLog)
			dev, err := roce.Open(roce.Config{Backend: be, Logger: c.logger(log)})
			if err != nil {
				t.Fatal(err)
			}
			pd, _ := dev.AllocPD()
			cq, _ := dev.CreateCQ(16)
			q, err := pd.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: cq})
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Activate(1); err != nil {
				t.Fatal(err)
			}
			if err := q.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState); err != nil {
				t.Fatal(err)
			}
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%q is not in\n%s", want, log)
				}
			}
			for _, not := range c.not {
				if strings.Contains(log.String(), not) {
					t.Errorf("%q is in\n%s", not, log)
				}
			}
		})
	}
}

// Asynchronous events are told: here that a completion queue has overflowed.
func TestLoggerIsToldOfEvents(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		t.Fatal(err)
	}
	log := new(lockedLog)
	dev, err := roce.Open(roce.Config{Backend: be, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(1)
	q, err := pd.CreateQP(roce.QPConfig{SendCQ: cq, MaxRecvWR: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Init(0); err != nil {
		t.Fatal(err)
	}
	for range cq.Cap() + 1 {
		if err := q.PostRecv(roce.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState); err != nil {
		t.Fatal(err)
	}
	dev.Close()
	if want := "level=WARN msg=\"" + roce.EventCQErr.String() + "\""; !strings.Contains(log.String(), want) {
		t.Errorf("%q is not in\n%s", want, log)
	}
}

// A program above devices may tell the logger with locks held.
func TestNote(t *testing.T) {
	be, _ := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	log := new(lockedLog)
	dev, err := roce.Open(roce.Config{Backend: be, Logger: slog.New(slog.NewTextHandler(log, nil)).With("who", "me")})
	if err != nil {
		t.Fatal(err)
	}
	if dev.Listens(slog.LevelDebug) || !dev.Listens(slog.LevelInfo) {
		t.Error("the levels are not those of the logger")
	}
	dev.Note(slog.LevelInfo, "something", slog.Int("n", 7))
	dev.Note(slog.LevelDebug, "nothing")
	dev.Close()
	if !strings.Contains(log.String(), "msg=something who=me name=roce0 addr=10.0.0.1 n=7") || strings.Contains(log.String(), "nothing") {
		t.Errorf("told\n%s", log)
	}
}

// slowHandler is a handler that waits until it is let go.
type slowHandler struct {
	slog.Handler
	called, letGo chan struct{}
}

func (s slowHandler) WithAttrs(a []slog.Attr) slog.Handler { return s }

func (s slowHandler) Handle(context.Context, slog.Record) error {
	select {
	case s.called <- struct{}{}:
	default:
	}
	<-s.letGo
	return nil
}

// A logger that is too slow holds up nobody: what is too much is counted.
func TestNotesAreBounded(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		t.Fatal(err)
	}
	h := slowHandler{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 1), make(chan struct{})}
	open := make(chan *roce.Device)
	go func() { // "device open" is told by Open itself
		dev, err := roce.Open(roce.Config{Backend: be, Logger: slog.New(h)})
		if err != nil {
			t.Error(err)
		}
		open <- dev
	}()
	<-h.called
	h.letGo <- struct{}{}
	dev := <-open
	dev.Note(slog.LevelInfo, "the one that is being told")
	<-h.called
	for range 1024 + 10 {
		dev.Note(slog.LevelInfo, "more")
	}
	if n := dev.Counters()["drop_log"]; n != 10 {
		t.Errorf("%d are counted as lost, want 10", n)
	}
	close(h.letGo)
	dev.Close()
}
