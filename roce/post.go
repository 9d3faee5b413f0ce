package roce

import (
	"errors"
	"fmt"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
)

// SendWR is a send request (ibv_send_wr).
type SendWR struct {
	ID         uint64
	Opcode     WROpcode
	Flags      SendFlags
	SGE        []SGE  // the local segments
	Data       []byte // the payload instead of SGE, with Inline: copied when posted
	Imm        uint32 // immediate data, host order
	RemoteAddr uint64 // WRITE, READ, atomics, FLUSH
	RKey       uint32 // ... and the new key of WRBindMW and WRRegMR, see IncRKey
	CompareAdd uint64 // what FetchAdd adds, what CmpSwap compares with
	Swap       uint64 // what CmpSwap stores
	Flush      Flush  // what a FLUSH is about
	AH         *AH    // UD: where to
	RemoteQPN  ib.QPN // UD: to which queue pair
	RemoteSRQN ib.QPN // XRCSend: the peer's shared receive queue, of all operations but local ones
	QKey       uint32 // UD: its Q_Key; with the highest bit set that of this queue pair is sent (IBTA 10.2.5)

	// InvalidateRKey is the peer's key that a WRSendWithInv closes, or the own one
	// of a WRLocalInv.
	InvalidateRKey uint32
	MW             *MW    // WRBindMW: the window, of type 2
	MR             *MR    // WRBindMW: the region it opens; WRRegMR: the region, with the memory of its Map
	Addr           uint64 // WRBindMW: where the window begins, as the region's keys name it
	Length         uint64 // WRBindMW: bytes
	Access         Access // WRBindMW, WRRegMR: the rights
}

// RecvWR is a receive request (ibv_recv_wr).
type RecvWR struct {
	ID  uint64
	SGE []SGE // where to put the message, in this order
}

var (
	errState      = errors.New("the queue pair's state takes no such requests")
	errShared     = errors.New("the queue pair receives from a shared receive queue, or nothing: post there")
	errTarget     = errors.New("an XRC target has no send queue")
	errOpcode     = errors.New("operation not supported by this kind of queue pair")
	errNotInline  = errors.New("field Data goes with Inline only, and Inline with Data instead of SGE")
	errReadInline = errors.New("a READ has no payload to be inline")
	errAH         = errors.New("an address handle of the queue pair's protection domain is needed")
)

// PostSend posts requests in order (ibv_post_send), never waiting for the network.
// On a *PostError the requests before its Index were posted. Requests posted in
// the error state complete as flushed. After Destroy, or Close of the device, the
// error is ErrClosed: what was taken before Close completes.
func (q *QP) PostSend(wrs ...SendWR) error {
	if q.sq == nil {
		return &PostError{0, "", errTarget}
	}
	q.sendMu.Lock()
	first := q.sq.produced.Load()
	err := q.postSend(wrs)
	rings := q.sq.found(first)
	q.sendMu.Unlock()
	if rings || q.State() != StateRTS {
		q.e.ring(q)
	}
	return err
}

func (q *QP) postSend(wrs []SendWR) error {
	if err := q.postReady(); err != nil {
		return err
	}
	for i := range wrs {
		if wr := &wrs[i]; wr.Opcode == WRBindMW && wr.MW != nil && wr.MW.Type() == MWType1 {
			return &PostError{i, "MW", errType1}
		}
		if err := q.postOne(i, &wrs[i]); err != nil {
			return err
		}
	}
	return nil
}

// postReady says whether the state takes send requests.
func (q *QP) postReady() error {
	if q.retired {
		return &PostError{0, "", ErrClosed}
	}
	switch q.State() {
	case StateReset, StateInit, StateRTR:
		return &PostError{0, "", fmt.Errorf("%w: send requests need RTS, it is in %v", errState, q.State())}
	}
	return nil
}

