package roce

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
)

// strangers are the IPv4 hosts that datagrams come from without being peers of a
// connected queue pair: what is known of their IPv4 Identifications. The table
// has a fixed size, whoever sends: a new host takes the place of the one of its
// set that has been silent longest. The worst that floods of made-up addresses
// can do is that a host is learned anew.
type strangers struct {
	seed maphash.Seed
	sets [strangerSets][strangerWays]stranger
}

const (
	strangerSets = 128
	strangerWays = 4
)

type stranger struct {
	addr netip.Addr
	at   time.Duration // when it was last heard of
	ids  ib.IDTracker
}

func newStrangers() *strangers { return &strangers{seed: maphash.MakeSeed()} }

// ids returns the tracker of an IPv4 host.
func (s *strangers) ids(now time.Duration, addr netip.Addr) *ib.IDTracker {
	a := addr.As4()
	set := &s.sets[maphash.Bytes(s.seed, a[:])%strangerSets]
	oldest := &set[0]
	for i := range set {
		h := &set[i]
		if h.addr == addr {
			h.at = now
			return &h.ids
		}
		if h.at < oldest.at || !h.addr.IsValid() && oldest.addr.IsValid() {
			oldest = h
		}
	}
	*oldest = stranger{addr: addr, at: now}
	return &oldest.ids
}
