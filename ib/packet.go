package ib

import (
	"encoding/binary"
	"strconv"
)

// Malformed is the reason why Parse refused a packet; OK is none.
type Malformed uint8

// The reasons, in the order in which Parse looks for them.
const (
	OK                Malformed = iota
	TooShort                    // shorter than BTH and ICRC
	TooLong                     // longer than a UDP datagram over IPv4 can be
	UnknownOpcode               // not in the opcode table
	BadTVer                     // transport version other than 0
	HeaderTooShort              // no room for the extension headers of its opcode
	BadPad                      // pad and payload do not make a multiple of 4 bytes
	UnexpectedPayload           // payload with an opcode that carries none
	BadPayloadLength            // not the fixed size that its opcode carries
	ReservedQPN                 // destination QP 0
	MulticastNotUD              // destination QP 0xffffff and not UD

	// NumMalformed is the number of values, for counter arrays.
	NumMalformed
)

// String returns a short text, for counters and logs.
func (m Malformed) String() string {
	names := [NumMalformed]string{
		"ok", "too short", "too long", "unknown opcode", "bad transport version", "header too short",
		"bad pad count", "unexpected payload", "bad payload length", "reserved QPN", "multicast and not UD",
	}
	if m < NumMalformed {
		return names[m]
	}
	return "malformed reason " + strconv.Itoa(int(m))
}

// maxUDPPayload is what a UDP datagram in an IPv4 packet carries at most.
const maxUDPPayload = 65535 - ipv4Size - udpSize

// Packet is a validated view of one RoCE packet, BTH to ICRC. It is made by
// Parse only and points into the bytes that Parse was given: it is valid as long
// as they are unchanged. The ICRC has not been checked. Accessors of a header
// that the opcode does not have return the zero value.
type Packet struct {
	b    []byte
	info *OpcodeInfo
}

// Parse validates b, the UDP payload of a RoCEv2 packet (BTH to ICRC), and
// returns the view. Nothing is copied. It checks everything that can be judged
// from the bytes alone: lengths against the opcode table before any use, the
// transport version (IBTA 9.6), pad (IBTA 9.2 and 9.4), reserved QP numbers.
// P_Key, QP state, payload length against the path MTU and the ICRC are the
// business of others. On a result other than OK the Packet must not be used.
func Parse(b []byte) (Packet, Malformed) {
	if len(b) < BTHSize+ICRCSize {
		return Packet{}, TooShort
	}
	if len(b) > maxUDPPayload {
		return Packet{}, TooLong
	}
	info := &opcodes[b[0]]
	if info.HeaderLen == 0 {
		return Packet{}, UnknownOpcode
	}
	if b[1]&bthTVerMask != 0 {
		return Packet{}, BadTVer
	}
	room := len(b) - info.HeaderLen - ICRCSize
	if room < 0 {
		return Packet{}, HeaderTooShort
	}
	payload := room - int(b[1]>>bthPadShift&3)
	if room&3 != 0 || payload < 0 {
		return Packet{}, BadPad
	}
	switch info.Payload {
	case PayloadNone:
		if payload != 0 {
			return Packet{}, UnexpectedPayload
		}
	case PayloadExact:
		if payload != info.PayloadLen {
			return Packet{}, BadPayloadLength
		}
	}
	switch QPN(be.Uint32(b[4:]) & psnMask) {
	case 0:
		return Packet{}, ReservedQPN
	case MulticastQPN:
		if info.Transport != TransportUD {
			return Packet{}, MulticastNotUD
		}
	}
	return Packet{b: b, info: info}, OK
}

// Opcode returns the opcode, one that is in the table.
func (p Packet) Opcode() Opcode { return Opcode(p.b[0]) }

// Info returns the description of the opcode, never nil.
func (p Packet) Info() *OpcodeInfo { return p.info }

// Solicited returns the solicited event bit.
func (p Packet) Solicited() bool { return p.b[1]&bthSolicited != 0 }

// MigReq returns the path migration bit.
func (p Packet) MigReq() bool { return p.b[1]&bthMigReq != 0 }

// Pad returns the number of pad bytes after the payload, 0..3.
func (p Packet) Pad() uint8 { return p.b[1] >> bthPadShift & 3 }

// PKey returns the partition key.
func (p Packet) PKey() PKey { return PKey(be.Uint16(p.b[2:])) }

