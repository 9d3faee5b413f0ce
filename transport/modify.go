package transport

import "time"

// Modify changes the state and the attributes that mask names, as ibv_modify_qp
// does: all or nothing. The error is an *AttrError.
func (q *QP) Modify(now time.Duration, a *Attr, mask AttrMask) error { return nil }
