package nvme

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// hostQueue is a queue pair of the host: a slot for each command that may be under way. Commands come from any goroutine; one of its own
// handles the completions.
type hostQueue struct {
	conn      *rdmacm.Conn
	pd        *roce.PD
	commands  *roce.MR // a capsule for each slot
	responses *roce.MR // as many
	inline    int      // bytes of data that a capsule has room for
	slots     []hostSlot
	free      chan *hostSlot

	mu     sync.Mutex // posting, against closing
	closed bool
	err    error         // why it has ended, once done is closed
	done   chan struct{} // closed when nothing touches memory any more
}

// hostSlot is a command under way.
type hostSlot struct {
	id       uint16
	fast     *roce.MR // gives the target the caller's memory for this one command
	key      uint32   // of the fast registration, or 0
	left     int      // completions to come before the command is over, 0 when there is none
	response Completion
	over     chan struct{}
}

// The kinds of completions, in the request's ID with the index of a slot, or of a receive request.
const (
	kindSend = iota + 1
	kindReceive
	kindInvalidate
	kindBits = 2
)

// queueConfig says what a queue is made of.
type queueConfig struct {
	id      uint16
	size    int // commands under way, and responses
	inline  int // bytes of data in a capsule
	maxData int // bytes of data of a command
}

// dialQueue connects a queue pair, which can take commands then.
func dialQueue(ctx context.Context, addr string, cfg HostConfig, qc queueConfig) (*hostQueue, error) {
	q := &hostQueue{inline: qc.inline, slots: make([]hostSlot, qc.size), free: make(chan *hostSlot, qc.size), done: make(chan struct{})}
	conn, err := rdmacm.Dial(ctx, addr, rdmacm.Config{
		Device:      cfg.Device,
		QP:          roce.QPConfig{MaxSendWR: 3 * qc.size, MaxRecvWR: qc.size}, // registration, capsule, invalidation
		Access:      roce.LocalWrite | roce.RemoteRead | roce.RemoteWrite,
		PrivateData: encoded(&cmRequest{QID: qc.id, HRQSize: uint16(qc.size), HSQSize: uint16(qc.size - 1)}),
		Prepare:     func(c *rdmacm.Conn) error { return q.prepare(c, qc.maxData) },
		Linger:      -1, // the queue pair is in the error state before
	})
	if err != nil {
		if q.release(); q.pd != nil {
			q.pd.Dealloc() // it was busy when Dial gave up
		}
		return nil, fmt.Errorf("queue %d: %w", qc.id, rejection(err))
	}
	q.conn = conn
	go q.run()
	return q, nil
}

func (q *hostQueue) capsuleSize() int { return commandSize + q.inline }

func (q *hostQueue) prepare(c *rdmacm.Conn, maxData int) (err error) {
	q.pd = c.PD()
	if q.commands, err = q.pd.RegisterMR(make([]byte, len(q.slots)*q.capsuleSize()), 0); err != nil {
		return err
	}
	if q.responses, err = q.pd.RegisterMR(make([]byte, len(q.slots)*responseSize), roce.LocalWrite); err != nil {
		return err
	}
	for i := range q.slots {
		s := &q.slots[i]
		s.id, s.over = uint16(i), make(chan struct{}, 1)
		if s.fast, err = q.pd.AllocMR(maxData); err != nil {
			return err
		}
		if err := q.receive(c.QP(), i); err != nil {
			return err
		}
		q.free <- s
	}
	return nil
}

func (q *hostQueue) receive(qp *roce.QP, i int) error {
	return qp.PostRecv(roce.RecvWR{ID: uint64(i)<<kindBits | kindReceive, SGE: []roce.SGE{q.responses.SGE(i*responseSize, responseSize)}})
}

// do executes a command and returns its completion. The target reads the data, or writes it with rights RemoteWrite; without data there
// are no rights. Nothing touches data any more when it returns; a ctx that ends takes the queue with it.
func (q *hostQueue) do(ctx context.Context, cmd *Command, data []byte, rights roce.Access) (Completion, error) {
	var s *hostSlot
	select {
	case s = <-q.free:
	case <-q.done:
		return Completion{}, q.err
	case <-ctx.Done():
		return Completion{}, ctx.Err()
	}
	if err := q.post(s, cmd, data, rights); err != nil {
		q.fail(err)
	}
	select {
	case <-s.over:
		c := s.response
		q.free <- s
		if status := Status(c.Status >> 1); status != success {
			return c, status
		}
		return c, nil
	case <-q.done:
		return Completion{}, q.err
	case <-ctx.Done():
		q.fail(ctx.Err())
		<-q.done
		return Completion{}, ctx.Err()
	}
}

// post sends the command's capsule, after the registration of its data if they are not in the capsule.
func (q *hostQueue) post(s *hostSlot, cmd *Command, data []byte, rights roce.Access) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil // done says so
	}
	capsule := q.commands.Bytes()[int(s.id)*q.capsuleSize():][:q.capsuleSize()]
	length := commandSize
	var list []roce.SendWR
	s.key = 0
	switch {
	case len(data) == 0:
		cmd.SGL = keyed(sglKeyed, 0, 0, 0)
	case rights == roce.RemoteRead && len(data) <= q.inline:
		cmd.SGL = inCapsule(0, len(data))
		length += copy(capsule[commandSize:], data)
	default:
		if err := s.fast.Map(data); err != nil {
			return err
		}
		s.key = roce.IncRKey(s.fast.RKey())
		if rights == roce.RemoteWrite {
			rights |= roce.LocalWrite
		}
		list = append(list, roce.SendWR{Opcode: roce.WRRegMR, MR: s.fast, RKey: s.key, Access: rights})
		cmd.SGL = keyed(sglKeyedInvalidate, s.fast.Addr(), len(data), s.key)
	}
	cmd.Flags, cmd.CID = flagsSGL, s.id
	cmd.put(capsule)
	s.left = 2 // the capsule is sent, the response is here
	return q.conn.QP().PostSend(append(list, roce.SendWR{
		ID: uint64(s.id)<<kindBits | kindSend, Opcode: roce.WRSend, Flags: roce.Signaled,
		SGE: []roce.SGE{q.commands.SGE(int(s.id)*q.capsuleSize(), length)},
	})...)
}

