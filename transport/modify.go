package transport

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// AttrError says why Modify refused: ibv_modify_qp reports all of these as
// EINVAL.
type AttrError struct {
	Field    string // the field of Attr that is at fault, "State" for the transition itself
	Type     QPType
	From, To State
	Reason   string // what is wrong and what is allowed
}

func (e *AttrError) Error() string {
	return fmt.Sprintf("transport: modify %v queue pair %v -> %v: %s: %s", e.Type, e.From, e.To, e.Field, e.Reason)
}

// maskFields are the fields of Attr that each bit of an AttrMask selects.
var maskFields = [...]struct {
	bit   AttrMask
	field string
}{
	{MaskState, "State"}, {MaskCurState, "CurState"}, {MaskSQDNotify, "SQDrainNotify"}, {MaskAccess, "Access"},
	{MaskPKeyIndex, "PKeyIndex"}, {MaskPort, "PortNum"}, {MaskQKey, "QKey"}, {MaskAV, "AV"},
	{MaskPathMTU, "PathMTU"}, {MaskTimeout, "Timeout"}, {MaskRetryCnt, "RetryCnt"}, {MaskRNRRetry, "RNRRetry"},
	{MaskRQPSN, "RQPSN"}, {MaskMaxRdAtomic, "MaxRdAtomic"}, {MaskAltPath, "AltAV"},
	{MaskMinRNRTimer, "MinRNRTimer"}, {MaskSQPSN, "SQPSN"}, {MaskMaxDestRdAtomic, "MaxDestRdAtomic"},
	{MaskPathMigState, "PathMigState"}, {MaskCap, "capabilities"}, {MaskDestQPN, "DestQPN"},
}

// String names the fields: "PathMTU|RQPSN".
func (m AttrMask) String() string {
	var s []string
	for _, f := range maskFields {
		if m&f.bit != 0 {
			s = append(s, f.field)
			m &^= f.bit
		}
	}
	if m != 0 {
		s = append(s, fmt.Sprintf("%#x", uint32(m)))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, "|")
}

// lowestField names one field of a mask.
func (m AttrMask) lowestField() string { return AttrMask(m & -m).String() }

// transition says which attributes a change of state needs and which it may
// have besides State.
type transition struct {
	types         []QPType
	from, to      State
	need, allowed AttrMask
}

const (
	initMask   = MaskPKeyIndex | MaskPort | MaskAccess
	initUDMask = MaskPKeyIndex | MaskPort | MaskQKey
	rtrUCMask  = MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN
	rtrRCMask  = rtrUCMask | MaskMaxDestRdAtomic | MaskMinRNRTimer
	rtsRCMask  = MaskSQPSN | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRdAtomic
	liveMask   = MaskCurState | MaskAccess | MaskAltPath | MaskPathMigState
	sqdMask    = MaskAV | MaskAltPath | MaskAccess | MaskPKeyIndex | MaskPathMigState
	sqdSndMask = sqdMask | MaskPort | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRdAtomic
	sqdRcvMask = sqdMask | MaskPort | MaskTimeout | MaskMaxDestRdAtomic | MaskMinRNRTimer
)

var (
	anyType = []QPType{RC, UC, UD, XRCSend, XRCRecv}
	onlyRC  = []QPType{RC}
	onlyUC  = []QPType{UC}
	onlyUD  = []QPType{UD}
	notUD   = []QPType{RC, UC, XRCSend, XRCRecv}
	onlySnd = []QPType{XRCSend}
	onlyRcv = []QPType{XRCRecv}
	answers = []QPType{RC, XRCRecv} // acknowledge what they receive
	mute    = []QPType{UC, XRCSend} // ... do not
)

// transitions are those of IBTA 10.3.1 and 11.2.5.2 (table of QP state
// transition properties), as ibv_modify_qp(3) and Linux
// drivers/infiniband/core/verbs.c (qp_state_table) have them. Every state but
// RESET may also go to ERR, and every state to RESET.
var transitions = []transition{
	{notUD, Reset, Init, initMask, 0},
	{onlyUD, Reset, Init, initUDMask, 0},
	{notUD, Init, Init, 0, initMask},
	{onlyUD, Init, Init, 0, initUDMask},
	{answers, Init, RTR, rtrRCMask, MaskAltPath | MaskAccess | MaskPKeyIndex},
	{mute, Init, RTR, rtrUCMask, MaskAltPath | MaskAccess | MaskPKeyIndex},
	{onlyUD, Init, RTR, 0, MaskPKeyIndex | MaskQKey},
	{onlyRC, RTR, RTS, rtsRCMask, liveMask | MaskMinRNRTimer},
	{onlySnd, RTR, RTS, rtsRCMask, liveMask},
	{onlyRcv, RTR, RTS, MaskSQPSN | MaskTimeout, liveMask | MaskMinRNRTimer},
	{onlyUC, RTR, RTS, MaskSQPSN, liveMask},
	{onlyUD, RTR, RTS, MaskSQPSN, MaskCurState | MaskQKey},
	{answers, RTS, RTS, 0, liveMask | MaskMinRNRTimer},
	{mute, RTS, RTS, 0, liveMask},
	{onlyUD, RTS, RTS, 0, MaskCurState | MaskQKey},
	{anyType, RTS, SQD, 0, MaskSQDNotify},
	{answers, SQD, RTS, 0, liveMask | MaskMinRNRTimer},
	{mute, SQD, RTS, 0, liveMask},
	{onlyUD, SQD, RTS, 0, MaskCurState | MaskQKey},
	{onlyRC, SQD, SQD, 0, sqdSndMask | sqdRcvMask},
	{onlySnd, SQD, SQD, 0, sqdSndMask},
	{onlyRcv, SQD, SQD, 0, sqdRcvMask},
	{onlyUC, SQD, SQD, 0, sqdMask},
	{onlyUD, SQD, SQD, 0, MaskPKeyIndex | MaskQKey},
	{onlyUC, SQE, RTS, 0, MaskCurState | MaskAccess},
	{onlyUD, SQE, RTS, 0, MaskCurState | MaskQKey},
}

