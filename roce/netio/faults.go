package netio

import (
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
)

// FaultConfig says what a Faulty backend does to packets. What it does depends on
// nothing but Seed, the packets of each direction in their order and the times it
// is told: the same again gives the same again.
type FaultConfig struct {
	Seed   uint64
	Tx, Rx Faults  // random faults of packets sent and received
	Script []Fault // faults of certain packets, applied before the random ones
	// Record, if not nil, is called for every random fault but Delay and Jitter, with
	// the one that does the same in a Script. With these and the same configuration,
	// its probabilities 0, a run repeats. It must not call the backend.
	Record func(Fault)
}

// Faults are the random faults of one direction. A probability is between 0 and 1,
// that each packet suffers the fault, independently of all others.
type Faults struct {
	Loss      float64
	Duplicate float64 // the copy follows at once, or is held with the original
	Reorder   float64 // the packet is held until ReorderBy later ones have passed
	Corrupt   float64 // one byte is changed, one that the ICRC covers
	CE        float64 // the ECN bits become "congestion experienced"

	// Burst is the probability that a packet begins a burst: from it on BurstLoss of
	// the packets are lost, 0 means all, for an exponentially distributed time of
	// which the mean is BurstTime, 0 means 50 us (the model of Gilbert and Elliott).
	Burst, BurstLoss float64
	BurstTime        time.Duration

	// ReorderBy is how many packets overtake one that is reordered; 0 means 3. With
	// a larger ReorderTo it is any number from the one to the other.
	ReorderBy, ReorderTo int
	// ReorderMax bounds how long one is held when too few follow; 0 means 1 ms.
	ReorderMax time.Duration

	// Delay holds every packet; Jitter adds an even share between 0 and itself.
	// Packets whose jitter differs by more than their distance change places.
	Delay, Jitter time.Duration
}

// Direction says whose packets a Fault is about, seen from the backend's owner.
type Direction uint8

const (
	Tx Direction = iota // packets sent
	Rx                  // packets received
)

// Action is what a Fault does.
type Action uint8

const (
	Drop Action = iota
	Duplicate
	Delay   // hold for Fault.Delay
	Corrupt // change one byte
	MarkCE
	Reorder // hold until Fault.By later ones have passed
	Edit    // change it by Fault.Edit, and seal it again
)

// Fault is a scripted fault. Several that match the same packet all apply.
type Fault struct {
	Direction Direction
	// Match chooses packets; nil chooses all, also those that are no RoCE
	// packets. It must not keep or change the packet. See OfKind.
	Match func(p *ib.Packet) bool
	// Nth is the first packet concerned, counting from 1 those that Match chooses;
	// 0 means every one of them.
	Nth int
	// Count is how many of them are concerned from Nth on; 0 means 1.
	Count  int
	Action Action
	Delay  time.Duration // for Delay
	By     int           // for Reorder; 0 means 3
	// Edit, for the action of this name, changes the packet, BTH to ICRC, in place and
	// not its length; the ICRC is made right again afterwards. A copy that Duplicate
	// makes of the same packet is changed as well.
	Edit func(b []byte)
}

// OfKind returns a Match for packets of any of the given kinds.
func OfKind(kinds ...ib.OpKind) func(*ib.Packet) bool {
	return func(p *ib.Packet) bool {
		for _, k := range kinds {
			if p.Info().Op == k {
				return true
			}
		}
		return false
	}
}

// Faulty is a backend that does to packets what networks do. Where the kernel or a
// peer puts packets together it takes them apart: every packet has its own luck.
// Packets sent through it leave one by one, sealed for the Identification 0.
type Faulty struct {
	b Backend
	c counters

	mu     sync.Mutex
	active [2]bool
	pipes  [2]pipe
	runs   []Run      // scratch of flush
	in     []Received // scratch of Recv
	lent   []packet   // handed out by the last Recv
	retry  time.Duration

	inner, name string // of the wrapped backend, and ours
}

const (
	faultBatch    = 64
	defReorderBy  = 3
	defReorderMax = time.Millisecond
	defBurstTime  = 50 * time.Microsecond
	flushRetry    = 100 * time.Microsecond
)

// WithFaults wraps a backend. Closing the wrapper closes the backend.
func WithFaults(b Backend, cfg FaultConfig) *Faulty {
	f := &Faulty{b: b, runs: make([]Run, 0, faultBatch), in: make([]Received, faultBatch), retry: Never}
	for d := range f.pipes {
		f.pipes[d].init(cfg.Seed, uint64(d), &f.c)
		f.pipes[d].local = b.LocalAddr
		f.pipes[d].record = cfg.Record
	}
	for _, s := range cfg.Script {
		p := &f.pipes[s.Direction]
		p.script = append(p.script, scripted{Fault: s})
	}
	f.SetFaults(cfg.Tx, cfg.Rx)
	return f
}

// SetFaults replaces the random faults, from the next packet on: to cut a link, or
// to heal it. Packets already held stay so. It may be called at any time.
func (f *Faulty) SetFaults(tx, rx Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d, faults := range []Faults{tx, rx} {
		p := &f.pipes[d]
		if faults.ReorderBy <= 0 {
			faults.ReorderBy = defReorderBy
		}
		if faults.ReorderMax <= 0 {
			faults.ReorderMax = defReorderMax
		}
		if faults.BurstLoss <= 0 {
			faults.BurstLoss = 1
		}
		if faults.BurstTime <= 0 {
			faults.BurstTime = defBurstTime
		}
		p.faults = faults
		// Once used, a pipe stays in use: it may hold packets.
		f.active[d] = f.active[d] || len(p.script) > 0 || faults.any()
	}
}

