package transport

import "testing"

// The window after each of a series of events on a path that seems to hold a queue
// (RFC 5681: slow start, congestion avoidance, multiplicative decrease; one decrease per
// flight), then on one that does not: there losses change nothing, but for the first and
// one of nine, and where many are lost the window grows by an eighth per round trip. What
// the credit covers changes nothing anywhere.
func TestWindow(t *testing.T) {
	const full = 1024 + packetOverhead
	type event func(w *window)
	crowded := true
	grow := func(n uint64) event { return func(w *window) { w.grow(n, crowded) } }
	lost := func(una, top uint64) event { return func(w *window) { w.lost(1<<20, una, top, crowded) } }
	few := func(n, una, top uint64) event { return func(w *window) { w.lost(n, una, top, crowded) } }
	silent := func(top uint64) event { return func(w *window) { w.silent(top) } }
	var pardoned event = func(w *window) {
		for range pardons {
			w.credit = 0
			w.lost(full, w.recov, w.recov+1, false)
		}
	}
	steps := []struct {
		what string
		do   event
		want uint64
	}{
		{"grows by what is acknowledged", grow(1000), startWindow + 1000},
		{"halves", lost(100, 200), (startWindow + 1000) / 2},
		{"once per flight", lost(199, 250), (startWindow + 1000) / 2},
		{"then grows by a packet", grow((startWindow+1000)/2 - 1), (startWindow + 1000) / 2},
		{"per window", grow(1), (startWindow+1000)/2 + full},
		{"halves for the next flight", lost(200, 300), ((startWindow+1000)/2 + full) / 2},
		{"shrinks to four packets", silent(400), 4 * full},
		{"and doubles", grow(4 * full), 8 * full},
		{"a loss of the flight that timed out changes nothing", lost(399, 500), 8 * full},
		{"past half of what it was it grows by packets", grow(8*full - 1), 8 * full},
		{"per window again", grow(1), 9 * full},
		{"a 32nd of what is acknowledged may be lost", few(full/4, 500, 600), 9 * full},
		{"not more", few(full/4, 500, 600), 9 * full / 2},
		{"no credit is left for the next flight", few(1, 600, 700), 4 * full},
		{"without a queue, and little lost of late, it grows by packets", func(w *window) { crowded, w.hurt = false, 0; w.grow(4*full, crowded) }, 5 * full},
		{"by an eighth where more is lost than earns credit", func(w *window) { w.hurt = 20 * full; w.grow(40*full, crowded) }, 10 * full},
		{"eight losses change nothing", pardoned, 10 * full},
		{"the next halves, but leaves a dozen packets", few(full, 900, 901), 10 * full},
		{"of a large one as well", grow(160 * full), 30 * full},
		{"... after eight", pardoned, 30 * full},
		{"it halves", few(full, 1000, 1001), 15 * full},
		{"once in nine times", few(full, 1001, 1002), 15 * full},
		{"to twelve packets at the least", func(w *window) { w.spare = 0; w.lost(full, 1002, 1003, false) }, 12 * full},
		{"with a queue", func(*window) { crowded = true }, 12 * full},
		{"each halves", few(full, 1100, 1101), 6 * full},
		{"... to four", few(full, 1101, 1102), 4 * full},
	}
	var w window
	w.reset(1024, 100_000, 50)
	w.kin = true
	for _, s := range steps {
		if s.do(&w); w.size != s.want {
			t.Errorf("%s: %d, want %d", s.what, w.size, s.want)
		}
	}
	// What is lost whatever the window is leaves a dozen packets of it, less with a queue
	// or when an eighth is lost or more; to a peer that is not our kin each loss counts.
	for _, c := range []struct {
		kin, crowded bool
		each         uint64 // one of so many packets is lost
		want         uint64
	}{
		{true, false, 12, noisyPackets}, {true, true, 12, leastPackets}, {true, false, 5, leastPackets}, {false, false, 12, leastPackets},
	} {
		w.reset(1024, 1<<20, 0)
		w.kin = c.kin
		w.size = noisyPackets * full
		least := w.size
		for i := range uint64(5000) {
			if w.grow(min(full, w.hurt), c.crowded); i%c.each == 0 {
				w.lost(full, i, i, c.crowded)
				w.size, w.thresh, w.credit = min(w.size, noisyPackets*full), 0, 0
			}
			least = min(least, w.size)
		}
		if least != c.want*full {
			t.Errorf("%+v: %d packets", c, least/full)
		}
	}
	w.reset(1024, 100_000, 50)
	for i := range 100 {
		if w.grow(30_000, true); w.size > 100_000 || i > 0 && w.size != 100_000 {
			t.Errorf("grew to %d, the limit is 100000", w.size)
		}
	}
	for i := range uint64(20) {
		w.lost(1<<20, 1000*i+50, 1000*i+60, false)
	}
	if w.size != 4*full {
		t.Errorf("fell to %d", w.size)
	}
	for limit, want := range map[int]uint64{-1: 0, 5: 5, 1 << 40: startWindow} {
		if w.reset(256, limit, 0); w.size != want || w.max > maxWindow || w.min > w.max {
			t.Errorf("limit %d: %+v", limit, w)
		}
	}
}
