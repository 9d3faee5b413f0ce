package ib

import "encoding/binary"

// Sizes of the headers and trailers in bytes (IBTA 9.2, 9.3; FETH from Annex
// A19; XRCETH from Annex A14).
const (
	BTHSize          = 12
	RETHSize         = 16
	AETHSize         = 4
	AtomicETHSize    = 28
	AtomicAckETHSize = 8
	ImmDtSize        = 4
	IETHSize         = 4
	DETHSize         = 8
	XRCETHSize       = 4
	FETHSize         = 4
	ICRCSize         = 4
	GRHSize          = 40
	LRHSize          = 8
	CNPSize          = BTHSize + cnpReserved + ICRCSize

	// MaxHeaderSize is the largest header of any opcode of the table: an XRC
	// atomic request.
	MaxHeaderSize = BTHSize + XRCETHSize + AtomicETHSize
)

var be = binary.BigEndian

// Bits of BTH byte 1 and byte 4, and of byte 8.
const (
	bthSolicited = 0x80
	bthMigReq    = 0x40
	bthPadShift  = 4
	bthTVerMask  = 0x0f
	bthFECN      = 0x80
	bthBECN      = 0x40
	bthAckReq    = 0x80
)

// BTH is the base transport header (IBTA 9.2). The transport version is always
// 0 and the reserved bits next to FECN and BECN are written as 0.
type BTH struct {
	Opcode    Opcode
	Solicited bool  // the receiver's completion is a solicited event
	MigReq    bool  // path migration state "migrated"
	Pad       uint8 // pad bytes between payload and ICRC, 0..3
	PKey      PKey
	FECN      bool // set by switches of the path (native IB)
	BECN      bool // congestion notification, see PutCNP
	DestQP    QPN
	AckReq    bool // asks for an acknowledgement
	PSN       PSN
	// Resv7 is the reserved field beside AckReq, 7 bits: sent as 0 and ignored by
	// the standard. The ICRC covers it.
	Resv7 uint8
}

// Put writes the header to b, which holds at least BTHSize bytes, and returns
// BTHSize.
func (h BTH) Put(b []byte) int {
	_ = b[BTHSize-1]
	flags := bit(h.Solicited, bthSolicited) | bit(h.MigReq, bthMigReq) | h.Pad&3<<bthPadShift
	be.PutUint32(b, uint32(h.Opcode)<<24|uint32(flags)<<16|uint32(h.PKey))
	be.PutUint32(b[4:], uint32(bit(h.FECN, bthFECN)|bit(h.BECN, bthBECN))<<24|uint32(h.DestQP)&psnMask)
	be.PutUint32(b[8:], uint32(bit(h.AckReq, bthAckReq)|h.Resv7&^bthAckReq)<<24|uint32(h.PSN)&psnMask)
	return BTHSize
}

// ParseBTH returns the base header at the beginning of b, which holds at least
// BTHSize bytes: also that of a packet that Parse refuses, for whoever wants to
// show it.
func ParseBTH(b []byte) BTH { return Packet{b: b[:BTHSize]}.BTH() }

func bit(on bool, mask byte) byte {
	if on {
		return mask
	}
	return 0
}

// RETH is the RDMA extended header of WRITE, READ, FLUSH and ATOMIC_WRITE (IBTA
// 9.3.3): where the message goes in the responder's memory. Length is the
// length in bytes of the whole message, not of the packet.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32
}

// Put writes the header to b (at least RETHSize bytes) and returns RETHSize.
func (h RETH) Put(b []byte) int {
	_ = b[RETHSize-1]
	be.PutUint64(b, h.VA)
	be.PutUint32(b[8:], h.RKey)
	be.PutUint32(b[12:], h.Length)
	return RETHSize
}

// AETH is the acknowledge extended header (IBTA 9.7.5.1). MSN is the 24-bit
// count of messages that the responder completed.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32
}

// Put writes the header to b (at least AETHSize bytes) and returns AETHSize.
func (h AETH) Put(b []byte) int {
	be.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&psnMask)
	return AETHSize
}