func (t *transition) has(q QPType) bool {
	for _, x := range t.types {
		if x == q {
			return true
		}
	}
	return false
}

// findTransition returns what a change of state needs and allows.
func findTransition(q QPType, from, to State) (need, allowed AttrMask, ok bool) {
	if to == Reset || to == Err && from != Reset {
		return 0, 0, true
	}
	for i := range transitions {
		if t := &transitions[i]; t.from == from && t.to == to && t.has(q) {
			return t.need, t.allowed, true
		}
	}
	return 0, 0, false
}

// reachable lists the states that Modify can go to.
func reachable(q QPType, from State) string {
	var s []string
	for to := Reset; to <= Err; to++ {
		if _, _, ok := findTransition(q, from, to); ok {
			s = append(s, to.String())
		}
	}
	return strings.Join(s, ", ")
}

// Modify changes the state and the attributes that mask selects, as
// ibv_modify_qp does: all of them or, with an error, none. The error is a
// *AttrError. Without MaskState the state stays and only what may change in it
// is allowed.
func (q *QP) Modify(now time.Duration, a *Attr, mask AttrMask) error {
	to := q.state
	if mask&MaskState != 0 {
		to = a.State
	}
	bad := func(field, format string, args ...any) error {
		return &AttrError{field, q.cfg.Type, q.state, to, fmt.Sprintf(format, args...)}
	}
	need, allowed, ok := findTransition(q.cfg.Type, q.state, to)
	given := mask &^ MaskState
	switch missing, excess := need&^given, given&^(need|allowed); {
	case !ok:
		return bad("State", "no such transition; possible: %s", reachable(q.cfg.Type, q.state))
	case missing != 0:
		return bad(missing.lowestField(), "missing in the mask; needed: %v", need)
	case excess != 0:
		return bad(excess.lowestField(), "not allowed here; needed: %v; allowed: %v", need, allowed)
	case mask&MaskCurState != 0 && a.CurState != q.state:
		return bad("CurState", "%v, but the state is %v", a.CurState, q.state)
	}
	if field, reason := a.check(given); field != "" {
		return bad(field, "%s", reason)
	}
	if field, reason := q.checkMigration(a, given); field != "" {
		return bad(field, "%s", reason)
	}
	q.attr.set(a, given)
	if q.state == RTS && to == SQD {
		q.attr.SQDrainNotify = mask&MaskSQDNotify != 0 && a.SQDrainNotify
	}
	q.enter(now, to)
	q.setMigration(now, a, given)
	return nil
}

// qpAccess are the rights that mean something on a queue pair.
const qpAccess = mem.LocalWrite | mem.RemoteWrite | mem.RemoteRead | mem.RemoteAtomic | mem.MWBind |
	mem.FlushGlobal | mem.FlushPersistent | mem.RelaxedOrdering

