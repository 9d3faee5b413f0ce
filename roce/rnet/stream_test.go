package rnet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goroce/goroce/roce"
)

// A wire is a queue pair that carries nothing by itself: what is posted is taken off
// by the test.
type wire struct {
	posted []roce.SendWR
	recvs  int
	refuse error
}

func (w *wire) PostSend(wrs ...roce.SendWR) error {
	for _, wr := range wrs {
		wr.SGE, wr.Data = slices.Clone(wr.SGE), bytes.Clone(wr.Data)
		w.posted = append(w.posted, wr)
	}
	return w.refuse
}

func (w *wire) PostRecv(wrs ...roce.RecvWR) error { w.recvs += len(wrs); return w.refuse }

// Where the regions of a test's stream are, and what its peer has told.
const (
	privateAt, sharedAt = 0x1000000, 0x2000000
	peerData, peerList  = 0xda0000, 0x115000
)

// alone is a stream whose peer is the test: it has said that it takes 8 messages, and
// 4096 bytes at peerData.
type alone struct {
	*wire
	*stream
	t *testing.T
}

func newAlone(t *testing.T, tell func(*connData)) *alone {
	cfg := Config{SendBuffer: 8192, RecvBuffer: 8192, SendQueue: 16, RecvQueue: 16, Maps: 2}
	w := &wire{}
	s := newStream(&cfg,
		region{make([]byte, cfg.SendBuffer), privateAt, 1}, region{make([]byte, sharedSize(&cfg)), sharedAt, 2})
	if err := s.prepare(w); err != nil || w.recvs != 20 {
		t.Fatal(err, w.recvs)
	}
	w.recvs = 0
	d := connData{credits: 8, maps: 3, list: segment{peerList, 0x77, 2}, data: segment{peerData, 0x88, 4096}}
	if tell != nil {
		tell(&d)
	}
	s.start(d)
	return &alone{w, s, t}
}

