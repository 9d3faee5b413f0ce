package mem

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// visible runs copies of length n into memory at address at modulo 8,
// cut into the given number of segments, while another goroutine polls the end
// with poll and, once it shows the round, compares every byte. ordered says that
// poll is an atomic load, which orders other memory as well.
func visible(t *testing.T, at, n, segments int, ordered bool, poll func(mem []byte) byte) {
	t.Helper()
	rounds := 2000
	if raceEnabled {
		rounds = 300
	}
	tab := NewTable(seeded(1))
	buf := aligned(n, at)
	r := register(t, tab, buf, 1, LocalWrite, 0x1000)
	var sges []SGE
	for i := range segments {
		from, to := i*n/segments, (i+1)*n/segments
		sges = append(sges, SGE{0x1000 + uint64(from), uint32(to - from), r.Key()})
	}
	var c Cursor
	if s := c.Local(tab, 1, sges, LocalWrite); s != OK {
		t.Fatal(s)
	}
	var seen atomic.Uint32 // the last round that the reader has checked
	failed := make(chan int, 1)
	note := 0 // plain: ordered by the atomic store alone, as the race detector checks
	go func() {
		defer close(failed)
		for round := 1; round <= rounds; round++ {
			want := byte(round)
			for poll(buf) != want {
				runtime.Gosched()
			}
			if ordered && note != round {
				t.Errorf("round %d seen, but not what was written before it: %d", round, note)
			}
			for i := range buf {
				if buf[i] != want {
					failed <- i
					seen.Store(1 << 31)
					return
				}
			}
			seen.Store(uint32(round))
		}
	}()
	src := make([]byte, n)
	for round := 1; round <= rounds; round++ {
		for i := range src {
			src[i] = byte(round)
		}
		if ordered {
			note = round
		}
		if s := c.CopyIn(0, src); s != OK {
			t.Error(s)
		}
		for start := time.Now(); seen.Load() < uint32(round); runtime.Gosched() {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("at %d, %d bytes: end of round %d never became visible", at, n, round)
			}
		}
	}
	if i, bad := <-failed; bad {
		t.Errorf("at %d, %d bytes in %d segments: the end was visible before byte %d", at, n, segments, i)
	}
}

// Whoever sees the last aligned word of a copy, by sync/atomic, sees the rest:
// under the race detector too, which takes the plain reads as ordered.
func TestLastWordIsVisibleLast(t *testing.T) {
	last64 := func(b []byte) byte {
		return byte(atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[len(b)-8]))))
	}
	last32 := func(b []byte) byte {
		return byte(atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[len(b)-4]))))
	}
	for _, tt := range []struct {
		at, n, segments int
		poll            func([]byte) byte
	}{
		{0, 8, 1, last64},
		{0, 4096, 1, last64},
		{3, 1029, 1, last64},
		{0, 4096, 7, last64},
		{0, 64, 8, last64},
		{4, 4096, 1, last32},
		{1, 1027, 5, last32},
		{4, 4, 1, last32},
		{0, 1020, 1, last32},
	} {
		visible(t, tt.at, tt.n, tt.segments, true, tt.poll)
	}
}

// Programs poll the last byte, whatever the length (perftest's write latency
// does): it is stored last too when no aligned word ends there.
func TestLastByteIsVisibleLast(t *testing.T) {
	for _, tt := range []struct{ at, n, segments int }{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 1}, {0, 4095, 1}, {0, 4094, 1}, {1, 4096, 1}, {2, 4096, 3}, {5, 3, 3},
	} {
		visible(t, tt.at, tt.n, tt.segments, false, lastByte)
	}
}

//go:norace
//go:noinline
func lastByte(b []byte) byte { return b[len(b)-1] }

// A program may look at any word with atomics, and change it, while a peer
// writes or reads around it: no race is reported, and no word is torn.
func TestAtomicsBesideCopies(t *testing.T) {
	const n = 1024
	tab := NewTable(seeded(1))
	r := register(t, tab, aligned(n, 0), 1, LocalWrite|RemoteRead|RemoteWrite, 0x1000)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		var in, out Cursor
		in.Remote(tab, 1, r.Key(), 0x1000, n, RemoteWrite)
		out.Remote(tab, 1, r.Key(), 0x1000, n, RemoteRead)
		packet := make([]byte, n)
		for i := byte(0); !stop.Load(); i++ {
			if s := in.CopyIn(0, bytes.Repeat([]byte{i}, n/2)); s != OK {
				t.Error(s)
			}
			if s := out.CopyOut(packet, 0); s != OK {
				t.Error(s)
			}
			runtime.Gosched()
		}
	}()
	for i := range 20000 {
		off := i * 8 % n
		if off < n/2 {
			r.LoadUint64(off)
			continue
		}
		if sum := r.AddUint64(off, 1); sum != uint64(i/(n/8)+1) {
			t.Fatalf("word at %d is %d after %d additions", off, sum, i/(n/8)+1)
		}
	}
	stop.Store(true)
	<-done
}
