package roce

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
)

// Alternate is a second path to the peer of a connected queue pair. As a device has
// one address, paths differ in the peer's address, if it has another, in the source
// port, or in the traffic class: in whatever the network chooses its ways by.
type Alternate struct {
	Addr         netip.Addr // the peer's; the zero value means the one in use
	SourcePort   uint16     // as in Conn
	TrafficClass uint8
	AckTimeout   time.Duration // as in Conn; UC has none
}

// Arm loads an alternate path and rearms the queue pair (ibv_modify_qp with
// IBV_QP_ALT_PATH and IBV_MIG_REARM), RC or UC, in RTS. When the peer has done the
// same, both are armed, as soon as each has heard of the other. From then on the
// queue pair migrates to the alternate path by itself when its retries on the one in
// use are exhausted (RC), when the peer does, or by Migrate; the device tells
// EventPathMig, and Arm is needed again, at both ends, with a new alternate path.
// The state is in Query: REARM, then ARMED, then MIGRATED. EventPathMigErr tells of
// a peer that migrates to a path that is not the alternate one here.
//
// rxe knows nothing of path migration: it looks rearmed all the time, so that a queue
// pair connected to it migrates by itself or by Migrate, but rxe does not.
func (q *QP) Arm(alt Alternate) error {
	now, _ := q.Query()
	av := now.AV
	av.SourcePort, av.TrafficClass = alt.SourcePort, alt.TrafficClass
	if alt.Addr.IsValid() {
		av.DGID = ib.GIDFromAddr(alt.Addr.WithZone(""))
	}
	return q.Modify(&Attr{
		AltAV: av, AltPortNum: 1, AltTimeout: ackTimeout(alt.AckTimeout), PathMigState: MigRearm,
	}, MaskAltPath|MaskPathMigState)
}

// Migrate makes an armed queue pair change to its alternate path now; the peer
// follows with the first packet that it gets (ibv_modify_qp with IBV_MIG_MIGRATED).
// A queue pair that is not armed yet is disarmed instead, and stays on its path.
func (q *QP) Migrate() error {
	return q.Modify(&Attr{PathMigState: MigMigrated}, MaskPathMigState)
}
