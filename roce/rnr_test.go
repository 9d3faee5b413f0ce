package roce_test

import (
	"maps"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// rnrWatch is a backend that measures how long its device waits after each RNR NAK.
type rnrWatch struct {
	netio.Backend
	refused chan struct{}

	mu    sync.Mutex
	since time.Time // of the last RNR NAK, until a request is sent
	waits []time.Duration
}

func (r *rnrWatch) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := r.Backend.Recv(now, dst)
	for i := range dst[:n] {
		for k := range dst[i].Segments() {
			p, bad := ib.Parse(dst[i].Segment(k))
			if bad == ib.OK && p.Info().Op == ib.KindAck && p.AETH().Syndrome.Kind() == ib.SynRNR {
				r.mu.Lock()
				r.since = time.Now()
				r.mu.Unlock()
				r.refused <- struct{}{}
			}
		}
	}
	return n, err
}

func (r *rnrWatch) Send(now time.Duration, runs []netio.Run) (int, error) {
	r.mu.Lock()
	if len(runs) > 0 && !r.since.IsZero() {
		r.waits = append(r.waits, time.Since(r.since))
		r.since = time.Time{}
	}
	r.mu.Unlock()
	return r.Backend.Send(now, runs)
}

// rnrWaits lets a peer refuse messages and returns how long each was held back.
func rnrWaits(t *testing.T, timer time.Duration, rounds int) []time.Duration {
	watch := &rnrWatch{refused: make(chan struct{}, rounds)}
	a := rocetest.New(t, openUDP(t, "127.0.0.1", roce.Config{Wrap: func(be netio.Backend) netio.Backend {
		watch.Backend = be
		return watch
	}}), rocetest.Options{})
	b := rocetest.New(t, openUDP(t, "127.0.0.2", roce.Config{}), rocetest.Options{})
	defer a.Dev.Close()
	defer b.Dev.Close()
	rocetest.Connect(t, a, b, roce.Conn{MinRNRTimer: timer, RNRRetry: 7, AckTimeout: -1})
	for i := range uint64(rounds) {
		must(t, a.QP.PostSend(roce.SendWR{ID: i, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}}))
		<-watch.refused
		must(t, b.QP.PostRecv(roce.RecvWR{ID: i, SGE: []roce.SGE{b.MR.SGE(0, 8)}}))
		want(t, a.Next(t), i, roce.WCSend, roce.WCSuccess)
		want(t, b.Next(t), i, roce.WCRecv, roce.WCSuccess)
		for len(watch.refused) > 0 { // refused more than once: the receive came late
			<-watch.refused
		}
	}
	watch.mu.Lock()
	defer watch.mu.Unlock()
	return watch.waits
}

// TestRNRWait: over real sockets a requester waits as long as an RNR NAK asks for,
// never less (IBTA 9.7.5.2.8). How much more is printed with -v, by powers of two.
func TestRNRWait(t *testing.T) {
	const rounds = 30
	for _, code := range []ib.RNRTimer{8, 12, 16} { // 160 us, 640 us, 2.56 ms
		timer := code.Duration()
		waits := rnrWaits(t, timer, rounds)
		if len(waits) < rounds {
			t.Errorf("%v: %d waits of %d", timer, len(waits), rounds)
		}
		histogram := map[time.Duration]int{}
		for _, wait := range waits {
			if wait < timer {
				t.Errorf("%v: a wait was %v too short", timer, timer-wait)
			}
			late := max(wait-timer, 0) / time.Microsecond
			histogram[time.Microsecond<<bits.Len64(uint64(late))]++
		}
		for _, limit := range slices.Sorted(maps.Keys(histogram)) {
			t.Logf("%v: later by less than %v: %d", timer, limit, histogram[limit])
		}
	}
}
