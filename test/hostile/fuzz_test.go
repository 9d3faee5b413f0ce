package hostile

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/goroce/goroce/test/interop/lab"
)

// The input of the fuzz target is a list of pieces: an action, a 16-bit length, that
// many bytes of a packet from BTH to ICRC. The low bits of the action say which
// endpoint the packet is sent to, the others what else happens.
const (
	actTarget  = 3 // the endpoint of this number ...
	actAsIs    = 1 << (iota + 1)
	actRaw     // the ICRC stays as it is
	actForeign // it comes from a stranger
	actPost    // the victim posts something first
	actWait    // time passes first
	actPeer    // the peer sends something of its own first
)

// piece appends one piece.
func piece(in []byte, action byte, pkt []byte) []byte {
	in = append(in, action)
	in = binary.BigEndian.AppendUint16(in, uint16(len(pkt)))
	return append(in, pkt...)
}

// targetOf is the action that leaves a packet with its endpoint.
func (v *victim) targetOf(b []byte) byte {
	if len(b) < ib.BTHSize {
		return actAsIs
	}
	for i, e := range v.attacked() {
		if ib.QPN(binary.BigEndian.Uint32(b[4:])&0xffffff) == e.QP.Num() {
			return byte(i)
		}
	}
	return actAsIs
}

// seeds are the packets of this package's tables, and those that two Linux hosts with
// rxe have exchanged, a dozen at a time.
func seeds(f *testing.F) (list [][]byte) {
	v := newVictim(f)
	add := func(packets [][]byte, actions ...byte) {
		for _, act := range actions {
			var in []byte
			for _, b := range packets[:min(len(packets), 40)] {
				in = piece(in, act|v.targetOf(b), b)
			}
			list = append(list, in)
		}
	}
	for _, k := range kills {
		add(k.packets(v), 0, actPost)
	}
	for _, d := range dropTable {
		add(d.packets(v), 0, actPost|actPeer)
	}
	for _, s := range spoofs {
		add([][]byte{s.packet(v, 0), s.packet(v, 1), s.packet(v, 2)}, actPost, actPost|actWait)
	}
	packets := captured(f, "../../ib/testdata/rxe/rxe-linux-6.12.pcap")
	for i := 0; i < len(packets); i += 12 {
		add(packets[i:min(i+12, len(packets))], byte(i/12)<<5&(actPost|actWait|actPeer))
	}
	return list
}

// captured returns the RoCE packets of a capture, BTH to ICRC, with opcodes that
// are new among them or follow a new one.
func captured(tb testing.TB, file string) (out [][]byte) {
	seen := map[[2]byte]bool{}
	last := byte(0)
	must(tb, lab.ReadRoCE(file, func(d *lab.Datagram) error {
		if b := d.Payload; len(b) > 0 {
			if pair := [2]byte{last, b[0]}; !seen[pair] {
				seen[pair] = true
				out = append(out, bytes.Clone(b))
			}
			last = b[0]
		}
		return nil
	}))
	return out
}

// FuzzDevice gives a whole device, with live queue pairs of RC, UC, UD and XRC, any
// sequence of packets. It must not panic, write where the peer may not, show memory
// of another protection domain, complete a request twice, or harm a queue pair that
// was not named.
func FuzzDevice(f *testing.F) {
	for _, in := range seeds(f) {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) { fuzzDevice(t, in) })
}

// secret is what no packet may contain: the memory of a protection domain that no
// peer has the key of.
var secret = bytes.Repeat([]byte("not for you"), 100)

