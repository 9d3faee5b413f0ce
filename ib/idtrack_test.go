package ib

import (
	"math/rand/v2"
	"testing"
	"time"
)

// idPeer produces the IDs of one kind of peer: the gap before the next packet
// and its ID.
type idPeer func(r *rand.Rand) (gap time.Duration, id uint16)

// The senders whose packets an IDTracker must accept all.
var idPeers = []struct {
	name string
	peer func() idPeer
	// strength is the largest share of made-up IDs that may pass, once the
	// pattern is learnt.
	strength float64
}{
	{"always 0", func() idPeer {
		return func(*rand.Rand) (time.Duration, uint16) { return 20 * time.Microsecond, 0 }
	}, 20. / 65536},
	{"0 for singles, then runs of segments", func() idPeer {
		n, run := 0, 0
		return func(r *rand.Rand) (time.Duration, uint16) {
			if n++; n < 200 {
				return 20 * time.Microsecond, 0
			}
			if run++; run >= 64 {
				run = 0
			}
			return 0, uint16(run)
		}
	}, 140. / 65536},
	{"runs of up to 128 segments from the first packet on", func() idPeer {
		at, end := -1, 0
		return func(r *rand.Rand) (time.Duration, uint16) {
			if at++; at >= end {
				at, end = 0, 1+r.IntN(128)
				return time.Millisecond, 0
			}
			return 0, uint16(at)
		}
	}, 140. / 65536},
	{"runs with lost segments", func() idPeer {
		at := 0
		return func(r *rand.Rand) (time.Duration, uint16) {
			if at += 1 + r.IntN(3); at >= 64 {
				at = r.IntN(3)
			}
			return 10 * time.Microsecond, uint16(at)
		}
	}, 140. / 65536},
	{"counter of rxe, one flow of several", counterPeer(40000, 50*time.Microsecond, 8), 500. / 65536},
	{"counter that starts below 128", counterPeer(20, 50*time.Microsecond, 4), 500. / 65536},
	{"counter that starts before the wrap", counterPeer(65500, 50*time.Microsecond, 4), 500. / 65536},
	{"counter with pauses", func() idPeer {
		id := uint16(7)
		return func(r *rand.Rand) (time.Duration, uint16) {
			gap := 30 * time.Microsecond
			if r.IntN(20) == 0 {
				gap = time.Duration(r.IntN(9000)) * time.Millisecond
			}
			id += 1 + uint16(r.IntN(1+int(gap/time.Millisecond))) // by up to 1 + jiffies, 1000 of them a second
			return gap, id
		}
	}, 1},
	{"counter with packets that overtake and duplicates", func() idPeer {
		id := uint16(30000)
		return func(r *rand.Rand) (time.Duration, uint16) {
			id += uint16(1 + r.IntN(2))
			return 10 * time.Microsecond, id - uint16(r.IntN(8))
		}
	}, 500. / 65536},
	{"counter shared with 100 kpps of other traffic", counterPeer(1, 400*time.Microsecond, 80), 700. / 65536},
}

func counterPeer(start uint16, gap time.Duration, step int) func() idPeer {
	return func() idPeer {
		id := start
		return func(r *rand.Rand) (time.Duration, uint16) {
			id += uint16(1 + r.IntN(step))
			return gap, id
		}
	}
}

// No ID of a clean flow is refused, whatever the pattern, and IDs that random
// damage made up are mostly refused without harm to the packets around them.
func TestIDTrackerPatterns(t *testing.T) {
	for _, c := range idPeers {
		for seed := range uint64(10) {
			r := rand.New(rand.NewPCG(seed, 9))
			var tr, checked IDTracker
			next := c.peer()
			now := time.Duration(r.Uint32())
			passed, made := 0, 0
			for n := range 20000 {
				gap, id := next(r)
				now += gap
				if !tr.Accept(now, id) {
					t.Fatalf("%s, seed %d: packet %d with ID %d refused (%+v)", c.name, seed, n, id, tr)
				}
				if n >= 1000 {
					checked = tr // judge a made-up ID on a copy, at the time of the next one
					made++
					if checked.Accept(now+10*time.Microsecond, uint16(r.Uint32())) {
						passed++
					}
				}
			}
			if share := float64(passed) / float64(made); share > c.strength*1.5 {
				t.Errorf("%s, seed %d: %.5f of made-up IDs pass, want at most %.5f", c.name, seed, share, c.strength)
			}
		}
	}
}

// Damaged packets between good ones cost no good packet, or hardly any where the
// made-up ID happened to pass.
func TestIDTrackerAmongDamage(t *testing.T) {
	for _, c := range idPeers {
		r := rand.New(rand.NewPCG(11, 12))
		var tr IDTracker
		next := c.peer()
		var now time.Duration
		refused := 0
		for range 50000 {
			gap, id := next(r)
			now += gap
			if r.IntN(500) == 0 { // far more than a wire can do: Recover lets 2^-16 of the damaged ones here
				tr.Accept(now, uint16(r.Uint32()))
			}
			if !tr.Accept(now, id) {
				refused++
			}
		}
		if refused > 20 {
			t.Errorf("%s: %d of 50000 good packets refused", c.name, refused)
		}
	}
}

