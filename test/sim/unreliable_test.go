package sim

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

var unreliableSeeds = flag.Int("sim.unreliable", 60, "seeds of UC and UD, after each other from 1")

// Seeds of random messages over UC and UD on a network that loses, duplicates,
// reorders and damages: each request completes once and in order, with success; each
// receive that completes does so in the order of posting and holds exactly what was
// sent to it; a WRITE leaves nothing outside its range; queue pairs stay in RTS; what
// was never taken is flushed, once, at the end.
func TestUnreliableSeeds(t *testing.T) {
	lost, got := 0, 0
	for seed := range uint64(*unreliableSeeds) {
		for _, typ := range []roce.QPType{roce.UC, roce.UD} {
			u, err := runUnreliable(typ, seed+1)
			if err != nil {
				t.Fatalf("%v, seed %d: %v", typ, seed+1, err)
			}
			lost, got = lost+u.sent-u.got, got+u.got
		}
	}
	if lost < 100 || got < 1000 {
		t.Errorf("%d messages arrived and %d were lost: too few to show anything", got, lost)
	}
}

// unreliable is a run: messages of one node to another.
type unreliable struct {
	typ   roce.QPType
	rng   *rand.Rand
	devs  [2]*roce.Device
	cqs   [2]*roce.CQ
	qps   [2]*roce.QP
	mrs   [2]*roce.MR
	ah    *roce.AH
	now   time.Duration
	sent  int // messages that need a receive
	recvs int // receives posted
	got   int // ... and consumed
}

const (
	unreliableMessages = 60
	unreliableSlot     = 3000 // bytes of a message and what is around it
	unreliableQKey     = 77
)

// Contents begin with the message's number and depend on it; what is around them is
// guard, and no other byte has its value.
func unreliableContents(i, n int) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte((i*37 + k*11 + k>>8) % unreliableGuard)
	}
	binary.LittleEndian.PutUint32(b, uint32(i))
	return b
}

const unreliableGuard = 0xd7

func runUnreliable(typ roce.QPType, seed uint64) (*unreliable, error) {
	u := &unreliable{typ: typ, rng: rand.New(rand.NewPCG(seed, 0x0c0d))}
	defer func() {
		for _, d := range u.devs {
			if d != nil {
				d.Close()
			}
		}
	}()
	if err := u.open(seed); err != nil {
		return nil, err
	}
	return u, u.play()
}