// check returns the first field selected by mask whose value is wrong.
func (a *Attr) check(mask AttrMask) (field, reason string) {
	limit := func(bit AttrMask, name string, v, most uint32) {
		if field == "" && mask&bit != 0 && v > most {
			field, reason = name, fmt.Sprintf("%d is not in 0..%d", v, most)
		}
	}
	is := func(bit AttrMask, name string, ok bool, format string, args ...any) {
		if field == "" && mask&bit != 0 && !ok {
			field, reason = name, fmt.Sprintf(format, args...)
		}
	}
	limit(MaskPKeyIndex, "PKeyIndex", uint32(a.PKeyIndex), 0)
	is(MaskPort, "PortNum", a.PortNum == 1, "%d: the device has one port, 1", a.PortNum)
	is(MaskAccess, "Access", a.Access&^qpAccess == 0, "%v: allowed are %v", a.Access&^qpAccess, qpAccess)
	is(MaskPathMTU, "PathMTU", a.PathMTU.Valid(), "code %d is not in 1..5 (256 to 4096 bytes)", uint8(a.PathMTU))
	is(MaskDestQPN, "DestQPN", a.DestQPN > ib.GSIQPN && a.DestQPN < ib.MulticastQPN,
		"%#x is not in 0x2..0xfffffe", uint32(a.DestQPN))
	limit(MaskRQPSN, "RQPSN", uint32(a.RQPSN), 1<<24-1)
	limit(MaskSQPSN, "SQPSN", uint32(a.SQPSN), 1<<24-1)
	limit(MaskTimeout, "Timeout", uint32(a.Timeout), 31)
	limit(MaskRetryCnt, "RetryCnt", uint32(a.RetryCnt), 7)
	limit(MaskRNRRetry, "RNRRetry", uint32(a.RNRRetry), 7)
	limit(MaskMinRNRTimer, "MinRNRTimer", uint32(a.MinRNRTimer), 31)
	limit(MaskMaxRdAtomic, "MaxRdAtomic", uint32(a.MaxRdAtomic), MaxRdAtomic)
	limit(MaskMaxDestRdAtomic, "MaxDestRdAtomic", uint32(a.MaxDestRdAtomic), MaxDestRdAtomic)
	for _, p := range []struct {
		bit  AttrMask
		name string
		av   *AddressVector
	}{{MaskAV, "AV", &a.AV}, {MaskAltPath, "AltAV", &a.AltAV}} {
		dst := p.av.DGID.Addr()
		is(p.bit, p.name+".DGID", !dst.IsUnspecified() && !dst.IsMulticast(),
			"%v is not the IP address of a peer, which a GID of RoCEv2 is", p.av.DGID)
		limit(p.bit, p.name+".FlowLabel", p.av.FlowLabel, 1<<20-1)
	}
	limit(MaskAltPath, "AltPKeyIndex", uint32(a.AltPKeyIndex), 0)
	is(MaskAltPath, "AltPortNum", a.AltPortNum == 1, "%d: the device has one port, 1", a.AltPortNum)
	limit(MaskAltPath, "AltTimeout", uint32(a.AltTimeout), 31)
	is(MaskPathMigState, "PathMigState", a.PathMigState == MigRearm || a.PathMigState == MigMigrated,
		"%v: allowed are REARM and MIGRATED; ARMED comes with the peer's first packet that is rearmed", a.PathMigState)
	return field, reason
}

// set copies the fields selected by mask, but for PathMigState (see setMigration).
func (a *Attr) set(from *Attr, mask AttrMask) {
	if mask&MaskAccess != 0 {
		a.Access = from.Access
	}
	if mask&MaskPKeyIndex != 0 {
		a.PKeyIndex = from.PKeyIndex
	}
	if mask&MaskPort != 0 {
		a.PortNum = from.PortNum
	}
	if mask&MaskQKey != 0 {
		a.QKey = from.QKey
	}
	if mask&MaskAV != 0 {
		a.AV = from.AV
	}
	if mask&MaskPathMTU != 0 {
		a.PathMTU = from.PathMTU
	}
	if mask&MaskTimeout != 0 {
		a.Timeout = from.Timeout
	}
	if mask&MaskRetryCnt != 0 {
		a.RetryCnt = from.RetryCnt
	}
	if mask&MaskRNRRetry != 0 {
		a.RNRRetry = from.RNRRetry
	}
	if mask&MaskRQPSN != 0 {
		a.RQPSN = from.RQPSN
	}
	if mask&MaskMaxRdAtomic != 0 {
		a.MaxRdAtomic = from.MaxRdAtomic
	}
	if mask&MaskMinRNRTimer != 0 {
		a.MinRNRTimer = from.MinRNRTimer
	}
	if mask&MaskSQPSN != 0 {
		a.SQPSN = from.SQPSN
	}
	if mask&MaskMaxDestRdAtomic != 0 {
		a.MaxDestRdAtomic = from.MaxDestRdAtomic
	}
	if mask&MaskDestQPN != 0 {
		a.DestQPN = from.DestQPN
	}
	if mask&MaskAltPath != 0 {
		a.AltAV, a.AltPKeyIndex, a.AltPortNum, a.AltTimeout = from.AltAV, from.AltPKeyIndex, from.AltPortNum, from.AltTimeout
	}
}

// enter makes a transition that is allowed and whose attributes are set.
func (q *QP) enter(now time.Duration, to State) {
	from := q.state
	if to == Err {
		q.fail(now, noEvent)
		return
	}
	q.become(to)
	switch to {
	case Reset:
		q.attr, q.path, q.alt, q.left, q.est, q.kin = Attr{}, Path{}, alternate{}, netip.Addr{}, false, false
		q.pace, q.cnps = nil, nil
		q.snd.reset()
		q.rcv.reset()
	case RTR:
		q.path = q.ecn(q.attr.AV.Path())
		q.pace.start(now)
		q.rcv.start(&q.attr)
	case RTS:
		if from == RTR {
			q.snd.start(&q.attr)
		}
		q.snd.resume()
	case SQD:
		if from == SQD {
			q.path = q.ecn(q.attr.AV.Path())
			q.rcv.resize()
			q.snd.kick(now)
			return
		}
		q.snd.drain()
	}
}