// AtomicETH is the header of CMP_SWAP and FETCH_ADD requests (IBTA 9.4.5).
// SwapAdd is the value to store or to add, Compare is unused by FETCH_ADD.
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// Put writes the header to b (at least AtomicETHSize bytes) and returns
// AtomicETHSize.
func (h AtomicETH) Put(b []byte) int {
	_ = b[AtomicETHSize-1]
	be.PutUint64(b, h.VA)
	be.PutUint32(b[8:], h.RKey)
	be.PutUint64(b[12:], h.SwapAdd)
	be.PutUint64(b[20:], h.Compare)
	return AtomicETHSize
}

// AtomicAckETH is the value that an atomic found before it changed it (IBTA
// 9.4.5), as a number: the requester stores it in its own byte order.
type AtomicAckETH uint64

// Put writes the header to b (at least AtomicAckETHSize bytes) and returns
// AtomicAckETHSize.
func (h AtomicAckETH) Put(b []byte) int {
	be.PutUint64(b, uint64(h))
	return AtomicAckETHSize
}

// ImmDt is the immediate data of SEND and WRITE (IBTA 9.3), as the number that
// the four bytes make in network byte order. Verbs hand the bytes through
// unchanged, so that ntohl(imm_data) equals this number.
type ImmDt uint32

// Put writes the header to b (at least ImmDtSize bytes) and returns ImmDtSize.
func (h ImmDt) Put(b []byte) int {
	be.PutUint32(b, uint32(h))
	return ImmDtSize
}

// IETH is the R_Key that a SEND with invalidate invalidates at the responder
// (IBTA 9.4.1.1).
type IETH uint32

// Put writes the header to b (at least IETHSize bytes) and returns IETHSize.
func (h IETH) Put(b []byte) int {
	be.PutUint32(b, uint32(h))
	return IETHSize
}

// DETH is the datagram extended header of UD (IBTA 9.3.2).
type DETH struct {
	QKey  uint32
	SrcQP QPN
}

// Put writes the header to b (at least DETHSize bytes) and returns DETHSize.
func (h DETH) Put(b []byte) int {
	_ = b[DETHSize-1]
	be.PutUint32(b, h.QKey)
	be.PutUint32(b[4:], uint32(h.SrcQP)&psnMask)
	return DETHSize
}

// XRCETH is the number of the shared receive queue that an XRC request goes to
// (IBTA Annex A14).
type XRCETH QPN

// Put writes the header to b (at least XRCETHSize bytes) and returns XRCETHSize.
func (h XRCETH) Put(b []byte) int {
	be.PutUint32(b, uint32(h)&psnMask)
	return XRCETHSize
}

// Levels of FETH.
const (
	FlushRange uint8 = 0 // the range of the RETH
	FlushMR    uint8 = 1 // the whole memory region
)

// FETH is the header of FLUSH (IBTA Annex A19; Linux
// drivers/infiniband/sw/rxe/rxe_hdr.h): which placement the requester asks for,
// and of how much memory (2 bits, FlushRange or FlushMR).
type FETH struct {
	Global     bool // visible to everybody
	Persistent bool // survives loss of power
	Level      uint8
}

// Put writes the header to b (at least FETHSize bytes) and returns FETHSize.
func (h FETH) Put(b []byte) int {
	be.PutUint32(b, uint32(bit(h.Global, 1)|bit(h.Persistent, 2)|h.Level&3<<4))
	return FETHSize
}

// cnpReserved is the count of zero bytes between BTH and ICRC of a CNP.
const cnpReserved = 16

// PutCNP writes a congestion notification packet for the queue pair dest, which
// is the sender of the packets that were marked: opcode 0x81, BECN set, PSN 0,
// 16 reserved zero bytes and four bytes for the ICRC (IBTA Annex A17, RoCEv2
// congestion management). It returns CNPSize, the length to hand to Flow.Seal; b
// holds at least that many bytes.
func PutCNP(b []byte, dest QPN) int {
	clear(b[:CNPSize])
	BTH{Opcode: OpCNP, PKey: DefaultPKey, BECN: true, DestQP: dest}.Put(b)
	return CNPSize
}