// run handles completions until the connection ends: the receive requests are flushed then.
func (q *hostQueue) run() {
	var wcs [32]roce.WC
	var err error
	for err == nil {
		var n int
		if n, err = q.conn.CQ().Wait(context.Background(), wcs[:]); err != nil {
			break
		}
		for i := range wcs[:n] {
			if err = q.completed(&wcs[i]); err != nil {
				break
			}
		}
	}
	q.fail(err)
	q.release()
	close(q.done)
}

func (q *hostQueue) completed(wc *roce.WC) error {
	if wc.Status != roce.WCSuccess {
		return failure(q.conn, wc)
	}
	i := int(wc.ID >> kindBits)
	s := &q.slots[i]
	if wc.ID&(1<<kindBits-1) == kindReceive {
		var err error
		if s, err = q.responded(i, wc); err != nil {
			return err
		}
	}
	if s.left--; s.left == 0 {
		s.over <- struct{}{}
	}
	return nil
}

// responded takes a response, and sees to it that the key of its command is closed.
func (q *hostQueue) responded(i int, wc *roce.WC) (*hostSlot, error) {
	if wc.ByteLen != responseSize {
		return nil, fmt.Errorf("nvme: a response of %d bytes, want %d", wc.ByteLen, responseSize)
	}
	var c Completion
	c.get(q.responses.Bytes()[i*responseSize:])
	if err := q.receive(q.conn.QP(), i); err != nil {
		return nil, err
	}
	if int(c.CID) >= len(q.slots) || q.slots[c.CID].left == 0 {
		return nil, fmt.Errorf("nvme: a response to command %d, which is not under way", c.CID)
	}
	s := &q.slots[c.CID]
	s.response = c
	invalidated := wc.Flags&roce.WCWithInv != 0
	switch {
	case invalidated && (s.key == 0 || wc.Imm != s.key):
		return nil, fmt.Errorf("nvme: the response to command %d closes key %#x, want %#x", c.CID, wc.Imm, s.key)
	case s.key != 0 && !invalidated:
		s.left++
		return s, q.conn.QP().PostSend(roce.SendWR{
			ID: uint64(s.id)<<kindBits | kindInvalidate, Opcode: roce.WRLocalInv, Flags: roce.Signaled, InvalidateRKey: s.key,
		})
	}
	return s, nil
}

// fail ends the queue for a reason, of which the first counts.
func (q *hostQueue) fail(err error) {
	q.mu.Lock()
	first := !q.closed
	if first {
		q.closed, q.err = true, err
	}
	q.mu.Unlock()
	if first {
		abort(q.conn.QP()) // flushes the receive requests, which ends run
	}
}

// release takes all memory away from the peer.
func (q *hostQueue) release() {
	mrs := []*roce.MR{q.commands, q.responses}
	for i := range q.slots {
		mrs = append(mrs, q.slots[i].fast)
	}
	for _, mr := range mrs {
		if mr != nil {
			mr.Deregister()
		}
	}
	if q.conn != nil {
		q.conn.Close()
	}
}

// failure says why a request has failed: what was flushed is told why the connection has ended.
func failure(c *rdmacm.Conn, wc *roce.WC) error {
	if err := c.Err(); err != nil && wc.Status == roce.WCWRFlushErr {
		return err
	}
	return fmt.Errorf("nvme: queue pair: %v", wc.Status)
}

// abort flushes a queue pair.
func abort(qp *roce.QP) { qp.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState) }

// errClosed is what commands get after Close.
var errClosed = errors.New("nvme: the host is closed")

// close ends the queue and waits until the target knows it.
func (q *hostQueue) close(ctx context.Context) error {
	q.fail(errClosed)
	<-q.done
	return q.conn.Shutdown(ctx)
}

// connect makes the queue one of a controller: the Connect command. It returns the controller's ID.
func (q *hostQueue) connect(ctx context.Context, id uint16, kato uint32, data *connectData) (uint16, error) {
	cmd := Command{Opcode: opFabrics, NSID: fabricsConnect}
	cmd.CDW[0] = uint32(id) << 16
	cmd.CDW[1] = uint32(len(q.slots) - 1)
	cmd.CDW[2] = kato
	c, err := q.do(ctx, &cmd, encoded(data), roce.RemoteRead)
	if err != nil {
		return 0, fmt.Errorf("connect of queue %d (result %#x): %w", id, c.Result, err)
	}
	return uint16(c.Result), nil
}

// identify fills a structure.
func (q *hostQueue) identify(ctx context.Context, cns, nsid uint32, v any) error {
	b := make([]byte, identifySize)
	cmd := Command{Opcode: opIdentify, NSID: nsid}
	cmd.CDW[0] = cns
	if _, err := q.do(ctx, &cmd, b, roce.RemoteWrite); err != nil {
		return fmt.Errorf("identify %d of namespace %d: %w", cns, nsid, err)
	}
	mustCode(binary.Decode(b, binary.LittleEndian, v))
	return nil
}
