package transport

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// FuzzRequesterSequence throws arbitrary responses, times and posts at a live
// queue pair: nothing panics, nothing completes twice (the world checks that),
// the requester's numbers stay in order, and ERR completes all.
func FuzzRequesterSequence(f *testing.F) {
	f.Add(true, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add(false, []byte("\x00\x05\x01\x10\x04\x20\x80\x00\x81\x01\x90\x02\xa0\x03\xb0\x04\xc0\x05\xd0\x06"))
	f.Fuzz(func(t *testing.T, xrc bool, script []byte) {
		w := newReqWorld(t, 0xfffffe)
		if xrc {
			w.cfg.Type = XRCSend
		}
		w.cfg.Window = 4000
		w.connect()
		w.fuzzRead(t, script)
	})
}

// fuzzRead drives the world by pairs of bytes: what, how.
func (w *reqWorld) fuzzRead(t *testing.T, script []byte) {
	posted := 0
	for len(script) >= 2 && posted < 20 {
		what, how := script[0], int(script[1])
		script = script[2:]
		switch {
		case what < 0x40 && w.sq.produced-w.sq.consumed < 8 && w.q.state == RTS:
			w.fuzzPost(posted, fuzzOps[int(what)%len(fuzzOps)], how)
			posted++
		case what < 0x60:
			w.now += 1 << (how % 32)
			w.q.Expire(w.now)
		case what < 0x68:
			w.out.room = how % 4
			w.pump()
			w.out.room = -1
		case what < 0x6a:
			w.q.Modify(w.now, &Attr{State: SQD}, MaskState)
		case what < 0x6c:
			w.q.Modify(w.now, &Attr{State: RTS}, MaskState)
		default:
			w.fuzzResponse(what, how)
		}
		w.pump()
		w.check(t)
	}
	w.q.Modify(w.now, &Attr{State: Err}, MaskState)
	if w.sq.consumed != w.sq.produced {
		t.Fatalf("%d of %d requests have completed in ERR", w.sq.consumed, w.sq.produced)
	}
	for id, p := range w.posted {
		if p.completed != 1 {
			t.Fatalf("request %d completed %d times", id, p.completed)
		}
	}
}

var fuzzOps = []WROpcode{
	WRWrite, WRWriteWithImm, WRSend, WRSendWithImm, WRRead, WRWrite, WRRead, WRSendWithInv, WRBindMW, WRLocalInv, WRRegMR,
}

func (w *reqWorld) fuzzPost(id int, op WROpcode, how int) {
	if op.local() {
		f := []string{strconv.Itoa(id), map[WROpcode]string{WRBindMW: "BIND", WRLocalInv: "INV", WRRegMR: "REG"}[op]}
		f = append(f, map[WROpcode]string{WRBindMW: "1", WRLocalInv: "2B", WRRegMR: "fast"}[op]) // the last works once
		w.postLocal(append(f, []string{"", "fence"}[how&1]))
		return
	}
	n := how * 7
	p := &reqPosted{op: WRSend, off: id * reqSlice, length: 0}
	e := SendWQE{ID: uint64(id), Opcode: op, Flags: Signaled | SendFlags(how&1), RemoteAddr: reqRemote, RKey: reqRKey, SRQN: ib.QPN(how)}
	reg := w.src
	if op == WRRead {
		reg = w.dst
	}
	w.posted[e.ID] = p
	w.sq.post(e, []mem.SGE{{Addr: reqIOVA + uint64(p.off), Length: uint32(n), LKey: reg.Key()}}, nil)
	w.sq.tell(w.now, w.q)
}

// fuzzResponse makes a response near what is outstanding.
func (w *reqWorld) fuzzResponse(what byte, how int) {
	r := w.q.req()
	op := []ib.Opcode{
		ib.OpRCAck, ib.OpRCAck, ib.OpRCAck, ib.OpRCReadResponseFirst, ib.OpRCReadResponseMiddle,
		ib.OpRCReadResponseLast, ib.OpRCReadResponseOnly, ib.OpRCAtomicAck,
	}[what%8]
	if w.cfg.Type == XRCSend {
		op |= ib.OpXRCSendFirst
	}
	psn := psnOf(r.una).Add(how%16 - 4)
	n := 0
	if op.Info().Op == ib.KindReadResponse {
		n = 256
		if r.done != r.begun && how%5 != 0 { // mostly the length it should have
			c := r.at(r.done)
			if off := c.offset(max(r.una, c.first), r.mtu); off < uint64(c.length) {
				n = int(min(uint64(c.length)-off, 256))
			}
		}
	}
	b := make([]byte, op.Info().HeaderLen+n+(-n&3)+ib.ICRCSize)
	rand.NewChaCha8([32]byte{what, byte(how)}).Read(b)
	ib.BTH{Opcode: op, Pad: uint8(-n & 3), PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: psn}.Put(b)
	if op.Info().AETH {
		ib.AETH{Syndrome: []ib.Syndrome{31, 31, 31, 31, 0x60, 0x21, 0x60, 0x62}[how>>4%8]}.Put(b[ib.BTHSize:])
	}
	if p, bad := ib.Parse(b); bad == ib.OK {
		w.q.Receive(w.now, &Inbound{Packet: p, Src: reqPeer})
	}
}

// check looks at the order of the requester's numbers.
func (w *reqWorld) check(t *testing.T) {
	r := w.q.req()
	if r.una > r.nxt || r.nxt > r.end || r.nxt > r.top || r.top > r.end ||
		int32(r.cur-r.done) < 0 || int32(r.begun-r.cur) < 0 || r.unaCum > r.nxtCum || r.nxtCum > r.endCum ||
		r.numReads < r.readNext || r.freed != r.done {
		t.Fatalf("requester out of order: %+v", r)
	}
	if r.done != r.begun && (r.una < r.at(r.done).first || r.una >= r.at(r.done).end) {
		t.Fatalf("una %d is not in request %d: %+v", r.una, r.done, *r.at(r.done))
	}
}

// The same with 1000 scripts from a fixed seed, in every test run.
func TestRequesterSequence(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	script := make([]byte, 200)
	w := newReqWorld(t, 0xfffffe)
	w.cfg.Window = 4000
	for i := range 1000 {
		w.cfg.Type = []QPType{RC, XRCSend}[i%2]
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		clear(w.posted)
		w.now = 0
		w.connect()
		w.fuzzRead(t, script)
		w.wcs, w.out.sent = nil, nil
	}
}
