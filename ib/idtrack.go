package ib

import "time"

// IDTracker judges the IPv4 Identifications that Flow.Recover finds in the
// packets of one peer, and so strengthens it: an ID that random damage made up
// rarely fits the peer's pattern. It knows three patterns:
//
//   - always 0: network cards of some makers, and this package's users while they
//     send single datagrams. A damaged packet passes 9 times in 65536.
//   - 0 to 127: this package's users with UDP segmentation, which Linux counts
//     from 0 in each send. 128 in 65536.
//   - a counter: rxe and other NICs. Linux advances it by one per packet to the
//     same host and after a pause at random by up to the jiffies that passed
//     (Linux net/ipv4/route.c, ip_idents_reserve), now and then a packet
//     overtakes another. About 320 in 65536 while packets flow, more the longer
//     the pause, everything after a quarter of a second.
//
// The first packets of a peer, and those after 10 s of silence, are accepted to
// learn from. What no pattern explains is refused, but since an ID that Recover
// found is only rarely made up, two refused IDs that explain each other, or
// several refusals close together, make it follow the new pattern: a peer is
// never locked out, whatever it sends.
//
// The zero value is ready. An IDTracker is not safe for concurrent use. All
// packets of a peer address may share one; only IPv4 has IDs to judge.
type IDTracker struct {
	at, candidateAt time.Duration // when last and candidate came
	last            uint16        // newest ID of the counter
	candidate       uint16        // newest refused ID
	quiet           uint16        // IDs in a row that fit without widening
	mode            idMode
	widen           uint8 // how often the window has been doubled
	strikes         uint8 // refusals, fading with what is accepted
	hasCandidate    bool
	rising          bool // so far every ID was a step of a counter

	// Learning: IDs seen, and how many of them each pattern explains.
	goal, seen, zeros, smalls, steps uint8
}

// idMode is the pattern that a tracker follows.
type idMode uint8

const (
	idLearn idMode = iota
	idZero
	idSmall
	idCounter
)

const (
	idSmallEnd  = 128 // segments of one UDP_SEGMENT send: 64, 128 on new kernels
	idZeroRun   = 8   // segments lost at the start of the first run that are still believed
	idFirstGoal = 8   // IDs to learn from at first
	idNextGoal  = 32  // and when those showed no pattern

	idSilence  = 10 * time.Second
	idWindow   = 256                  // steps forward that need no time
	idStepTime = 4 * time.Microsecond // one more step per so much time
	idBack     = 64                   // steps back
	idMaxWiden = 8

	idStrike     = 4 // what a refusal weighs against one acceptance
	idMaxStrikes = 16
	idQuiet      = 4096
)

// Accept reports whether id, found in a packet that arrived at the time now,
// fits the peer's pattern. now is a monotonic time since any epoch.
func (t *IDTracker) Accept(now time.Duration, id uint16) bool {
	if t.mode != idLearn && now-t.at > idSilence {
		t.relearn(idFirstGoal)
	}
	if t.mode == idLearn {
		t.learn(now, id)
		return true
	}
	if t.explains(now, id) {
		if t.strikes > 0 {
			t.strikes--
		}
		return true
	}
	return t.refused(now, id)
}

// Likely returns the Identification that a packet of the peer probably has, for
// Flow.RecoverNear: the next one of a counter, else segment, its place in the datagram
// that it came in.
func (t *IDTracker) Likely(segment uint16) uint16 {
	if t.mode == idCounter {
		return t.last + 1
	}
	return segment
}

// explains reports whether the current pattern explains id, and follows it.
func (t *IDTracker) explains(now time.Duration, id uint16) bool {
	switch t.mode {
	case idZero:
		if id > idZeroRun {
			return false
		}
		if id != 0 {
			t.mode = idSmall
		}
		t.last, t.at = id, now
		return true
	case idSmall:
		step := t.rising && t.forward(now, id)
		if id >= idSmallEnd && !step {
			return false
		}
		t.rising = step
		if id >= idSmallEnd {
			t.mode = idCounter
		}
		t.last, t.at = id, now
		return true
	}
	if t.forward(now, id) {
		t.narrow(now, id)
		t.last, t.at = id, now
		return true
	}
	return t.last-id <= idBack
}

// forward reports whether id is a step of the counter from last on.
func (t *IDTracker) forward(now time.Duration, id uint16) bool {
	return isStep(t.last, id, now-t.at, t.widen)
}

// isStep reports whether a counter can come from one ID to the other in a time,
// in a window doubled widen times.
func isStep(from, to uint16, elapsed time.Duration, widen uint8) bool {
	reach := (idWindow + int64(max(elapsed, 0)/idStepTime)) << widen
	return from != to && int64(to-from) <= reach
}

// narrow takes a widening back when it has not been needed for long.
func (t *IDTracker) narrow(now time.Duration, id uint16) {
	if t.widen == 0 {
		return
	}
	if !isStep(t.last, id, now-t.at, t.widen-1) {
		t.quiet = 0
		return
	}
	if t.quiet++; t.quiet == idQuiet {
		t.widen--
		t.quiet = 0
	}
}

// refused decides what an unexplained ID means: one damaged packet, for which it
// returns false, or a peer that does something else now.
func (t *IDTracker) refused(now time.Duration, id uint16) bool {
	t.strikes += idStrike
	if t.strikes > idMaxStrikes {
		t.relearn(idNextGoal)
		t.learn(now, id)
		return true
	}
	before, beforeAt, known := t.candidate, t.candidateAt, t.hasCandidate
	t.candidate, t.candidateAt, t.hasCandidate = id, now, true
	if !known || now-beforeAt > idSilence {
		return false
	}
	switch {
	case id < idSmallEnd && before < idSmallEnd && t.mode != idSmall:
		t.mode = idSmall
		t.rising = id > before
	case isStep(before, id, now-beforeAt, 0):
		if t.mode == idCounter {
			t.widen = min(t.widen+1, idMaxWiden)
			t.quiet = 0
		}
		t.mode = idCounter
	default:
		return false
	}
	t.last, t.at, t.hasCandidate = id, now, false
	return true
}

// relearn forgets the pattern and accepts everything until goal IDs have shown
// one.
func (t *IDTracker) relearn(goal uint8) { *t = IDTracker{goal: goal} }

// learn counts which patterns explain id and chooses one when it has seen enough.
// One ID that does not fit may have been damage.
func (t *IDTracker) learn(now time.Duration, id uint16) {
	switch {
	case t.seen == 0:
		t.goal = max(t.goal, idFirstGoal)
		t.rising = true
		t.last, t.at = id, now
	case t.forward(now, id):
		t.steps++
		t.last, t.at = id, now
	case t.last-id <= idBack: // a duplicate or overtaken packet is no sign against a counter
		t.steps++
		t.rising = false
	case t.hasCandidate && isStep(t.candidate, id, now-t.candidateAt, 0):
		t.rising = false
		t.last, t.at, t.hasCandidate = id, now, false
	default:
		t.rising = false
		t.candidate, t.candidateAt, t.hasCandidate = id, now, true
	}
	if id == 0 {
		t.zeros++
	}
	if id < idSmallEnd {
		t.smalls++
	}
	if t.seen++; t.seen < t.goal {
		return
	}
	switch {
	case t.zeros == t.seen:
		t.mode = idZero
	case t.smalls >= t.seen-1:
		t.mode = idSmall
	case t.steps >= t.seen-1-t.seen/8: // of seen-1 steps
		t.mode = idCounter
	default:
		t.relearn(idNextGoal)
	}
}
