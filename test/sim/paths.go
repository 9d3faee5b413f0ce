package sim

import (
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// Programs of some connections arm, migrate on request and disarm, at any time, and
// now and then the path in use of both ends is cut, when both are armed. Requests of
// RC and XRC survive that, and those of UC fare no worse than others.

// altPort is the first source port of second paths, one for each side.
const altPort = 0xc000

// roam does something about the paths of a connection of the side, once in a while.
// Only one of its ends is asked.
func (s *side) roam() bool {
	p := s.peer
	if !s.roams || s.num > p.num || s.done() && p.done() || s.drain != running || p.drain != running || s.w.rng.IntN(16) > 0 {
		return false
	}
	a, _ := s.qp.Query()
	b, _ := p.qp.Query()
	one, other := s, a.PathMigState
	if s.w.rng.IntN(2) == 0 {
		one, other = p, b.PathMigState
	}
	switch both := a.PathMigState == b.PathMigState; {
	case both && other == roce.MigMigrated:
		s.cut, p.cut = false, false
		s.arm()
		p.arm()
	case both && other == roce.MigArmed && !s.lossy() && s.w.rng.IntN(2) == 0:
		s.cut, s.cutPort = true, port(a.AV.SourcePort)
		p.cut, p.cutPort = true, port(b.AV.SourcePort)
	case other == roce.MigArmed, !both && other == roce.MigRearm && min(a.PathMigState, b.PathMigState) == roce.MigMigrated:
		// An end that waits for a peer that has left is told by nobody but its program.
		if err := one.qp.Migrate(); err != nil {
			s.w.fail("%v: migrate: %v", one, err)
		}
	default:
		return false
	}
	return true
}

// arm loads the path that is not in use.
func (s *side) arm() {
	a, _ := s.qp.Query()
	alt := roce.Alternate{AckTimeout: max(time.Duration(1+s.w.rng.IntN(4))*time.Millisecond, s.w.cfg.timer().Duration())}
	if a.AV.SourcePort == 0 {
		alt.SourcePort = altPort + uint16(s.num%1000)
	}
	if err := s.qp.Arm(alt); err != nil {
		s.w.fail("%v: arm: %v", s, err)
	}
}

// port is the source port that packets have: 0 is the device's.
func port(p uint16) uint16 {
	if p == 0 {
		return netio.Port
	}
	return p
}
