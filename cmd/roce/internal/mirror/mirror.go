// Package mirror is the service of `roce serve` that `roce interop` tests: it sends
// back what it is sent, shows what was written, and makes requests of its own when
// it is asked to.
//
// A client says Hello in the private data of its request; the answer says where a
// memory of Size bytes is that the client alone may read, write and change. Then, over
// RC, UC (port space TCP) and UD (port space UDP):
//
//   - A SEND comes back as it was, with the same immediate data if it had any.
//   - A WRITE with immediate data n is answered by a SEND of the first n bytes of the
//     memory, with the same immediate data.
//   - A SEND whose immediate data is an Order names memory of the client; the request is
//     made, and an empty SEND with the same immediate data says that it has completed.
//     What is written comes from the beginning of the memory, what is read and what an
//     atomic has found goes there. RC only, but for Bye.
package mirror

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// Size is how long a message may be, and the memory of a client, in bytes.
const Size = 128 << 10

// hello is the private data of a request.
const hello = "goroce interop 1"

// Hello returns the private data of a request for a connection.
func Hello() []byte { return []byte(hello) }

// Asked reports whether the private data of a request are those of Hello, with zeros
// behind them or not.
func Asked(private []byte) bool {
	return len(private) >= len(hello) && string(private[:len(hello)]) == hello
}

// Room is where a client's memory is.
type Room struct {
	Addr uint64
	RKey uint32
}

// roomSize is the length of the private data of an answer.
const roomSize = len(hello) + 12

// put writes the private data of an answer.
func (r Room) put(b []byte) {
	n := copy(b, hello)
	binary.BigEndian.PutUint64(b[n:], r.Addr)
	binary.BigEndian.PutUint32(b[n+8:], r.RKey)
}

// ParseRoom reads the private data of an answer; false if it is not one of a mirror.
func ParseRoom(private []byte) (Room, bool) {
	if !Asked(private) || len(private) < roomSize {
		return Room{}, false
	}
	b := private[len(hello):]
	return Room{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}, true
}

// Order is what a mirror is asked to do, as immediate data. All other immediate data
// are below.
type Order uint32

const (
	Write    Order = 0xffffff00 + iota // into the memory that is named
	Read                               // from there
	FetchAdd                           // 1 to the eight bytes there
	CmpSwap                            // 2 for 1 in the eight bytes there
	Bye                                // nothing: a client over UD leaves
)

// opcodes are the requests that orders mean.
var opcodes = map[Order]roce.WROpcode{Write: roce.WRWrite, Read: roce.WRRead, FetchAdd: roce.WRAtomicFetAdd, CmpSwap: roce.WRAtomicCmpSwp}

// Place is the payload of an order.
type Place struct {
	Addr uint64
	RKey uint32
	Len  uint32 // bytes; 8 for atomics
}

// PlaceSize is the length of a Place in bytes.
const PlaceSize = 16

// Put writes the place to b, which holds at least PlaceSize bytes.
func (p Place) Put(b []byte) {
	binary.BigEndian.PutUint64(b, p.Addr)
	binary.BigEndian.PutUint32(b[8:], p.RKey)
	binary.BigEndian.PutUint32(b[12:], p.Len)
}

