package nvme

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const subsystem = "nqn.2026-11.test:disk"

// lab is a target, and a device for hosts.
type lab struct {
	*testing.T
	ctx    context.Context
	here   *roce.Device
	target *Target
	disk   []byte
	close  func() // the target
}

// devices returns two devices on a network in memory.
func devices(t *testing.T) (host, target *roce.Device) {
	fabric := netio.NewFabric()
	open := func(addr string) *roce.Device {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
		must(t, err)
		dev, err := roce.Open(roce.Config{Backend: be, Spin: -1})
		must(t, err)
		t.Cleanup(func() { dev.Close() })
		return dev
	}
	return open("10.0.0.1"), open("10.0.0.2")
}

const blocks = 8192

func newLab(t *testing.T, cfg TargetConfig) *lab {
	t.Parallel()
	here, there := devices(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	l := &lab{T: t, ctx: ctx, here: here, disk: make([]byte, blocks*blockSize)}
	cfg.SubNQN, cfg.Device, cfg.Disk = subsystem, there, l.disk
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	l.target, err = Listen("10.0.0.2:4420", cfg)
	must(t, err)
	l.close = sync.OnceFunc(func() { must(t, l.target.Close()) })
	t.Cleanup(l.close)
	return l
}

// connect connects a host.
func (l *lab) connect(cfg HostConfig) *Host {
	l.Helper()
	cfg.Device = l.here
	h, err := Connect(l.ctx, "10.0.0.2:4420", cfg)
	must(l.T, err)
	l.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		h.Close(ctx)
	})
	return h
}

// pattern fills p with bytes that depend on their place.
func pattern(p []byte, seed int) []byte {
	for i := range p {
		p[i] = byte((i+seed)*7 + (i+seed)>>9)
	}
	return p
}
