package rnet

import (
	"net/netip"
	"testing"

	"github.com/goroce/goroce/roce"
)

// Whatever completes and whatever the program does, in whatever order: nothing panics,
// nothing is counted twice, and no more is posted than the queues hold. Each byte
// of the input is a step, some with the bytes after it.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 200, 1, 50, 2, 0, 5, 5, 3, 2, 4, 16, 6, 7, 8})
	f.Add([]byte{2, 0, 255, 2, 4, 16, 2, 7, 0, 3, 3, 1, 9})
	f.Fuzz(func(t *testing.T, steps []byte) {
		a := newAlone(t, nil)
		buf := make([]byte, 1<<13)
		next := func() (b byte) {
			if len(steps) > 0 {
				b, steps = steps[0], steps[1:]
			}
			return b
		}
		done := 0 // of what was posted
		for len(steps) > 0 {
			switch next() % 8 {
			case 0:
				a.write(buf[:int(next())<<5])
			case 1:
				a.read(buf[:int(next())<<5])
			case 2: // a message: operation, value, bytes
				op, value, size := uint32(next()%8), uint32(next()), int(next())
				a.gets(op, value, size)
			case 3: // what was posted first completes
				if done < len(a.posted) {
					a.acks(a.posted[done].ID, 1)
					done++
				}
			case 4:
				a.newPlace(int(next()%2), int(next()), int(next()), uint32(next()))
			case 5:
				a.tell(uint32(next() % 3))
			case 6:
				a.closeWrite()
			case 7:
				a.complete(&roce.WC{ID: isRecv, Status: roce.WCStatus(next() % 24), Opcode: roce.WCRecvRDMAWithImm})
				a.settle()
			}
			if under := len(a.posted) - done; under > 16 || a.ctrls > ctrlSlots || a.ctrls < 0 || a.slots < 0 || a.free < 0 || a.free > len(a.buf.buf) {
				t.Fatalf("%d requests under way, %d of them control messages, %d slots, %d bytes free", under, a.ctrls, a.slots, a.free)
			}
			if a.unread < 0 || a.freed < 0 || a.unread+a.freed > a.size || a.count > len(a.lengths) {
				t.Fatalf("%d bytes unread and %d free of %d, %d messages", a.unread, a.freed, a.size, a.count)
			}
		}
	})
}

// Whatever the bytes that hosts exchange: what is taken is what would be sent.
func FuzzFormats(f *testing.F) {
	d := connData{credits: 384, maps: 8, list: segment{1 << 40, 2, 2}, data: segment{3 << 40, 4, 65536}}
	f.Add(d.append(nil))
	f.Add([]byte{4, head4, 1, 2, 10, 1, 2, 3, 'x'})
	f.Add([]byte{0x55, 0x55, 0x55, 0x55, 4, 0, hello4, 0, 0, 1, 2, 3, 10, 1, 2, 3, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := parseConnData(b); err == nil {
			if again, err := parseConnData(d.append(nil)); err != nil || again != d {
				t.Errorf("%+v becomes %+v, %v", d, again, err)
			}
		}
		if from, data, ok := parseHead(b); ok {
			again, rest, ok := parseHead(append(appendHead(nil, from), data...))
			if !ok || again != from || string(rest) != string(data) {
				t.Errorf("%v becomes %v", from, again)
			}
		}
		local := netip.MustParseAddr("10.1.2.3")
		if op, qpn, data, ok := parseHello(b, local); ok {
			o, q, rest, ok := parseHello(append(appendHello(nil, local, op, qpn), data...), local)
			if !ok || o != op || q != qpn || string(rest) != string(data) {
				t.Errorf("%d %v becomes %d %v", op, qpn, o, q)
			}
		}
	})
}
