package rnet

import (
	"encoding/binary"
	"fmt"
)

// The formats are those of librdmacm, rsocket.c. What the two sides tell each other
// when they connect is in network byte order. What one writes into the lists of the
// other is in the order of the one who reads it; ours is little-endian on all
// machines.

// The upper three bits of a message, which is the immediate data of a WRITE, say
// what it is.
const (
	opData     = 0 // bytes: written to where the receiver said
	opDataMore = 1 // the same, and more follows
	opSGL      = 4 // the credits that the sender may use up; with 16 bytes, a new place for data
	opIOMap    = 6 // index: entry of the table of mapped memory that was written
	opCtrl     = 7 // one of the following
)

// Control messages.
const (
	ctrlDisconnect = 0 // nothing will be sent or received any more
	ctrlKeepAlive  = 1 // never seen by a receiver: it is a WRITE of 0 bytes
	ctrlShutdown   = 2 // nothing will be sent any more
)

const valueBits = 29

func message(op, value uint32) uint32 { return op<<valueBits | value }

func opOf(msg uint32) uint32    { return msg >> valueBits }
func valueOf(msg uint32) uint32 { return msg & (1<<valueBits - 1) }

// Sizes of entries of the lists.
const (
	segmentSize = 16
	mappingSize = 24
)

// segment is a piece of memory of the other side (struct rs_sge).
type segment struct {
	addr   uint64
	key    uint32
	length uint32
}

func (g segment) append(b []byte, o binary.AppendByteOrder) []byte {
	b = o.AppendUint64(b, g.addr)
	b = o.AppendUint32(b, g.key)
	return o.AppendUint32(b, g.length)
}

func parseSegment(b []byte, o binary.ByteOrder) segment {
	return segment{addr: o.Uint64(b), key: o.Uint32(b[8:]), length: o.Uint32(b[12:])}
}

// mapping is memory of one side that the other may write to, under the offsets from
// offset on (struct rs_iomap).
type mapping struct {
	offset uint64
	seg    segment
}

func (m mapping) append(b []byte, o binary.AppendByteOrder) []byte {
	return m.seg.append(o.AppendUint64(b, m.offset), o)
}

func parseMapping(b []byte, o binary.ByteOrder) mapping {
	return mapping{offset: o.Uint64(b), seg: parseSegment(b[8:], o)}
}

const (
	connDataSize    = 40
	connDataVersion = 1
	flagBigEndian   = 1 << 0 // what is written into the sender's lists has to be so
	flagIOMap       = 1 << 1 // the sender has a table for mapped memory
)

// connData is what each side tells the other with the connection request and its
// answer (struct rs_conn_data).
type connData struct {
	bigEndian bool
	credits   uint16  // messages with data that may be under way
	maps      int     // entries of the table of mapped memory, which follows the list of places
	list      segment // list of places for data: length is the number of entries
	data      segment // the first place
}

func (d *connData) append(b []byte) []byte {
	flags := byte(flagIOMap)
	if d.bigEndian {
		flags |= flagBigEndian
	}
	b = append(b, connDataVersion, flags)
	b = binary.BigEndian.AppendUint16(b, d.credits)
	b = append(b, 0, 0, 0, toScale(d.maps))
	return d.data.append(d.list.append(b, binary.BigEndian), binary.BigEndian)
}

// parseConnData reads what the peer tells. b is padded with zeros by the connection
// manager.
func parseConnData(b []byte) (d connData, err error) {
	if len(b) < connDataSize {
		return d, fmt.Errorf("the peer's private data has %d bytes, rsocket's has %d: it is another protocol", len(b), connDataSize)
	}
	if b[0] != connDataVersion {
		return d, fmt.Errorf("the peer's private data has version %d, allowed is %d: it is another protocol", b[0], connDataVersion)
	}
	d.bigEndian = b[1]&flagBigEndian != 0
	d.credits = binary.BigEndian.Uint16(b[2:])
	if b[1]&flagIOMap != 0 {
		d.maps = fromScale(b[7])
	}
	d.list = parseSegment(b[8:], binary.BigEndian)
	d.data = parseSegment(b[24:], binary.BigEndian)
	if d.list.length == 0 {
		return d, fmt.Errorf("the peer's list of places for data has no entry")
	}
	return d, nil
}

// The number of mapped areas is told in 8 bits: numbers above 128 in units of 256.
const (
	scaleBit = 1 << 7
	maxMaps  = (scaleBit - 1) << 8
)

func toScale(n int) byte {
	if n <= scaleBit {
		return byte(n)
	}
	return byte(scaleBit | n>>8)
}

func fromScale(b byte) int {
	if b <= scaleBit {
		return int(b)
	}
	return int(b&^scaleBit) << 8
}
