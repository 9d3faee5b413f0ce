package rnet

import "net/netip"

// Addr is the address of one end: an IP address and a port of rdma_cm's TCP port
// space, which is not that of the host's TCP.
type Addr struct{ netip.AddrPort }

// Network returns "rsocket".
func (Addr) Network() string { return "rsocket" }