func fuzzDevice(t *testing.T, in []byte) {
	v := makeVictim(t, len(in)%4 == 2)
	v.in.noID = len(in)%2 == 1 // as with a socket: the Identification is recovered
	hidden, err := v.other.PD.RegisterMR(bytes.Clone(secret), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	must(t, err)
	readable, err := v.rc.PD.RegisterMR(bytes.Repeat([]byte{7}, 1024), roce.RemoteRead)
	must(t, err)
	keys := []uint32{v.rc.MR.RKey(), readable.RKey(), hidden.RKey(), v.uc.MR.RKey(), v.xrc.MR.RKey(), 0}
	p := &posts{v: v, open: map[uint64]bool{}, shared: map[uint64]bool{}}
	for steps := 0; len(in) >= 3 && steps < 100; steps++ {
		action, n := in[0], int(binary.BigEndian.Uint16(in[1:]))
		in = in[3:]
		pkt := bytes.Clone(in[:min(n, len(in))])
		in = in[len(pkt):]
		if action&actWait != 0 {
			v.now += 30 * time.Millisecond
		}
		if action&actPost != 0 {
			p.post(steps)
		}
		if action&actPeer != 0 && v.rcPeer.QP.State() == roce.StateRTS {
			v.rcPeer.QP.PostSend(roce.SendWR{Opcode: roce.WRRead, SGE: []roce.SGE{v.rcPeer.MR.SGE(0, 3000)}, RemoteAddr: v.rc.MR.Addr(), RKey: v.rc.MR.RKey()})
			v.peer.Progress(v.now)
		}
		if action&actAsIs == 0 {
			v.aim(pkt, v.attacked()[action&actTarget], keys)
		}
		src := peerAddr
		if action&actForeign != 0 {
			src = stranger
		}
		if action&actRaw == 0 {
			v.seal(src, pkt)
		}
		v.put(src, pkt)
		v.settle()
		p.reap()
	}
	v.healthy("after the sequence")
	for name, e := range map[string]*rocetest.Endpoint{"UC": v.uc, "UD": v.ud, "other": v.other} {
		if s := e.QP.State(); s != roce.StateRTS {
			t.Errorf("the %s queue pair is in %v", name, s)
		}
	}
	if !bytes.Equal(hidden.Bytes(), secret) || !bytes.Equal(readable.Bytes(), bytes.Repeat([]byte{7}, 1024)) {
		t.Error("memory was written that no peer may write")
	}
	for _, b := range v.in.sent {
		if bytes.Contains(b, secret[:16]) {
			t.Error("memory was sent that no peer may read")
		}
	}
	p.finish()
}

// aim makes a packet one for an endpoint, with a PSN near the one that counts and a
// key and an address that exist.
func (v *victim) aim(b []byte, e *rocetest.Endpoint, keys []uint32) {
	if len(b) < ib.BTHSize {
		return
	}
	binary.BigEndian.PutUint32(b[4:], uint32(b[4])<<24|uint32(e.QP.Num()))
	binary.BigEndian.PutUint16(b[2:], uint16(ib.DefaultPKey))
	info := ib.Opcode(b[0]).Info()
	near := ib.PSN(startPSN)
	if info != nil && info.Response {
		near = e.QP.PSN()
	}
	binary.BigEndian.PutUint32(b[8:], uint32(b[8])<<24|uint32(near.Add(int(int8(b[11])))))
	if info == nil || len(b) < info.HeaderLen {
		return
	}
	at := ib.BTHSize
	if info.DETH {
		binary.BigEndian.PutUint32(b[at:], victimQKey)
	}
	if info.XRCETH {
		binary.BigEndian.PutUint32(b[at:], uint32(v.srqn()))
		at += ib.XRCETHSize
	}
	if info.FETH {
		at += ib.FETHSize
	}
	if info.RETH || info.AtomicETH {
		if va := binary.BigEndian.Uint64(b[at:]); va>>56 != 0xff {
			binary.BigEndian.PutUint64(b[at:], e.MR.Addr()+va&0x3fff)
		}
		binary.BigEndian.PutUint32(b[at+8:], keys[int(b[at+11])%len(keys)])
	}
}

// posts are the requests of the victim, each of which completes once.
type posts struct {
	v      *victim
	next   uint64
	open   map[uint64]bool
	shared map[uint64]bool // receives of the shared queue, which are not flushed (IBTA 10.2.9.3)
}

// post posts a receive everywhere, and a request of the attacked connection.
func (p *posts) post(i int) {
	v := p.v
	recv := func(e *rocetest.Endpoint) roce.RecvWR {
		p.next++
		return roce.RecvWR{ID: p.next, SGE: []roce.SGE{e.MR.SGE(i%8*64, 200+i*90)}}
	}
	for _, e := range []*rocetest.Endpoint{v.rc, v.uc, v.ud} {
		p.note(e.QP.PostRecv(recv(e)))
	}
	p.note(v.srq.PostRecv(recv(v.xrc)))
	p.shared[p.next] = true
	p.next++
	p.note(v.rc.QP.PostSend(roce.SendWR{
		ID: p.next, Opcode: []roce.WROpcode{roce.WRWrite, roce.WRRead, roce.WRSend, roce.WRAtomicFetAdd}[i%4], Flags: roce.Signaled,
		SGE: []roce.SGE{v.rc.MR.SGE(0, []int{3000, 3000, 10, 8}[i%4])}, RemoteAddr: v.rcPeer.MR.Addr(), RKey: v.rcPeer.MR.RKey(),
	}))
}

// note notes that the last request was posted.
func (p *posts) note(err error) {
	if err == nil {
		p.open[p.next] = true
	}
}

// reap takes completions.
func (p *posts) reap() {
	var wc [16]roce.WC
	for _, e := range p.v.attacked() {
		for {
			n, _ := e.CQ.Poll(wc[:])
			for _, c := range wc[:n] {
				if !p.open[c.ID] {
					p.v.t.Fatalf("request %d completed twice, or never posted: %+v", c.ID, c)
				}
				delete(p.open, c.ID)
			}
			if n == 0 {
				break
			}
		}
	}
}

// finish flushes what is left, and then nothing is.
func (p *posts) finish() {
	must(p.v.t, p.v.dev.Close())
	p.reap()
	for id := range p.open {
		if !p.shared[id] {
			p.v.t.Fatalf("request %d never completed", id)
		}
	}
}