func parsePlace(b []byte) Place {
	return Place{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// slots is how many messages may wait.
const slots = 4

// Mirror serves one client.
type Mirror struct {
	conn   *rdmacm.Conn
	udp    bool
	cq     *roce.CQ
	answer [roomSize]byte // to the request
	room   *roce.MR       // the client's
	in     *roce.MR       // slots
	back   *roce.AH       // over UD: the way to the client
	seen   atomic.Uint64
}

// IDs of requests: a slot, and what it waits for.
const (
	isReceive = 1 << 8
	isOrder   = 2 << 8 // its completion is to be told
	kind      = 0xff << 8
)

// ErrOver says that the client has disconnected.
var ErrOver = errors.New("the client has disconnected")

// Accept answers a client's request, which has come by a port of space.
func Accept(ctx context.Context, req *rdmacm.Request, space rdmacm.PortSpace) (*Mirror, error) {
	m := &Mirror{udp: space == rdmacm.UDP}
	conn, err := req.Accept(ctx, rdmacm.Config{
		PortSpace: space, QP: roce.QPConfig{MaxSendWR: 2 * slots, MaxRecvWR: slots}, Access: access, Prepare: m.prepare, PrivateData: m.answer[:],
	})
	if err != nil {
		m.release()
		return nil, err
	}
	m.conn = conn
	return m, nil
}

// access is what a client may do to its memory.
const access = roce.RemoteRead | roce.RemoteWrite | roce.RemoteAtomic

// header is how much is received before a message.
func (m *Mirror) header() int {
	if m.udp {
		return ib.GRHSize
	}
	return 0
}

// stride is the length of a slot.
func (m *Mirror) stride() int {
	if m.udp {
		return ib.GRHSize + ib.MTU4096.Bytes()
	}
	return Size
}

func (m *Mirror) prepare(c *rdmacm.Conn) (err error) {
	m.conn, m.cq = c, c.CQ()
	if m.room, err = c.PD().RegisterMR(make([]byte, Size), access|roce.LocalWrite); err != nil {
		return err
	}
	if m.in, err = c.PD().RegisterMR(make([]byte, slots*m.stride()), roce.LocalWrite); err != nil {
		return err
	}
	Room{m.room.Addr(), m.room.RKey()}.put(m.answer[:])
	for i := range slots {
		if err := m.receive(i); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mirror) receive(slot int) error {
	return m.conn.QP().PostRecv(roce.RecvWR{ID: uint64(isReceive | slot), SGE: []roce.SGE{m.in.SGE(slot*m.stride(), m.stride())}})
}

// Seen is how much has completed: when it does not change, nothing happens. It may be
// called at any time.
func (m *Mirror) Seen() uint64 { return m.seen.Load() }

// Close ends the connection.
func (m *Mirror) Close() {
	m.conn.Close()
	m.release()
}

// release frees what would keep the connection's protection domain.
func (m *Mirror) release() {
	for _, mr := range []*roce.MR{m.room, m.in} {
		if mr != nil {
			mr.Deregister()
		}
	}
	if m.back != nil {
		m.back.Destroy()
	}
}

// Serve serves the client until it disconnects, which is ErrOver, or ctx ends. Over UD
// nobody disconnects.
func (m *Mirror) Serve(ctx context.Context) error {
	if m.udp {
		return m.serve(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // over UC nothing that completes shows it
		select {
		case <-m.conn.Done():
			cancel(ErrOver)
		case <-ctx.Done():
		}
	}()
	return m.serve(ctx)
}

func (m *Mirror) serve(ctx context.Context) error {
	var wcs [2 * slots]roce.WC
	for {
		n, err := m.cq.Wait(ctx, wcs[:])
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		for i := range wcs[:n] {
			m.seen.Add(1)
			if err := m.complete(&wcs[i]); err != nil {
				return err
			}
		}
	}
}

// complete acts on a completion.
func (m *Mirror) complete(wc *roce.WC) error {
	slot := int(wc.ID &^ kind)
	switch {
	case wc.Status == roce.WCWRFlushErr:
		return ErrOver
	case wc.Status != roce.WCSuccess:
		return fmt.Errorf("a request failed: %v (%d)", wc.Status, int(wc.Status))
	case wc.ID&kind == isOrder:
		order := binary.BigEndian.Uint32(m.slot(slot)[PlaceSize:])
		return m.send(slot, roce.SendWR{Opcode: roce.WRSendWithImm, Imm: order})
	case wc.ID&kind != isReceive:
		return m.receive(slot) // it has been sent back
	}
	wr := roce.SendWR{Opcode: roce.WRSend}
	if wc.Flags&roce.WCWithImm != 0 {
		wr.Opcode, wr.Imm = roce.WRSendWithImm, wc.Imm
	}
	if wc.Opcode == roce.WCRecvRDMAWithImm {
		wr.SGE = []roce.SGE{m.room.SGE(0, int(min(wc.Imm, Size)))}
		return m.send(slot, wr)
	}
	length := int(wc.ByteLen) - m.header()
	if m.udp && Order(wr.Imm) == Bye {
		return ErrOver
	}
	if op, ok := opcodes[Order(wr.Imm)]; ok && !m.udp && wr.Opcode == roce.WRSendWithImm && length == PlaceSize {
		return m.obey(slot, op, wr.Imm)
	}
	wr.SGE = []roce.SGE{m.in.SGE(slot*m.stride()+m.header(), length)}
	if m.udp {
		known, err := m.knows(wc, m.slot(slot))
		if !known {
			return errors.Join(err, m.receive(slot))
		}
		wr.AH, wr.RemoteQPN, wr.QKey = m.back, wc.SrcQP, rdmacm.UDPQKey
	}
	return m.send(slot, wr)
}

// knows reports whether a datagram is the client's: nobody else gets an answer.
func (m *Mirror) knows(wc *roce.WC, grh []byte) (bool, error) {
	from, err := m.conn.Device().AddressFromWC(wc, grh)
	if err != nil || from.DGID.Addr() != m.conn.RemoteAddr().Addr().WithZone("") {
		return false, err
	}
	if m.back == nil {
		m.back, err = m.conn.PD().CreateAH(from)
	}
	return err == nil, err
}

func (m *Mirror) slot(i int) []byte { return m.in.Bytes()[i*m.stride():][:m.stride()] }

// send sends an answer, after which the slot is free again.
func (m *Mirror) send(slot int, wr roce.SendWR) error {
	wr.ID, wr.Flags = uint64(slot), roce.Signaled
	return m.conn.QP().PostSend(wr)
}

// obey makes a request of ours.
func (m *Mirror) obey(slot int, op roce.WROpcode, order uint32) error {
	p := parsePlace(m.slot(slot))
	if p.Len > Size {
		return fmt.Errorf("the client asks for a request of %d bytes, allowed are up to %d", p.Len, Size)
	}
	binary.BigEndian.PutUint32(m.slot(slot)[PlaceSize:], order) // for its completion
	wr := roce.SendWR{ID: uint64(isOrder | slot), Opcode: op, Flags: roce.Signaled, RemoteAddr: p.Addr, RKey: p.RKey, CompareAdd: 1, Swap: 2}
	if wr.SGE = []roce.SGE{m.room.SGE(0, int(p.Len))}; op == roce.WRAtomicFetAdd || op == roce.WRAtomicCmpSwp {
		wr.SGE[0] = m.room.SGE(0, 8)
	}
	return m.conn.QP().PostSend(wr)
}
