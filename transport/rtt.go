package transport

import "time"

// minProbe is the shortest time after which a silent peer is probed: what a busy
// host or the timers of Linux (a tick of 1 or 4 ms, which rxe waits for now and
// then) delay is not taken for a loss each time.
const minProbe = time.Millisecond

// kinProbe is the same for a peer of this package, which has no such timers and says
// when a probe was in vain.
const kinProbe = 250 * time.Microsecond

// mostDecay: with each sample most comes a 32nd of the way down to the mean.
const mostDecay = 32

// rtt estimates how long the peer takes to acknowledge (RFC 6298, section 2), and
// with it when silence means that the last packets were lost.
type rtt struct {
	smooth, dev time.Duration // SRTT and RTTVAR, with a first sample
	least, most time.Duration // most is of late: it comes down to smooth
	known       bool
	latest      time.Duration
	when        time.Duration // ... was measured
	fresh       bool          // the controller does not know latest
	probes      int           // since the last sample

	seq  uint64 // the packet that is timed, 0 for none
	at   time.Duration
	calm bool   // nothing older was missing when it was sent
	done uint64 // bytes that had been delivered then

	path uint64 // bytes that the path holds without a queue, as seen of late
}

// start times packet seq, sent for the first time when done bytes were delivered, unless
// another is.
func (t *rtt) start(now time.Duration, seq uint64, calm bool, done uint64) {
	if t.seq == 0 {
		t.seq, t.at, t.calm, t.done = seq, now, calm, done
	}
}

// again says that packets from seq on are sent again: whose answer comes then cannot
// be known (Karn's rule, RFC 6298, section 3).
func (t *rtt) again(seq uint64) {
	if t.seq >= seq {
		t.seq = 0
	}
}

// gap says that packets from one on are going to be sent again: what is timed behind it
// counts only by its own answer then.
func (t *rtt) gap(from uint64) { t.calm = t.calm && t.seq < from }

// repeated says that the packets from one up to another were sent again.
func (t *rtt) repeated(from, to uint64) {
	if from <= t.seq && t.seq < to {
		t.seq = 0
	}
}

// arrived says that seq itself was answered.
func (t *rtt) arrived(now time.Duration, seq, done uint64) {
	if t.seq == seq && seq != 0 {
		t.sample(now, now-t.at, done)
	}
}

// passed says that everything before una was acknowledged. What had to wait for
// something older tells nothing.
func (t *rtt) passed(now time.Duration, una, done uint64) {
	switch {
	case t.seq == 0 || una <= t.seq:
	case t.calm:
		t.sample(now, now-t.at, done)
	default:
		t.seq = 0
	}
}

func (t *rtt) sample(now, d time.Duration, done uint64) {
	t.seq, t.probes, t.latest, t.when, t.fresh = 0, 0, d, now, true
	if !t.known {
		t.known, t.smooth, t.dev, t.least, t.most = true, d, d/2, d, d
		return
	}
	t.dev += ((t.smooth - d).Abs() - t.dev) / 4
	t.smooth += (d - t.smooth) / 8
	t.least = min(t.least, d)
	t.most = max(d, t.most-(t.most-t.smooth)/mostDecay)
	// What was delivered meanwhile, in the least time there has been.
	t.path = max(uint64(float64(done-min(done, t.done))*float64(t.least)/float64(max(d, 1))), t.path-t.path/8)
}

// crowded says whether packets seem to wait in a queue on the way: the last sample is
// nearer to the longest of late than to the least ever, and exceeds that by a tenth. So it
// seems as well while nothing is known, or nothing of the last two round trips.
func (t *rtt) crowded(now time.Duration) bool {
	const stale = 2
	if !t.known || now-t.when > stale*t.smooth {
		return true
	}
	return t.latest > t.least+max((t.most-t.least)/2, t.least/10)
}

// patience is how long to wait for an acknowledgement before a probe, at least for a
// while; Never while nothing is known of the peer.
func (t *rtt) patience(least time.Duration) time.Duration {
	if !t.known {
		return Never
	}
	return max(t.smooth+4*t.dev, least) << t.backOff()
}

// backOff is how often the time is doubled (RFC 6298, section 5.5): with each probe, but
// for a while not more than twice. Where a queue is kept full by others, waiting longer
// each time would be left with nothing of it; a peer that is not there hears few more.
func (t *rtt) backOff() int {
	const calm, while, most = 2, 16, 16
	if t.probes < while {
		return min(t.probes, calm)
	}
	return min(t.probes-while+calm+1, most)
}
