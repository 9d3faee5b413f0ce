package roce

import (
	"math/bits"
	"time"
)

const (
	wheelSlots   = 4096
	wheelTick    = 64 * time.Microsecond
	wheelHorizon = (wheelSlots - 1) * wheelTick
)

// wheel is a timing wheel over queue pairs. Its cost does not depend on how
// many timers run. An entry stays where it is when its queue pair's deadline
// moves back (the usual case: an acknowledgement re-arms the timer); the truth
// is looked at when the slot comes up. Deadlines are exact: slots only say
// where to look.
type wheel struct {
	now      int64 // tick up to which slots have been served
	base     int64 // tick before which nothing is inserted; now, or ahead of it inside advance
	used     [wheelSlots / 64]uint64
	slots    [wheelSlots]*QP
	earliest time.Duration // no timer is due before this; Never when there is none
}

func newWheel(now time.Duration) *wheel {
	t := int64(now / wheelTick)
	return &wheel{now: t, base: t, earliest: Never}
}

// schedule makes sure that q is looked at when its deadline d comes.
func (w *wheel) schedule(q *QP, d time.Duration) {
	if d == Never || (q.timer.armed && q.timer.at <= d) {
		return
	}
	if q.timer.armed {
		w.remove(q)
	}
	w.insert(q, d)
}

func (w *wheel) insert(q *QP, d time.Duration) {
	base := time.Duration(w.base) * wheelTick
	at := min(max(d, base), base+wheelHorizon)
	i := int(int64(at/wheelTick) % wheelSlots)
	q.timer = timer{armed: true, at: at, slot: i, next: w.slots[i]}
	if q.timer.next != nil {
		q.timer.next.timer.prev = q
	}
	w.slots[i] = q
	w.used[i/64] |= 1 << (i % 64)
	w.earliest = min(w.earliest, at)
}

// remove takes q out of the wheel, if it is there.
func (w *wheel) remove(q *QP) {
	t := &q.timer
	if !t.armed {
		return
	}
	if t.prev != nil {
		t.prev.timer.next = t.next
	} else {
		w.slots[t.slot] = t.next
		if t.next == nil {
			w.used[t.slot/64] &^= 1 << (t.slot % 64)
		}
	}
	if t.next != nil {
		t.next.timer.prev = t.prev
	}
	*t = timer{}
}

// timer is a queue pair's place in the wheel.
type timer struct {
	armed      bool
	slot       int
	at         time.Duration
	prev, next *QP
}

// advance calls due for each queue pair whose time has come. due may schedule;
// what it schedules for now or earlier is due at the next advance.
func (w *wheel) advance(now time.Duration, due func(*QP)) {
	if now < w.earliest {
		return
	}
	w.base = int64(now / wheelTick)
	for n := 0; n < wheelSlots; n++ {
		i := int(w.now % wheelSlots)
		for q := w.slots[i]; q != nil; {
			next := q.timer.next
			if q.timer.at <= now {
				w.remove(q)
				due(q)
			}
			q = next
		}
		if w.now >= w.base {
			break
		}
		w.now = w.skip(i)
	}
	w.now = w.base
	w.earliest = w.first()
}

// skip returns the tick of the next used slot after slot i, but not beyond base.
func (w *wheel) skip(i int) int64 {
	return min(w.now+int64(w.distance((i+1)%wheelSlots))+1, w.base)
}

// distance returns how many slots lie between slot i and the first used one at
// or after it, around the wheel.
func (w *wheel) distance(i int) int {
	word, bit := i/64, i%64
	if m := w.used[word] >> bit; m != 0 {
		return bits.TrailingZeros64(m)
	}
	for n := 1; n <= len(w.used); n++ {
		if m := w.used[(word+n)%len(w.used)]; m != 0 {
			return n*64 - bit + bits.TrailingZeros64(m)
		}
	}
	return wheelSlots
}

// first returns the earliest time at which an entry must be looked at.
func (w *wheel) first() time.Duration {
	d := w.distance(int(w.now % wheelSlots))
	if d == wheelSlots {
		return Never
	}
	at := Never
	for q := w.slots[(w.now+int64(d))%wheelSlots]; q != nil; q = q.timer.next {
		at = min(at, q.timer.at)
	}
	return at
}
