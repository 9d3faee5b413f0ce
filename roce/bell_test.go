package roce

import (
	"runtime"
	"testing"
)

// A post is to be told of when the engine may have found nothing behind what there was
// before, and not when it has yet to come to that.
func TestSendRingFound(t *testing.T) {
	for _, c := range []struct {
		name                  string
		idle, first, produced uint32
		want                  bool
	}{
		{"nothing was there", 5, 5, 6, true},
		{"... before a list", 5, 5, 8, true},
		{"... when a part of the list was", 6, 5, 8, true},
		{"all was taken up meanwhile", 8, 5, 8, false},
		{"there is something before it", 4, 5, 6, false},
		{"nothing was posted", 5, 5, 5, false},
		{"around the end of the indices", 0xffffffff, 0xffffffff, 1, true},
		{"... with something before it", 0xfffffffe, 0xffffffff, 1, false},
	} {
		r := newSendRing(16, 1, 0)
		r.produced.Store(c.produced)
		r.idle.Store(c.idle)
		if got := r.found(c.first); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Of a poster and an engine at work at the same time neither waits for the other: what
// is not told of is found.
func TestSendRingBells(t *testing.T) {
	r, bell := newSendRing(8, 1, 0), make(chan struct{}, 1)
	const posts = 1_000_000
	go func() {
		for range posts {
			for !r.room() {
				runtime.Gosched()
			}
			first := r.produced.Load()
			r.publish()
			if r.found(first) {
				select {
				case bell <- struct{}{}:
				default: // it was rung, and not answered yet
				}
			}
		}
	}()
	for taken := uint32(0); taken < posts; {
		<-bell // or the test hangs
		for r.Posted(taken) {
			taken++
			r.Consume(taken)
		}
	}
}
