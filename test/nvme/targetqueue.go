package nvme

import (
	"context"
	"errors"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// targetQueue is a queue pair of the target. One goroutine receives its commands, moves their data and answers them.
//
// A capsule's receive request is posted again as soon as a request has what was in it, and before the response is sent, as the host may
// send the next command the moment it has that. The host's next command may also come before the completion of the response's SEND, so
// there are twice as many requests as commands; capsules that come while all are in use wait.
type targetQueue struct {
	t        *Target
	conn     *rdmacm.Conn
	ctx      context.Context
	stop     context.CancelFunc
	qid      uint16
	size     int // commands that the host may have under way
	inline   int
	ctrl     *controller // once the host has sent Connect
	noFlow   bool        // the host wants no submission queue heads
	sqSize   int
	sqHead   int
	events   int // asynchronous event requests that wait, for ever
	capsules *roce.MR
	work     *roce.MR // of each request a response, and room for the data of admin commands
	requests []request
	free     []*request
	waiting  []arrival
}

// arrival is a capsule that has come: the index of its receive request, and bytes.
type arrival struct{ index, length int }

// request is a command that is being executed.
type request struct {
	id      int
	capsule int // the receive request that it came with, to be posted again; then -1
	cmd     Command
	inline  []byte       // data in the capsule
	then    func() error // what follows when the data of the host are here
}

// dataRoom is what a request has room for besides the disk: an Identify structure, or a piece of a log page.
const dataRoom = identifySize

// The kinds of completions, in the request's ID, as those of the host.
const kindRead = kindInvalidate

// asyncEvents is how many asynchronous event requests a host may have waiting.
const asyncEvents = 4

// newQueue accepts a request for a connection.
func (t *Target) newQueue(req *rdmacm.Request, cm cmRequest) (*targetQueue, error) {
	q := &targetQueue{t: t, qid: cm.QID, size: int(cm.HSQSize) + 1}
	if q.qid != 0 {
		q.inline = t.cfg.InlineData
	}
	q.ctx, q.stop = context.WithCancel(t.ctx)
	q.requests = make([]request, 2*q.size)
	for i := range q.requests {
		q.requests[i].id = i
		q.free = append(q.free, &q.requests[i])
	}
	var err error
	q.conn, err = req.Accept(q.ctx, rdmacm.Config{
		PD:          t.pd,
		QP:          roce.QPConfig{MaxSendWR: 2 * len(q.requests), MaxRecvWR: q.size},
		Access:      roce.LocalWrite,
		PrivateData: encoded(&cmReply{CRQSize: uint16(q.size)}),
		Prepare:     q.prepare,
		Linger:      -1, // the queue pair is in the error state before
	})
	if err != nil {
		q.release()
		return nil, err
	}
	return q, nil
}

func (q *targetQueue) capsuleSize() int { return commandSize + q.inline }

const workSize = responseSize + dataRoom

func (q *targetQueue) prepare(c *rdmacm.Conn) (err error) {
	if q.capsules, err = q.t.pd.RegisterMR(make([]byte, q.size*q.capsuleSize()), roce.LocalWrite); err != nil {
		return err
	}
	if q.work, err = q.t.pd.RegisterMR(make([]byte, len(q.requests)*workSize), roce.LocalWrite); err != nil {
		return err
	}
	for i := range q.size {
		if err := q.receive(c.QP(), i); err != nil {
			return err
		}
	}
	return nil
}

func (q *targetQueue) receive(qp *roce.QP, i int) error {
	size := q.capsuleSize()
	return qp.PostRecv(roce.RecvWR{ID: uint64(i)<<kindBits | kindReceive, SGE: []roce.SGE{q.capsules.SGE(i*size, size)}})
}

// release ends the connection and takes its memory away from it.
func (q *targetQueue) release() {
	q.stop()
	for _, mr := range []*roce.MR{q.capsules, q.work} {
		if mr != nil {
			mr.Deregister()
		}
	}
	if q.conn != nil {
		q.conn.Close()
	}
}

// leave ends what run has left.
func (q *targetQueue) leave() {
	abort(q.conn.QP())
	q.release()
	if q.ctrl != nil {
		q.t.left(q)
	}
}

// run executes commands until the connection ends, and says why it did.
func (q *targetQueue) run() error {
	var wcs [32]roce.WC
	for {
		n, err := q.conn.CQ().Wait(q.ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := q.completed(&wcs[i]); err != nil {
				return err
			}
		}
	}
}

func (q *targetQueue) completed(wc *roce.WC) error {
	if wc.Status != roce.WCSuccess {
		return failure(q.conn, wc)
	}
	i := int(wc.ID >> kindBits)
	switch wc.ID & (1<<kindBits - 1) {
	case kindReceive:
		q.waiting = append(q.waiting, arrival{i, int(wc.ByteLen)})
	case kindRead:
		if err := q.requests[i].then(); err != nil {
			return err
		}
	case kindSend:
		q.free = append(q.free, &q.requests[i])
	}
	for len(q.waiting) > 0 && len(q.free) > 0 {
		a := q.waiting[0]
		q.waiting = q.waiting[1:]
		r := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		if err := q.begin(r, a); err != nil {
			return err
		}
	}
	return nil
}

// errShort is a capsule that is none.
var errShort = errors.New("nvme: a capsule of less than 64 bytes")

// begin executes the command of a capsule, as far as it goes without data of the host that have to be read.
func (q *targetQueue) begin(r *request, a arrival) error {
	capsule := q.capsules.Bytes()[a.index*q.capsuleSize():][:a.length]
	if len(capsule) < commandSize {
		return errShort
	}
	r.capsule, r.inline = a.index, capsule[commandSize:]
	r.cmd.get(capsule)
	if q.ctrl != nil {
		q.t.heard(q.ctrl)
	}
	if r.cmd.Flags != flagsSGL {
		return q.respond(r, answer{status: invalidField})
	}
	return q.execute(r)
}

// giveBack posts the request's receive request again: nothing in its capsule is needed any more.
func (q *targetQueue) giveBack(r *request) error {
	i := r.capsule
	if r.capsule = -1; i < 0 {
		return nil
	}
	return q.receive(q.conn.QP(), i)
}

// place is memory of the target that data of a command come from, or go to.
type place struct {
	mr     *roce.MR
	off, n int
}

func (p place) bytes() []byte { return p.mr.Bytes()[p.off:][:p.n] }

// room is what the request has for n bytes of data, zeros.
func (q *targetQueue) room(r *request, n int) place {
	p := place{q.work, r.id*workSize + responseSize, n}
	clear(p.bytes())
	return p
}

// fetch brings the data of the host to a place, and does then what follows.
func (q *targetQueue) fetch(r *request, to place, then func() error) error {
	sgl := &r.cmd.SGL
	switch {
	case sgl.Type != sglInCapsule && !sgl.isKeyed():
		return q.respond(r, answer{status: invalidSGLType})
	case sgl.length() != to.n:
		return q.respond(r, answer{status: invalidSGLLength})
	case sgl.isKeyed():
		r.then = then
		return q.conn.QP().PostSend(roce.SendWR{
			ID: uint64(r.id)<<kindBits | kindRead, Opcode: roce.WRRead, Flags: roce.Signaled,
			SGE: []roce.SGE{to.mr.SGE(to.off, to.n)}, RemoteAddr: sgl.Addr, RKey: sgl.key(),
		})
	case sgl.Addr > uint64(len(r.inline)) || uint64(len(r.inline))-sgl.Addr < uint64(to.n):
		return q.respond(r, answer{status: invalidSGLOffset})
	}
	copy(to.bytes(), r.inline[sgl.Addr:])
	return then()
}

// answer is what a response says, and the data that go before it.
type answer struct {
	status Status
	result uint64
	data   place
}

// respond answers a command.
func (q *targetQueue) respond(r *request, a answer) error {
	if err := q.giveBack(r); err != nil {
		return err
	}
	sgl := &r.cmd.SGL
	if a.data.n > 0 && !sgl.isKeyed() {
		a = answer{status: invalidSGLType}
	} else if a.data.n > 0 && sgl.length() != a.data.n {
		a = answer{status: invalidSGLLength}
	}
	var list []roce.SendWR
	if a.data.n > 0 {
		list = append(list, roce.SendWR{
			Opcode: roce.WRWrite, SGE: []roce.SGE{a.data.mr.SGE(a.data.off, a.data.n)}, RemoteAddr: sgl.Addr, RKey: sgl.key(),
		})
	}
	c := Completion{Result: a.result, SQID: q.qid, CID: r.cmd.CID, Status: uint16(a.status) << 1, SQHead: 0xffff}
	if !q.noFlow && q.sqSize > 0 {
		q.sqHead = (q.sqHead + 1) % q.sqSize
		c.SQHead = uint16(q.sqHead)
	}
	off := r.id * workSize
	c.put(q.work.Bytes()[off:])
	send := roce.SendWR{
		ID: uint64(r.id)<<kindBits | kindSend, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{q.work.SGE(off, responseSize)},
	}
	if sgl.Type == sglKeyedInvalidate {
		send.Opcode, send.InvalidateRKey = roce.WRSendWithInv, sgl.key()
	}
	return q.conn.QP().PostSend(append(list, send)...)
}
