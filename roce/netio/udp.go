package netio

import (
	"fmt"
	"net/netip"
)

// maxRun is the most bytes of one UDP datagram, and so of a run handed to the
// kernel in one piece: 65,535 less the IPv4 and UDP headers.
const maxRun = 65507

// maxPacket is more than any RoCE packet has, from the BTH to the ICRC: 4096
// bytes of payload and the longest headers. What is longer is no RoCE packet.
const maxPacket = 4096 + 256

// UDPConfig says how ListenUDP opens its socket. All fields but Addr may be zero.
type UDPConfig struct {
	// Addr is a concrete local unicast address, of either IP version. Port 0
	// means 4791.
	Addr netip.AddrPort
	// NoGSO sends each packet by itself: for a NIC whose UDP segmentation does not
	// count the IPv4 Identification up from 0.
	NoGSO bool
	// NoGRO receives each packet by itself.
	NoGRO bool
	// RecvBuffer and SendBuffer are the sizes of the socket's buffers in bytes;
	// 0 means 8 MiB and 4 MiB. What the kernel grants is in Caps.RecvBuffer.
	RecvBuffer, SendBuffer int
	// Portable uses package net alone, as on systems other than Linux.
	Portable bool

	joins bool // other sockets have the same ports
}

// ListenUDP opens an unconnected UDP socket for RoCEv2. It needs no privileges.
// When the address cannot be had, the error is a *ListenError that says why.
//
// Packets leave with the IPv4 Identification 0 and DF set, those of a run with 0,
// 1, 2 and so on: the invariant CRC covers both. On systems other than Linux the
// Identification is the system's choice, and IPv4 peers that check the ICRC
// against the IP header may refuse what it sends; IPv6 has none.
func ListenUDP(cfg UDPConfig) (Backend, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	return listen(cfg)
}

// listen opens the socket of a configuration with defaults in place.
func listen(cfg UDPConfig) (Backend, error) {
	if cfg.Portable {
		return listenPortable(cfg)
	}
	return listenUDP(cfg)
}

// filled returns the configuration with defaults in place. The error is a *ListenError.
func (cfg UDPConfig) filled() (UDPConfig, error) {
	cfg.Addr = concrete(cfg.Addr)
	if why := unusable(cfg.Addr); why != "" {
		return cfg, &ListenError{Addr: cfg.Addr, Why: why}
	}
	if cfg.RecvBuffer <= 0 {
		cfg.RecvBuffer = 8 << 20
	}
	if cfg.SendBuffer <= 0 {
		cfg.SendBuffer = 4 << 20
	}
	return cfg, nil
}

// ListenError says why an address could not be opened. It wraps the system's error,
// if there was one.
type ListenError struct {
	Addr netip.AddrPort
	Why  string // one clause, for people: what is wrong and what to do
	Err  error
}

func (e *ListenError) Error() string { return fmt.Sprintf("listen on UDP %v: %s", e.Addr, e.Why) }

// Unwrap returns the system's error or nil.
func (e *ListenError) Unwrap() error { return e.Err }

// concrete unmaps the address and fills in the default port.
func concrete(a netip.AddrPort) netip.AddrPort {
	port := a.Port()
	if port == 0 {
		port = Port
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), port)
}

// unusable says what is wrong with an address before the system is asked.
func unusable(a netip.AddrPort) string {
	switch ip := a.Addr(); {
	case !ip.IsValid():
		return "no address given"
	case ip.IsUnspecified():
		return "the address must be a concrete one, as the ICRC of each packet covers it"
	case ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the address must be a unicast address"
	}
	return ""
}

// ipUDPHeaders returns the bytes of the IP and UDP headers before a packet.
func ipUDPHeaders(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}
