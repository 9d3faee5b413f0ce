package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// node is one device and the memory of the programs on it.
type node struct {
	w      *world
	i      int
	addr   netip.Addr
	dev    *roce.Device
	pd     *roce.PD
	pd2    *roce.PD // where regions are on their way to another key
	cq     *roce.CQ
	be     *traced
	arenas []*arena
	pool   *pool // for RC, or nil
	xrcd   *roce.XRCD
	xrc    []*pool // of XRC, for any connection
	pools  []*pool // all shared ones
	words  words
	next   time.Duration // when the device wants to run again
	again  int           // times that it was restarted
}

// backend opens the node's place in the network.
func (n *node) backend() (netio.Backend, error) {
	w := n.w
	be, err := w.open(n.i)
	if err != nil {
		return nil, err
	}
	id := n.i + n.again*len(w.nodes)
	cfg := netio.FaultConfig{Seed: w.cfg.Seed*16 + uint64(id), Tx: w.cfg.Faults, Script: script(w.cfg.Script, id)}
	if f := w.cfg.hooks.fault; f != nil {
		cfg.Record = func(x netio.Fault) { f(Fault{id, faultNames[x.Action], x.Nth, x.By}) }
	}
	be = netio.WithFaults(be, cfg)
	if w.cfg.hooks.backend != nil {
		be = w.cfg.hooks.backend(n.i, be)
	}
	return be, nil
}

func (n *node) open() error {
	w := n.w
	be, err := n.backend()
	if err != nil {
		return err
	}
	n.be = &traced{Backend: be, w: w, node: n.i}
	n.dev, err = roce.Open(roce.Config{
		Backend: n.be, Manual: true, Window: w.cfg.Window, NoSelective: w.cfg.Plain>>n.i&1 != 0,
		Clock: func() time.Duration { return w.now },
		Rand:  rand.NewChaCha8([32]byte{byte(w.cfg.Seed), byte(w.cfg.Seed >> 8), byte(w.cfg.Seed >> 16), byte(n.i), byte(n.again)}),
	})
	if err != nil {
		return err
	}
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return err
	}
	if n.pd2, err = n.dev.AllocPD(); err != nil {
		return err
	}
	if n.cq, err = n.dev.CreateCQ(4096); err != nil {
		return err
	}
	if n.arenas, err = n.newArenas(n.pd, w.cfg.Arena); err != nil {
		return err
	}
	if w.cfg.Shared {
		if n.pool, err = n.newPool(nil); err != nil {
			return err
		}
	}
	return n.words.open(n, n.pd)
}

// openXRC makes the XRC domain of a node, once, and two receive queues in it.
func (n *node) openXRC() (err error) {
	if n.xrcd != nil {
		return nil
	}
	if n.xrcd, err = n.dev.OpenXRCD("", os.O_CREATE); err != nil {
		return err
	}
	for range 2 {
		p, err := n.newPool(n.xrcd)
		if err != nil {
			return err
		}
		n.xrc = append(n.xrc, p)
	}
	return nil
}

// newArenas registers about size bytes of memory in one to three regions.
func (n *node) newArenas(pd *roce.PD, size int) (l []*arena, err error) {
	w := n.w
	regions := 1 + w.rng.IntN(3)
	for range regions {
		skew := w.rng.IntN(8)
		a := newArena(make([]byte, size/regions+skew)[skew:], w.rng.Uint64())
		iova := w.rng.Uint64() >> 1 >> w.rng.IntN(30) // not the real address: it differs from run to run
		a.mr, err = pd.RegisterMR(a.buf, roce.LocalWrite|roce.RemoteRead|roce.RemoteWrite|roce.MWBind, roce.IOVA(iova))
		if err != nil {
			return nil, err
		}
		l = append(l, a)
	}
	return l, nil
}

func (n *node) close() error {
	n.events()
	if err := closeArenas(n.arenas, false); err != nil {
		return err
	}
	for _, p := range n.pools {
		if err := p.close(); err != nil {
			return err
		}
	}
	if n.xrcd != nil {
		if err := n.xrcd.Close(); err != nil {
			return err
		}
	}
	if err := n.words.close(); err != nil {
		return err
	}
	if err := n.cq.Destroy(); err != nil {
		return err
	}
	if err := errors.Join(n.pd.Dealloc(), n.pd2.Dealloc()); err != nil {
		return err
	}
	return n.dev.Close()
}

// events takes the asynchronous events of a device.
func (n *node) events() {
	for {
		ev, err := n.dev.NextEvent(n.w.noWait)
		if err != nil {
			return
		}
		var s *side
		if ev.QP != nil {
			s = n.w.byQPN[n.i][ev.QP.Num()]
		}
		switch {
		case s != nil && ev.Type == roce.EventSQDrained && s.drain == draining:
			s.drain = drained
			s.resumeAt = n.w.now + time.Duration(n.w.rng.IntN(300_000))
		case ev.SRQ != nil && ev.Type == roce.EventSRQLimit:
			for _, p := range n.pools {
				if p.srq == ev.SRQ {
					p.limitReached()
				}
			}
		case s != nil && ev.Type == roce.EventPathMig && s.roams:
			n.w.res.Migrated++
		case s != nil && s.doomed:
			s.lastWQE = s.lastWQE || ev.Type == roce.EventQPLastWQE && s.pool != nil
		case ev.Type != transport.EventCommEst:
			n.w.fail("node %d: event %v", n.i, ev.Type)
		}
	}
}

// closeArenas checks that all memory holds guard bytes, and deregisters it unless
// that was done.
func closeArenas(l []*arena, deregistered bool) error {
	for i, a := range l {
		if at := a.intact(); at >= 0 {
			return fmt.Errorf("byte %d of region %d was overwritten", at, i)
		}
		if len(a.free) != 1 {
			return fmt.Errorf("region %d is not free at the end: %v", i, a.free)
		}
		if deregistered {
			continue
		}
		if err := a.mr.Deregister(); err != nil {
			return err
		}
	}
	return nil
}