// posts checks what has been posted since the last call, in words.
func (a *alone) posts(want ...string) {
	a.t.Helper()
	var got []string
	for i := range a.posted {
		got = append(got, say(&a.posted[i]))
	}
	if !slices.Equal(got, want) {
		a.t.Fatalf("posted\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	a.posted = a.posted[:0]
}

// say describes a request: message, bytes, and where they go.
func say(wr *roce.SendWR) string {
	size := len(wr.Data)
	for _, g := range wr.SGE {
		size += int(g.Length)
	}
	text := "write"
	if wr.Opcode == roce.WRWriteWithImm {
		text = fmt.Sprintf("%s %d", [8]string{"data", "more", "?", "?", "sgl", "?", "map", "ctrl"}[opOf(wr.Imm)], valueOf(wr.Imm))
	}
	if wr.RKey != 0 {
		text += fmt.Sprintf(": %d at %x by %x", size, wr.RemoteAddr, wr.RKey)
	}
	return text
}

// acks completes the n requests of the given ID.
func (a *alone) acks(id uint64, n int) {
	for range n {
		a.complete(&roce.WC{ID: id, Opcode: roce.WCWrite})
	}
	a.settle()
}

// gets is a message of the peer, with so many bytes.
func (a *alone) gets(op, value uint32, size int) {
	a.complete(&roce.WC{ID: isRecv, Opcode: roce.WCRecvRDMAWithImm, Flags: roce.WCWithImm, Imm: message(op, value), ByteLen: uint32(size)})
	a.settle()
}

// place is the peer's news of n bytes at peerData + off, in entry i of our list.
func (a *alone) newPlace(i, off, n int, credits uint32) {
	segment{peerData + uint64(off), 0x88, uint32(n)}.append(a.shared.buf[8192+segmentSize*i:][:0], ours)
	a.gets(opSGL, credits, segmentSize)
}

// The second half of the receive buffer is told at once, in entry 1: entry 0 is what
// the connection has told.
func TestStartGrantsSecondHalf(t *testing.T) {
	a := newAlone(t, nil)
	if got := hex.EncodeToString(a.posted[0].Data); got != "00100002"+"00000000"+"02000000"+"00100000" {
		t.Error("place", got)
	}
	a.posts("sgl 16: 16 at 115010 by 77")

	a = newAlone(t, func(d *connData) { d.bigEndian = true; d.list.length = 1 })
	if got := hex.EncodeToString(a.posted[0].Data); got != "0000000002001000"+"00000002"+"00001000" {
		t.Error("place for a big-endian peer", got)
	}
	a.posts("sgl 16: 16 at 115000 by 77")
}

// A message ends with the place, with the send buffer and at maxMessage.
func TestWriteCutsMessages(t *testing.T) {
	a := newAlone(t, nil)
	a.posts("sgl 16: 16 at 115010 by 77")
	if n := a.write(make([]byte, 10000)); n != 4096 {
		t.Fatal(n)
	}
	a.posts("data 4096: 4096 at da0000 by 88")
	if n := a.write([]byte{1}); n != 0 {
		t.Fatal("written without a place", n)
	}
	a.newPlace(1, 0x10000, 4096, 8)
	if n := a.write(make([]byte, 3000)); n != 3000 {
		t.Fatal(n)
	}
	a.posts("data 3000: 3000 at db0000 by 88")
	// 1096 bytes of the send buffer are free, less than lowWater: a short write goes, a
	// longer one waits for the first acknowledgement.
	if a.writable(2048) || !a.writable(1096) {
		t.Fatal("lowWater")
	}
	a.acks(sentData|4096, 1)
	if n := a.write(make([]byte, 1000)); n != 1000 {
		t.Fatal(n)
	}
	if n := a.write(make([]byte, 1000)); n != 96 { // the place's end
		t.Fatal(n)
	}
	a.posts("data 1000: 1000 at db0bb8 by 88", "data 96: 96 at db0fa0 by 88")

	a = newAlone(t, func(d *connData) { d.data.length = 1 << 20 })
	a.posts("sgl 16: 16 at 115010 by 77")
	a.buf = region{make([]byte, 1<<20), privateAt, 1}
	a.free = 1 << 20
	a.write(make([]byte, maxMessage+100))
	a.posts("data 32768: 32768 at da0000 by 88", "data 100: 100 at da8000 by 88")
}

// The send buffer is a ring: a message does not wrap.
func TestSendBufferWraps(t *testing.T) {
	a := newAlone(t, func(d *connData) { d.data.length = 1 << 20 })
	a.write(make([]byte, 8000))
	a.acks(sentData|8000, 1)
	a.posted = nil
	a.write(make([]byte, 300))
	if x, y := a.posted[0].SGE[0], a.posted[1].SGE[0]; x.Addr != privateAt+8000 || x.Length != 192 || y.Addr != privateAt || y.Length != 108 {
		t.Error(x, y)
	}
}

// Messages with data use up the peer's credits, which count from the first message and
// wrap at 16 bits.
func TestCredits(t *testing.T) {
	a := newAlone(t, nil)
	for i := range 10 {
		if n := a.write([]byte{1}); (n == 1) != (i < 8) {
			t.Fatalf("message %d: %d", i, n)
		}
	}
	a.acks(sentData, 8)
	a.gets(opSGL, 1<<16+9, 0) // as rsocket.c, which adds without cutting to 16 bits
	if n := a.write([]byte{1}); n != 1 || a.writable(1) {
		t.Fatal(n)
	}
	a.acks(sentData, 1)
	a.sent, a.credit = 65535, 65535
	a.gets(opSGL, 1, 0)
	a.write([]byte{1})
	if a.write([]byte{1}); a.sent != 1 || a.writable(1) {
		t.Error(a.sent)
	}
	a = newAlone(t, func(d *connData) { d.credits = 100 })
	for a.write([]byte{1}) == 1 {
	}
	if a.busy != 12 {
		t.Errorf("%d requests in a queue of 16, of which 4 are for control messages", a.busy)
	}
}

// Half of the buffer, or half of the credits, is news for the peer; of control
// messages at most 4 are under way.
func TestGrants(t *testing.T) {
	a := newAlone(t, nil)
	a.posts("sgl 16: 16 at 115010 by 77")
	a.acks(sentCtrl, 1)
	buf := make([]byte, 8192)
	for range 7 {
		a.gets(opData, 10, 10)
	}
	a.read(buf)
	a.posts()
	a.gets(opData, 10, 10)
	a.read(buf[:9])
	a.posts() // 7 messages and most of one are read
	a.read(buf)
	a.posts("sgl 24")
	a.gets(opData, 4016, 4016)
	a.read(buf[:4015])
	a.posts()
	a.read(buf)
	a.posts("sgl 25: 16 at 115000 by 77")
	// The next half goes to entry 1, behind two keep-alives that take the last slots.
	a.tell(ctrlKeepAlive)
	a.told[ctrlKeepAlive] = false
	a.tell(ctrlKeepAlive)
	a.posts("write", "write")
	a.gets(opData, 4096, 4096)
	a.read(buf)
	a.posts()
	a.acks(sentCtrl, 1)
	a.posts("sgl 26: 16 at 115010 by 77")
	if a.recvs != 10 {
		t.Errorf("%d receives posted again, 10 were used", a.recvs)
	}
}

// The steps of two sides that end a connection.
func TestEnds(t *testing.T) {
	type step func(*alone)
	var (
		closeWrite = func(a *alone) { a.closeWrite() }
		closeBoth  = func(a *alone) { a.close() }
		shutdown   = func(a *alone) { a.gets(opCtrl, ctrlShutdown, 0) }
		disconnect = func(a *alone) { a.gets(opCtrl, ctrlDisconnect, 0) }
		acked      = func(a *alone) { a.acks(sentCtrl, 1) }
		byeAcked   = func(a *alone) { a.acks(sentBye, 1) }
	)
	for _, c := range []struct {
		name                   string
		steps                  []step
		posts                  []string
		readEnd, sendEnd, gone bool
		said                   bool
	}{
		{"we shut down", []step{closeWrite, acked}, []string{"ctrl 2"}, false, true, false, false},
		{"twice", []step{closeWrite, closeWrite}, []string{"ctrl 2"}, false, true, false, false},
		{"the peer shuts down", []step{shutdown}, nil, true, false, false, false},
		{"we, then the peer", []step{closeWrite, shutdown}, []string{"ctrl 2"}, true, true, true, false},
		{"the peer, then we", []step{shutdown, closeWrite, byeAcked}, []string{"ctrl 0"}, true, true, true, true},
		{"we close", []step{closeBoth}, []string{"ctrl 0"}, true, true, false, true},
		{"the peer has it", []step{closeBoth, byeAcked}, []string{"ctrl 0"}, true, true, true, true},
		{"shut down, close", []step{closeWrite, closeBoth}, []string{"ctrl 2", "ctrl 0"}, true, true, false, true},
		{"the peer closes", []step{disconnect, closeBoth}, nil, true, true, true, false},
		{"both close", []step{closeBoth, disconnect, byeAcked}, []string{"ctrl 0"}, true, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAlone(t, nil)
			a.acks(sentCtrl, 1)
			a.posted = nil
			for _, f := range c.steps {
				f(a)
			}
			a.posts(c.posts...)
			if a.readEnd != c.readEnd || a.sendEnd != c.sendEnd || a.gone != c.gone || a.said != c.said || a.err != nil {
				t.Errorf("read end %v, send end %v, gone %v, said %v, error %v", a.readEnd, a.sendEnd, a.gone, a.said, a.err)
			}
		})
	}
}

// A goodbye waits for a free control message, and for everything to arrive.
func TestCloseWaits(t *testing.T) {
	a := newAlone(t, nil)
	a.ctrls = ctrlSlots
	a.write([]byte{1})
	a.closeWrite()
	a.close()
	a.posts("sgl 16: 16 at 115010 by 77", "data 1: 1 at da0000 by 88")
	a.acks(sentCtrl, 1)
	a.posts("ctrl 0")
	for _, id := range []uint64{sentCtrl, sentCtrl, sentCtrl, sentData} {
		if a.acks(id, 1); a.idle() {
			t.Fatal("idle before the goodbye has arrived")
		}
	}
	if a.acks(sentBye, 1); !a.idle() {
		t.Fatal("not idle")
	}
}

// What has arrived can be read after the connection has ended.
func TestReadsTheRest(t *testing.T) {
	fail := func(a *alone) { a.complete(&roce.WC{ID: sentCtrl, Status: roce.WCRetryExcErr}) }
	for _, c := range []struct {
		name string
		end  func(*alone)
		want string
	}{
		{"shutdown", func(a *alone) { a.gets(opCtrl, ctrlShutdown, 0) }, "EOF"},
		{"disconnect", func(a *alone) { a.gets(opCtrl, ctrlDisconnect, 0) }, "EOF"},
		{"a request failed", fail, "the connection is lost: transport retry counter exceeded"},
		{"the queue pair failed", func(a *alone) { a.complete(&roce.WC{ID: isRecv, Status: roce.WCWRFlushErr}) }, syscall.ECONNRESET.Error()},
		{"posting fails", func(a *alone) { a.refuse = errors.New("full"); a.closeWrite() }, "full"},
		{"disconnect, then flushed", func(a *alone) { a.gets(opCtrl, ctrlDisconnect, 0); fail(a) }, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAlone(t, nil)
			copy(a.shared.buf, "hello")
			a.gets(opData, 5, 5)
			c.end(a)
			buf := make([]byte, 4)
			if n, err := a.read(buf); n != 4 || err != nil || string(buf) != "hell" {
				t.Fatal(n, err)
			}
			if n, err := a.read(buf); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if n, err := a.read(buf); n != 0 || err == nil || err.Error() != c.want {
				t.Fatal(n, err)
			}
			if n, err := a.read(nil); n != 0 || err != nil {
				t.Fatal("empty read", n, err)
			}
		})
	}
	if a := newAlone(t, nil); a.lost() != syscall.EPIPE {
		t.Error(a.lost())
	}
}

