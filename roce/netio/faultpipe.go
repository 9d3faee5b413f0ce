package netio

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
)

// heldMax is the most packets that a pipe holds back.
const heldMax = 1 << 16

// pipe is one direction of a Faulty: packets are pushed in, suffer, and come out
// at once or later. It knows neither a clock nor a network.
type pipe struct {
	faults Faults
	script []scripted
	rng    *rand.Rand
	luck   *rand.Rand // of bursts: without them the others see the same draws
	dir    Direction
	record func(Fault)
	local  func() netip.AddrPort
	c      *counters
	limit  int // of packets held

	pushed     int           // packets
	burstUntil time.Duration // a burst of losses is on

	out    []packet // ready, in order, from head on
	head   int
	passed uint64   // packets that came out without being held
	behind []packet // reordered: held until enough have passed
	late   []packet // delayed: a heap by due, then seq
	seq    uint64
	free   [][]byte
	view   ib.Packet // of the packet that the script looks at
}

// packet is one packet on its way through a pipe.
type packet struct {
	addr    netip.AddrPort // where to, or where from
	dst     netip.AddrPort // of a received packet
	port    uint16         // source port of a sent packet
	tos     uint8
	id      uint16
	idKnown bool
	buf     []byte

	due     time.Duration // when it comes out at the latest
	release uint64        // behind: comes out when so many have passed
	seq     uint64
}

type scripted struct {
	Fault
	seen int // packets that matched
}

func (p *pipe) init(seed, stream uint64, c *counters) {
	p.rng = rand.New(rand.NewPCG(seed, stream))
	p.luck = rand.New(rand.NewPCG(seed, stream+2))
	p.dir = Direction(stream)
	p.c = c
	p.limit = heldMax
}

// fate is what happens to one packet.
type fate struct {
	drop, duplicate, reorder, ce bool
	corrupt                      int // times
	delay                        time.Duration
	by                           int // reorder: behind so many
	edits                        []func([]byte)
}

// push puts a packet in. The buffer becomes the pipe's.
func (p *pipe) push(now time.Duration, k packet) {
	f := p.judge(now, k.buf)
	if f.drop {
		p.c.add(FaultDrop, 1)
		p.recycle(k)
		return
	}
	for _, edit := range f.edits {
		p.edit(&k, edit)
	}
	for range f.corrupt {
		p.damage(k.buf)
	}
	if f.ce {
		k.tos |= 3 // RFC 3168
		p.c.add(FaultCE, 1)
	}
	copies := 1
	if f.duplicate {
		copies = 2
		p.c.add(FaultDuplicate, 1)
	}
	if (f.reorder || f.delay > 0) && len(p.behind)+len(p.late)+copies > p.limit {
		p.c.add(FaultOverflow, copies)
		p.recycle(k)
		return
	}
	for copies--; copies > 0; copies-- {
		twin := k
		twin.buf = p.copy(k.buf)
		p.place(now, twin, &f)
	}
	p.place(now, k, &f)
}

// place lets a packet pass, or holds it.
func (p *pipe) place(now time.Duration, k packet, f *fate) {
	k.seq = p.seq
	p.seq++
	switch {
	case f.reorder:
		p.c.add(FaultReorder, 1)
		k.release = p.passed + uint64(f.by)
		k.due = now + f.delay + p.faults.ReorderMax
		p.behind = append(p.behind, k)
	case f.delay > 0:
		p.c.add(FaultDelay, 1)
		k.due = now + f.delay
		p.hold(k)
	default:
		p.emit(k)
		p.passed++
		p.letFollow(func(h *packet) bool { return h.release <= p.passed })
	}
}

// judge draws the fate of a packet. Each packet takes the same number of draws
// whatever happens to it, so that changing one fault leaves the others alone.
func (p *pipe) judge(now time.Duration, b []byte) (f fate) {
	r := &p.faults
	p.pushed++
	draw := func(probability float64) bool { return p.rng.Float64() < probability }
	f.drop = draw(r.Loss) || r.Burst > 0 && p.burst(now)
	f.duplicate = draw(r.Duplicate)
	f.reorder = draw(r.Reorder)
	if draw(r.Corrupt) {
		f.corrupt = 1
	}
	f.ce = draw(r.CE)
	if f.by = r.ReorderBy; r.ReorderTo > r.ReorderBy {
		f.by += p.rng.IntN(r.ReorderTo - r.ReorderBy + 1)
	}
	f.delay = r.Delay + time.Duration(p.rng.Float64()*float64(r.Jitter))
	if p.record != nil {
		p.note(&f)
	}
	if len(p.script) > 0 {
		p.consult(b, &f)
	}
	return f
}

// burst draws whether a packet is lost in a burst.
func (p *pipe) burst(now time.Duration) bool {
	if now >= p.burstUntil && p.luck.Float64() < p.faults.Burst {
		p.burstUntil = now + max(1, time.Duration(p.luck.ExpFloat64()*float64(p.faults.BurstTime)))
	}
	return now < p.burstUntil && p.luck.Float64() < p.faults.BurstLoss
}

