package nvme

import (
	"encoding/binary"
	"fmt"
)

// Sizes of capsules without data (NVMe-oF 1.1, 2.1 and 2.2).
const (
	commandSize  = 64
	responseSize = 16
)

// Opcode is what a command does. Admin and I/O commands have values of their own.
type Opcode uint8

// Admin commands, and the one that stands for all of Fabrics.
const (
	opGetLogPage  Opcode = 0x02
	opIdentify    Opcode = 0x06
	opAbort       Opcode = 0x08
	opSetFeatures Opcode = 0x09
	opGetFeatures Opcode = 0x0a
	opAsyncEvent  Opcode = 0x0c
	opKeepAlive   Opcode = 0x18
	opFabrics     Opcode = 0x7f
)

// I/O commands.
const (
	opFlush Opcode = 0x00
	opWrite Opcode = 0x01
	opRead  Opcode = 0x02
)

// Fabrics commands, in the byte where other commands have the first one of their namespace.
const (
	fabricsPropertySet = 0x00
	fabricsConnect     = 0x01
	fabricsPropertyGet = 0x04
)

// flagsSGL says that the data pointer is an SGL and the metadata pointer an address: the only form Fabrics has (PSDT 01b).
const flagsSGL = 0x40

// Command is a submission queue entry.
type Command struct {
	Opcode Opcode
	Flags  uint8
	CID    uint16
	NSID   uint32 // of a Fabrics command: its type
	_      [16]byte
	SGL    SGL
	CDW    [6]uint32 // command dwords 10 to 15
}

func (c *Command) put(b []byte) { mustCode(binary.Encode(b, binary.LittleEndian, c)) }

func (c *Command) get(b []byte) { mustCode(binary.Decode(b, binary.LittleEndian, c)) }

// mustCode is for structures of fixed size in buffers that have room for them.
func mustCode(_ int, err error) {
	if err != nil {
		panic(err)
	}
}

// The types of SGL descriptors that RDMA has (NVMe-oF 1.1, 7.3.2), with their subtypes.
const (
	sglInCapsule       = 0x01 // data block, address is an offset into the capsule
	sglKeyed           = 0x40 // keyed data block, address
	sglKeyedInvalidate = 0x4f // the same, and the key is to be invalidated with the response
)

// SGL is a descriptor: where the data is.
type SGL struct {
	Addr uint64
	Rest [7]byte // length and key
	Type uint8
}

func inCapsule(offset uint64, n int) SGL {
	s := SGL{Addr: offset, Type: sglInCapsule}
	binary.LittleEndian.PutUint32(s.Rest[:], uint32(n))
	return s
}

// maxKeyed is the most that a keyed descriptor's length of 24 bits can say.
const maxKeyed = 1<<24 - 1

func keyed(typ uint8, addr uint64, n int, key uint32) SGL {
	s := SGL{Addr: addr, Type: typ}
	binary.LittleEndian.PutUint32(s.Rest[:], uint32(n)) // its fourth byte is 0, and then the key's
	binary.LittleEndian.PutUint32(s.Rest[3:], key)
	return s
}

// length returns the bytes of data.
func (s *SGL) length() int {
	n := binary.LittleEndian.Uint32(s.Rest[:])
	if s.isKeyed() {
		n &= maxKeyed
	}
	return int(n)
}

func (s *SGL) key() uint32 { return binary.LittleEndian.Uint32(s.Rest[3:]) }

func (s *SGL) isKeyed() bool { return s.Type == sglKeyed || s.Type == sglKeyedInvalidate }

// Completion is a completion queue entry.
type Completion struct {
	Result uint64
	SQHead uint16
	SQID   uint16
	CID    uint16
	Status uint16 // shifted by one: bit 0 is the phase tag, which Fabrics has not
}

func (c *Completion) put(b []byte) { mustCode(binary.Encode(b, binary.LittleEndian, c)) }

func (c *Completion) get(b []byte) { mustCode(binary.Decode(b, binary.LittleEndian, c)) }

// Status is the status of a command: code, type and the bit that says that to try again is of no use. Other than 0 it is an error.
type Status uint16

// Status values (NVMe 1.3, 4.6.1; NVMe-oF 1.1, 3.3).
const (
	dnr Status = 0x4000 // do not retry

	success             Status = 0x000
	invalidOpcode       Status = 0x001 | dnr
	invalidField        Status = 0x002 | dnr
	internalError       Status = 0x006
	invalidNamespace    Status = 0x00b | dnr
	sequenceError       Status = 0x00c | dnr
	invalidSGLLength    Status = 0x00f | dnr
	invalidSGLType      Status = 0x011 | dnr
	invalidSGLOffset    Status = 0x016 | dnr
	lbaOutOfRange       Status = 0x080 | dnr
	asyncEventLimit     Status = 0x105 | dnr
	invalidLogPage      Status = 0x109 | dnr
	connectFormat       Status = 0x180 | dnr
	connectBusy         Status = 0x181
	connectInvalidParam Status = 0x182 | dnr
)

var statusNames = map[Status]string{
	invalidOpcode: "invalid command opcode", invalidField: "invalid field in command", internalError: "internal error",
	invalidNamespace: "invalid namespace", sequenceError: "command sequence error", invalidSGLLength: "data SGL length invalid",
	invalidSGLType: "SGL descriptor type invalid", invalidSGLOffset: "SGL offset invalid", lbaOutOfRange: "LBA out of range",
	asyncEventLimit: "asynchronous event request limit exceeded", invalidLogPage: "invalid log page",
	connectFormat: "connect incompatible format", connectBusy: "connect controller busy", connectInvalidParam: "connect invalid parameters",
}

func (s Status) Error() string {
	for known, name := range statusNames {
		if s&^dnr == known&^dnr {
			return "nvme: " + name
		}
	}
	return fmt.Sprintf("nvme: status type %d code %#02x", s>>8&7, uint8(s))
}
