package ib

import "strconv"

// Opcode is BTH byte 0: the transport in the upper 3 bits, the operation in the
// lower 5 (IBTA 9.2, table of OpCode fields).
type Opcode uint8

// Transport is the upper 3 bits of an opcode.
type Transport uint8

// The transports. No opcode of the table is TransportRD: nothing implements it.
const (
	TransportRC  Transport = iota // reliable connection
	TransportUC                   // unreliable connection
	TransportRD                   // reliable datagram
	TransportUD                   // unreliable datagram
	TransportCNP                  // congestion notification
	TransportXRC                  // extended reliable connection
)

// String returns the usual abbreviation.
func (t Transport) String() string {
	names := [...]string{"RC", "UC", "RD", "UD", "CNP", "XRC"}
	if int(t) < len(names) {
		return names[t]
	}
	return "transport " + strconv.Itoa(int(t))
}

// OpKind says what an opcode does, whatever its transport and position.
type OpKind uint8

// The kinds of operation.
const (
	KindSend OpKind = iota
	KindWrite
	KindReadRequest
	KindReadResponse
	KindAck
	KindAtomicAck
	KindCmpSwap
	KindFetchAdd
	KindFlush
	KindAtomicWrite
	KindCNP
)

// Position is a packet's place in its message.
type Position uint8

// The positions.
const (
	PosOnly Position = iota
	PosFirst
	PosMiddle
	PosLast
)

// Starts reports whether a message begins with this packet.
func (p Position) Starts() bool { return p == PosOnly || p == PosFirst }

// Ends reports whether a message ends with this packet.
func (p Position) Ends() bool { return p == PosOnly || p == PosLast }

// PayloadRule says which payload sizes an opcode may carry. Parse checks
// PayloadNone and PayloadExact; how PayloadAllowed fits the path MTU depends on
// the queue pair.
type PayloadRule uint8

// The payload rules.
const (
	PayloadNone    PayloadRule = iota
	PayloadAllowed             // any size that MTU and position allow
	PayloadExact               // exactly OpcodeInfo.PayloadLen bytes
)

// OpcodeInfo describes one opcode. The values that Opcode.Info returns are
// shared and must not be changed.
type OpcodeInfo struct {
	Name      string // as in the specification: "RC_SEND_FIRST"
	Transport Transport
	Op        OpKind
	Pos       Position
	HeaderLen int // BTH and extension headers, in bytes

	// Which extension headers follow the BTH.
	RETH, AETH, AtomicETH, AtomicAckETH, Imm, IETH, DETH, XRCETH, FETH bool

	Request, Response bool // neither for a CNP

	Payload    PayloadRule
	PayloadLen int // with PayloadExact, in bytes

	// Offsets of the extension headers, 0 for one that is not there.
	offRETH, offAETH, offAtomicETH, offAtomicAck, offImm, offIETH, offDETH, offXRCETH, offFETH uint8
}

// The opcodes. RD and manufacturer opcodes are unknown to this package, and so is
// 0x15, RESYNC, which only RD has.
const (
	OpRCSendFirst          Opcode = 0x00
	OpRCSendMiddle         Opcode = 0x01
	OpRCSendLast           Opcode = 0x02
	OpRCSendLastImm        Opcode = 0x03
	OpRCSendOnly           Opcode = 0x04
	OpRCSendOnlyImm        Opcode = 0x05
	OpRCWriteFirst         Opcode = 0x06
	OpRCWriteMiddle        Opcode = 0x07
	OpRCWriteLast          Opcode = 0x08
	OpRCWriteLastImm       Opcode = 0x09
	OpRCWriteOnly          Opcode = 0x0a
	OpRCWriteOnlyImm       Opcode = 0x0b
	OpRCReadRequest        Opcode = 0x0c
	OpRCReadResponseFirst  Opcode = 0x0d
	OpRCReadResponseMiddle Opcode = 0x0e
	OpRCReadResponseLast   Opcode = 0x0f
	OpRCReadResponseOnly   Opcode = 0x10
	OpRCAck                Opcode = 0x11
	OpRCAtomicAck          Opcode = 0x12
	OpRCCmpSwap            Opcode = 0x13
	OpRCFetchAdd           Opcode = 0x14
	OpRCSendLastInv        Opcode = 0x16
	OpRCSendOnlyInv        Opcode = 0x17
	OpRCFlush              Opcode = 0x1c
	OpRCAtomicWrite        Opcode = 0x1d

	OpUCSendFirst    Opcode = 0x20
	OpUCSendMiddle   Opcode = 0x21
	OpUCSendLast     Opcode = 0x22
	OpUCSendLastImm  Opcode = 0x23
	OpUCSendOnly     Opcode = 0x24
	OpUCSendOnlyImm  Opcode = 0x25
	OpUCWriteFirst   Opcode = 0x26
	OpUCWriteMiddle  Opcode = 0x27
	OpUCWriteLast    Opcode = 0x28
	OpUCWriteLastImm Opcode = 0x29
	OpUCWriteOnly    Opcode = 0x2a
	OpUCWriteOnlyImm Opcode = 0x2b

	OpUDSendOnly    Opcode = 0x64
	OpUDSendOnlyImm Opcode = 0x65

	OpCNP Opcode = 0x81

	OpXRCSendFirst          Opcode = 0xa0
	OpXRCSendMiddle         Opcode = 0xa1
	OpXRCSendLast           Opcode = 0xa2
	OpXRCSendLastImm        Opcode = 0xa3
	OpXRCSendOnly           Opcode = 0xa4
	OpXRCSendOnlyImm        Opcode = 0xa5
	OpXRCWriteFirst         Opcode = 0xa6
	OpXRCWriteMiddle        Opcode = 0xa7
	OpXRCWriteLast          Opcode = 0xa8
	OpXRCWriteLastImm       Opcode = 0xa9
	OpXRCWriteOnly          Opcode = 0xaa
	OpXRCWriteOnlyImm       Opcode = 0xab
	OpXRCReadRequest        Opcode = 0xac
	OpXRCReadResponseFirst  Opcode = 0xad
	OpXRCReadResponseMiddle Opcode = 0xae
	OpXRCReadResponseLast   Opcode = 0xaf
	OpXRCReadResponseOnly   Opcode = 0xb0
	OpXRCAck                Opcode = 0xb1
	OpXRCAtomicAck          Opcode = 0xb2
	OpXRCCmpSwap            Opcode = 0xb3
	OpXRCFetchAdd           Opcode = 0xb4
	OpXRCSendLastInv        Opcode = 0xb6
	OpXRCSendOnlyInv        Opcode = 0xb7
)

// Info returns the description of o, nil when o is unknown.
func (o Opcode) Info() *OpcodeInfo {
	if info := &opcodes[o]; info.HeaderLen != 0 {
		return info
	}
	return nil
}

// Transport returns the upper 3 bits of o, also of an unknown opcode.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// String returns the name, "opcode 0x1f" for an unknown opcode.
func (o Opcode) String() string {
	if info := o.Info(); info != nil {
		return info.Name
	}
	return "opcode 0x" + strconv.FormatUint(uint64(o), 16)
}
