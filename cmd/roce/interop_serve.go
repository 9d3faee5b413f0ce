package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/mirror"
	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// serveOffers are the operations of `roce serve`.
func serveOffers() (offers []interopOffer) {
	sizes := func(mtu int) []int { return []int{0, 1, mtu, mtu + 1, 65537, mirror.Size} }
	datagrams := func(mtu int) []int { return []int{0, 1, mtu - 1, mtu} }
	eight := func(int) []int { return []int{8} }
	add := func(service roce.QPType, sizes func(int) []int, ops map[*interopOp]func(*caller, context.Context, int) error, order ...*interopOp) {
		for _, op := range order {
			do := ops[op]
			offers = append(offers, interopOffer{op: op, service: service, sizes: sizes, play: func(ctx context.Context, a *app, c *interopCell) error {
				return a.callMirror(ctx, c, do)
			}})
		}
	}
	ops := map[*interopOp]func(*caller, context.Context, int) error{
		usSend: (*caller).send, usSendImm: (*caller).sendImm, usWrite: (*caller).write, usWriteImm: (*caller).writeImm,
		usRead: (*caller).read, usFetchAdd: (*caller).fetchAdd, usCmpSwap: (*caller).cmpSwap,
		itSend: (*caller).send, itWrite: (*caller).writtenTo, itRead: (*caller).readFrom,
		itFetchAdd: (*caller).addedTo, itCmpSwap: (*caller).swapped,
	}
	add(roce.RC, sizes, ops, usSend, usSendImm, usWrite, usWriteImm, usRead)
	add(roce.RC, eight, ops, usFetchAdd, usCmpSwap)
	add(roce.RC, sizes, ops, itSend, itWrite, itRead)
	add(roce.RC, eight, ops, itFetchAdd, itCmpSwap)
	add(roce.UC, sizes, ops, usSend, usSendImm, usWrite, usWriteImm)
	add(roce.UD, datagrams, ops, usSend, usSendImm)
	return offers
}

// callRounds is how often an operation is made over one connection.
const callRounds = 3

// caller is the client of a mirror.
type caller struct {
	conn *rdmacm.Conn
	udp  bool
	room mirror.Room
	mr   *roce.MR // what is sent, what comes, what the mirror reads and writes: mirror.Size each
	tag  uint64   // of the next data
}

// The parts of a caller's memory. What comes has the header of a datagram before it.
const (
	callerOut   = 0
	callerIn    = mirror.Size
	callerOwn   = 2*mirror.Size + ib.GRHSize
	callerPlace = 3*mirror.Size + ib.GRHSize
	callerSize  = callerPlace + mirror.PlaceSize
)

