package roce

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// unknown tells an operator who sends packets to queue pairs that do not exist: a
// peer that has missed a restart, or one who guesses numbers. Such a packet is
// dropped unanswered in any case (IBTA 9.6.1); to be told of, its ICRC is checked
// first, so that noise is not. That is work which strangers ask for, so the rate of
// it is limited (Config.UnknownQPRate), and none is done when no logger listens.
type unknown struct {
	logger  *slog.Logger
	limit   *unknownLimit // nil: no packet is looked at
	rx      inflow
	notices []notice // to be told when the lock is released; never longer than its capacity
}

// unknownLimit is the rate of all engines of a port.
type unknownLimit struct {
	interval time.Duration // between packets, in the long run
	burst    time.Duration // how far full may lie ahead

	mu   sync.Mutex    // leaf
	full time.Duration // when everything allowed so far would have come evenly
}

// notice is one packet for a queue pair that does not exist.
type notice struct {
	src netip.AddrPort
	qpn ib.QPN
	op  ib.Opcode
}

// maxUnknownQPRate bounds Config.UnknownQPRate, which defaults to unknownQPRate.
const (
	unknownQPRate    = 10
	maxUnknownQPRate = 1000
)

// newUnknownLimit returns nil when nothing is to be looked at.
func newUnknownLimit(logger *slog.Logger, rate int) *unknownLimit {
	if rate <= 0 || !logger.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	interval := time.Second / time.Duration(rate)
	return &unknownLimit{interval: interval, burst: time.Second - interval}
}

func newUnknown(logger *slog.Logger, limit *unknownLimit) unknown {
	u := unknown{logger: logger, limit: limit}
	if limit != nil {
		u.notices = make([]notice, 0, 16)
	}
	return u
}

// allows reports whether one packet more may be looked at now.
func (u *unknownLimit) allows(now time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.full = max(u.full, now)
	if u.full-now > u.burst {
		return false
	}
	u.full += u.interval
	return true
}

// unknownQP takes a packet for a queue pair that does not exist. The lock is held.
func (e *engine) unknownQP(now time.Duration, src netip.AddrPort, r *netio.Received, segment int, p *ib.Packet) {
	e.count(dropUnknownQP)
	u := &e.unknown
	switch {
	case u.limit == nil:
	case len(u.notices) == cap(u.notices) || !u.limit.allows(now):
		e.count(unknownQPLimited)
	default:
		if _, ok := u.rx.sealed(src, r, segment, uint16(segment), p); ok {
			u.notices = append(u.notices, notice{src, p.DestQP(), p.Opcode()})
		}
	}
}

// take appends to list what is to be told, and forgets it. The lock is held.
func (u *unknown) take(list []notice) []notice {
	list = append(list[:0], u.notices...)
	u.notices = u.notices[:0]
	return list
}

// tell tells the logger, with no lock held.
func (u *unknown) tell(list []notice) {
	for _, n := range list {
		u.logger.Warn("packet for a queue pair that does not exist", "from", n.src, "qpn", uint32(n.qpn), "opcode", n.op)
	}
}
