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
	refs atomic.Int32 // memory regions, queue pairs, address handles
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if d.closed.Load() {
		return nil, ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextPD++
	d.pds++
	return &PD{dev: d, num: mem.PD(d.nextPD)}, nil
}

// Dealloc frees the domain. It returns ErrBusy while memory regions or queue
// pairs of it exist.
func (p *PD) Dealloc() error {
	if p.refs.Load() > 0 {
		return fmt.Errorf("protection domain: %w", ErrBusy)
	}
	return nil
}

// MR is a registered memory region (ibv_mr).
type MR struct {
	*mem.Region
	pd *PD
}

// MROption changes how a region is registered.
type MROption func(*mrOptions)

type mrOptions struct{ iova *uint64 }

// IOVA lets requests name the region's first byte by this address instead of its
// address in memory (ibv_reg_mr_iova).
func IOVA(addr uint64) MROption { return func(o *mrOptions) { o.iova = &addr } }

// RegisterMR registers buf with the given rights (ibv_reg_mr). buf stays the
// caller's: what remote peers may do to it is said by the rights. Nothing is
// copied or pinned. Errors name the argument and what is allowed.
func (p *PD) RegisterMR(buf []byte, access Access, opts ...MROption) (*MR, error) {
	if p.dev.closed.Load() {
		return nil, ErrClosed
	}
	var o mrOptions
	for _, f := range opts {
		f(&o)
	}
	iova := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	if o.iova != nil {
		iova = *o.iova
	}
	p.dev.mu.Lock()
	r, err := p.dev.mem.Register(buf, p.num, access, iova)
	p.dev.mu.Unlock()
	if err != nil {
		return nil, err
	}
	p.refs.Add(1)
	return &MR{Region: r, pd: p}, nil
}

// LKey returns the key for local segments.
func (m *MR) LKey() uint32 { return m.Key() }

// RKey returns the key for remote peers.
func (m *MR) RKey() uint32 { return m.Key() }

// SGE returns the segment of n bytes from offset off of the region.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.Key()}
}

// Deregister takes the region away (ibv_dereg_mr). When it returns, nothing
// touches the memory any more: requests that still use it fail.
func (m *MR) Deregister() error {
	d := m.pd.dev
	d.mu.Lock()
	err := d.mem.Deregister(m.Region)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	d.port.engine.pass()
	m.pd.refs.Add(-1)
	return nil
}
