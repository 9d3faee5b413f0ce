package roce

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// MWType is the type of a memory window (ibv_mw_type).
type MWType = mem.WindowType

// Types of memory windows. IBV_MW_TYPE_2 is 2B here, as on other adapters.
const (
	MWType1  = mem.WindowType1
	MWType2A = mem.WindowType2A
	MWType2B = mem.WindowType2B
)

// MWAccess are the rights that a memory window can have.
const MWAccess = mem.WindowAccess

// MW is a memory window (ibv_mw): a key for part of a memory region, opened by a
// bind and closed again without touching the region, both in the send queue and so
// in order with the messages that tell peers of it. One of type 1 is for all queue
// pairs of its protection domain and opened by BindMW; one of type 2 is for the
// queue pair on which it was bound, by a WRBindMW request, and is closed by the own
// side (WRLocalInv) or by the peer (WRSendWithInv). When that queue pair is
// destroyed first, the window stays as it is, of no use to anybody, until Dealloc.
type MW struct {
	w  *mem.Window
	pd *PD

	mu  sync.Mutex    // orders posts of binds; before the posting locks of QPs
	key atomic.Uint32 // of the last bind that was posted
}

// AllocMW makes a memory window, closed (ibv_alloc_mw).
func (p *PD) AllocMW(t MWType) (*MW, error) {
	if err := p.dev.gone(); err != nil {
		return nil, err
	}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if err := p.dev.checkMR(); err != nil {
		return nil, err
	}
	w, err := p.dev.mem.AllocWindow(p.num, t)
	if err != nil {
		return nil, err
	}
	p.refs.Add(1)
	m := &MW{w: w, pd: p}
	m.key.Store(w.Key())
	return m, nil
}

// Type returns the type of the window.
func (m *MW) Type() MWType { return m.w.Type() }

// RKey returns the key that the last posted bind gives the window. It opens
// nothing before that bind is executed, nor after an invalidation.
func (m *MW) RKey() uint32 { return m.key.Load() }

// Bound says whether the window is open now.
func (m *MW) Bound() bool { return m.w.Bound() }

// Dealloc closes the window and frees it (ibv_dealloc_mw). When it returns,
// nothing touches memory through it any more.
func (m *MW) Dealloc() error {
	d := m.pd.dev
	err := d.port.change(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.mem.FreeWindow(m.w)
	})
	if err == nil {
		m.pd.refs.Add(-1)
	}
	return err
}

// IncRKey returns the key with its lower 8 bits, which are the user's, one higher
// (ibv_inc_rkey): a new key for a window of type 2 or a fast registration.
func IncRKey(key uint32) uint32 { return mem.NextKey(key) }

// BindWR is a request to open a window of type 1 (ibv_mw_bind).
type BindWR struct {
	ID     uint64
	Flags  SendFlags // Signaled, Fence
	MR     *MR       // with MWBind; nil with Length 0
	Addr   uint64    // where the window begins, as the region's keys name it
	Length uint64    // bytes; 0 closes the window
	Access Access    // rights of MWAccess; remote write and atomic need LocalWrite of the region
}