// Whatever the peer says, it can only end its own connection.
func TestProtocolViolations(t *testing.T) {
	for name, f := range map[string]func(*alone){
		"length":       func(a *alone) { a.gets(opData, 5, 6) },
		"beyond place": func(a *alone) { a.gets(opData, 4096, 4096); a.gets(opData, 4097, 4097) },
		"beyond credits": func(a *alone) {
			for range 17 {
				a.gets(opData, 1, 1)
			}
		},
		"place too early": func(a *alone) { a.newPlace(1, 0, 1, 8); a.newPlace(0, 0, 1, 8) },
		"odd place":       func(a *alone) { a.gets(opSGL, 8, 15) },
		"no such entry":   func(a *alone) { a.gets(opIOMap, 2, mappingSize) },
		"odd entry":       func(a *alone) { a.gets(opIOMap, 1, mappingSize-1) },
		"reserved":        func(a *alone) { a.gets(5, 0, 0) },
		"direct receive":  func(a *alone) { a.gets(2, 0, 0) },
		"a SEND":          func(a *alone) { a.complete(&roce.WC{ID: isRecv, Opcode: roce.WCRecv}) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAlone(t, nil)
			if f(a); !errors.Is(a.err, errProtocol) || !a.gone {
				t.Error(a.err)
			}
		})
	}
}

