package roce

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport/cc"
)

const (
	// gsiDepth is how many datagrams may wait to be served, and to be sent.
	gsiDepth = 1024
	gsiSlot  = ib.GRHSize + mad.Size
)

// MADAddr is where a management datagram comes from, or goes to.
type MADAddr struct {
	Addr         netip.Addr // without a zone: a link-local one is on the device's link
	QPN          ib.QPN     // 1 in most cases; 0 means 1
	TrafficClass uint8      // of one that came without its ECN bits
}

// MADHandler serves the datagrams of one management class. It is called by one
// goroutine of the GSI, with no lock held; b, mad.Size bytes, is valid
// until it returns.
type MADHandler func(from MADAddr, b []byte)

// GSI is the general service interface of a port: queue pair 1, by which
// management datagrams come and go (IBTA chapter 13). Devices of one process on
// one address share it. Its methods may be called from any goroutine.
type GSI struct {
	dev        *Device // owns what queue pair 1 is made of; no program sees it
	pd         *PD
	qp         *QP
	recv, send *CQ
	mr         *MR // the receive buffers, a slot each

	mu       sync.Mutex // guards what follows; taken before an engine's lock
	handlers map[mad.Class]MADHandler
	out      [mad.Size]byte
	next     uint64        // number of the next datagram to be sent
	ahs      [gsiDepth]*AH // of those that are posted
}

// GSI returns the general service interface of the device's port, which the first
// call opens: until then datagrams to queue pair 1 are dropped as drop_unknown_qp.
// It ends when the last device of the port is closed. It answers those who ask for
// the port's counters (class PerfMgt); other classes are served by Handle.
func (d *Device) GSI() (*GSI, error) {
	if err := d.gone(); err != nil {
		return nil, err
	}
	d.port.gsiMu.Lock()
	defer d.port.gsiMu.Unlock()
	if g := d.port.gsi.Load(); g != nil {
		return g, nil
	}
	g, err := newGSI(d)
	if err != nil {
		return nil, err
	}
	d.port.gsi.Store(g)
	go g.serve()
	return g, nil
}

// closeGSI ends the GSI of a port whose engine has stopped.
func (p *port) closeGSI() {
	p.gsiMu.Lock()
	defer p.gsiMu.Unlock()
	if g := p.gsi.Load(); g != nil {
		g.dev.closed.Store(true)
		g.dev.finish()
	}
}

// lockedRand reads random bytes for another device.
type lockedRand struct{ d *Device }

func (r lockedRand) Read(b []byte) (int, error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	return r.d.cfg.Rand.Read(b)
}

// newGSI makes queue pair 1 on the port of d, as a program would make one of type
// UD.
func newGSI(d *Device) (*GSI, error) {
	cfg := d.cfg
	cfg.Rand, cfg.Limits = lockedRand{d}, Limits{} // the limits are the program's
	cfg.Congestion, cfg.CNP.Off = cc.None{}, true
	if err := cfg.Limits.fill(); err != nil {
		return nil, err
	}
	cfg.Limits = Limits{} // those of the program are for its own objects
	if err := cfg.Limits.fill(); err != nil {
		return nil, err
	}
	dev, err := newDevice(cfg, d.addr)
	if err != nil {
		return nil, err
	}
	dev.port, dev.spin = d.port, 0
	dev.makeStashes()
	g := &GSI{dev: dev}
	g.handlers = map[mad.Class]MADHandler{mad.ClassPerfMgt: (&perfAgent{gsi: g}).answer}
	if g.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if g.recv, err = dev.CreateCQ(gsiDepth); err != nil {
		return nil, err
	}
	if g.send, err = dev.CreateCQ(gsiDepth); err != nil {
		return nil, err
	}
	if g.mr, err = g.pd.RegisterMR(make([]byte, gsiDepth*gsiSlot), LocalWrite); err != nil {
		return nil, err
	}
	g.qp, err = g.pd.newQP(QPConfig{
		Type: UD, SendCQ: g.send, RecvCQ: g.recv, MaxSendWR: gsiDepth, MaxRecvWR: gsiDepth, MaxInline: mad.Size,
	}, d.port.first())
	if err != nil {
		return nil, err
	}
	return g, g.start()
}

