package transport

import (
	"time"

	"github.com/goroce/goroce/transport/cc"
)

const (
	// paceBurst is how much of its rate a queue pair sends at once: more would
	// arrive at a slow link as one burst. With 200 us two of 100 Gb/s fill RED's queue
	// by themselves, and are not fair (TestCongested).
	paceBurst = 50 * time.Microsecond
	// paceRun is what it waits for when it has none left, so that a run of packets
	// leaves with one system call and not each by itself.
	paceRun = paceBurst / 2
	// paceLook is the longest wait: the rate may have grown.
	paceLook = time.Millisecond
	// paceLate bounds what a late timer makes up for.
	paceLate = 2 * time.Millisecond
	// paceIdle is the pause in which there was nothing to send or to wait for, and after
	// which nothing is known of the network any more.
	paceIdle = 10 * time.Millisecond
	// paceSpan stands for the round trip time while that is not known.
	paceSpan = time.Millisecond
	// paceFull is more than any bucket holds.
	paceFull = 1e18

	// Rates beyond these are none.
	paceLeast = cc.Mbps / 1000
	paceMost  = 10_000 * cc.Gbps
)

// pacer keeps a queue pair to the rate of its controller: a token bucket as deep as
// the timers are late. Requests, READ responses and the answers to atomics go
// through it; acknowledgements and CNPs do not. A nil pacer lets everything pass.
type pacer struct {
	ctl    cc.Controller
	credit float64       // bytes that may be sent now; below 0: what was sent too much
	at     time.Duration // when that was right
	speed  float64       // bytes per nanosecond
	burst  int64         // bytes of a burst, 0 without limit
	held   bool          // nothing may be sent ...
	due    time.Duration // ... before then
	late   time.Duration // how late that was noticed of late
	busy   time.Duration // when something was sent, or was to be
	bytes  int           // sent in this turn, IP and UDP headers included
	size   int           // ... of the packet being written
	got    meter
	span   time.Duration // of got: the round trip time

	// traced is told of changes of the rate, if there is somebody to tell.
	traced func(now time.Duration, why string, s cc.State)
	told   cc.State
}

// meter measures what is sent, over one to two spans of time.
type meter struct {
	from, before time.Duration // when the present span began, and the one before
	n, last      int64         // bytes in them
}

func (m *meter) roll(now, span time.Duration) {
	switch past := now - m.from; {
	case past < span:
		return
	case past < 2*span:
		m.before, m.last = m.from, m.n
	default:
		m.before, m.last = now, 0
	}
	m.from, m.n = now, 0
}

func (m *meter) rate(now, span time.Duration) cc.Rate {
	m.roll(now, span)
	return cc.Rate(float64(m.last+m.n) * 8 / max(now-m.before, span).Seconds())
}

// paced returns the pacer, which is made when the queue pair first sends or hears of
// congestion: one that is idle stays small.
func (q *QP) paced(now time.Duration) *pacer {
	if q.pace == nil && q.cfg.Congestion != nil {
		ctl, err := q.cfg.Congestion.New()
		if err != nil || ctl == nil {
			q.cfg.Congestion = nil
			return nil
		}
		q.pace = &pacer{ctl: ctl, traced: q.cfg.Traced}
		q.pace.start(now)
	}
	return q.pace
}

// start forgets everything, on a new connection or path.
func (p *pacer) start(now time.Duration) {
	if p != nil {
		*p = pacer{ctl: p.ctl, traced: p.traced, at: now, busy: now, span: paceSpan, credit: paceFull}
		p.signal(now, cc.Signal{Kind: cc.Start})
	}
}

// allow returns how many bytes of budget may be sent now. At 0 the queue pair is held.
// One that waits for acknowledgements is not idle, however late they are.
func (p *pacer) allow(now time.Duration, budget int, waiting bool) int {
	if p == nil {
		return budget
	}
	p.bytes = 0
	if !waiting && now-p.busy > paceIdle {
		p.signal(now, cc.Signal{Kind: cc.Start})
	}
	p.busy = now
	rate := p.ctl.Rate(now)
	p.trace(now, "increase")
	past := now - p.at
	p.at, p.held = now, false
	switch {
	case rate > paceMost:
		p.credit, p.burst = 0, 0
		return budget
	case !(rate >= paceLeast): // nor is it a number, maybe
		rate = paceLeast
	}
	p.speed = float64(rate) / 8e9
	p.burst = max(1, int64(p.speed*float64(paceBurst)))
	depth := p.speed * float64(max(paceBurst, paceRun+p.late))
	if p.credit = min(p.credit+p.speed*float64(past), depth); p.credit <= 0 {
		p.hold(now)
		return 0
	}
	return int(max(1, min(int64(budget), p.burst, int64(p.credit))))
}

// sent takes note of what left in this turn.
func (p *pacer) sent(now time.Duration) {
	if p == nil || p.bytes == 0 {
		return
	}
	n := p.bytes
	p.got.roll(now, p.span)
	p.got.n += int64(n)
	p.ctl.Sent(now, n)
	if p.burst == 0 {
		return
	}
	if p.credit -= float64(n); p.credit <= 0 {
		p.hold(now)
	}
}

// hold lets nothing leave until there is credit for a run.
func (p *pacer) hold(now time.Duration) {
	p.held, p.due = true, now+min(paceRun+time.Duration(-p.credit/p.speed), paceLook)
}

// asks says whether n bytes without a request for an acknowledgement are too many: a
// queue pair that sends a little at a time would wait long for the next one, and take
// what it sent for lost.
func (p *pacer) asks(n uint64) bool { return p != nil && p.burst > 0 && n >= uint64(p.burst) }

// heard takes note of an acknowledgement; of the round trip time, if that was
// measured.
func (p *pacer) heard(now time.Duration, t *rtt) {
	if p == nil {
		return
	}
	if p.busy = now; !t.fresh {
		return
	}
	t.fresh = false
	p.span = min(max(t.smooth, paceBurst), 100*paceSpan)
	p.signal(now, cc.Signal{Kind: cc.Ack, RTT: t.latest, Least: t.least})
}

// signal tells the controller.
func (p *pacer) signal(now time.Duration, s cc.Signal) {
	if p == nil {
		return
	}
	p.busy = now
	s.Delivered = p.got.rate(now, p.span)
	p.ctl.Signal(now, s)
	p.trace(now, s.Kind.String())
}

// trace tells of a rate that has changed.
func (p *pacer) trace(now time.Duration, why string) {
	if p.traced == nil {
		return
	}
	if s := p.ctl.State(); s != p.told {
		p.told = s
		p.traced(now, why, s)
	}
}

// holds says whether nothing may be sent for now.
func (p *pacer) holds() bool { return p != nil && p.held }

// deadline is when a queue pair that is held goes on.
func (p *pacer) deadline() time.Duration {
	if p.holds() {
		return p.due
	}
	return Never
}

// expire lets it go on, if that is due.
func (p *pacer) expire(now time.Duration) {
	if p.holds() && now >= p.due {
		p.held = false
		p.late = min(max(now-p.due, p.late-p.late/16), paceLate)
	}
}