// Memory that is mapped: what the peer is told, and where WriteAt writes.
func TestMappedMemory(t *testing.T) {
	a := newAlone(t, nil)
	a.posted = nil
	a.offer(2, mapping{0x1122, segment{0x334455, 0x66, 0x99}})
	if got := hex.EncodeToString(a.posted[0].Data); got != "2211000000000000"+"5544330000000000"+"66000000"+"99000000" {
		t.Error(got)
	}
	a.posts(fmt.Sprintf("map 2: 24 at %x by 77", peerList+2*segmentSize+2*mappingSize))
	if a.sent != 0 {
		t.Error("a credit was used up")
	}

	mapping{100, segment{0xaa0000, 5, 50}}.append(a.shared.buf[8192+32:][:0], ours)
	a.gets(opIOMap, 0, mappingSize)
	mapping{150, segment{0xbb0000, 6, 50}}.append(a.shared.buf[8192+32+24:][:0], ours)
	a.gets(opIOMap, 1, mappingSize)
	a.credit = a.sent // needs none
	if n, err := a.writeAt(make([]byte, 70), 120); n != 70 || err != nil {
		t.Fatal(n, err)
	}
	a.posts("write: 30 at aa0014 by 5", "write: 40 at bb0000 by 6")
	if n, err := a.writeAt(make([]byte, 20), 190); n != 10 || !errors.Is(err, errNoMap) {
		t.Error(n, err)
	}
	if n, err := a.writeAt(make([]byte, 1), 99); n != 0 || !errors.Is(err, errNoMap) {
		t.Error(n, err)
	}
}

