package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// Limits of multicast, as Device.Query reports them.
const (
	maxMcastGrp = 256 // each is a socket
	maxMcastQP  = 256 // copies of a packet
)

// ErrNotAttached says that a queue pair is not attached to a group.
var ErrNotAttached = errors.New("roce: the queue pair is not attached to the group")

// groups are the multicast groups that queue pairs of an engine are attached to.
// The lock of the engine guards them.
type groups struct {
	qps map[netip.Addr][]*QP
	rx  inflow
}

// AttachMulticast makes a UD queue pair receive what is sent to a multicast group
// of the device's IP version (ibv_attach_mcast; the group's MGID is
// ib.GIDFromAddr(group)). The host joins the group on the device's interface, by
// IGMP or MLD, with the first queue pair, and leaves it with the last. Attaching
// twice is attaching once.
//
// Every attached queue pair whose Q_Key is that of the message gets a copy, also the
// one that has sent it: verbs programs know themselves by WC.SrcQP. The 40 bytes
// before the payload have the group as the destination. To send to a group takes no
// attachment: an address handle of the group, and ib.MulticastQPN as RemoteQPN.
//
// The error is a *ConfigError or, from the host, a *netio.ListenError, which wraps
// errors.ErrUnsupported on systems other than Linux.
func (q *QP) AttachMulticast(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if q.typ != UD {
		return &ConfigError{"Type", q.typ, "multicast is for UD queue pairs"}
	}
	q.e.lock()
	defer q.e.unlock()
	if q.dead {
		return ErrClosed
	}
	g := &q.e.groups
	members := g.qps[group]
	switch {
	case slices.Contains(members, q):
		return nil
	case len(members) >= maxMcastQP:
		return fmt.Errorf("roce: group %v has %d queue pairs, the most it may have", group, maxMcastQP)
	case len(members) == 0 && len(g.qps) >= maxMcastGrp:
		return fmt.Errorf("roce: the device is in %d groups, the most it may be in", maxMcastGrp)
	}
	if len(members) == 0 {
		if err := q.e.be.Join(group); err != nil {
			return err
		}
	}
	if g.qps == nil {
		g.qps = map[netip.Addr][]*QP{}
	}
	g.qps[group] = append(members, q)
	return nil
}

// DetachMulticast ends what AttachMulticast began (ibv_detach_mcast), as destroying
// the queue pair does. It returns ErrNotAttached if there is nothing to end.
func (q *QP) DetachMulticast(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	q.e.lock()
	defer q.e.unlock()
	if q.dead {
		return ErrClosed
	}
	if !q.e.detach(q, group) {
		return ErrNotAttached
	}
	return nil
}

// detach takes a queue pair out of a group. The lock is held.
func (e *engine) detach(q *QP, group netip.Addr) bool {
	members := e.groups.qps[group]
	i := slices.Index(members, q)
	switch {
	case i < 0:
		return false
	case len(members) == 1:
		delete(e.groups.qps, group)
		e.be.Leave(group) // it fails on a closed backend only
	default:
		e.groups.qps[group] = slices.Delete(members, i, i+1)
	}
	return true
}

// detachAll takes a queue pair out of all groups. The lock is held.
func (e *engine) detachAll(q *QP) {
	for group := range e.groups.qps {
		e.detach(q, group)
	}
}

// multicast hands one packet to all queue pairs of its group. A group and the queue
// pair number of multicast go together (IBTA 9.6.1.2, 10.5.2): neither opens the way
// to a single queue pair.
func (e *engine) multicast(now time.Duration, src netip.AddrPort, r *netio.Received, segment int, p *ib.Packet) {
	members := e.groups.qps[r.Dst.Addr()]
	if len(members) == 0 || p.DestQP() != ib.MulticastQPN {
		e.unknownQP(now, src, r, segment, p)
		return
	}
	if !e.intact(now, nil, &e.groups.rx, src, r, segment, p) {
		return
	}
	for _, q := range members {
		q.deliver(now, src.Addr(), r, p)
	}
}
