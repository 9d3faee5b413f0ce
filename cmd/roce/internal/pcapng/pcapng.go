// Package pcapng reads the parts of a pcapng file that a packet tap writes:
// sections, interfaces and enhanced packets. It exists so that a program can
// check what it wrote; other block types are skipped.
//
// Format: IETF draft-ietf-opsawg-pcapng, sections 3 and 4.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	typeSection   = 0x0a0d0d0a
	typeInterface = 1
	typePacket    = 6
	orderMagic    = 0x1a2b3c4d
	maxBlock      = 16 << 20
)

// Packet is one captured packet.
type Packet struct {
	Section   int    // counted from 0
	LinkType  uint16 // of the interface: 101 raw IP, 228 IPv4, 229 IPv6
	Timestamp uint64 // in units of the interface
	Len       int    // on the wire
	Data      []byte // what was captured, at most Len bytes; new for each packet
}

// Reader reads packets from a pcapng stream.
type Reader struct {
	r         io.Reader
	order     binary.ByteOrder
	section   int
	linkTypes []uint16
}

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, section: -1} }

// Next returns the next packet, or io.EOF at the end of a well-formed file.
func (r *Reader) Next() (Packet, error) {
	for {
		kind, body, err := r.block()
		if err != nil {
			return Packet{}, err
		}
		switch kind {
		case typeSection:
			r.section++
			r.linkTypes = r.linkTypes[:0]
		case typeInterface:
			if len(body) < 8 {
				return Packet{}, errors.New("pcapng: interface block is too short")
			}
			r.linkTypes = append(r.linkTypes, r.order.Uint16(body))
		case typePacket:
			return r.packet(body)
		}
	}
}

func (r *Reader) packet(body []byte) (Packet, error) {
	if len(body) < 20 {
		return Packet{}, errors.New("pcapng: packet block is too short")
	}
	iface, captured, length := r.order.Uint32(body), r.order.Uint32(body[12:]), r.order.Uint32(body[16:])
	if uint64(iface) >= uint64(len(r.linkTypes)) {
		return Packet{}, fmt.Errorf("pcapng: packet of interface %d, which is not described", iface)
	}
	if captured > length || uint64(captured) > uint64(len(body)-20) {
		return Packet{}, fmt.Errorf("pcapng: packet of %d bytes, %d captured, in a block with room for %d", length, captured, len(body)-20)
	}
	return Packet{
		Section:   r.section,
		LinkType:  r.linkTypes[iface],
		Timestamp: uint64(r.order.Uint32(body[4:]))<<32 | uint64(r.order.Uint32(body[8:])),
		Len:       int(length),
		Data:      body[20 : 20+captured : 20+captured],
	}, nil
}

// block reads one block and returns its type and body.
func (r *Reader) block() (kind uint32, body []byte, err error) {
	var head [12]byte // type, length, and the byte order of a section
	if _, err := io.ReadFull(r.r, head[:8]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("pcapng: the file ends in the middle of a block")
		}
		return 0, nil, err
	}
	have := head[:8]
	if binary.LittleEndian.Uint32(head[:]) == typeSection { // the same in both byte orders
		if _, err := io.ReadFull(r.r, head[8:]); err != nil {
			return 0, nil, errors.New("pcapng: the file ends in the middle of a section header")
		}
		have = head[:]
		switch uint32(orderMagic) {
		case binary.LittleEndian.Uint32(head[8:]):
			r.order = binary.LittleEndian
		case binary.BigEndian.Uint32(head[8:]):
			r.order = binary.BigEndian
		default:
			return 0, nil, errors.New("pcapng: section header without a byte order")
		}
	}
	if r.order == nil {
		return 0, nil, errors.New("pcapng: the file does not begin with a section header")
	}
	size := r.order.Uint32(head[4:])
	if size < uint32(len(have))+4 || size%4 != 0 || size > maxBlock {
		return 0, nil, fmt.Errorf("pcapng: block of %d bytes", size)
	}
	rest := make([]byte, int(size)-len(have))
	if _, err := io.ReadFull(r.r, rest); err != nil {
		return 0, nil, errors.New("pcapng: the file ends in the middle of a block")
	}
	if tail := r.order.Uint32(rest[len(rest)-4:]); tail != size {
		return 0, nil, fmt.Errorf("pcapng: block of %d bytes ends with the length %d", size, tail)
	}
	return r.order.Uint32(head[:]), rest[:len(rest)-4], nil
}
