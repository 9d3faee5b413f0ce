package pcapng

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
)

// block makes one block; the body is padded to a multiple of 4.
func block(o binary.AppendByteOrder, kind uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	size := uint32(12 + len(body))
	b := o.AppendUint32(o.AppendUint32(nil, kind), size)
	return o.AppendUint32(append(b, body...), size)
}

func section(o binary.AppendByteOrder) []byte {
	b := o.AppendUint32(nil, orderMagic)
	b = o.AppendUint16(o.AppendUint16(b, 1), 0)
	return block(o, typeSection, o.AppendUint64(b, ^uint64(0)))
}

func iface(o binary.AppendByteOrder, link uint16) []byte {
	return block(o, typeInterface, o.AppendUint32(o.AppendUint16(o.AppendUint16(nil, link), 0), 0))
}

func packet(o binary.AppendByteOrder, iface uint32, ts uint64, length int, data []byte) []byte {
	b := o.AppendUint32(nil, iface)
	b = o.AppendUint32(o.AppendUint32(b, uint32(ts>>32)), uint32(ts))
	b = o.AppendUint32(o.AppendUint32(b, uint32(len(data))), uint32(length))
	return block(o, typePacket, append(b, data...))
}

func TestReader(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	file := bytes.Join([][]byte{
		section(le), iface(le, 101), block(le, 5, []byte("statistics")), packet(le, 0, 1<<40+7, 9, []byte("abcde")),
		section(be), iface(be, 228), iface(be, 229), packet(be, 1, 3, 0, nil),
	}, nil)
	r := NewReader(bytes.NewReader(file))
	for _, want := range []Packet{
		{Section: 0, LinkType: 101, Timestamp: 1<<40 + 7, Len: 9, Data: []byte("abcde")},
		{Section: 1, LinkType: 229, Timestamp: 3, Len: 0},
	} {
		got, err := r.Next()
		if err != nil || got.Section != want.Section || got.LinkType != want.LinkType ||
			got.Timestamp != want.Timestamp || got.Len != want.Len || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestReaderRefuses(t *testing.T) {
	le := binary.LittleEndian
	head := append(section(le), iface(le, 101)...)
	good := packet(le, 0, 1, 4, []byte("abcd"))
	badTail := bytes.Clone(good)
	badTail[len(badTail)-4]++
	long := bytes.Clone(good)
	le.PutUint32(long[8+12:], 5) // one byte more than the block holds
	le.PutUint32(long[8+16:], 5)
	for _, tt := range []struct {
		name, want string
		file       []byte
	}{
		{"no section", "does not begin", good},
		{"no byte order", "byte order", append(le.AppendUint32(le.AppendUint32(nil, typeSection), 28), make([]byte, 20)...)},
		{"cut in a block", "middle of a block", append(bytes.Clone(head), good[:20]...)},
		{"cut in a header", "middle of a block", append(bytes.Clone(head), good[:3]...)},
		{"lengths differ", "ends with the length", append(bytes.Clone(head), badTail...)},
		{"length not of the format", "block of 13 bytes", append(bytes.Clone(head), 6, 0, 0, 0, 13, 0, 0, 0)},
		{"length below the minimum", "block of 8 bytes", append(bytes.Clone(head), 6, 0, 0, 0, 8, 0, 0, 0)},
		{"huge length", "block of 4294967292 bytes", append(bytes.Clone(head), 6, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff)},
		{"more captured than there is", "room for 4", append(bytes.Clone(head), long...)},
		{"unknown interface", "interface 1", append(bytes.Clone(head), packet(le, 1, 1, 0, nil)...)},
		{"short packet block", "too short", append(bytes.Clone(head), block(le, typePacket, make([]byte, 16))...)},
		{"short interface block", "too short", append(section(le), block(le, typeInterface, make([]byte, 4))...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewReader(bytes.NewReader(tt.file)).Next()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	le := binary.LittleEndian
	f.Add(bytes.Join([][]byte{section(le), iface(le, 101), packet(le, 0, 1, 4, []byte("abcd"))}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			if _, err := r.Next(); err != nil {
				return
			}
		}
	})
}
