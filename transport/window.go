package transport

// A packet is charged to the window with its payload and packetOverhead: IP, UDP
// and base headers, RETH and ICRC; and with minCharge at least, because a
// receiver's socket buffer pays for a small packet as for a larger one.
const (
	packetOverhead = 20 + 8 + 12 + 16 + 4
	minCharge      = 256
	startWindow    = 64 << 10
	defaultWindow  = 1 << 20
	maxWindow      = 1 << 30 // at minCharge a quarter of the PSN space (IBTA 9.7.1 allows half)

	lossShare   = 32 // of so many bytes acknowledged one may be lost
	creditShare = 8  // the credit is at most this share of the window
)

// charge is what a packet with n bytes of payload costs.
func charge(n uint32) uint64 { return max(uint64(n)+packetOverhead, minCharge) }

// window limits the bytes in flight. Nothing on the wire says how much the
// peer's socket or the path can hold, so it starts modestly, doubles with each
// round trip until the first loss, then grows by one packet with each; a loss
// halves it, a timeout shrinks it to its minimum (as TCP does, RFC 5681).
//
// Unlike TCP it takes a few losses for what any network does now and then and no
// queue has to do with: what is acknowledged earns credit for a 32nd of it, and a
// loss that the credit covers changes nothing. A queue that overflows loses more: it
// uses the credit up, and settles where its flows lose about that share.
type window struct {
	size   uint64 // bytes that may be in flight; one packet always may
	thresh uint64 // below it size doubles per round trip
	min    uint64
	max    uint64
	step   uint64 // one full packet
	acked  uint64 // acknowledged since the last step
	recov  uint64 // sequence number: losses before it are one event with the last
	credit uint64 // bytes that may be lost without a meaning
}

func (w *window) reset(mtu uint32, limit int, seq uint64) {
	step := charge(mtu)
	high := min(uint64(max(limit, 0)), maxWindow)
	*w = window{
		size:   min(startWindow, high),
		thresh: high,
		min:    min(4*step, high),
		max:    high,
		step:   step,
		recov:  seq,
	}
}

// grow takes note of n bytes acknowledged.
func (w *window) grow(n uint64) {
	w.credit = max(w.credit, min(w.credit+n/lossShare, w.size/creditShare))
	if w.size < w.thresh {
		w.size = min(w.size+n, w.max)
		return
	}
	if w.acked += n; w.acked >= w.size {
		w.acked = 0
		w.size = min(w.size+w.step, w.max)
	}
}

// lost takes note that n bytes were lost at una while everything before top was
// sent.
func (w *window) lost(n, una, top uint64) {
	switch {
	case w.credit >= n:
		w.credit -= n
	case una >= w.recov:
		w.recov, w.credit = top, 0
		w.size = max(w.size/2, w.min)
		w.thresh, w.acked = w.size, 0
	}
}

// restore takes a loss back that was none.
func (w *window) restore(before *window) {
	w.size, w.thresh, w.credit = max(w.size, before.size), max(w.thresh, before.thresh), max(w.credit, before.credit)
}

// silent takes note of a timeout.
func (w *window) silent(top uint64) {
	w.recov = top
	w.thresh = max(w.size/2, w.min)
	w.size, w.acked = w.min, 0
}
