package cm

import (
	"math"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport"
)

// tape reads a fuzzer's bytes; behind the end it reads zeroes.
type tape []byte

func (p *tape) byte() byte {
	if len(*p) == 0 {
		return 0
	}
	b := (*p)[0]
	*p = (*p)[1:]
	return b
}

// messages are one of each that the peer may send about connection id.
func messages(id uint32, n byte) []mad.Message {
	req := changed(func(m *mad.REQ) { m.LocalCommID, m.LocalQPN = uint32(n&7), ib.QPN(n>>3)+2 })
	return []mad.Message{
		req, &mad.MRA{LocalCommID: theirID, RemoteCommID: id, MRAed: mad.Msg(n & 3), ServiceTimeout: ib.AckTimeout(n >> 3)},
		&mad.REJ{LocalCommID: uint32(n & 7), RemoteCommID: id, Reason: mad.Reason(n >> 3), ARI: []byte{7: theirGUID}},
		&mad.REP{LocalCommID: uint32(n & 7), RemoteCommID: id, LocalCAGUID: theirGUID, LocalQPN: ib.QPN(n>>3) + 2},
		&mad.RTU{LocalCommID: uint32(n & 7), RemoteCommID: id}, &mad.DREQ{LocalCommID: uint32(n & 7), RemoteCommID: id, RemoteQPN: ib.QPN(n>>3) + 2},
		&mad.DREP{LocalCommID: uint32(n & 7), RemoteCommID: id}, &mad.SIDRREQ{RequestID: uint32(n), ServiceID: testService},
		&mad.SIDRREP{RequestID: id}, &mad.LAP{LocalCommID: uint32(n & 7), RemoteCommID: id, RemoteQPN: ib.QPN(n>>3) + 2},
		&mad.APR{LocalCommID: uint32(n & 7), RemoteCommID: id},
	}
}

// command does what a user may do with id, whatever comes of it.
func command(b *bench, what byte, id ID, n byte) {
	qpn := ib.QPN(n>>3) + 2
	switch what % 12 {
	case 0:
		req := ourREQ()
		req.LocalQPN = qpn
		_, _ = b.Connect(b.now, theirAddr, req, ConnectOptions{PeerToPeer: n&1 != 0})
	case 1:
		_ = b.SendREP(b.now, id, mad.REP{LocalQPN: qpn})
	case 2:
		_ = b.SendRTU(b.now, id, nil)
	case 3:
		_ = b.Reject(b.now, id, mad.Reason(n), nil, nil)
	case 4:
		_ = b.Cancel(b.now, id)
	case 5:
		_ = b.Disconnect(b.now, id, nil)
	case 6:
		_ = b.Established(b.now, id)
	case 7:
		resolve(b)
	case 8:
		_ = b.Answer(b.now, id, mad.SIDRREP{})
	case 9:
		_ = b.LoadAlternate(b.now, id, mad.LAP{Alternate: testAlternate})
	case 10:
		_ = b.AnswerAlternate(b.now, id, mad.APR{})
	case 11:
		_ = b.SendMRA(b.now, id, ib.AckTimeout(n>>3), nil)
	}
}

// Whatever a peer and a user do in whatever order: no identifier ends twice, the
// limits hold, and when the user lets go of everything nothing is left.
func FuzzAgent(f *testing.F) {
	f.Add([]byte{11, 0, 8, 0, 3, 0, 8, 0, 13, 0, 0, 0, 5, 0, 8, 0})                         // connect, REP, RTU, DREQ
	f.Add([]byte{0, 0, 8, 0, 0, 0, 8, 0, 12, 0, 8, 0, 4, 0, 0, 0, 16, 0, 0, 0, 6, 0, 0, 0}) // REQ twice, REP, RTU, disconnect, DREP
	f.Add([]byte{7, 0, 1, 0, 19, 0, 0, 0, 18, 0, 0, 0, 8, 1, 0, 0})                         // resolutions
	f.Add([]byte{11, 0, 9, 0, 0, 0, 8, 0, 12, 0, 8, 40, 0, 0, 8, 200})                      // peer-to-peer
	f.Fuzz(func(t *testing.T, data []byte) {
		gone := map[ID]bool{}
		b := newBench(t, func(c *Config) {
			c.MaxIDs, c.MaxHalfOpen, c.MaxTimeWait = 12, 5, 3
			c.Event = func(e Event) {
				if gone[e.ID] {
					t.Fatalf("event %v for %x, which is gone", e.Kind, uint32(e.ID))
				}
				gone[e.ID] = e.Gone
			}
		})
		b.check(b.Listen(Listener{Service: testService, Backlog: 4}))
		d := make([]byte, mad.Size)
		for p := tape(data); len(p) > 0; {
			op, n, pause := p.byte(), p.byte(), p.byte()
			id := ourID + uint32(op>>5)
			if op &= 31; int(op) < numMessages {
				mad.EncodeCM(d, uint64(n&1), messages(id, n)[op])
				d[mad.HeaderSize+int(p.byte())%(mad.Size-mad.HeaderSize)] ^= p.byte()
				b.Receive(b.now, theirAddr, d)
			} else {
				command(b, op-byte(numMessages), ID(id), n)
			}
			b.until(b.now + time.Duration(pause)*10*ms)
			if all, waiting := b.Len(); all > 12 || waiting > 3 || b.halfOpen.Len() > 5 || b.exact[testService].pending.Len() > 4 || len(b.timers) > all {
				t.Fatalf("%d identifiers, %d in time-wait, %d half open", all, waiting, b.halfOpen.Len())
			}
		}
		for id := range b.ids {
			b.check(b.Cancel(b.now, ID(id)))
		}
		for n := 0; b.Deadline() != transport.Never; n++ {
			if b.until(b.Deadline()); n > 1000 {
				t.Fatal("timers go on for ever")
			}
		}
		b.empty()
	})
}

// Damaged datagrams of any kind.
func FuzzReceive(f *testing.F) {
	for _, m := range messages(ourID, 0x42) {
		d := make([]byte, mad.Size)
		mad.EncodeCM(d, 1, m)
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		b := newBench(t, nil)
		b.check(b.Listen(Listener{Service: testService}))
		connect(b)
		b.in(theirREQ())
		b.Receive(0, theirAddr, d)
		b.Receive(ms, theirAddr, d)
		for id := range b.ids {
			b.check(b.Cancel(b.now, ID(id)))
		}
		b.until(math.MaxInt64 - 1)
		b.empty()
	})
}