// postOne posts request i of a list.
func (q *QP) postOne(i int, wr *SendWR) error {
	if field, err := q.checkSend(wr); err != nil {
		return &PostError{i, field, err}
	}
	if !q.sq.room() {
		return &PostError{i, "", fmt.Errorf("send queue of %d: %w", q.sq.mask+1, ErrQueueFull)}
	}
	w, sges, inline := q.sq.slot()
	*w = transport.SendWQE{
		ID: wr.ID, Opcode: wr.Opcode, Flags: wr.Flags, Imm: wr.Imm, RemoteAddr: wr.RemoteAddr, RKey: wr.RKey,
		NumSGE: uint16(copy(sges, wr.SGE)), InlineLen: uint32(copy(inline, wr.Data)), CompareAdd: wr.CompareAdd, Swap: wr.Swap,
		RemoteQPN: wr.RemoteQPN, QKey: wr.QKey, SRQN: wr.RemoteSRQN,
	}
	switch {
	case q.typ == UD:
		w.AH = wr.AH.num
	case wr.local():
		putLocal(w, wr)
	case wr.Opcode == WRSendWithInv:
		w.Imm = wr.InvalidateRKey
	case wr.Opcode == WRFlush:
		w.Imm, w.CompareAdd = transport.FlushImm(wr.Flush.Placement, wr.Flush.Level), uint64(wr.Flush.Length)
	}
	q.sq.publish()
	return nil
}

// checkSend returns the field of wr that is wrong, and why.
func (q *QP) checkSend(wr *SendWR) (field string, err error) {
	if !q.typ.Sends(wr.Opcode) {
		return "Opcode", errOpcode
	}
	if q.typ == UD {
		switch {
		case wr.AH == nil, wr.AH.pd != q.pd, wr.AH.closed.Load():
			return "AH", errAH
		case wr.RemoteQPN == 0, wr.RemoteQPN > ib.MulticastQPN:
			return "RemoteQPN", fmt.Errorf("%#x is not in 0x1..0xffffff", uint32(wr.RemoteQPN))
		}
	}
	if wr.local() {
		return q.checkLocal(wr)
	}
	if q.typ == XRCSend && (wr.RemoteSRQN == 0 || wr.RemoteSRQN > maxSRQN) {
		return "RemoteSRQN", fmt.Errorf("%#x is not in 0x1..%#x", uint32(wr.RemoteSRQN), maxSRQN)
	}
	if field, err := checkWord(wr); err != nil {
		return field, err
	}
	if wr.Flags&Inline != 0 {
		switch {
		case len(wr.SGE) > 0:
			return "SGE", errNotInline
		case wr.Opcode == WRRead:
			return "Flags", errReadInline
		case len(wr.Data) > int(q.sq.maxInline):
			return "Data", fmt.Errorf("%d bytes, the queue pair takes %d inline", len(wr.Data), q.sq.maxInline)
		case len(wr.Data) > q.maxLen:
			return "Data", tooLong(uint64(len(wr.Data)), q.maxLen)
		}
		return "", nil
	}
	if wr.Data != nil {
		return "Data", errNotInline
	}
	return checkSGE(wr.SGE, q.sq.maxSGE, q.maxLen)
}

// checkSGE checks the number of segments and their sum.
func checkSGE(sges []SGE, limit uint32, longest int) (field string, err error) {
	if len(sges) > int(limit) {
		return "SGE", fmt.Errorf("%d segments, the queue takes %d", len(sges), limit)
	}
	sum := uint64(0)
	for i := range sges {
		sum += uint64(sges[i].Length)
	}
	if sum > uint64(longest) {
		return "SGE", tooLong(sum, longest)
	}
	return "", nil
}

func tooLong(n uint64, longest int) error {
	return fmt.Errorf("%d bytes, the longest message has %d (a datagram: the active MTU of the port when the queue pair was created)", n, longest)
}

// PostRecv posts receive requests in order (ibv_post_recv), never waiting. On a
// *PostError the requests before its Index were posted. Requests posted in the
// error state complete as flushed. A queue pair with an SRQ, or of XRC, takes none:
// post to the SRQ.
func (q *QP) PostRecv(wrs ...RecvWR) error {
	if q.rq == nil {
		return &PostError{0, "", errShared}
	}
	q.recvMu.Lock()
	err := q.postRecv(wrs)
	q.recvMu.Unlock()
	if q.State() == StateErr {
		q.e.ring(q) // to be flushed
	}
	return err
}

func (q *QP) postRecv(wrs []RecvWR) error {
	if q.retired {
		return &PostError{0, "", ErrClosed}
	}
	if q.State() == StateReset {
		return &PostError{0, "", fmt.Errorf("%w: receive requests need INIT, it is in RESET", errState)}
	}
	return q.rq.post(wrs, "receive queue")
}
