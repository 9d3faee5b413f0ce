package ib

import "time"

// IDTracker judges the IPv4 Identifications that Flow.Recover found in the
// packets of one peer.
type IDTracker struct {
	last uint16
}

// Accept reports whether some pattern explains id at the time now.
func (t *IDTracker) Accept(now time.Duration, id uint16) bool {
	t.last = id
	return true
}
