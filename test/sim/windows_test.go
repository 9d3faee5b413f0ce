package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// windowEnd is one side of a connection on which an owner of memory opens windows
// and a user writes and reads through them.
type windowEnd struct {
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	qp   *roce.QP
	mr   *roce.MR
	buf  []byte
	next time.Duration
}

// windowSlot is a part of the owner's memory, and of the user's, with a window that
// is opened, used and closed again and again.
type windowSlot struct {
	mw     *roce.MW
	off    int // in both buffers
	from   int // of the window in the slot
	size   int
	va     uint64 // by which the user names its first byte
	data   uint64 // what the user writes
	read   bool   // the user reads it as well
	byPeer bool   // the user closes it, with its last message
	rounds int    // left
	closed int    // rounds that ended
}

const (
	windowSlots    = 4
	windowSlotSize = 12 << 10
	localInv       = 1 << 40 // marks IDs
)

// windowRun is one run. The programs do what completions tell them to do.
type windowRun struct {
	rng         *rand.Rand
	now         time.Duration
	owner, user windowEnd
	slots       []*windowSlot
}

// TestWindows: windows are bound, used and closed by either side under loss,
// duplication and reordering, several at a time. Every bind, access and message of
// a correct program succeeds, exactly what was written through a window is in
// memory, a window is closed when the message that closes it is received, and in
// the end none holds the region.
func TestWindows(t *testing.T) {
	n := uint64(60)
	if raceEnabled {
		n = 2
	}
	var late uint64
	for seed := range n {
		c, err := runWindows(seed)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		late += c["drop_no_resource"]
	}
	if late == 0 && !raceEnabled {
		t.Error("no READ was asked for again after its window was closed")
	}
}

// runWindows returns the owner's counters.
func runWindows(seed uint64) (counters map[string]uint64, err error) {
	r := &windowRun{rng: newRand(seed)}
	faults := netio.Faults{Loss: 0.05, Duplicate: 0.2, Reorder: 0.05, ReorderBy: 1 + r.rng.IntN(8), Jitter: time.Duration(r.rng.IntN(300)) * time.Microsecond}
	fabric := netio.NewFabric()
	for i, e := range []*windowEnd{&r.owner, &r.user} {
		be, err := fabric.Open(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), netio.Port))
		if err != nil {
			return nil, err
		}
		if err := r.open(e, netio.WithFaults(be, netio.FaultConfig{Seed: seed*2 + uint64(i), Tx: faults}), byte(seed), byte(i)); err != nil {
			return nil, err
		}
	}
	conn := roce.Conn{Access: roce.RemoteRead | roce.RemoteWrite, PathMTU: roce.MTU256, AckTimeout: 2 * time.Millisecond}
	for _, x := range [][2]*windowEnd{{&r.owner, &r.user}, {&r.user, &r.owner}} {
		if err := x[0].qp.Connect(roce.Remote{Addr: x[1].dev.Addr(), QPN: x[1].qp.Num(), PSN: x[1].qp.PSN()}, conn); err != nil {
			return nil, err
		}
		if err := x[0].qp.PostRecv(make([]roce.RecvWR, 2*windowSlots)...); err != nil {
			return nil, err
		}
	}
	for i := range windowSlots {
		typ := []roce.MWType{roce.MWType2A, roce.MWType2B}[r.rng.IntN(2)]
		mw, err := r.owner.pd.AllocMW(typ)
		if err != nil {
			return nil, err
		}
		s := &windowSlot{mw: mw, off: i * windowSlotSize, rounds: 12}
		r.slots = append(r.slots, s)
		if err := r.bind(i); err != nil {
			return nil, err
		}
	}
	if err := r.run(); err != nil {
		return nil, fmt.Errorf("at %v: %w", r.now, err)
	}
	for _, e := range []*windowEnd{&r.owner, &r.user} {
		if err := e.mr.Deregister(); err != nil { // no window is left bound
			return nil, err
		}
	}
	return r.owner.dev.Counters(), errors.Join(r.owner.dev.Close(), r.user.dev.Close())
}

func (r *windowRun) open(e *windowEnd, be netio.Backend, seed, n byte) (err error) {
	e.dev, err = roce.Open(roce.Config{
		Backend: be, Manual: true, Clock: func() time.Duration { return r.now }, Rand: rand.NewChaCha8([32]byte{seed, n, 1}),
	})
	if err != nil {
		return err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(1024); err != nil {
		return err
	}
	if e.qp, err = e.pd.CreateQP(roce.QPConfig{SendCQ: e.cq}); err != nil {
		return err
	}
	e.buf = make([]byte, windowSlots*windowSlotSize)
	e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite|roce.MWBind, roce.IOVA(0x10000))
	return err
}

