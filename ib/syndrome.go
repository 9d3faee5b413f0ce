package ib

import "strconv"

// Syndrome is the AETH's first byte: what kind of acknowledgement it is, and
// a 5-bit value (IBTA 9.7.5.1, table of AETH syndromes; Linux
// drivers/infiniband/sw/rxe/rxe_hdr.h).
type Syndrome uint8

// SyndromeKind is the kind part of a Syndrome.
type SyndromeKind uint8

// The kinds of syndrome.
const (
	SynAck      SyndromeKind = iota // positive, value = credit count
	SynRNR                          // receiver not ready, value = RNRTimer
	SynReserved                     // never sent; a receiver treats it as garbage
	SynNAK                          // negative, value = NAKCode
)

// CreditsInvalid is the credit count of a responder that does not do end-to-end
// flow control (IBTA 9.7.7.2).
const CreditsInvalid = 31

// AckSyndrome returns the syndrome of a positive acknowledgement with a 5-bit
// credit code, CreditsInvalid for none.
func AckSyndrome(credits uint8) Syndrome { return Syndrome(credits & 31) }

// RNRSyndrome returns the syndrome of a receiver-not-ready NAK.
func RNRSyndrome(t RNRTimer) Syndrome { return 0x20 | Syndrome(t&31) }

// NAKSyndrome returns the syndrome of a NAK.
func NAKSyndrome(c NAKCode) Syndrome { return 0x60 | Syndrome(c&31) }

// Kind returns the kind. A syndrome with bit 7 set is reserved.
func (s Syndrome) Kind() SyndromeKind {
	if s&0x80 != 0 {
		return SynReserved
	}
	return SyndromeKind(s >> 5)
}

// Credits returns the 5-bit credit code of a SynAck.
func (s Syndrome) Credits() uint8 { return uint8(s & 31) }

// RNRTimer returns the wait code of a SynRNR.
func (s Syndrome) RNRTimer() RNRTimer { return RNRTimer(s & 31) }

// NAK returns the code of a SynNAK.
func (s Syndrome) NAK() NAKCode { return NAKCode(s & 31) }

// String describes the syndrome for logs: "ACK credits 31", "RNR 655.36ms",
// "NAK PSN sequence error", "reserved 0x40".
func (s Syndrome) String() string {
	switch s.Kind() {
	case SynAck:
		return "ACK credits " + strconv.Itoa(int(s.Credits()))
	case SynRNR:
		return "RNR " + s.RNRTimer().Duration().String()
	case SynNAK:
		return "NAK " + s.NAK().String()
	}
	return "reserved 0x" + strconv.FormatUint(uint64(s), 16)
}

// NAKCode is the reason of a NAK (IBTA 9.7.5.2).
type NAKCode uint8

// The NAK codes; all others are reserved.
const (
	NAKSequence          NAKCode = iota // PSN sequence error: a packet is missing
	NAKInvalidRequest                   // opcode, length or right of the QP
	NAKRemoteAccess                     // key, range or right of the memory
	NAKRemoteOperational                // the responder failed by itself
	NAKInvalidRD                        // reliable datagram only
)

// String returns the reason in words.
func (c NAKCode) String() string {
	switch c {
	case NAKSequence:
		return "PSN sequence error"
	case NAKInvalidRequest:
		return "invalid request"
	case NAKRemoteAccess:
		return "remote access error"
	case NAKRemoteOperational:
		return "remote operational error"
	case NAKInvalidRD:
		return "invalid RD request"
	}
	return "reserved code " + strconv.Itoa(int(c))
}