// A network of two streams: requests arrive in order, at times that chance decides.
type network struct {
	ends [2]*stream
	qps  [2]*wire
}

// step carries one request from end i to the other one.
func (n *network) step(t *testing.T, i int) {
	w := n.qps[i]
	if len(w.posted) == 0 {
		return
	}
	wr := w.posted[0]
	w.posted = w.posted[1:]
	from, to := n.ends[i], n.ends[1-i]
	data := wr.Data
	for _, g := range wr.SGE {
		data = append(data, from.buf.buf[g.Addr-from.buf.addr:][:g.Length]...)
	}
	if len(data) > 0 {
		if wr.RKey != to.shared.key {
			t.Fatalf("key %x", wr.RKey)
		}
		copy(to.shared.buf[wr.RemoteAddr-to.shared.addr:][:len(data)], data)
	}
	if wr.Opcode == roce.WRWriteWithImm {
		to.complete(&roce.WC{ID: isRecv, Opcode: roce.WCRecvRDMAWithImm, Imm: wr.Imm, ByteLen: uint32(len(data))})
		to.settle()
	}
	from.complete(&roce.WC{ID: wr.ID, Opcode: roce.WCWrite})
	from.settle()
}

// Whatever the order of writing, reading and arriving, the bytes that one end reads
// are those that the other one has written, and all of them.
func TestRandomOrder(t *testing.T) {
	seeds := uint64(200)
	if raceEnabled {
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		var n network
		var slots [2]int
		for i := range n.ends {
			cfg := Config{SendBuffer: 4096 << r.IntN(3), RecvBuffer: 4096 << r.IntN(3), SendQueue: 16 + r.IntN(20), RecvQueue: 16 + r.IntN(20), Maps: r.IntN(3)}
			slots[i] = cfg.SendQueue - ctrlSlots
			n.qps[i] = &wire{}
			n.ends[i] = newStream(&cfg, region{make([]byte, cfg.SendBuffer), 1 << 20, 1}, region{make([]byte, sharedSize(&cfg)), 2 << 20, uint32(2 + i)})
		}
		for i, s := range n.ends {
			s.prepare(n.qps[i])
		}
		n.ends[0].start(n.ends[1].local())
		n.ends[1].start(n.ends[0].local())
		var written, read [2]byte // the next byte, which counts
		var bytesRead [2]int
		const total = 100000
		var wrote [2]int
		for bytesRead[0] < total || bytesRead[1] < total {
			i := r.IntN(2)
			switch r.IntN(4) {
			case 0:
				p := make([]byte, min(1+r.IntN(1<<r.IntN(14)), total-wrote[i]))
				for k := range p {
					p[k] = written[i] + byte(k)
				}
				k := n.ends[i].write(p)
				wrote[i] += k
				written[i] += byte(k)
			case 1:
				p := make([]byte, 1+r.IntN(1<<r.IntN(14)))
				k, err := n.ends[i].read(p)
				for _, b := range p[:k] {
					if b != read[i] {
						t.Fatalf("seed %d: byte %d is %d, want %d", seed, bytesRead[i], b, read[i])
					}
					read[i]++
					bytesRead[i]++
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			default:
				n.step(t, i)
			}
		}
		n.ends[0].close()
		for range 20 {
			n.step(t, 0)
			n.step(t, 1)
		}
		for i, s := range n.ends {
			if _, err := s.read(make([]byte, 1)); err != io.EOF || !s.idle() || s.slots != slots[i] || s.free != len(s.buf.buf) {
				t.Fatalf("seed %d, end %d: %v, %d slots, %d bytes free", seed, i, err, s.slots, s.free)
			}
		}
	}
}