// callMirror makes a connection for one operation, and ends it.
func (a *app) callMirror(ctx context.Context, c *interopCell, do func(*caller, context.Context, int) error) error {
	dev, err := a.open(roce.Config{Addr: c.run.local, NoSelective: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	k := &caller{udp: c.service == roce.UD}
	cfg := rdmacm.Config{
		PortSpace: rdmacm.TCP, QP: roce.QPConfig{Type: c.service, MaxSendWR: 4, MaxRecvWR: 4, MaxInline: mirror.PlaceSize},
		Access:  roce.RemoteRead | roce.RemoteWrite | roce.RemoteAtomic,
		PathMTU: c.mtu, AckTimeout: c.run.o.ackWait(), PrivateData: mirror.Hello(), Prepare: k.prepare,
	}
	if k.udp {
		cfg.PortSpace, cfg.PathMTU = rdmacm.UDP, 0
	}
	k.conn, err = cmConnect(ctx, dev, net.JoinHostPort(c.run.peer.String(), strconv.Itoa(int(c.run.o.port))), c.run.o.timeout, cfg)
	if err != nil {
		return err
	}
	defer k.part()
	var ok bool
	if k.room, ok = mirror.ParseRoom(k.conn.PrivateData()); !ok {
		return errors.New("it is not 'roce serve' that answers")
	}
	for range callRounds {
		if err := do(k, ctx, c.Size); err != nil {
			return err
		}
	}
	return nil
}

func (k *caller) prepare(c *rdmacm.Conn) (err error) {
	k.conn = c
	k.mr, err = c.PD().RegisterMR(make([]byte, callerSize), roce.LocalWrite|roce.RemoteRead|roce.RemoteWrite|roce.RemoteAtomic)
	return err
}

// part leaves the mirror, which has gone if the operation was to fail.
func (k *caller) part() {
	ctx, cancel := context.WithTimeout(context.Background(), partTimeout)
	defer cancel()
	if k.udp {
		k.request(ctx, roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(mirror.Bye)})
		return
	}
	k.conn.Disconnect(ctx, nil)
}

// fill makes new data of n bytes.
func (k *caller) fill(off, n int) []byte {
	k.tag++
	b := k.mr.Bytes()[off:][:n]
	pattern.Fill(b, pattern.Key('i', k.tag))
	return b
}

// sge is a part of the memory as a segment; none of nothing.
func (k *caller) sge(off, n int) []roce.SGE {
	if n == 0 {
		return nil
	}
	return []roce.SGE{k.mr.SGE(off, n)}
}

// IDs of requests.
const (
	callSent = 1
	callBack = 2
)

func (k *caller) header() int {
	if k.udp {
		return ib.GRHSize
	}
	return 0
}

// request posts a request and waits until it has completed.
func (k *caller) request(ctx context.Context, wr roce.SendWR) error {
	return k.post(ctx, wr, callSent)
}

// call posts a request that the mirror answers, and returns what comes back.
func (k *caller) call(ctx context.Context, wr roce.SendWR, most int) ([]byte, error) {
	clear(k.mr.Bytes()[callerIn:][:k.header()+most])
	if err := k.conn.QP().PostRecv(roce.RecvWR{ID: callBack, SGE: k.sge(callerIn, k.header()+most)}); err != nil {
		return nil, err
	}
	var back roce.WC
	if err := k.post(ctx, wr, callSent|callBack, &back); err != nil {
		return nil, err
	}
	got := int(back.ByteLen) - k.header()
	if withImm := back.Flags&roce.WCWithImm != 0; withImm != (wr.Opcode != roce.WRSend) || withImm && back.Imm != wr.Imm {
		return nil, fmt.Errorf("the answer has immediate data %t, %#x, the request %t, %#x", withImm, back.Imm, wr.Opcode != roce.WRSend, wr.Imm)
	}
	return k.mr.Bytes()[callerIn+k.header():][:got], nil
}

// post posts a request and waits for the completions with the given IDs. The first
// failure counts: all after it are flushed.
func (k *caller) post(ctx context.Context, wr roce.SendWR, ids uint64, back ...*roce.WC) error {
	wr.ID, wr.Flags = callSent, wr.Flags|roce.Signaled
	if k.udp {
		wr.AH, wr.RemoteQPN, wr.QKey = k.conn.AH(), k.conn.RemoteQPN(), k.conn.QKey()
	}
	if err := k.conn.QP().PostSend(wr); err != nil {
		return err
	}
	var failed error
	for ids != 0 {
		var wcs [4]roce.WC
		n, err := k.conn.CQ().Wait(ctx, wcs[:])
		if err != nil {
			if failed != nil {
				return failed
			}
			return err
		}
		for _, wc := range wcs[:n] {
			ids &^= wc.ID
			switch {
			case wc.Status == roce.WCSuccess && wc.ID == callBack:
				*back[0] = wc
			case wc.Status == roce.WCSuccess:
			case failed == nil || wc.Status != roce.WCWRFlushErr:
				id := uint64(sendID)
				if wc.ID == callBack {
					id = recvID
				}
				failed = &completionError{id, wc.Status}
			}
		}
	}
	return failed
}

// same compares what has come with what should have.
func same(got, want []byte) error {
	switch {
	case len(got) != len(want):
		return fmt.Errorf("%d bytes came instead of %d", len(got), len(want))
	case !bytes.Equal(got, want):
		at := 0
		for got[at] == want[at] {
			at++
		}
		return fmt.Errorf("wrong data, from byte %d of %d on", at, len(want))
	}
	return nil
}

func (k *caller) send(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	got, err := k.call(ctx, roce.SendWR{Opcode: roce.WRSend, SGE: k.sge(callerOut, n)}, n)
	if err != nil {
		return err
	}
	return same(got, want)
}

func (k *caller) sendImm(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	got, err := k.call(ctx, roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(k.tag), SGE: k.sge(callerOut, n)}, n)
	if err != nil {
		return err
	}
	return same(got, want)
}

// show asks what is in the mirror's memory, with a WRITE of data that has immediate
// data: of so many bytes.
func (k *caller) show(ctx context.Context, sge []roce.SGE, n int) ([]byte, error) {
	return k.call(ctx, roce.SendWR{Opcode: roce.WRWriteWithImm, Imm: uint32(n), SGE: sge, RemoteAddr: k.room.Addr, RKey: k.room.RKey}, n)
}

// put writes into the mirror's memory.
func (k *caller) put(ctx context.Context, n int) error {
	return k.request(ctx, roce.SendWR{Opcode: roce.WRWrite, SGE: k.sge(callerOut, n), RemoteAddr: k.room.Addr, RKey: k.room.RKey})
}

func (k *caller) write(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	if err := k.put(ctx, n); err != nil {
		return err
	}
	got, err := k.show(ctx, nil, n)
	if err != nil {
		return err
	}
	return same(got, want)
}