// FECN returns the forward congestion bit.
func (p Packet) FECN() bool { return p.b[4]&bthFECN != 0 }

// BECN returns the backward congestion bit.
func (p Packet) BECN() bool { return p.b[4]&bthBECN != 0 }

// DestQP returns the destination queue pair, never 0.
func (p Packet) DestQP() QPN { return QPN(be.Uint32(p.b[4:]) & psnMask) }

// AckReq returns whether the sender asks for an acknowledgement.
func (p Packet) AckReq() bool { return p.b[8]&bthAckReq != 0 }

// Resv7 returns the reserved field beside AckReq.
func (p Packet) Resv7() uint8 { return p.b[8] &^ bthAckReq }

// PSN returns the packet sequence number.
func (p Packet) PSN() PSN { return PSN(be.Uint32(p.b[8:]) & psnMask) }

// BTH returns the whole base header as a value.
func (p Packet) BTH() BTH {
	return BTH{
		Opcode: p.Opcode(), Solicited: p.Solicited(), MigReq: p.MigReq(), Pad: p.Pad(), PKey: p.PKey(),
		FECN: p.FECN(), BECN: p.BECN(), DestQP: p.DestQP(), AckReq: p.AckReq(), PSN: p.PSN(), Resv7: p.Resv7(),
	}
}

// RETH returns the RDMA header.
func (p Packet) RETH() (h RETH) {
	if o := int(p.info.offRETH); o != 0 {
		b := p.b[o : o+RETHSize]
		h = RETH{VA: be.Uint64(b), RKey: be.Uint32(b[8:]), Length: be.Uint32(b[12:])}
	}
	return h
}

// AETH returns the acknowledge header.
func (p Packet) AETH() (h AETH) {
	if o := p.info.offAETH; o != 0 {
		w := be.Uint32(p.b[o:])
		h = AETH{Syndrome: Syndrome(w >> 24), MSN: w & psnMask}
	}
	return h
}

// AtomicETH returns the atomic request header.
func (p Packet) AtomicETH() (h AtomicETH) {
	if o := int(p.info.offAtomicETH); o != 0 {
		b := p.b[o : o+AtomicETHSize]
		h = AtomicETH{VA: be.Uint64(b), RKey: be.Uint32(b[8:]), SwapAdd: be.Uint64(b[12:]), Compare: be.Uint64(b[20:])}
	}
	return h
}

// AtomicAck returns the original value that an atomic acknowledgement carries.
func (p Packet) AtomicAck() AtomicAckETH {
	if o := p.info.offAtomicAck; o != 0 {
		return AtomicAckETH(be.Uint64(p.b[o:]))
	}
	return 0
}

// Imm returns the immediate data.
func (p Packet) Imm() ImmDt { return ImmDt(p.word(p.info.offImm)) }

// IETH returns the R_Key to invalidate.
func (p Packet) IETH() IETH { return IETH(p.word(p.info.offIETH)) }

// DETH returns the datagram header.
func (p Packet) DETH() (h DETH) {
	if o := int(p.info.offDETH); o != 0 {
		b := p.b[o : o+DETHSize]
		h = DETH{QKey: be.Uint32(b), SrcQP: QPN(be.Uint32(b[4:]) & psnMask)}
	}
	return h
}

// XRCSRQ returns the number of the shared receive queue of an XRC request.
func (p Packet) XRCSRQ() QPN { return QPN(p.word(p.info.offXRCETH) & psnMask) }

// FETH returns the flush header.
func (p Packet) FETH() FETH {
	w := p.word(p.info.offFETH)
	return FETH{Global: w&1 != 0, Persistent: w&2 != 0, Level: uint8(w >> 4 & 3)}
}

// word reads 32 bits at offset off, 0 where off is 0.
func (p Packet) word(off uint8) uint32 {
	if off == 0 {
		return 0
	}
	return be.Uint32(p.b[off:])
}

// Payload returns the payload without pad bytes; its capacity ends with it.
func (p Packet) Payload() []byte {
	end := len(p.b) - ICRCSize - int(p.Pad())
	return p.b[p.info.HeaderLen:end:end]
}

// ICRC returns the invariant CRC that the packet carries, as the number whose
// least significant byte comes first on the wire.
func (p Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.b[len(p.b)-ICRCSize:]) }

// Bytes returns the bytes that Parse was given, BTH to ICRC.
func (p Packet) Bytes() []byte { return p.b }
