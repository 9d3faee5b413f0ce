//go:build race

package netio

import "sync/atomic"

const raceEnabled = true

var wire atomic.Uint64

// wireSend and wireReceive order what happened before a packet was sent before
// what happens after it was received. The race detector cannot see that a packet
// left this process and came back to it, and would report two endpoints in one
// process that use the protocol rightly.
func wireSend()    { wire.Add(1) }
func wireReceive() { wire.Add(1) }