// BindMW posts a request that opens a window of type 1, under a key that RKey
// returns as soon as it is posted, and takes the key before out of force
// (ibv_bind_mw). A window of type 2 is opened by PostSend with WRBindMW. Errors
// are as those of PostSend; what is wrong with region, rights or range shows as
// WCMWBindErr of the completion.
func (q *QP) BindMW(w *MW, b BindWR) error {
	if w == nil || w.Type() != MWType1 {
		return &PostError{0, "MW", errType2}
	}
	if q.sq == nil {
		return &PostError{0, "", errTarget}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	wr := SendWR{
		ID: b.ID, Opcode: WRBindMW, Flags: b.Flags, MW: w, RKey: IncRKey(w.RKey()),
		MR: b.MR, Addr: b.Addr, Length: b.Length, Access: b.Access,
	}
	q.sendMu.Lock()
	err := q.postReady()
	if err == nil {
		err = q.postOne(0, &wr)
	}
	q.sendMu.Unlock()
	q.e.ring(q)
	return err
}

var (
	errType1     = errors.New("a window of type 1 is bound by BindMW")
	errType2     = errors.New("needed is a window of type 1: one of type 2 is bound by PostSend with WRBindMW")
	errNoData    = errors.New("a local operation has no payload")
	errForeign   = errors.New("needed is one of the queue pair's device")
	errNotFast   = errors.New("needed is a region made by AllocMR")
	errRKeyIndex = errors.New("the upper 24 bits must be those of the present key: use IncRKey")
)

// checkLocal returns the field of a local operation that is wrong, and why. What
// depends on the state of things is checked when it is executed.
func (q *QP) checkLocal(wr *SendWR) (field string, err error) {
	switch {
	case len(wr.SGE) > 0:
		return "SGE", errNoData
	case wr.Data != nil:
		return "Data", errNoData
	case wr.Flags&(Inline|Solicited) != 0:
		return "Flags", errNoData
	}
	switch wr.Opcode {
	case WRBindMW:
		switch {
		case wr.MW == nil || wr.MW.pd.dev != q.dev:
			return "MW", errForeign
		case wr.MR == nil && wr.Length > 0, wr.MR != nil && wr.MR.dev != q.dev:
			return "MR", errForeign
		case wr.RKey>>8 != wr.MW.RKey()>>8:
			return "RKey", errRKeyIndex
		}
	case WRRegMR:
		switch {
		case wr.MR == nil || wr.MR.dev != q.dev:
			return "MR", errForeign
		case !wr.MR.fast:
			return "MR", errNotFast
		case wr.RKey>>8 != wr.MR.RKey()>>8:
			return "RKey", errRKeyIndex
		}
	}
	return "", nil
}

// putLocal fills in the entry of a local operation, and gives its object the key
// that it will have.
func putLocal(w *transport.SendWQE, wr *SendWR) {
	switch wr.Opcode {
	case WRLocalInv:
		w.SetLocalInv(wr.InvalidateRKey)
	case WRBindMW:
		b := mem.Bind{Addr: wr.Addr, Length: wr.Length, Access: wr.Access}
		if wr.MR != nil {
			b.LKey = wr.MR.LKey()
		}
		w.SetBind(wr.RKey, &b)
		wr.MW.key.Store(wr.RKey)
	case WRRegMR:
		w.SetRegMR(wr.RKey, wr.Access)
		wr.MR.key.Store(wr.RKey)
	}
}

// local says whether the request sends no packet.
func (wr *SendWR) local() bool {
	return wr.Opcode == WRLocalInv || wr.Opcode == WRBindMW || wr.Opcode == WRRegMR
}

// AllocMR makes a memory region of up to n bytes for fast registration (ib_alloc_mr
// of the Linux kernel; libibverbs has none): Map says which memory it is to have, a
// WRRegMR request gives it that memory, rights and a key, an invalidation takes
// them away again.
func (p *PD) AllocMR(n int) (*MR, error) {
	if n < 0 {
		return nil, &ConfigError{"n", n, "a number of bytes"}
	}
	if err := p.dev.gone(); err != nil {
		return nil, err
	}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if err := p.dev.checkMR(); err != nil {
		return nil, err
	}
	r, err := p.dev.mem.AllocRegion(uint64(n), p.num)
	if err != nil {
		return nil, err
	}
	m := p.newMR(r)
	m.fast = true
	return m, nil
}

// Map says which memory the next WRRegMR request gives to the region
// (ib_map_mr_sg). It is not to be called between posting that and its completion.
// The region has to be made by AllocMR; buf is no longer than was said there.
func (m *MR) Map(buf []byte, opts ...MROption) error {
	iova := iovaOf(buf, 0, opts)
	if err := m.Region.Map(buf, iova); err != nil {
		return err
	}
	m.addr.Store(iova)
	return nil
}

// ReregFlags say what Reregister changes, numbered as ibv_rereg_mr_flags.
type ReregFlags uint8

const (
	ReregTranslation ReregFlags = 1 << 0 // the memory and its address
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2
)

// Reregister changes what flags say: the memory to buf, the protection domain to
// pd, the rights to access; the others are not looked at (ibv_rereg_mr). The key
// stays. When it returns, nothing touches the former memory any more, and requests
// that were under way through the region fail. On an error nothing has changed; it
// is ErrBusy while windows are bound to the region.
func (m *MR) Reregister(flags ReregFlags, pd *PD, buf []byte, access Access, opts ...MROption) error {
	d := m.dev
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return &ConfigError{"flags", flags, "ReregTranslation, ReregPD, ReregAccess or several of them"}
	}
	if flags&ReregPD != 0 && (pd == nil || pd.dev != d) {
		return &ConfigError{"pd", pd, "a protection domain of the same device is needed"}
	}
	return d.port.change(func() error { return m.reregister(flags, pd, buf, access, opts) })
}

func (m *MR) reregister(flags ReregFlags, pd *PD, buf []byte, access Access, opts []MROption) error {
	d := m.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if flags&ReregPD == 0 {
		pd = m.pd
	}
	if flags&ReregAccess == 0 {
		access = m.Access()
	}
	iova := m.Region.Addr()
	if flags&ReregTranslation != 0 {
		iova = iovaOf(buf, access, opts)
	} else {
		buf = m.Bytes()
	}
	if err := d.mem.Reregister(m.Region, buf, pd.num, access, iova); err != nil {
		return busy(err)
	}
	m.addr.Store(iova)
	m.pd.refs.Add(-1)
	pd.refs.Add(1)
	m.pd = pd
	return nil
}

// busy makes the refusal of package mem ours.
func busy(err error) error {
	if errors.Is(err, mem.ErrInUse) {
		return fmt.Errorf("%w: memory windows are bound to the memory region", ErrBusy)
	}
	return err
}
