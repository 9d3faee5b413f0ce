package roce

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/goroce/goroce/mem"
)

// PD is a protection domain (ibv_pd): queue pairs may use the memory regions of
// their own domain only.
type PD struct {
	dev  *Device
	num  mem.PD
	refs atomic.Int32 // memory regions, memory windows, queue pairs, shared receive queues, address handles
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if err := d.gone(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextPD++
	d.pds++
	return &PD{dev: d, num: mem.PD(d.nextPD)}, nil
}

// Dealloc frees the domain. It returns ErrBusy while memory regions, memory
// windows or queue pairs of it exist.
func (p *PD) Dealloc() error {
	if p.refs.Load() > 0 {
		return fmt.Errorf("protection domain: %w", ErrBusy)
	}
	return nil
}

// MR is a memory region (ibv_mr).
type MR struct {
	*mem.Region
	dev  *Device
	pd   *PD           // guarded by the device's mutex
	fast bool          // made by AllocMR
	key  atomic.Uint32 // of the last registration, posted if it is a fast one
	addr atomic.Uint64 // its address, or that of the memory of the last Map
}

func (p *PD) newMR(r *mem.Region) *MR {
	p.refs.Add(1)
	m := &MR{Region: r, dev: p.dev, pd: p}
	m.key.Store(r.Key())
	m.addr.Store(r.Addr())
	return m
}

// MROption changes how a region is registered.
type MROption func(*mrOptions)

type mrOptions struct{ iova *uint64 }

// IOVA lets requests name the region's first byte by this address instead of its
// address in memory (ibv_reg_mr_iova).
func IOVA(addr uint64) MROption { return func(o *mrOptions) { o.iova = &addr } }

// iovaOf returns the address by which requests name the first byte of buf.
func iovaOf(buf []byte, access Access, opts []MROption) uint64 {
	var o mrOptions
	for _, f := range opts {
		f(&o)
	}
	switch {
	case o.iova != nil:
		return *o.iova
	case access&ZeroBased != 0:
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
}

// RegisterMR registers buf with the given rights (ibv_reg_mr). buf stays the
// caller's: what remote peers may do to it is said by the rights. Nothing is
// copied or pinned. With ZeroBased requests name the first byte by address 0.
// Errors name the argument and what is allowed.
//
// With RemoteAtomic, buf must lie on a multiple of 8 if its address as requests
// name it does (by default the two are the same).
func (p *PD) RegisterMR(buf []byte, access Access, opts ...MROption) (*MR, error) {
	if err := p.dev.gone(); err != nil {
		return nil, err
	}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if err := p.dev.checkMR(); err != nil {
		return nil, err
	}
	r, err := p.dev.mem.Register(buf, p.num, access, iovaOf(buf, access, opts))
	if err != nil {
		return nil, err
	}
	return p.newMR(r), nil
}

// LKey returns the key for local segments: of a region of fast registration the
// one of the last request that was posted.
func (m *MR) LKey() uint32 { return m.key.Load() }

// RKey returns the key for remote peers, which is the same.
func (m *MR) RKey() uint32 { return m.key.Load() }

// Addr returns the address by which requests name the region's first byte: of a
// region of fast registration as the last Map has it.
func (m *MR) Addr() uint64 { return m.addr.Load() }

// SGE returns the segment of n bytes from offset off of the region.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// Deregister takes the region away (ibv_dereg_mr). When it returns, nothing
// touches the memory any more: requests that still use it fail. It returns
// ErrBusy while memory windows are bound to the region.
func (m *MR) Deregister() error {
	d := m.dev
	return d.port.change(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if err := d.mem.Deregister(m.Region); err != nil {
			return busy(err)
		}
		m.pd.refs.Add(-1)
		return nil
	})
}
