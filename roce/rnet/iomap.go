package rnet

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/goroce/goroce/roce"
)

// mapped takes an entry that the peer has written into our table.
func (s *stream) mapped(index, size uint32) {
	if int64(index) >= int64(len(s.maps)) || size != mappingSize {
		s.broken("entry %d of mapped memory in %d bytes, the table has %d", index, size, len(s.maps))
		return
	}
	s.maps[index] = parseMapping(s.shared.buf[s.size+places*segmentSize+int(index)*mappingSize:], ours)
}

var errNoMap = errors.New("no memory of the peer is mapped there")

// find returns where offset is in memory of the peer, and how many bytes follow.
func (s *stream) find(offset uint64) (segment, error) {
	for _, m := range s.maps {
		if in := offset - m.offset; offset >= m.offset && in < uint64(m.seg.length) {
			return segment{addr: m.seg.addr + in, key: m.seg.key, length: m.seg.length - uint32(in)}, nil
		}
	}
	return segment{}, fmt.Errorf("offset %#x: %w", offset, errNoMap)
}

// writeAt posts as much of p as can be written now into memory that the peer has
// mapped. It needs no credits: the peer is told nothing.
func (s *stream) writeAt(p []byte, offset uint64) (n int, err error) {
	for n < len(p) && !s.gone && s.direct(len(p)-n) {
		to, err := s.find(offset + uint64(n))
		if err != nil {
			return n, err
		}
		wr := roce.SendWR{Opcode: roce.WRWrite, RemoteAddr: to.addr, RKey: to.key}
		n += s.load(&wr, piece(p[n:], to.length))
		s.send(wr)
	}
	return n, nil
}

// direct says whether at least some of n bytes can be written into mapped memory.
func (s *stream) direct(n int) bool { return s.slots > 0 && s.free >= min(n, lowWater, len(s.buf.buf)) }

// offer tells the peer of memory of ours; there is a slot for it. The message counts
// as none with data: rsocket.c counts it when it sends one, but not when it gets one,
// and so loses a credit each time.
func (s *stream) offer(index int, m mapping) {
	wr := roce.SendWR{
		Opcode: roce.WRWriteWithImm, Imm: message(opIOMap, uint32(index)),
		RemoteAddr: s.table.addr + uint64(index)*mappingSize, RKey: s.table.key,
	}
	s.load(&wr, m.append(s.ctl[:0], s.ord))
	s.send(wr)
}

// Map lets the peer write to buf, with WriteAt (riowrite) from offset on (riomap). It
// waits for room to tell the peer, until the write deadline. The peer takes as many
// areas as its Config.Maps says. The bytes may be read after the peer has told us, by
// Write for example; to watch them earlier there are the atomic accessors of the
// region that is returned.
func (c *Conn) Map(buf []byte, offset int64) (*roce.MR, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	mr, err := c.mapAt(buf, offset)
	return mr, c.opError("map", err)
}

func (c *Conn) mapAt(buf []byte, offset int64) (*roce.MR, error) {
	switch {
	case offset < 0:
		return nil, &roce.ConfigError{Field: "offset", Value: offset, Allowed: "it is at least 0"}
	case len(buf) == 0 || int64(len(buf)) > math.MaxUint32:
		return nil, &roce.ConfigError{Field: "len(buf)", Value: len(buf), Allowed: "allowed are 1 to 4294967295"}
	}
	if err := c.await(&c.writeBy, func() bool { return c.s.gone || c.s.direct(mappingSize) }); err != nil {
		return nil, err
	}
	if c.s.gone {
		return nil, c.s.lost()
	}
	index := slices.Index(c.offered, nil)
	if index < 0 {
		return nil, fmt.Errorf("the peer takes %d areas of memory, and has them", len(c.offered))
	}
	mr, err := c.pd.RegisterMR(buf, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, err
	}
	c.offered[index] = mr
	c.s.offer(index, mapping{offset: uint64(offset), seg: segment{addr: mr.Addr(), key: mr.RKey(), length: uint32(len(buf))}})
	return mr, nil
}

var errNotMapped = errors.New("the region is not mapped")

// Unmap ends what Map has begun (riounmap). A peer that writes there afterwards loses
// the connection.
func (c *Conn) Unmap(mr *roce.MR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := slices.Index(c.offered, mr)
	if mr == nil || index < 0 {
		return c.opError("unmap", errNotMapped)
	}
	c.offered[index] = nil
	return c.opError("unmap", mr.Deregister())
}

// WriteAt writes p into memory that the peer has mapped, at offset (riowrite). The
// peer is told nothing; whatever is written by Write afterwards arrives later.
func (c *Conn) WriteAt(p []byte, offset int64) (int, error) {
	return c.writeAll(p, func(rest []byte) (int, error) {
		return c.s.writeAt(rest, uint64(offset)+uint64(len(p)-len(rest)))
	}, c.s.direct)
}