func (k *caller) writeImm(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	got, err := k.show(ctx, k.sge(callerOut, n), n)
	if err != nil {
		return err
	}
	return same(got, want)
}

func (k *caller) read(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	if err := k.put(ctx, n); err != nil {
		return err
	}
	got := k.mr.Bytes()[callerIn:][:n]
	clear(got)
	if err := k.request(ctx, roce.SendWR{Opcode: roce.WRRead, SGE: k.sge(callerIn, n), RemoteAddr: k.room.Addr, RKey: k.room.RKey}); err != nil {
		return err
	}
	return same(got, want)
}

// atomic makes an atomic operation and compares what was found.
func (k *caller) atomic(ctx context.Context, wr roce.SendWR, want uint64) error {
	wr.SGE, wr.RemoteAddr, wr.RKey = k.sge(callerIn, 8), k.room.Addr, k.room.RKey
	if err := k.request(ctx, wr); err != nil {
		return err
	}
	return k.number("the atomic has found", callerIn, want)
}

// number compares a word of our memory.
func (k *caller) number(what string, off int, want uint64) error {
	if got := binary.NativeEndian.Uint64(k.mr.Bytes()[off:]); got != want {
		return fmt.Errorf("%s %d instead of %d", what, got, want)
	}
	return nil
}

// zero makes the first word of the mirror's memory 0, which has no byte order.
func (k *caller) zero(ctx context.Context) error {
	clear(k.mr.Bytes()[callerOut:][:8])
	return k.put(ctx, 8)
}

func (k *caller) fetchAdd(ctx context.Context, _ int) error {
	if err := k.zero(ctx); err != nil {
		return err
	}
	for n := range uint64(3) {
		if err := k.atomic(ctx, roce.SendWR{Opcode: roce.WRAtomicFetAdd, CompareAdd: 1 << 40}, n<<40); err != nil {
			return err
		}
	}
	return nil
}

func (k *caller) cmpSwap(ctx context.Context, _ int) error {
	if err := k.zero(ctx); err != nil {
		return err
	}
	for _, s := range []struct{ compare, swap, found uint64 }{{0, 5, 0}, {0, 6, 5}, {5, 7, 5}, {7, 0, 7}} {
		if err := k.atomic(ctx, roce.SendWR{Opcode: roce.WRAtomicCmpSwp, CompareAdd: s.compare, Swap: s.swap}, s.found); err != nil {
			return err
		}
	}
	return nil
}

// order has the mirror make a request, about n bytes of our memory.
func (k *caller) order(ctx context.Context, o mirror.Order, n int) error {
	mirror.Place{Addr: k.mr.Addr() + callerOwn, RKey: k.mr.RKey(), Len: uint32(n)}.Put(k.mr.Bytes()[callerPlace:])
	got, err := k.call(ctx, roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(o), SGE: k.sge(callerPlace, mirror.PlaceSize)}, 0)
	if err != nil {
		return err
	}
	return same(got, nil)
}

func (k *caller) writtenTo(ctx context.Context, n int) error {
	want := k.fill(callerOut, n)
	if err := k.put(ctx, n); err != nil {
		return err
	}
	if err := k.order(ctx, mirror.Write, n); err != nil {
		return err
	}
	return same(k.mr.Bytes()[callerOwn:][:n], want)
}

func (k *caller) readFrom(ctx context.Context, n int) error {
	want := k.fill(callerOwn, n)
	if err := k.order(ctx, mirror.Read, n); err != nil {
		return err
	}
	got, err := k.show(ctx, nil, n)
	if err != nil {
		return err
	}
	return same(got, want)
}

func (k *caller) addedTo(ctx context.Context, _ int) error {
	clear(k.mr.Bytes()[callerOwn:][:8])
	for n := range uint64(3) {
		if err := k.order(ctx, mirror.FetchAdd, 8); err != nil {
			return err
		}
		if err := k.number("the peer's FETCH_ADD of 1 has made", callerOwn, n+1); err != nil {
			return err
		}
	}
	return nil
}

func (k *caller) swapped(ctx context.Context, _ int) error {
	for _, s := range [][2]uint64{{1, 2}, {7, 7}} {
		binary.NativeEndian.PutUint64(k.mr.Bytes()[callerOwn:], s[0])
		if err := k.order(ctx, mirror.CmpSwap, 8); err != nil {
			return err
		}
		if err := k.number(fmt.Sprintf("the peer's CMP_SWAP of 2 for 1 has made of %d", s[0]), callerOwn, s[1]); err != nil {
			return err
		}
	}
	return nil
}

// ackWait is what -u says.
func (o *interopOptions) ackWait() time.Duration { return ib.AckTimeout(o.ackTime).Duration() }
