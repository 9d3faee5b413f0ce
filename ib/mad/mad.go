package mad

import (
	"encoding/binary"
	"strconv"
)

// Sizes in bytes (IBTA 13.4.2). A datagram has one size, whatever is in it.
const (
	Size       = 256
	HeaderSize = 24
)

// QKey is the Q_Key of the general services queue pair, QP1 (IBTA 10.2.5).
const QKey uint32 = 0x80010000

// baseVersion is the base version of every datagram (IBTA 13.4.2).
const baseVersion = 1

var be = binary.BigEndian

// Class is a management class (IBTA 13.4.4).
type Class uint8

// The classes that a RoCE port has.
const (
	ClassPerfMgt Class = 0x04
	ClassCM      Class = 0x07
)

// Version returns the class version that this package speaks, 0 for an unknown
// class (IBTA 12.6, 16.1.1).
func (c Class) Version() uint8 {
	switch c {
	case ClassPerfMgt:
		return 1
	case ClassCM:
		return 2
	}
	return 0
}

// String returns a short name.
func (c Class) String() string {
	switch c {
	case ClassPerfMgt:
		return "PerfMgt"
	case ClassCM:
		return "CM"
	}
	return "class 0x" + strconv.FormatUint(uint64(c), 16)
}

// Method says what a datagram wants (IBTA 13.4.5).
type Method uint8

// The methods.
const (
	MethodGet     Method = 0x01
	MethodSet     Method = 0x02
	MethodSend    Method = 0x03 // all messages of the connection manager
	MethodGetResp Method = 0x81
)

// Status values of a response (IBTA 13.4.7).
const (
	StatusOK            uint16 = 0
	StatusBadVersion    uint16 = 1 << 2 // base or class version
	StatusBadMethod     uint16 = 2 << 2
	StatusBadMethodAttr uint16 = 3 << 2 // no such attribute, or not with this method
	StatusBadValue      uint16 = 7 << 2
)

// Attr is an attribute identifier. Its meaning depends on the class.
type Attr uint16

// AttrClassPortInfo is the attribute that every class has (IBTA 13.4.8.1).
const AttrClassPortInfo Attr = 0x0001

// The attributes of ClassCM: its messages (IBTA 12.6).
const (
	AttrREQ Attr = 0x0010 + iota
	AttrMRA
	AttrREJ
	AttrREP
	AttrRTU
	AttrDREQ
	AttrDREP
	AttrSIDRREQ
	AttrSIDRREP
	AttrLAP
	AttrAPR
)

// The attributes of ClassPerfMgt (IBTA 16.1.3).
const (
	AttrPortCounters         Attr = 0x0012
	AttrPortCountersExtended Attr = 0x001d
)

// Header is the header of a datagram (IBTA 13.4.2). The base version is always 1.
// ClassSpecific and AttrMod are 0 in what this package's users send; Linux puts
// the options of its enhanced connection establishment into AttrMod of the
// connection manager's messages, which says nothing to those that do not ask.
type Header struct {
	Class         Class
	ClassVersion  uint8
	Method        Method
	Status        uint16
	ClassSpecific uint16
	TID           uint64 // a response repeats that of its request
	Attr          Attr
	AttrMod       uint32
}

// Put writes the header to b, which holds at least HeaderSize bytes, and returns
// HeaderSize.
func (h Header) Put(b []byte) int {
	_ = b[HeaderSize-1]
	b[0], b[1], b[2], b[3] = baseVersion, byte(h.Class), h.ClassVersion, byte(h.Method)
	be.PutUint16(b[4:], h.Status)
	be.PutUint16(b[6:], h.ClassSpecific)
	be.PutUint64(b[8:], h.TID)
	be.PutUint32(b[16:], uint32(h.Attr)<<16)
	be.PutUint32(b[20:], h.AttrMod)
	return HeaderSize
}

// Malformed is the reason why Parse refused a datagram; OK is none.
type Malformed uint8

// The reasons, in the order in which Parse looks for them.
const (
	OK             Malformed = iota
	BadSize                  // not Size bytes
	BadBaseVersion           // other than 1
)

// String returns a short text, for logs.
func (m Malformed) String() string {
	switch m {
	case OK:
		return "ok"
	case BadSize:
		return "bad size"
	case BadBaseVersion:
		return "bad base version"
	}
	return "malformed reason " + strconv.Itoa(int(m))
}

// Parse returns the header of the datagram b. Class, version and attribute are
// for the receiver to judge.
func Parse(b []byte) (Header, Malformed) {
	if len(b) != Size {
		return Header{}, BadSize
	}
	if b[0] != baseVersion {
		return Header{}, BadBaseVersion
	}
	return Header{
		Class: Class(b[1]), ClassVersion: b[2], Method: Method(b[3]),
		Status: be.Uint16(b[4:]), ClassSpecific: be.Uint16(b[6:]), TID: be.Uint64(b[8:]),
		Attr: Attr(be.Uint16(b[16:])), AttrMod: be.Uint32(b[20:]),
	}, OK
}

// Message is what stands behind the header of a datagram: the messages of this
// package.
type Message interface {
	// Attr returns the attribute that names the message.
	Attr() Attr
	layout(layout)
}

// Message returns an empty message of the kind that the header names, for Decode;
// nil when this package knows none. It allocates.
func (h Header) Message() Message {
	type kind struct {
		Class
		Attr
	}
	switch (kind{h.Class, h.Attr}) {
	case kind{ClassCM, AttrClassPortInfo}, kind{ClassPerfMgt, AttrClassPortInfo}:
		return &ClassPortInfo{Class: h.Class}
	case kind{ClassCM, AttrREQ}:
		return &REQ{}
	case kind{ClassCM, AttrMRA}:
		return &MRA{}
	case kind{ClassCM, AttrREJ}:
		return &REJ{}
	case kind{ClassCM, AttrREP}:
		return &REP{}
	case kind{ClassCM, AttrRTU}:
		return &RTU{}
	case kind{ClassCM, AttrDREQ}:
		return &DREQ{}
	case kind{ClassCM, AttrDREP}:
		return &DREP{}
	case kind{ClassCM, AttrSIDRREQ}:
		return &SIDRREQ{}
	case kind{ClassCM, AttrSIDRREP}:
		return &SIDRREP{}
	case kind{ClassCM, AttrLAP}:
		return &LAP{}
	case kind{ClassCM, AttrAPR}:
		return &APR{}
	case kind{ClassPerfMgt, AttrPortCounters}:
		return &PortCounters{}
	case kind{ClassPerfMgt, AttrPortCountersExtended}:
		return &PortCountersExtended{}
	}
	return nil
}

// Decode reads the message of the datagram b, Size bytes, whose header Parse has
// read. What is a slice in the message points into b.
func Decode(b []byte, m Message) { m.layout(layout{b: b[HeaderSize:Size:Size]}) }

// Put writes the message to b, Size bytes, with zeroes where it has nothing, and
// leaves the header alone. Slices that are too long are cut off.
func Put(b []byte, m Message) {
	b = b[HeaderSize:Size]
	clear(b)
	m.layout(layout{b: b, put: true})
}

// EncodeCM writes a whole datagram of the connection manager to b, Size bytes.
func EncodeCM(b []byte, tid uint64, m Message) {
	Header{Class: ClassCM, ClassVersion: ClassCM.Version(), Method: MethodSend, TID: tid, Attr: m.Attr()}.Put(b)
	Put(b, m)
}