// A peer that changes its pattern is followed after one or two refusals: another
// stack on the same address, a counter that jumped.
func TestIDTrackerFollows(t *testing.T) {
	for _, from := range idPeers {
		for _, to := range idPeers {
			r := rand.New(rand.NewPCG(13, 14))
			var tr IDTracker
			var now time.Duration
			next := from.peer()
			for range 1000 {
				gap, id := next(r)
				now += gap
				tr.Accept(now, id)
			}
			next = to.peer()
			refused := 0
			for n := range 3000 {
				gap, id := next(r)
				now += gap
				if !tr.Accept(now, id) {
					if refused++; n > 600 {
						t.Errorf("from %q to %q: still refusing at packet %d", from.name, to.name, n)
						break
					}
				}
			}
			if refused > 5 {
				t.Errorf("from %q to %q: %d refusals", from.name, to.name, refused)
			}
		}
	}
}

// No sender is locked out, however little its IDs make sense.
func TestIDTrackerNeverLocksOut(t *testing.T) {
	for name, peer := range map[string]func(n int, r *rand.Rand) uint16{
		"random IDs":             func(_ int, r *rand.Rand) uint16 { return uint16(r.Uint32()) },
		"constant":               func(int, *rand.Rand) uint16 { return 54321 },
		"two counters in turn":   func(n int, _ *rand.Rand) uint16 { return uint16(n/2 + n%2*30000) },
		"three counters mixed":   func(n int, r *rand.Rand) uint16 { return uint16(n/3 + r.IntN(3)*20000) },
		"backwards":              func(n int, _ *rand.Rand) uint16 { return uint16(-n * 100) },
		"little-endian counter":  func(n int, _ *rand.Rand) uint16 { return uint16(n<<8 | n>>8&255) },
		"fast counter":           func(n int, r *rand.Rand) uint16 { return uint16(n*2000 + r.IntN(2000)) },
		"zeros, one counter":     func(n int, _ *rand.Rand) uint16 { return uint16(n % 2 * (n + 1000)) },
		"zeros, then random IDs": func(n int, r *rand.Rand) uint16 { return uint16(r.Uint32() * uint32(n/1000)) },
	} {
		r := rand.New(rand.NewPCG(15, 16))
		var tr IDTracker
		var now time.Duration
		refused, row, longest := 0, 0, 0
		for n := range 20000 {
			now += 20 * time.Microsecond
			if tr.Accept(now, peer(n, r)) {
				row = 0
				continue
			}
			refused++
			row++
			longest = max(longest, row)
		}
		if longest > idMaxStrikes/idStrike || refused > 200 {
			t.Errorf("%s: %d of 20000 refused, %d in a row", name, refused, longest)
		}
	}
}

// After 10 s of silence the tracker learns anew: the first packet of a restarted
// peer is accepted.
func TestIDTrackerSilence(t *testing.T) {
	var tr IDTracker
	now := time.Hour
	for range 100 {
		now += time.Millisecond
		tr.Accept(now, 0)
	}
	before := tr
	if before.Accept(now+idSilence, 40000) {
		t.Error("an ID without pattern passes after 10 s")
	}
	if !tr.Accept(now+idSilence+1, 40000) {
		t.Error("refused after more than 10 s of silence")
	}
}

// learnt returns a tracker that has seen n packets, a microsecond apart, with the
// IDs that id gives, and the time of the last one.
func learnt(t *testing.T, n int, id func(i int) uint16) (tr IDTracker, now time.Duration) {
	t.Helper()
	now = time.Hour
	for i := range n {
		now += time.Microsecond
		if !tr.Accept(now, id(i)) {
			t.Fatalf("packet %d refused while learning", i)
		}
	}
	return tr, now
}

func counterFrom(start int) func(i int) uint16 {
	return func(i int) uint16 { return uint16(start + i) }
}

// Time that stands still or runs backwards is a gap of 0.
func TestIDTrackerClock(t *testing.T) {
	tr, now := learnt(t, 100, counterFrom(30000))
	for n := range 1000 {
		now -= time.Second
		if !tr.Accept(now, uint16(n+30100)) {
			t.Fatalf("packet %d refused", n)
		}
	}
	if tr.Accept(now-time.Second, 50000) {
		t.Error("a made-up ID passes")
	}
}