func (f *Faults) any() bool {
	return f.Loss > 0 || f.Burst > 0 || f.Duplicate > 0 || f.Reorder > 0 || f.Corrupt > 0 || f.CE > 0 || f.Delay > 0 || f.Jitter > 0
}

// Caps returns those of the wrapped backend.
func (f *Faulty) Caps() Caps {
	c := f.b.Caps()
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Name != f.inner {
		f.inner, f.name = c.Name, c.Name+" faults"
	}
	c.Name = f.name
	return c
}

// LocalAddr implements Backend.
func (f *Faulty) LocalAddr() netip.AddrPort { return f.b.LocalAddr() }

// Wake implements Backend.
func (f *Faulty) Wake() { f.b.Wake() }

// Close implements Backend. Packets still held are lost.
func (f *Faulty) Close() error { return f.b.Close() }

// Join implements Backend.
func (f *Faulty) Join(group netip.Addr) error { return f.b.Join(group) }

// Leave implements Backend.
func (f *Faulty) Leave(group netip.Addr) error { return f.b.Leave(group) }

// Stats returns the counters of the wrapped backend and of the faults.
func (f *Faulty) Stats() Stats {
	s := f.b.Stats()
	f.c.addTo(&s)
	return s
}

// Send implements Backend.
func (f *Faulty) Send(now time.Duration, runs []Run) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tx := &f.pipes[Tx]
	if !f.active[Tx] {
		return f.b.Send(now, runs)
	}
	tx.release(now)
	if err := f.flush(now); err != nil {
		return 0, err
	}
	for i := range runs {
		f.admit(now, &runs[i])
	}
	// What has to wait now is ours: it goes before anything else, with the next
	// call, for which Deadline asks.
	if err := f.flush(now); err != nil && err != ErrWouldBlock {
		return 0, err
	}
	return len(runs), nil
}

// admit takes a run apart, each packet as it would travel alone.
func (f *Faulty) admit(now time.Duration, r *Run) {
	tx := &f.pipes[Tx]
	src := f.b.LocalAddr()
	if r.SrcPort != 0 {
		src = netip.AddrPortFrom(src.Addr(), r.SrcPort)
	}
	flow := r.Flow(src)
	for i := range r.Segments() {
		p := packet{addr: r.Dst, port: r.SrcPort, tos: r.TOS, buf: tx.copy(r.Segment(i))}
		if i > 0 && len(p.buf) >= ib.BTHSize+ib.ICRCSize {
			flow.Seal(0, p.buf)
		}
		tx.push(now, p)
	}
}

// flush sends what is ready.
func (f *Faulty) flush(now time.Duration) error {
	tx := &f.pipes[Tx]
	f.retry = Never
	for tx.ready() > 0 {
		f.runs = f.runs[:0]
		for i := range min(tx.ready(), faultBatch) {
			p := tx.peek(i)
			f.runs = append(f.runs, Run{Dst: p.addr, SrcPort: p.port, TOS: p.tos, Buf: p.buf})
		}
		n, err := f.b.Send(now, f.runs)
		for range n {
			tx.recycle(tx.pop())
		}
		if err != nil {
			f.retry = now + flushRetry
			return err
		}
	}
	return nil
}

// Recv implements Backend.
func (f *Faulty) Recv(now time.Duration, dst []Received) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active[Tx] {
		f.pipes[Tx].release(now)
		if err := f.flush(now); err != nil && err != ErrWouldBlock {
			return 0, err
		}
	}
	rx := &f.pipes[Rx]
	if !f.active[Rx] {
		return f.b.Recv(now, dst)
	}
	for _, p := range f.lent {
		rx.recycle(p)
	}
	f.lent = f.lent[:0]
	rx.release(now)
	for rx.ready() < len(dst) {
		n, err := f.b.Recv(now, f.in[:min(len(f.in), len(dst)-rx.ready())])
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break
		}
		for i := range n {
			f.arrive(now, &f.in[i])
		}
	}
	n := min(len(dst), rx.ready())
	for i := range n {
		p := rx.pop()
		dst[i] = Received{Src: p.addr, Dst: p.dst, TOS: p.tos, ID: p.id, IDKnown: p.idKnown, Buf: p.buf}
		f.lent = append(f.lent, p)
	}
	return n, nil
}

func (f *Faulty) arrive(now time.Duration, r *Received) {
	rx := &f.pipes[Rx]
	for i := range r.Segments() {
		rx.push(now, packet{
			addr: r.Src, dst: r.Dst, tos: r.TOS, id: r.ID + uint16(i), idKnown: r.IDKnown,
			buf: rx.copy(r.Segment(i)),
		})
	}
}

// Deadline returns when the first held packet becomes due.
func (f *Faulty) Deadline() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := min(f.b.Deadline(), f.retry, f.pipes[Tx].deadline(), f.pipes[Rx].deadline())
	if f.pipes[Rx].ready() > 0 {
		d = min(d, 0) // at once
	}
	return d
}

// Wait implements Backend. It knows no clock: whoever calls it bounds the timeout
// by Deadline.
func (f *Faulty) Wait(timeout time.Duration, write bool) error {
	f.mu.Lock()
	ready := f.pipes[Rx].ready() > 0
	f.mu.Unlock()
	if ready {
		timeout = 0
	}
	return f.b.Wait(timeout, write)
}
