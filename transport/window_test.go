package transport

import "testing"

// The window after each of a series of events (RFC 5681: slow start, congestion
// avoidance, multiplicative decrease; one decrease per flight).
func TestWindow(t *testing.T) {
	const full = 1024 + packetOverhead
	type event func(w *window)
	grow := func(n uint64) event { return func(w *window) { w.grow(n) } }
	lost := func(una, top uint64) event { return func(w *window) { w.lost(1<<20, una, top) } }
	few := func(n, una, top uint64) event { return func(w *window) { w.lost(n, una, top) } }
	silent := func(top uint64) event { return func(w *window) { w.silent(top) } }
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
	}
	var w window
	w.reset(1024, 100_000, 50)
	w.widen()
	for _, s := range steps {
		if s.do(&w); w.size != s.want {
			t.Errorf("%s: %d, want %d", s.what, w.size, s.want)
		}
	}
	// What is lost whatever the window is leaves a dozen packets of it, more than an
	// eighth less; to a peer that is not our kin each loss counts.
	for _, c := range []struct {
		kin  bool
		each uint64 // one of so many packets is lost
		want uint64
	}{{true, 12, noisyPackets}, {true, 5, leastPackets}, {false, 12, leastPackets}} {
		w.reset(1024, 1<<20, 0)
		if c.kin {
			w.widen()
		}
		least := w.size
		for i := range uint64(5000) {
			if w.grow(full); i%c.each == 0 {
				w.lost(full, i, i)
			}
			least = min(least, w.size)
		}
		if least != c.want*full {
			t.Errorf("kin %v, one of %d lost: %d packets, want %d", c.kin, c.each, least/full, c.want)
		}
	}
	if w.max != standardWindow {
		t.Errorf("%d bytes at most to a peer that is not our kin", w.max)
	}
	w.reset(1024, 100_000, 50)
	for i := range 100 {
		if w.grow(30_000); w.size > 100_000 || i > 0 && w.size != 100_000 {
			t.Errorf("grew to %d, the limit is 100000", w.size)
		}
	}
	for i := range uint64(20) {
		w.lost(1<<20, 1000*i+50, 1000*i+60)
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