func (u *unreliable) open(seed uint64) (err error) {
	fabric := netio.NewFabric()
	addrs := []string{"10.0.0.1", "10.0.0.2"}
	if u.rng.IntN(2) == 0 {
		addrs = []string{"2001:db8::1", "2001:db8::2"}
	}
	faults := netio.Faults{Loss: 0.04, Duplicate: 0.03, Reorder: 0.03, Corrupt: 0.02, ReorderBy: 1 + u.rng.IntN(8)}
	for i := range u.devs {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addrs[i]), netio.Port))
		if err != nil {
			return err
		}
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed*2+uint64(i))
		if u.devs[i], err = roce.Open(roce.Config{
			Backend: netio.WithFaults(be, netio.FaultConfig{Seed: seed*2 + uint64(i), Rx: faults}),
			Manual:  true, Rand: rand.NewChaCha8(key),
		}); err != nil {
			return err
		}
		pd, err := u.devs[i].AllocPD()
		if err != nil {
			return err
		}
		if u.cqs[i], err = u.devs[i].CreateCQ(4 * unreliableMessages); err != nil {
			return err
		}
		if u.qps[i], err = pd.CreateQP(roce.QPConfig{Type: u.typ, SendCQ: u.cqs[i]}); err != nil {
			return err
		}
		buf := bytes.Repeat([]byte{unreliableGuard}, 2*unreliableMessages*unreliableSlot)
		if u.mrs[i], err = pd.RegisterMR(buf, roce.LocalWrite|roce.RemoteWrite); err != nil {
			return err
		}
		if u.typ == roce.UD && i == 0 {
			if u.ah, err = pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(netip.MustParseAddr(addrs[1]))}); err != nil {
				return err
			}
		}
	}
	for i, q := range u.qps {
		peer := u.qps[1-i]
		if u.typ == roce.UD {
			err = q.Activate(unreliableQKey)
		} else {
			err = q.Connect(roce.Remote{Addr: u.devs[1-i].Addr(), QPN: peer.Num(), PSN: peer.PSN()},
				roce.Conn{Access: roce.RemoteWrite, PathMTU: []ib.MTU{roce.MTU256, roce.MTU1024}[u.rng.IntN(2)]})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// message is what was sent as number i.
type message struct {
	op   roce.WROpcode
	size int
}

// play posts receives and messages in a random mix, and judges what comes.
func (u *unreliable) play() error {
	var msgs []message
	posted, done := 0, 0
	for done < unreliableMessages {
		if posted < unreliableMessages && u.rng.IntN(3) > 0 {
			if u.rng.IntN(8) > 0 { // now and then there is none
				if err := u.postRecv(); err != nil {
					return err
				}
			}
			m, err := u.send(posted)
			if err != nil {
				return err
			}
			msgs = append(msgs, m)
			posted++
		}
		u.step()
		if err := u.completions(&done, msgs); err != nil {
			return err
		}
	}
	for range 200 { // what is still under way
		u.step()
		if err := u.completions(&done, msgs); err != nil {
			return err
		}
	}
	if err := u.checkWrites(msgs); err != nil {
		return err
	}
	return u.end()
}

// step lets both devices work and time pass.
func (u *unreliable) step() {
	for _, d := range u.devs {
		d.Progress(u.now)
	}
	u.now += time.Duration(u.rng.IntN(100)) * time.Microsecond
}

// recvSize is the length of every receive.
func (u *unreliable) recvSize() int {
	if u.typ == roce.UD {
		return ib.GRHSize + 1000
	}
	return 2600
}

// postRecv posts receive number u.recvs, into its slot.
func (u *unreliable) postRecv() error {
	u.recvs++
	return u.qps[1].PostRecv(roce.RecvWR{ID: uint64(u.recvs - 1), SGE: []roce.SGE{
		u.mrs[1].SGE((u.recvs-1)*unreliableSlot, 100), u.mrs[1].SGE((u.recvs-1)*unreliableSlot+100, u.recvSize()-100)}})
}

// target is where WRITE number i goes.
func (u *unreliable) target(i int) int { return (unreliableMessages+i)*unreliableSlot + 16 }

// send posts message number i.
func (u *unreliable) send(i int) (m message, err error) {
	ops := []roce.WROpcode{roce.WRSend, roce.WRSendWithImm, roce.WRWrite, roce.WRWriteWithImm}
	most := 2600
	if u.typ == roce.UD {
		ops, most = ops[:2], 1000
	}
	m = message{ops[u.rng.IntN(len(ops))], 4 + u.rng.IntN(most-3)}
	if m.op != roce.WRWrite {
		u.sent++
	}
	off := i * unreliableSlot
	copy(u.mrs[0].Bytes()[off:], unreliableContents(i, m.size))
	wr := roce.SendWR{ID: uint64(i), Opcode: m.op, Flags: roce.Signaled, Imm: uint32(i), SGE: []roce.SGE{u.mrs[0].SGE(off, m.size)}}
	if u.typ == roce.UD {
		wr.AH, wr.RemoteQPN, wr.QKey = u.ah, u.qps[1].Num(), unreliableQKey
	} else {
		wr.RemoteAddr, wr.RKey = u.mrs[1].Addr()+uint64(u.target(i)), u.mrs[1].RKey()
	}
	return m, u.qps[0].PostSend(wr)
}

// completions judges what has completed on both sides.
func (u *unreliable) completions(done *int, msgs []message) error {
	var wcs [8]roce.WC
	n, err := u.cqs[0].Poll(wcs[:])
	if err != nil {
		return err
	}
	for _, wc := range wcs[:n] {
		if wc.ID != uint64(*done) || wc.Status != roce.WCSuccess {
			return fmt.Errorf("request %d completes with %v, want number %d", wc.ID, wc.Status, *done)
		}
		*done++
	}
	if n, err = u.cqs[1].Poll(wcs[:]); err != nil {
		return err
	}
	for _, wc := range wcs[:n] {
		if wc.ID != uint64(u.got) || wc.Status != roce.WCSuccess {
			return fmt.Errorf("receive %d completes with %v, want number %d", wc.ID, wc.Status, u.got)
		}
		u.got++
		if err := u.received(&wc, msgs); err != nil {
			return fmt.Errorf("receive %d: %w", wc.ID, err)
		}
	}
	return nil
}

// received compares a message with what was sent.
func (u *unreliable) received(wc *roce.WC, msgs []message) error {
	mem := u.mrs[1].Bytes()
	slot := mem[int(wc.ID)*unreliableSlot:][:unreliableSlot]
	head := 0
	if u.typ == roce.UD {
		head = ib.GRHSize
		av, err := u.devs[1].AddressFromWC(wc, slot[:head])
		if err != nil {
			return err
		}
		if from := av.DGID.Addr(); from != u.devs[0].Addr() || wc.SrcQP != u.qps[0].Num() {
			return fmt.Errorf("it comes from %v, queue pair %#x", from, uint32(wc.SrcQP))
		}
	}
	data := slot[head:]
	i := int(wc.Imm)
	if wc.Flags&roce.WCWithImm == 0 {
		i = int(binary.LittleEndian.Uint32(data))
	}
	if i >= len(msgs) {
		return fmt.Errorf("message number %d was never sent", i)
	}
	m := msgs[i]
	if imm := m.op != roce.WRSend; imm != (wc.Flags&roce.WCWithImm != 0) || int(wc.ByteLen) != head+m.size {
		return fmt.Errorf("%d bytes, flags %v of message %+v", wc.ByteLen, wc.Flags, m)
	}
	if m.op == roce.WRWriteWithImm {
		data = mem[u.target(i):]
	}
	if !bytes.Equal(data[:m.size], unreliableContents(i, m.size)) {
		return fmt.Errorf("message %d of %d bytes is not what was sent", i, m.size)
	}
	return guarded(slot[u.recvSize():])
}

func guarded(b []byte) error {
	for k, v := range b {
		if v != unreliableGuard {
			return fmt.Errorf("byte %d behind a range was written", k)
		}
	}
	return nil
}

// checkWrites looks at the places of all messages: of a WRITE, its packets may have
// come or not; else there is nothing.
func (u *unreliable) checkWrites(msgs []message) error {
	for i, m := range msgs {
		slot := u.mrs[1].Bytes()[u.target(i)-16:][:unreliableSlot]
		end := 16
		if m.op == roce.WRWrite || m.op == roce.WRWriteWithImm {
			end += m.size
			for k, v := range unreliableContents(i, m.size) {
				if got := slot[16+k]; got != v && got != unreliableGuard {
					return fmt.Errorf("byte %d of WRITE %d is %#x", k, i, got)
				}
			}
		}
		if err := guarded(slot[end:]); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if err := guarded(slot[:16]); err != nil {
			return fmt.Errorf("before message %d: %w", i, err)
		}
	}
	return nil
}

// end moves the queue pairs to ERR: the receives that nothing came for are flushed.
func (u *unreliable) end() error {
	for _, q := range u.qps {
		if s := q.State(); s != roce.StateRTS {
			return fmt.Errorf("a queue pair is in %v", s)
		}
		if err := q.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState); err != nil {
			return err
		}
	}
	wcs := make([]roce.WC, 2*unreliableMessages)
	if n, err := u.cqs[0].Poll(wcs); n != 0 || err != nil {
		return fmt.Errorf("%d completions too many, %v", n, err)
	}
	n, err := u.cqs[1].Poll(wcs)
	if err != nil || n != u.recvs-u.got {
		return fmt.Errorf("%d receives flushed, want %d, %v", n, u.recvs-u.got, err)
	}
	for k, wc := range wcs[:n] {
		if wc.ID != uint64(u.got+k) || wc.Status != roce.WCWRFlushErr {
			return fmt.Errorf("receive %d is flushed as %v", wc.ID, wc.Status)
		}
	}
	return nil
}
