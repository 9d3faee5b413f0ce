package roce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// port is a local address and UDP port with its engine. Devices of one process on
// one address share it; the last one closes it.
type port struct {
	addr   netip.AddrPort
	engine *engine
	refs   int  // below ports.mu
	shared bool // in ports

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
		if !slices.Equal(p.engine.allow, allow) {
			return nil, &ConfigError{"AllowPeers", allow, fmt.Sprintf("another device of this process has the same address, and with it %v: all need the same", p.engine.allow)}
		}
		p.refs++
		return p, nil
	}
	be := cfg.Backend
	if be == nil {
		var err error
		be, err = netio.ListenUDP(netio.UDPConfig{
			Addr: addr, NoGSO: cfg.NoGSO, NoGRO: cfg.NoGRO, RecvBuffer: cfg.RecvBuffer, SendBuffer: cfg.SendBuffer,
		})
		if err != nil {
			return nil, err
		}
		if cfg.Wrap != nil {
			be = cfg.Wrap(be)
		}
	}
	clock := cfg.Clock
	if clock == nil {
		start := time.Now()
		clock = func() time.Duration { return time.Since(start) }
	}
	p := &port{addr: addr, refs: 1, shared: !private, engine: newEngine(&cfg, be, clock, allow)}
	if p.shared {
		ports.byAddr[addr] = p
	}
	return p, nil
}

// release gives up one reference; the last stops the engine.
func (p *port) release() error {
	last, err := p.drop()
	if last {
		p.engine.await()
		p.closeGSI()
	}
	return err
}

// drop gives up one reference; the last closes the engine.
func (p *port) drop() (last bool, err error) {
	if !p.shared {
		return true, p.engine.close()
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
	return true, p.engine.close()
}
