package transport

// A packet is charged to the window with its payload and packetOverhead: IP, UDP
// and base headers, RETH and ICRC; and with minCharge at least, because a
// receiver's socket buffer pays for a small packet as for a larger one.
const (
	packetOverhead = 20 + 8 + 12 + 16 + 4
	minCharge      = 256
	startWindow    = 64 << 10
	defaultWindow  = 1 << 20
	besideWindow   = 128 << 10 // that is always left beside one who waits for each request
	maxWindow      = 1 << 30   // at minCharge a quarter of the PSN space (IBTA 9.7.1 allows half)

	lossShare   = 32 // of so many bytes acknowledged one may be lost
	creditShare = 8  // the credit is at most this share of the window

	growShare = 8 // by this share the window grows in a round trip with losses and no queue
	pardons   = 8 // so many losses change nothing, then one does all the same

	leastPackets = 4   // that the window leaves
	noisyPackets = 12  // ... without a queue, while less than a noiseShare-th is lost
	noiseShare   = 8   //
	lossMemory   = 256 // packets over which that is averaged
)

// charge is what a packet with n bytes of payload costs.
func charge(n uint32) uint64 { return max(uint64(n)+packetOverhead, minCharge) }

// window limits the bytes in flight. Nothing on the wire says how much the
// peer's socket or the path can hold, so it starts modestly, doubles with each
// round trip until the first loss, then grows by one packet with each; a loss
// halves it, a timeout shrinks it to its minimum (as TCP does, RFC 5681).
//
// Of what is sent to our kin only what is lost has to be sent again, so the window takes
// losses for what any network does now and then and no queue has to do with. What is
// acknowledged earns credit for a 32nd of it, and a loss that the credit covers changes
// nothing. While round trip times show no queue, no loss does, and where more is lost
// than earns credit the window grows by an eighth per round trip; but the first loss
// halves it, and one now and then: who has never seen the path without the queue that
// others keep there knows only then that there is one. Where an eighth is lost, or more,
// each counts that the credit does not cover. Without a queue the window does not go
// below what it takes for news of a loss to come from behind it, and not by a probe.
type window struct {
	level
	min   uint64
	max   uint64
	step  uint64 // one full packet
	acked uint64 // acknowledged since the last step
	recov uint64 // sequence number: losses before it are one event with the last
	spare int    // losses that may change nothing
	kin   bool   // the peer is of our kin
}

// level is what a loss changes, and what is given back after one that was none.
type level struct {
	size   uint64 // bytes that may be in flight; one packet always may
	thresh uint64 // below it size doubles per round trip
	credit uint64 // bytes that may be lost without a meaning
	hurt   uint64 // bytes lost among the last lossMemory packets, on average
}

func (w *window) reset(mtu uint32, limit int, seq uint64) {
	step, high := charge(mtu), min(uint64(max(limit, 0)), maxWindow)
	*w = window{
		level: level{size: min(startWindow, high), thresh: high},
		min:   min(leastPackets*step, high),
		max:   high,
		step:  step,
		recov: seq,
	}
}

// grow takes note of n bytes acknowledged.
func (w *window) grow(n uint64, crowded bool) {
	if w.kin {
		w.credit = max(w.credit, min(w.credit+n/lossShare, w.size/creditShare))
		w.hurt -= min(w.hurt, w.hurt*n/(lossMemory*w.step))
	}
	switch {
	case w.size < w.thresh:
		w.size = min(w.size+n, w.max)
		return
	case w.kin && !crowded && w.hurt >= lossMemory*w.step/lossShare:
		w.size = min(w.size+n/growShare, w.max)
		return
	}
	if w.acked += n; w.acked >= w.size {
		w.acked = 0
		w.size = min(w.size+w.step, w.max)
	}
}

// lost takes note that n bytes were lost at una while everything before top was
// sent.
func (w *window) lost(n, una, top uint64, crowded bool) {
	w.hurt += n
	if w.credit >= n {
		w.credit -= n
		return
	}
	if una < w.recov {
		return
	}
	w.recov = top
	noise := w.kin && !crowded && w.hurt < lossMemory*w.step/noiseShare
	if noise && w.spare > 0 {
		w.spare--
		return
	}
	least := w.min
	if noise {
		least = min(noisyPackets*w.step, w.max)
	}
	w.size = max(w.size/2, min(w.size, least))
	w.thresh, w.credit, w.acked, w.spare = w.size, 0, 0, pardons
}

// restore takes a loss back that was none.
func (w *window) restore(before *level) {
	w.size, w.thresh, w.credit = max(w.size, before.size), max(w.thresh, before.thresh), max(w.credit, before.credit)
	w.hurt = min(w.hurt, before.hurt)
}

// silent takes note of a timeout.
func (w *window) silent(top uint64) {
	w.recov = top
	w.thresh = max(w.size/2, w.min)
	w.size, w.acked = w.min, 0
}