// One damaged packet among those that the tracker learns from does not spoil the
// pattern.
func TestIDTrackerLearnsAmongDamage(t *testing.T) {
	for name, id := range map[string]func(int) uint16{
		"counter":  counterFrom(30000),
		"segments": func(i int) uint16 { return uint16(i * 20 % 128) },
	} {
		for bad := range idFirstGoal {
			packets := idFirstGoal
			if bad == 0 { // the first good one is no step either
				packets += idNextGoal
			}
			tr, now := learnt(t, packets, func(i int) uint16 {
				if i == bad {
					return 50000
				}
				return id(i)
			})
			if !tr.Accept(now, id(packets)) {
				t.Errorf("%s, packet %d damaged: the next is refused", name, bad)
			}
			if tr.Accept(now, 20000) {
				t.Errorf("%s, packet %d damaged: no pattern learnt", name, bad)
			}
		}
	}
}

// A counter that jumps while it is learnt is a counter all the same.
func TestIDTrackerLearnsAcrossJump(t *testing.T) {
	tr, now := learnt(t, idFirstGoal+idNextGoal, func(i int) uint16 {
		if i < idFirstGoal {
			return uint16(i * 7777) // no pattern: the next 32 are learnt from
		}
		return uint16(1000 + i + i/20*30000)
	})
	if next := uint16(31000 + idFirstGoal + idNextGoal); !tr.Accept(now, next) || tr.Accept(now, 20000) {
		t.Errorf("the counter is not followed: %+v", tr)
	}
}

// An ID that comes twice shows that 0 to 127 are segments, not a counter's start.
func TestIDTrackerSegmentsAreNoCounter(t *testing.T) {
	tr, now := learnt(t, 40, func(i int) uint16 { return uint16(max(i-3, 0)) })
	if tr.Accept(now, 150) {
		t.Error("ID 150 accepted after segments up to 36")
	}
	if !tr.Accept(now, 0) || !tr.Accept(now, 127) {
		t.Error("a segment is refused")
	}
}

// A counter that began below 128 is a counter from 128 on: packets that overtake
// are accepted, small IDs are not.
func TestIDTrackerCounterFromZero(t *testing.T) {
	tr, now := learnt(t, 300, counterFrom(0))
	for _, id := range []uint16{302, 301, 305, 303, 310} {
		if !tr.Accept(now, id) {
			t.Errorf("ID %d refused", id)
		}
	}
	if tr.Accept(now, 3) {
		t.Error("ID 3 accepted from a counter at 310")
	}
}

// A jump of the counter costs exactly one packet and widens the window; after a
// long time without jumps the window is narrow again.
func TestIDTrackerJump(t *testing.T) {
	tr, now := learnt(t, 100, counterFrom(30000))
	id := uint16(30100)
	passes := func(step uint16) bool { // on a copy
		c := tr
		return c.Accept(now, id+step)
	}
	if !passes(idWindow-1) || passes(idWindow+100) {
		t.Fatal("the window is not as wide as said")
	}
	for range 3 {
		id += 5000
		for i := range 10 {
			id++
			if got := tr.Accept(now, id); got != (i > 0) {
				t.Fatalf("packet %d after the jump: accepted %v", i, got)
			}
		}
	}
	if !passes(idWindow*7) || passes(idWindow*9) {
		t.Error("three jumps have not made the window eight times as wide")
	}
	for range 3 * idQuiet {
		id++
		tr.Accept(now, id)
	}
	if passes(idWindow + 100) {
		t.Error("the window has stayed wide")
	}
}

// Two refused IDs make a new pattern only when they are not far apart in time.
func TestIDTrackerForgetsCandidate(t *testing.T) {
	for gap, want := range map[time.Duration]bool{time.Second: true, idSilence + time.Second: false} {
		tr, now := learnt(t, 100, func(int) uint16 { return 0 })
		if tr.Accept(now, 40000) {
			t.Fatal("40000 accepted among zeros")
		}
		for end := now + gap; now < end; now += 10 * time.Millisecond {
			if !tr.Accept(now, 0) {
				t.Fatal("0 refused")
			}
		}
		if tr.Accept(now, 40001) != want {
			t.Errorf("%v later 40001: accepted %v", gap, !want)
		}
	}
}

// Likely is the next ID of a counter, and that of the segment otherwise.
func TestIDTrackerLikely(t *testing.T) {
	for _, c := range []struct {
		name string
		run  int // packets of a datagram
		id   func(n int) uint16
	}{
		{"always 0", 1, func(int) uint16 { return 0 }},
		{"runs", 15, func(n int) uint16 { return uint16(n % 15) }},
		{"counter", 1, func(n int) uint16 { return uint16(65500 + n) }},
	} {
		var tracker IDTracker
		right := 0
		for n := range 1000 {
			if tracker.Likely(uint16(n%c.run)) == c.id(n) {
				right++
			}
			tracker.Accept(time.Duration(n)*time.Microsecond, c.id(n))
		}
		if right < 1000-idFirstGoal {
			t.Errorf("%s: %d of 1000 IDs were likely", c.name, right)
		}
	}
}