// note records the random faults of a packet.
func (p *pipe) note(f *fate) {
	for _, x := range []struct {
		is bool
		Fault
	}{
		{f.drop, Fault{Action: Drop}}, {f.duplicate, Fault{Action: Duplicate}}, {f.corrupt > 0, Fault{Action: Corrupt}},
		{f.ce, Fault{Action: MarkCE}}, {f.reorder, Fault{Action: Reorder, By: f.by}},
	} {
		if x.is && (!f.drop || x.Action == Drop) {
			x.Direction, x.Nth = p.dir, p.pushed
			p.record(x.Fault)
		}
	}
}

// consult applies the script.
func (p *pipe) consult(b []byte, f *fate) {
	var malformed ib.Malformed
	p.view, malformed = ib.Parse(b)
	for i := range p.script {
		s := &p.script[i]
		if s.Match != nil && (malformed != ib.OK || !s.Match(&p.view)) {
			continue
		}
		s.seen++
		if s.Nth > 0 && (s.seen < s.Nth || s.seen >= s.Nth+max(s.Count, 1)) {
			continue
		}
		switch s.Action {
		case Drop:
			f.drop = true
		case Duplicate:
			f.duplicate = true
		case Delay:
			f.delay += s.Delay
		case Corrupt:
			f.corrupt++
		case MarkCE:
			f.ce = true
		case Reorder:
			f.reorder = true
			if f.by = s.By; f.by <= 0 {
				f.by = defReorderBy
			}
		case Edit:
			f.edits = append(f.edits, s.Edit)
		}
	}
}

// edit changes a packet as the script says and seals it again.
func (p *pipe) edit(k *packet, change func([]byte)) {
	change(k.buf)
	src, dst := k.addr, k.dst
	if p.dir == Tx {
		src, dst = p.local(), k.addr
		if k.port != 0 {
			src = netip.AddrPortFrom(src.Addr(), k.port)
		}
	}
	flow := ib.NewFlow(src, dst)
	flow.Seal(k.id, k.buf) // what is sent has the Identification 0
	p.c.add(FaultEdit, 1)
}

// damage changes one byte, but not byte 4 of the BTH, which the ICRC leaves out.
func (p *pipe) damage(b []byte) {
	if len(b) < 6 {
		return
	}
	at := p.rng.IntN(len(b) - 1)
	if at >= 4 {
		at++
	}
	b[at] ^= byte(1 + p.rng.IntN(255))
	p.c.add(FaultCorrupt, 1)
}

// release lets out what is due.
func (p *pipe) release(now time.Duration) {
	for len(p.late) > 0 && p.late[0].due <= now {
		p.emit(p.unhold())
	}
	p.letFollow(func(h *packet) bool { return h.due <= now })
}

// letFollow lets out the reordered packets that satisfy a condition.
func (p *pipe) letFollow(ok func(*packet) bool) {
	if len(p.behind) == 0 {
		return
	}
	kept := p.behind[:0]
	for _, h := range p.behind {
		if ok(&h) {
			p.emit(h)
		} else {
			kept = append(kept, h)
		}
	}
	clear(p.behind[len(kept):])
	p.behind = kept
}

// deadline returns when release has something to do.
func (p *pipe) deadline() time.Duration {
	d := Never
	if len(p.late) > 0 {
		d = p.late[0].due
	}
	for i := range p.behind {
		d = min(d, p.behind[i].due)
	}
	return d
}

func (p *pipe) emit(k packet) {
	if p.head > 0 && len(p.out) == cap(p.out) {
		n := copy(p.out, p.out[p.head:])
		clear(p.out[n:])
		p.out, p.head = p.out[:n], 0
	}
	p.out = append(p.out, k)
}

// ready returns how many packets may come out now.
func (p *pipe) ready() int { return len(p.out) - p.head }

func (p *pipe) peek(i int) *packet { return &p.out[p.head+i] }

func (p *pipe) pop() packet {
	k := p.out[p.head]
	p.out[p.head] = packet{}
	if p.head++; p.head == len(p.out) {
		p.out, p.head = p.out[:0], 0
	}
	return k
}

func (p *pipe) less(i, j int) bool {
	a, b := &p.late[i], &p.late[j]
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

// hold puts a packet into the heap.
func (p *pipe) hold(k packet) {
	p.late = append(p.late, k)
	for i := len(p.late) - 1; i > 0; {
		up := (i - 1) / 2
		if !p.less(i, up) {
			return
		}
		p.late[i], p.late[up] = p.late[up], p.late[i]
		i = up
	}
}

// unhold takes the first packet out of the heap.
func (p *pipe) unhold() packet {
	k := p.late[0]
	n := len(p.late) - 1
	p.late[0] = p.late[n]
	p.late[n] = packet{}
	p.late = p.late[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return k
		}
		if c+1 < n && p.less(c+1, c) {
			c++
		}
		if !p.less(c, i) {
			return k
		}
		p.late[i], p.late[c] = p.late[c], p.late[i]
		i = c
	}
}

// copy returns a copy of b in a buffer of the pipe.
func (p *pipe) copy(b []byte) []byte {
	if n := len(p.free); n > 0 && cap(p.free[n-1]) >= len(b) {
		c := p.free[n-1][:len(b)]
		p.free = p.free[:n-1]
		copy(c, b)
		return c
	}
	c := make([]byte, len(b), max(len(b), maxPacket))
	copy(c, b)
	return c
}

func (p *pipe) recycle(k packet) { p.free = append(p.free, k.buf) }