// run lets both devices and programs work until all rounds are done.
func (r *windowRun) run() error {
	for step := 0; ; step++ {
		if step > 1e6 {
			return errors.New("too many steps")
		}
		busy, open := false, 0
		for _, e := range []*windowEnd{&r.owner, &r.user} {
			if e.next = e.dev.Progress(r.now); e.next <= r.now {
				busy = true
			}
			more, err := r.poll(e)
			if err != nil {
				return err
			}
			busy = busy || more
		}
		for _, s := range r.slots {
			open += s.rounds - s.closed
		}
		switch next := min(r.owner.next, r.user.next); {
		case open == 0 && !busy && next == roce.Never:
			return nil
		case busy:
			r.now += time.Microsecond
		case next == roce.Never:
			return fmt.Errorf("nothing is due, but %d rounds are left", open)
		default:
			r.now = max(next, r.now+1)
		}
	}
}

func (r *windowRun) poll(e *windowEnd) (bool, error) {
	var wcs [4]roce.WC
	n, err := e.cq.Poll(wcs[:])
	if err != nil {
		return false, err
	}
	for _, wc := range wcs[:n] {
		if wc.Status != roce.WCSuccess {
			return false, fmt.Errorf("request %#x: %v", wc.ID, wc.Status)
		}
		switch {
		case wc.Opcode == roce.WCRecv:
			if err = e.qp.PostRecv(roce.RecvWR{}); err == nil {
				err = r.received(e, &wc)
			}
		case wc.ID&localInv != 0:
			err = r.ended(int(wc.ID &^ localInv))
		}
		if err != nil {
			return false, err
		}
	}
	return n > 0, nil
}

// received takes a message: the owner's says that a window is open, the user's that
// it is closed or may be.
func (r *windowRun) received(e *windowEnd, wc *roce.WC) error {
	switch {
	case e == &r.user:
		return r.use(int(wc.Imm))
	case wc.Flags&roce.WCWithInv == 0:
		s := r.slots[wc.Imm]
		return r.owner.qp.PostSend(roce.SendWR{
			ID: localInv | uint64(wc.Imm), Opcode: roce.WRLocalInv, Flags: roce.Signaled, InvalidateRKey: s.mw.RKey(),
		})
	}
	for i, s := range r.slots {
		if s.mw.RKey() == wc.Imm {
			return r.ended(i)
		}
	}
	return fmt.Errorf("the peer closed key %#x", wc.Imm)
}

// bind opens the window of a slot and tells the user of it, in one list.
func (r *windowRun) bind(i int) error {
	s := r.slots[i]
	s.size = 1 + r.rng.IntN(windowSlotSize-1)
	s.from = r.rng.IntN(windowSlotSize - s.size)
	s.data, s.read, s.byPeer = r.rng.Uint64(), r.rng.IntN(2) == 0, r.rng.IntN(2) == 0
	addr := r.owner.mr.Addr() + uint64(s.off+s.from)
	s.va = addr
	acc := roce.RemoteRead | roce.RemoteWrite
	if r.rng.IntN(2) == 0 {
		acc, s.va = acc|roce.ZeroBased, 0
	}
	clear(r.owner.buf[s.off:][:windowSlotSize])
	return r.owner.qp.PostSend(
		roce.SendWR{Opcode: roce.WRBindMW, MW: s.mw, RKey: roce.IncRKey(s.mw.RKey()), MR: r.owner.mr, Addr: addr, Length: uint64(s.size), Access: acc},
		roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(i), Flags: roce.Signaled},
	)
}

// use writes through the window of a slot, sometimes reads it back, and ends its
// round: all posted at once.
func (r *windowRun) use(i int) error {
	s := r.slots[i]
	src := r.user.buf[s.off:][:s.size]
	fill(src, s.data, 0)
	sge := []roce.SGE{r.user.mr.SGE(s.off, s.size)}
	list := []roce.SendWR{{Opcode: roce.WRWrite, SGE: sge, RemoteAddr: s.va, RKey: s.mw.RKey()}}
	last := roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(i), Flags: roce.Signaled}
	if s.byPeer {
		last = roce.SendWR{Opcode: roce.WRSendWithInv, InvalidateRKey: s.mw.RKey(), Flags: roce.Signaled}
	}
	if s.read {
		list = append(list, roce.SendWR{Opcode: roce.WRRead, SGE: sge, RemoteAddr: s.va, RKey: s.mw.RKey()})
		last.Flags |= roce.Fence // IBTA 10.8.3.3: or the READ might find it closed
	}
	return r.user.qp.PostSend(append(list, last)...)
}

// ended checks a round that is over, and begins the next.
func (r *windowRun) ended(i int) error {
	s := r.slots[i]
	if s.mw.Bound() {
		return fmt.Errorf("window %d is still open", i)
	}
	slot := r.owner.buf[s.off:][:windowSlotSize]
	if at := differs(slot[s.from:][:s.size], s.data, 0); at >= 0 {
		return fmt.Errorf("window %d: byte %d of %d is not what was written", i, at, s.size)
	}
	if at := differs(r.user.buf[s.off:][:s.size], s.data, 0); at >= 0 {
		return fmt.Errorf("window %d: byte %d of %d was read wrong", i, at, s.size)
	}
	clear(slot[s.from:][:s.size])
	for at, b := range slot {
		if b != 0 {
			return fmt.Errorf("window %d: byte %d outside of it was written", i, at)
		}
	}
	if s.closed++; s.closed < s.rounds {
		return r.bind(i)
	}
	return nil
}
