package transport

import (
	"fmt"
	"net/netip"
	"time"
)

// This file is automatic path migration (IBTA 17.2.8): a connection has an
// alternate path besides its primary one, and both ends agree by one bit of the
// base header, MigReq, when they change over. Linux has it in
// drivers/infiniband/hw/hfi1/ruc.c (hfi1_ruc_check_hdr) and rc.c; rxe has not.
//
//	state     MigReq sent  leaves it
//	MIGRATED  1            to REARM, by Modify, when an alternate path is loaded
//	REARM     0            to ARMED, when the peer sends MigReq 0: it has rearmed, too;
//	                       to MIGRATED, by Modify, on the path that it has
//	ARMED     0            to MIGRATED, on the alternate path: by Modify, when the retries
//	                       on the primary path are exhausted, or when the peer sends
//	                       MigReq 1 from where the alternate path leads
//
// The two paths may lead to one address and differ in source port or traffic class.

// MigState is the path migration state of a queue pair, numbered as ibv_mig_state.
type MigState uint8

const (
	MigMigrated MigState = iota // on its path, with none to change to
	MigRearm                    // waits for the peer to be rearmed as well
	MigArmed                    // both ends are ready to change over
)

func (s MigState) String() string {
	switch s {
	case MigMigrated:
		return "MIGRATED"
	case MigRearm:
		return "REARM"
	case MigArmed:
		return "ARMED"
	}
	return fmt.Sprintf("MigState(%d)", uint8(s))
}

// alternate is the path that a queue pair may migrate to.
type alternate struct {
	path   Path
	loaded bool
	denied bool // EventPathMigErr was told since it was armed
}

// Peers returns the addresses that packets of the peer may come from: by the path
// in use, by the alternate one, by the one that was left last. Those that there are
// not are invalid.
func (q *QP) Peers() [3]netip.Addr { return [3]netip.Addr{q.path.Dst, q.alt.path.Dst, q.left} }

// checkMigration returns the field of a, selected by mask, that the state of path
// migration does not allow.
func (q *QP) checkMigration(a *Attr, mask AttrMask) (field, reason string) {
	if mask&MaskPathMigState != 0 && a.PathMigState == MigRearm && !q.alt.loaded && mask&MaskAltPath == 0 {
		return "PathMigState", "REARM needs an alternate path, and none is loaded since the queue pair migrated last"
	}
	return "", ""
}

// setMigration loads an alternate path and changes the state of path migration, as
// far as mask selects them.
func (q *QP) setMigration(now time.Duration, a *Attr, mask AttrMask) {
	if mask&MaskAltPath != 0 {
		q.alt.path, q.alt.loaded = q.ecn(a.AltAV.Path()), true
	}
	switch {
	case mask&MaskPathMigState == 0:
	case a.PathMigState == MigMigrated && q.attr.PathMigState == MigArmed:
		q.migrate(now)
	default:
		q.attr.PathMigState, q.alt.denied = a.PathMigState, false
	}
}

// migrate makes the alternate path the one in use. Another has to be loaded before
// the queue pair can be rearmed.
func (q *QP) migrate(now time.Duration) {
	a := &q.attr
	a.AV, a.Timeout, a.PKeyIndex, a.PortNum = a.AltAV, a.AltTimeout, a.AltPKeyIndex, a.AltPortNum
	a.AltAV, a.AltTimeout, a.AltPKeyIndex, a.AltPortNum = AddressVector{}, 0, 0, 0
	a.PathMigState = MigMigrated
	q.left = netip.Addr{}
	if q.path.Dst != q.alt.path.Dst {
		q.left = q.path.Dst
	}
	q.path, q.alt = q.alt.path, alternate{}
	q.snd.moved(now)
	q.pace.start(now)
	q.count(PathMigrations)
	q.event(EventPathMig)
}

// escape migrates a queue pair whose retries are exhausted, if it is armed.
func (q *QP) escape(now time.Duration) bool {
	if q.attr.PathMigState != MigArmed {
		return false
	}
	q.migrate(now)
	return true
}

// fromPeer says whether a packet comes from the peer (IBTA 9.6.1.2: the source of
// a connected service is its peer), by any of its paths. Datagrams come from anybody.
func (q *QP) fromPeer(in *Inbound) bool {
	src := in.Src.Unmap()
	return q.cfg.Type == UD || src == q.path.Dst || q.alt.loaded && src == q.alt.path.Dst || src == q.left
}

// migration acts on the MigReq bit of a packet from the peer that passed the other
// checks, and says whether it came by the path that it has to take (IBTA 9.6.1.5,
// 17.2.8; Linux hw/hfi1/ruc.c).
func (q *QP) migration(now time.Duration, in *Inbound) bool {
	src := in.Src.Unmap()
	if q.cfg.Type == UD {
		return true
	}
	if src == q.left {
		// The peer has not followed yet: what we answer will tell it. hfi1 drops
		// this, and one that migrated and has nothing to send would not be heard.
		return true
	}
	switch state := q.attr.PathMigState; {
	case state == MigArmed && in.MigReq() && src != q.alt.path.Dst:
		// IBTA 11.6.3.2: a request to migrate that is not accepted. Told once, as
		// each packet repeats it.
		if !q.alt.denied {
			q.alt.denied = true
			q.event(EventPathMigErr)
		}
		q.count(DropMigReq)
		return false
	case state == MigArmed && in.MigReq():
		q.migrate(now)
	case state == MigRearm && in.MigReq() && src != q.path.Dst:
		// The peer was armed and has left; what would have armed us may be lost on
		// the path that it left. hfi1 drops this, and the connection with it.
		q.migrate(now)
	case src != q.path.Dst:
		q.count(DropSource)
		return false
	case state == MigRearm && !in.MigReq():
		q.attr.PathMigState = MigArmed
	}
	q.left = netip.Addr{} // the peer is where we are
	return true
}
