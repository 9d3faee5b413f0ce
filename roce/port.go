package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// The pure layers have no clock: what is faster here is found out for them.
func init() {
	start := time.Now()
	ib.TuneICRC(func() time.Duration { return time.Since(start) })
}

// port is a local address and UDP port with its engines. Devices of one process on
// one address share it; the last one closes it.
type port struct {
	addr    netip.AddrPort
	clock   func() time.Duration
	engines []*engine // netio.QueueOf says which has a queue pair
	relays  bool      // the first engine receives for all
	allow   allowList // never changed
	refs    int       // below ports.mu
	shared  bool      // in ports

	misses   atomic.Uint32              // polls that found nothing
	crowded  atomic.Int32               // polls that find an engine taken and pause now and then, before one yields again
	fatal    atomic.Pointer[FatalError] // of the first engine that has panicked
	mu       sync.Mutex                 // taken below engines, above mailboxes; guards what follows
	devs     []*Device
	mourners []*Device // those to be told of a panic

	gsiMu sync.Mutex // taken by those who open it
	gsi   atomic.Pointer[GSI]
}

// ports are the shared ports of this process.
var ports = struct {
	sync.Mutex
	byAddr map[netip.AddrPort]*port
}{byAddr: map[netip.AddrPort]*port{}}

// openPort returns the port at addr, opened or shared. A device with a backend, a
// clock or a hand of its own shares nothing.
func openPort(cfg Config, allow allowList, addr netip.AddrPort) (*port, error) {
	private := cfg.Backend != nil || cfg.Manual || cfg.Clock != nil || cfg.Wrap != nil
	ports.Lock()
	defer ports.Unlock()
	if p := ports.byAddr[addr]; p != nil && !private {
		if !slices.Equal(p.allow, allow) {
			return nil, &ConfigError{"AllowPeers", allow, fmt.Sprintf("another device of this process has the same address, and with it %v: all need the same", p.allow)}
		}
		p.refs++
		return p, nil
	}
	backends, err := openBackends(&cfg, addr)
	if err != nil {
		return nil, err
	}
	clock := cfg.Clock
	if clock == nil {
		start := time.Now()
		clock = func() time.Duration { return time.Since(start) }
	}
	p := &port{addr: addr, refs: 1, shared: !private, clock: clock, allow: allow, relays: len(backends) > 1 && !netio.OwnQueues(backends)}
	limit := newUnknownLimit(cfg.Logger, cfg.UnknownQPRate)
	for i, be := range backends {
		p.engines = append(p.engines, newEngine(&cfg, p, i, be, limit))
	}
	for _, e := range p.engines {
		e.begin()
	}
	if p.shared {
		ports.byAddr[addr] = p
	}
	return p, nil
}

// openBackends opens a backend for each engine.
func openBackends(cfg *Config, addr netip.AddrPort) ([]netio.Backend, error) {
	if cfg.Backend != nil {
		return netio.Queues(cfg.Backend, cfg.Engines), nil
	}
	udp := netio.UDPConfig{Addr: addr, NoGSO: cfg.NoGSO, NoGRO: cfg.NoGRO, RecvBuffer: cfg.RecvBuffer, SendBuffer: cfg.SendBuffer}
	if cfg.Wrap == nil {
		return netio.ListenQueues(udp, cfg.Engines)
	}
	be, err := netio.ListenUDP(udp)
	if err != nil {
		return nil, err
	}
	return netio.Queues(cfg.Wrap(be), cfg.Engines), nil
}

// first is the engine of what is not spread: the management queue pairs, and drops
// that no packet caused.
func (p *port) first() *engine { return p.engines[0] }

// engineOf returns the engine of a queue pair.
func (p *port) engineOf(qpn ib.QPN) *engine {
	if len(p.engines) == 1 {
		return p.engines[0]
	}
	return p.engines[netio.QueueOf(qpn, len(p.engines))]
}

// choose returns the engine that QPConfig.Engine names.
func (p *port) choose(n int) (*engine, error) {
	switch {
	case n == 0:
		return p.leastUsed(), nil
	case n < 0 || n > len(p.engines):
		return nil, &ConfigError{"Engine", n, fmt.Sprintf("allowed are 0 to %d", len(p.engines))}
	}
	return p.engines[n-1], nil
}

// leastUsed returns the engine that has fewest queue pairs, for one more.
func (p *port) leastUsed() *engine {
	return slices.MinFunc(p.engines, func(a, b *engine) int { return int(a.used.Load() - b.used.Load()) })
}

// change does what takes something away from all queue pairs: when it returns, none
// uses it any more. The first engine is locked meanwhile, and each once afterwards.
func (p *port) change(do func() error) error {
	e := p.first()
	e.lock()
	err := do()
	e.unlock()
	for _, e := range p.engines[1:] {
		e.lock()
		e.unlock()
	}
	return err
}

// handOver ends all leases: the poller is going to block.
func (p *port) handOver() {
	for _, e := range p.engines {
		e.handOver()
	}
}

// stats returns the counters of the backends.
func (p *port) stats() (all netio.Stats) {
	for _, e := range p.engines {
		for i, n := range e.be.Stats() {
			all[i] += n
		}
	}
	return all
}

// dropped is how often the engines have dropped something for a reason.
func (p *port) dropped(d drop) (n uint64) {
	for _, e := range p.engines {
		n += e.drops.reasons[d].Load()
	}
	return n
}

// malformed is how many packets were malformed in a way.
func (p *port) malformed(m ib.Malformed) (n uint64) {
	for _, e := range p.engines {
		n += e.drops.parse[m].Load()
	}
	return n
}

// progress is one batch of each engine at the time of a manual device.
func (p *port) progress(now time.Duration) time.Duration {
	next := Never
	for _, e := range p.engines {
		next = min(next, e.progress(now))
	}
	if len(p.engines) > 1 && next > now { // one may have something for another
		for _, e := range p.engines {
			next = min(next, e.due(now))
		}
	}
	return next
}

// release gives up one reference; the last stops the engine.
func (p *port) release() error {
	last, err := p.drop()
	if last {
		for _, e := range p.engines {
			e.await()
		}
		p.closeGSI()
	}
	return err
}

// drop gives up one reference; the last closes the engine.
func (p *port) drop() (last bool, err error) {
	if !p.shared {
		return true, p.close()
	}
	// Under the lock until the socket is closed: the address may be opened again
	// at once. What a program has put in the socket's place never is under it, and
	// may block without stopping others.
	ports.Lock()
	defer ports.Unlock()
	if p.refs--; p.refs > 0 {
		return false, nil
	}
	delete(ports.byAddr, p.addr)
	return true, p.close()
}

// close closes all engines.
func (p *port) close() (err error) {
	for _, e := range p.engines {
		err = errors.Join(err, e.close())
	}
	return err
}