// start gives the queue pair its number and its receive requests.
func (g *GSI) start() error {
	e := g.qp.e
	e.lock()
	if e.dead {
		e.unlock()
		return ErrClosed
	}
	_, err := g.qp.take(ib.GSIQPN) // which is free
	e.unlock()
	if err != nil {
		return err
	}
	if err := g.qp.Activate(mad.QKey); err != nil {
		return err
	}
	for i := range gsiDepth {
		if err := g.post(i); err != nil {
			return err
		}
	}
	return nil
}

func (g *GSI) post(slot int) error {
	return g.qp.PostRecv(RecvWR{ID: uint64(slot), SGE: []SGE{g.mr.SGE(slot*gsiSlot, gsiSlot)}})
}

// GUID returns the port's GUID, a random number: the CA GUID of the connection
// manager.
func (g *GSI) GUID() uint64 { return g.dev.guid }

// Done is closed when the GSI ends with its port.
func (g *GSI) Done() <-chan struct{} { return g.dev.done }

// Handle lets h serve a management class; a nil h ends that. Datagrams of a class
// that nobody serves are dropped as drop_mad_class. The error says that the class
// is served already (ErrBusy).
func (g *GSI) Handle(class mad.Class, h MADHandler) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case h == nil:
		delete(g.handlers, class)
	case g.handlers[class] != nil:
		return fmt.Errorf("roce: management %v: %w", class, ErrBusy)
	default:
		g.handlers[class] = h
	}
	return nil
}

// serve hands datagrams to their classes until the port is closed.
func (g *GSI) serve() {
	var wcs [16]WC
	for {
		n, err := g.recv.Wait(context.Background(), wcs[:])
		if err != nil {
			return
		}
		for i := range wcs[:n] {
			if wcs[i].Status == WCSuccess {
				g.take(&wcs[i])
			}
			if g.post(int(wcs[i].ID)) != nil {
				return // the port is closed
			}
		}
	}
}

// take serves one datagram. That its Q_Key is right is known.
func (g *GSI) take(wc *WC) {
	b := g.mr.Bytes()[int(wc.ID)*gsiSlot:][:wc.ByteLen]
	grh, ok := ib.ParseGRH(b)
	if !ok {
		g.qp.e.count(dropMADFormat)
		return
	}
	b = b[ib.GRHSize:]
	h, bad := mad.Parse(b)
	if bad != mad.OK {
		g.qp.e.count(dropMADFormat)
		return
	}
	g.mu.Lock()
	serve := g.handlers[h.Class]
	g.mu.Unlock()
	if serve == nil {
		g.qp.e.count(dropMADClass)
		return
	}
	serve(MADAddr{Addr: grh.Src, QPN: wc.SrcQP, TrafficClass: grh.TrafficClass &^ 3}, b)
}

// Send posts one datagram of up to mad.Size bytes, which is padded with zeros, and
// copies it. It never waits: when too many are on the way the error is
// ErrQueueFull, and the datagram is counted as drop_mad_send.
func (g *GSI) Send(to MADAddr, b []byte) error {
	if len(b) > mad.Size {
		return &ConfigError{"b", fmt.Sprintf("%d bytes", len(b)), fmt.Sprintf("allowed are up to %d", mad.Size)}
	}
	if to.QPN == 0 {
		to.QPN = ib.GSIQPN
	}
	ah, err := g.pd.CreateAH(AddressVector{DGID: ib.GIDFromAddr(to.Addr), TrafficClass: to.TrafficClass, HopLimit: 64})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reap()
	slot := &g.ahs[g.next%gsiDepth]
	if *slot != nil {
		ah.Destroy() // it is ours alone: this cannot fail
		g.qp.e.count(dropMADSend)
		return fmt.Errorf("roce: queue pair 1: %w", ErrQueueFull)
	}
	clear(g.out[copy(g.out[:], b):])
	*slot = ah
	wr := SendWR{ID: g.next % gsiDepth, Opcode: WRSend, Flags: Signaled | Inline, Data: g.out[:], AH: ah, RemoteQPN: to.QPN, QKey: mad.QKey}
	if err := g.qp.PostSend(wr); err != nil {
		*slot = nil
		ah.Destroy()
		return err
	}
	g.next++
	return nil
}

// reap frees what was needed to send datagrams that are gone.
func (g *GSI) reap() {
	var wcs [16]WC
	for {
		n, _ := g.send.pop(wcs[:])
		for i := range wcs[:n] {
			slot := &g.ahs[wcs[i].ID]
			(*slot).Destroy()
			*slot = nil
		}
		if n < len(wcs) {
			return
		}
	}
}
