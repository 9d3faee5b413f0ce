package transport

import "time"

// This file decides what a requester sends again. Going back is setting nxt back:
// to una, where everything that was not acknowledged is sent once more up to stop,
// but for what the board says is done. Then sending goes on at top.

// boardSize is how many packets from una on are looked at.
const boardSize = 1024

// board marks packets behind a missing one that need not come again: READ responses
// that are in memory already, and requests that the peer says it keeps.
type board struct {
	bits [boardSize / 64]uint64 // ring by sequence number
	n    int                    // marks
}

func (b *board) bit(seq uint64) (word *uint64, mask uint64) {
	return &b.bits[seq/64%uint64(len(b.bits))], 1 << (seq % 64)
}

func (b *board) has(seq uint64) bool {
	w, m := b.bit(seq)
	return *w&m != 0
}

func (b *board) mark(seq uint64) {
	if w, m := b.bit(seq); *w&m == 0 {
		*w |= m
		b.n++
	}
}

// clear takes the marks away from one packet up to another.
func (b *board) clear(from, to uint64) {
	if to-from >= boardSize {
		*b = board{}
	}
	for ; b.n > 0 && from < to; from++ {
		if w, m := b.bit(from); *w&m != 0 {
			*w &^= m
			b.n--
		}
	}
}

// reach returns how far from una on everything is done: requests by acknowledgements,
// READs and atomics by the answers that came. Those that are done are forgotten.
func (r *requester) reach() uint64 {
	to := r.una
	for {
		if r.numReads > 0 && to >= r.read(0).first {
			req := r.read(0)
			if to = r.missing(req, to); to < req.end {
				return to
			}
			r.readHead = (r.readHead + 1) & (len(r.reads) - 1)
			r.numReads--
			r.readNext = max(r.readNext-1, 0)
			continue
		}
		next := r.acked
		if r.numReads > 0 {
			next = min(next, r.read(0).first)
		}
		if next <= to {
			return to
		}
		to = next
	}
}

// missing returns the first response of req from seq on that has not come, or the
// end of req.
func (r *requester) missing(req *readRequest, seq uint64) uint64 {
	for seq < req.end && r.board.has(seq) {
		seq++
	}
	return seq
}

// goBack sends everything again that is not done.
func (r *requester) goBack() {
	r.back(r.una, r.top)
	r.asked, r.repair = r.unaCum, false
	r.armed = false // the timer starts again with the first packet
}

// back sends what is missing from one packet up to another again.
func (r *requester) back(from, to uint64) {
	r.rtt.gap(from)
	r.cur, r.readNext = r.done, 0
	r.moveTo(from)
	for r.readNext < r.numReads && r.read(r.readNext).end <= from {
		r.readNext++
	}
	r.stop, r.fixed, r.news, r.again = to, to, r.top, 0
	r.repair, r.parked = true, false
}

// untilThere returns how far a READ is asked for again from nxt on: to where the
// next response is there already, if the peer answers parts.
func (r *requester) untilThere(req *readRequest) uint64 {
	seq := req.end
	if r.q.kin {
		for seq = r.nxt + 1; seq < min(req.end, r.stop) && !r.board.has(seq); {
			seq++
		}
		req.split = req.split || seq < req.end
	}
	return seq
}

// pass moves nxt, where something is sent again, over what need not be; at stop to
// what was never sent. A READ is asked for again from the first missing response on:
// rxe refuses a repetition that begins before another (Linux rxe_resp.c,
// duplicate_request).
func (r *requester) pass(now time.Duration) {
	for r.nxt < r.stop {
		switch c := r.at(r.cur); {
		case c.op.is(opAnswered):
			req := r.read(r.readNext)
			seq := max(req.first, r.una)
			if r.q.kin {
				seq = max(seq, r.nxt)
			}
			seq = r.missing(req, seq)
			if kept := req.fate == fateKept && req.first >= r.acked; !kept && seq < min(req.end, r.stop) {
				r.moveTo(seq)
				return
			}
			r.moveTo(req.end)
			r.readNext++
		case r.nxt >= r.acked && !r.board.has(r.nxt):
			return
		default:
			r.moveTo(r.nxt + 1)
		}
	}
	r.moveTo(r.top)
	r.readNext = r.numReads
	if !r.armed {
		r.armed, r.since = r.top > r.una, now
	}
}

