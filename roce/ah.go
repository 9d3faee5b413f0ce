package roce

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// AH is an address handle (ibv_ah): where a datagram goes, checked once and used
// by any number of requests of UD queue pairs of its protection domain.
type AH struct {
	pd     *PD
	num    uint32 // slot in the low bits, its use above: no handle is given out twice for long
	av     AddressVector
	path   transport.Path
	closed atomic.Bool
}

// CreateAH makes an address handle (ibv_create_ah), of a host or of a multicast
// group. Of av DGID, the traffic class
// and the source port mean something. The error is a *ConfigError.
func (p *PD) CreateAH(av AddressVector) (*AH, error) {
	d := p.dev
	if err := d.gone(); err != nil {
		return nil, err
	}
	if err := d.checkAV("AV", &av); err != nil {
		return nil, err
	}
	dst := av.DGID.Addr()
	if dst.IsUnspecified() {
		return nil, &ConfigError{"AV.DGID", av.DGID, "the IP address of a host or a multicast group is needed"}
	}
	a := &AH{pd: p, av: av, path: av.Path()}
	if err := d.ahs.add(a, d.cfg.Limits.MaxAH); err != nil {
		return nil, err
	}
	p.refs.Add(1)
	return a, nil
}

// CreateAHFromWC makes the address handle by which the sender of a received
// datagram is answered (ibv_create_ah_from_wc): wc is the completion, grh the 40
// bytes before the payload.
func (p *PD) CreateAHFromWC(wc *WC, grh []byte) (*AH, error) {
	av, err := p.dev.AddressFromWC(wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(av)
}

// AddressFromWC returns how the sender of a received datagram is reached
// (ibv_init_ah_from_wc): its address, with the traffic class it has used but for the
// ECN codepoint, which says what its packets met on their way. wc is the completion,
// grh the 40 bytes before the payload. The sender's queue pair is wc.SrcQP.
func (d *Device) AddressFromWC(wc *WC, grh []byte) (AddressVector, error) {
	if wc.Status != WCSuccess || wc.Flags&WCGRH == 0 {
		return AddressVector{}, &ConfigError{"wc", wc.Flags, "a successful receive of a datagram is needed, one with the flag WCGRH"}
	}
	h, ok := ib.ParseGRH(grh)
	if !ok {
		return AddressVector{}, &ConfigError{"grh", fmt.Sprintf("%d bytes", len(grh)), "the 40 bytes before the payload are needed, with an IPv4 or IPv6 header"}
	}
	if h.Dst != d.addr.WithZone("") && !h.Dst.IsMulticast() {
		return AddressVector{}, &ConfigError{"grh", h.Dst, fmt.Sprintf("a datagram to %v is needed, the device's address", d.addr)}
	}
	return AddressVector{DGID: ib.GIDFromAddr(h.Src), TrafficClass: h.TrafficClass &^ 3, FlowLabel: h.FlowLabel, HopLimit: 64}, nil
}

// AddressVector returns where the handle leads.
func (a *AH) AddressVector() AddressVector { return a.av }

// Handle returns the number of the handle, which is how send queues name it. It
// is never 0.
func (a *AH) Handle() uint32 { return a.num }

// Destroy frees the handle (ibv_destroy_ah). Requests that were posted with it and
// have not been sent complete with WCLocQPOpErr.
func (a *AH) Destroy() error {
	if a.closed.Swap(true) {
		return ErrClosed
	}
	a.pd.dev.ahs.remove(a)
	a.pd.refs.Add(-1)
	return nil
}

// ahTable are the address handles of a device. Lookups are lock-free and may run
// beside a writer. It implements transport.AHs.
type ahTable struct {
	mu    sync.Mutex // serialises writers; a leaf
	live  int        // handles
	free  []uint32   // numbers for free slots
	slots atomic.Pointer[[]atomic.Pointer[AH]]
}

// A handle's number is slot + uses of the slot << ahSlotBits.
const (
	ahSlotBits = 20
	maxAH      = 1 << ahSlotBits
)

// add gives a its number, if there are fewer than limit, which is at most maxAH. Old
// slots are reused last, so that a number comes back late.
func (t *ahTable) add(a *AH, limit int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= limit {
		return &LimitError{"MaxAH", limit, "address handles"}
	}
	t.live++
	if len(t.free) == 0 {
		t.grow()
	}
	a.num = t.free[0]
	t.free = t.free[1:]
	(*t.slots.Load())[a.num%maxAH].Store(a)
	return nil
}

// grow doubles the table. Those who look at the old slots see what was there.
func (t *ahTable) grow() {
	var old []atomic.Pointer[AH]
	if p := t.slots.Load(); p != nil {
		old = *p
	}
	slots := make([]atomic.Pointer[AH], max(16, 2*len(old)))
	for i := range old {
		slots[i].Store(old[i].Load())
	}
	for i := len(old); i < len(slots); i++ {
		t.free = append(t.free, uint32(i)|1<<ahSlotBits)
	}
	t.slots.Store(&slots)
}

func (t *ahTable) remove(a *AH) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[a.num%maxAH].Store(nil)
	t.live--
	next := a.num + maxAH
	if next < maxAH {
		next += maxAH // its uses wrapped: a number is never that of no use
	}
	t.free = append(t.free, next)
}

// Path implements transport.AHs.
func (t *ahTable) Path(handle uint32, pd mem.PD) (transport.Path, bool) {
	p := t.slots.Load()
	if p == nil {
		return transport.Path{}, false
	}
	i := handle % maxAH
	if int(i) >= len(*p) {
		return transport.Path{}, false
	}
	a := (*p)[i].Load()
	if a == nil || a.num != handle || a.pd.num != pd {
		return transport.Path{}, false
	}
	return a.path, true
}
