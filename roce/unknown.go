package roce

import (
	"context"
	"log/slog"
	"net/netip"
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
	logger   *slog.Logger
	interval time.Duration // between packets, in the long run; 0: none is looked at
	burst    time.Duration // how far full may lie ahead
	full     time.Duration // when everything allowed so far would have come evenly
	rx       inflow
	notices  []notice // to be told when the lock is released; never longer than its capacity
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

func newUnknown(logger *slog.Logger, rate int) unknown {
	u := unknown{logger: logger}
	if rate > 0 && logger.Enabled(context.Background(), slog.LevelWarn) {
		u.interval = time.Second / time.Duration(rate)
		u.burst = time.Second - u.interval
		u.notices = make([]notice, 0, 16)
	}
	return u
}

// allows reports whether one packet more may be looked at now.
func (u *unknown) allows(now time.Duration) bool {
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
	case u.interval == 0:
	case len(u.notices) == cap(u.notices) || !u.allows(now):
		e.count(unknownQPLimited)
	default:
		if _, ok := u.rx.sealed(src, r, segment, p); ok {
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