// moveTo sets nxt, forward of the first packet of request cur.
func (r *requester) moveTo(seq uint64) {
	r.nxt, r.nxtCum = seq, r.endCum
	for r.cur != r.begun && r.at(r.cur).end <= seq {
		r.cur++
	}
	if r.cur != r.begun {
		r.nxtCum = r.at(r.cur).cumAt(seq, r.mtu)
	}
}

// behind acts on news from before high while something older is missing: what is
// missing before high was lost on the way, or is late. It is sent again once, and
// then again when there is news of packets that were first sent after that. c counts
// the reason.
func (r *requester) behind(now time.Duration, high uint64, c Counter) {
	from := r.una
	switch {
	case r.waiting:
		return
	case r.nxt < min(r.stop, r.top):
		r.stop = max(r.stop, high)
		r.fixed = max(r.fixed, r.stop)
		return
	case r.una >= r.fixed, high > r.news:
	case r.board.has(high-1) && r.fixed == high-1:
		r.fixed = high // nothing is missing between this news and the last
		return
	case high > r.fixed:
		from = r.fixed
	default:
		return
	}
	r.q.count(c)
	if !r.wentBack && !r.spend(now) {
		return
	}
	r.wentBack = true
	r.try()
	if from == r.una {
		r.since = now // the timer starts again
	}
	r.back(from, high)
}

// probeAt is when an acknowledgement is so late that what was sent last is most likely
// lost, Never when the peer is not known well enough. Without retries, or without a
// timeout, nothing is sent again that nobody asked for.
func (r *requester) probeAt() time.Duration {
	least := minProbe
	if r.q.kin {
		least = kinProbe
	}
	p := r.rtt.patience(least)
	if p == Never || r.q.attr.RetryCnt == 0 {
		return Never
	}
	return max(r.since, r.probed) + p
}

// probe sends again what is not acknowledged, a few packets of it, long before the
// ack timer would. It takes no retry, and the ack timer goes on: retries end when
// IBTA 9.9.2.1 says so.
func (r *requester) probe(now time.Duration) {
	r.q.count(AckProbes)
	r.try()
	r.goBack()
	r.armed, r.probed, r.probing = true, now, true
	r.rtt.probes++
}

// judgeProbe looks at what a probe brought when everything before una is acknowledged. The
// window shrinks for the silence if that is no more than was sent again: then it was
// lost. Otherwise only an acknowledgement was, or is late, and what was sent behind is not
// sent again (as RFC 5682). What acknowledges a part of what was sent again was on its way
// before, if it is not a READ's, of which each response counts.
func (r *requester) judgeProbe(now time.Duration, una uint64) {
	switch {
	case !r.probing, una < r.nxt && r.numReads == 0:
		return
	case una <= r.nxt:
		r.win.lost(r.win.min, r.una, r.top, r.rtt.crowded(now))
	default:
		r.inVain()
		r.stop, r.fixed = una, una
	}
	r.probing = false
}

// attempt remembers the first packet that was sent again, to find out that it was in
// vain: its acknowledgement came sooner than one ever did, so it is that of the first
// transmission (as RFC 3522, by time). The window had no reason to shrink.
type attempt struct {
	open   bool
	sentIt bool
	passed bool // it is acknowledged
	seq    uint64
	at     time.Duration
	end    uint64 // what was sent before it is of one flight ...
	before level  // ... and this was the window then
}

// try says that the window is going to shrink and something to be sent again. A second
// attempt in a flight does not hide what the first has done to the window: the news that
// it was in vain comes a round trip later.
func (r *requester) try() {
	now := attempt{open: true, end: r.top, before: r.win.level}
	if r.tried.open && r.una < r.tried.end {
		now.end, now.before = r.tried.end, r.tried.before
	}
	r.tried = now
}

func (a *attempt) sent(now time.Duration, seq uint64) {
	if a.open && !a.sentIt {
		a.sentIt, a.seq, a.at = true, seq, now
	}
}

// judge looks at an attempt when everything before una is acknowledged.
func (r *requester) judge(now time.Duration, una uint64) {
	a := &r.tried
	if !a.sentIt || una <= a.seq || a.passed {
		return
	}
	if a.passed = true; now-a.at < r.rtt.least {
		r.inVain()
	}
}

// inVain takes back what the attempt did to the window.
func (r *requester) inVain() {
	if r.tried.sentIt {
		r.q.count(SpuriousRetrans)
		r.win.restore(&r.tried.before)
		r.tried = attempt{}
	}
}
