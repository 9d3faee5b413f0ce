package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/goroce/goroce/roce"
)

// stream is one end of a connection, without clock, lock and goroutine: it is
// called, and posts requests to a queue pair.
//
// Each side has a buffer of two halves that the other writes to. Where is said by
// places (segments): the first is told with the connection, each further one is
// written, as soon as a half is free, into the next entry of a list of the sender,
// by a WRITE of 16 bytes whose immediate data (opSGL) also says how many messages
// with data may follow. Data is a WRITE to the place, whose immediate data (opData)
// is its length; it does not cross the end of a place. These messages use up
// credits, control messages do not, of which at most ctrlSlots are under way.
type stream struct {
	qp  queuePair
	ord binary.AppendByteOrder // of what is written into the peer's lists

	sender
	receiver
	ctrls   int     // control messages under way
	told    [3]bool // control messages that have been asked for and not posted, by their value
	maps    []mapping
	table   segment // of the peer, for memory of ours: length is the number of entries
	readEnd bool    // the peer sends no more
	sendEnd bool    // we send no more
	gone    bool    // neither sends any more
	said    bool    // we have said goodbye
	err     error   // why the connection failed

	wr  [1]roce.SendWR
	sge [1]roce.SGE
	ctl [mappingSize]byte
}

// queuePair is what stream needs of a *roce.QP.
type queuePair interface {
	PostSend(...roce.SendWR) error
	PostRecv(...roce.RecvWR) error
}

// region is memory that is registered.
type region struct {
	buf  []byte
	addr uint64
	key  uint32
}

// part returns the place of n bytes (or entries) from off on.
func (r *region) part(off, n int) segment {
	return segment{addr: r.addr + uint64(off), key: r.key, length: uint32(n)}
}

const (
	ctrlSlots  = 4 // as rsocket.c, RS_QP_CTRL_SIZE
	places     = 2 // entries of our list, as rsocket.c, RS_SGL_SIZE
	lowWater   = 2048
	maxMessage = 32 << 10 // so that a place takes several messages, and copying overlaps sending
)

// What a send request was, in its ID above the bytes of the send buffer it used.
const (
	sentData = iota << 32
	sentCtrl
	sentBye
	sentKind = math.MaxUint32 << 32
	isRecv   = 1 << 63 // the ID of all receive requests
)

var errProtocol = errors.New("the peer breaks rsocket's protocol")

// newStream makes one end. The private region holds the send buffer alone, the
// shared one, which the peer writes to, the receive buffer, then the list of places
// and the table of mapped memory.
func newStream(cfg *Config, private, shared region) *stream {
	s := &stream{maps: make([]mapping, cfg.Maps)}
	s.sender = sender{buf: private, free: len(private.buf), slots: cfg.SendQueue - ctrlSlots, maxInline: inline}
	half := cfg.RecvBuffer / 2
	s.receiver = receiver{
		shared: shared, size: 2 * half, freed: half, next: half,
		lengths: make([]uint32, cfg.RecvQueue), renew: uint16(cfg.RecvQueue / 2), repost: make([]roce.RecvWR, cfg.RecvQueue+ctrlSlots),
	}
	for i := range s.repost {
		s.repost[i].ID = isRecv
	}
	return s
}

// sharedSize is how much memory the peer has to be able to write to.
func sharedSize(cfg *Config) int {
	return cfg.RecvBuffer + places*segmentSize + cfg.Maps*mappingSize
}

// prepare takes the queue pair and posts the receives, before the peer can send.
func (s *stream) prepare(qp queuePair) error {
	s.qp = qp
	return qp.PostRecv(s.repost...)
}

// local returns what the peer has to know.
func (s *stream) local() connData {
	return connData{
		credits: uint16(len(s.lengths)), maps: len(s.maps),
		list: s.shared.part(s.size, places), data: s.shared.part(0, s.size/2),
	}
}

// start begins with what the peer has told.
func (s *stream) start(d connData) {
	s.ord = binary.LittleEndian
	if d.bigEndian {
		s.ord = binary.BigEndian
	}
	s.place[0], s.credit, s.list = d.data, d.credits, d.list
	s.table = d.list
	s.table.addr += segmentSize * uint64(d.list.length)
	s.table.length = uint32(d.maps)
	s.nextPlace, s.nextEntry = 1, 1%d.list.length
	s.advance()
}

// fail ends the connection because of err.
func (s *stream) fail(err error) {
	if !s.gone {
		s.err, s.gone = err, true
	}
}

func (s *stream) broken(format string, args ...any) {
	s.fail(fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, args...)))
}

// tell posts a control message, or notes that it is due.
func (s *stream) tell(ctrl uint32) {
	s.told[ctrl] = true
	s.advance()
}

// advance posts what is due and had to wait for a free control message: the news of
// a free half of the buffer or of credits, then control messages.
func (s *stream) advance() {
	for !s.gone && s.ctrls < ctrlSlots && s.due() {
		s.grant()
	}
	for ctrl := range s.told {
		if s.told[ctrl] && !s.gone && s.ctrls < ctrlSlots {
			s.told[ctrl] = false
			s.sendCtrl(uint32(ctrl))
		}
	}
}

func (s *stream) sendCtrl(ctrl uint32) {
	wr := roce.SendWR{ID: sentCtrl, Opcode: roce.WRWriteWithImm, Imm: message(opCtrl, ctrl)}
	switch ctrl {
	case ctrlDisconnect:
		wr.ID, s.said = sentBye, true
	case ctrlKeepAlive:
		wr.Opcode = roce.WRWrite // needs nothing of the peer but an acknowledgement
	}
	s.ctrls++
	s.send(wr)
}

// send posts a request.
func (s *stream) send(wr roce.SendWR) {
	s.wr[0] = wr
	if err := s.qp.PostSend(s.wr[:]...); err != nil {
		s.fail(err)
	}
}

// closeWrite says that nothing more will be written.
func (s *stream) closeWrite() {
	if s.sendEnd {
		return
	}
	s.sendEnd = true
	if s.readEnd {
		s.tell(ctrlDisconnect)
	} else {
		s.tell(ctrlShutdown)
	}
}

// close says that nothing more will be written or read.
func (s *stream) close() {
	if !s.readEnd || !s.sendEnd {
		s.readEnd, s.sendEnd = true, true
		s.told[ctrlShutdown] = false
		s.tell(ctrlDisconnect)
	}
}

// lost returns why nothing can be sent any more.
func (s *stream) lost() error {
	if s.err != nil {
		return s.err
	}
	return syscall.EPIPE
}

// idle says that everything posted has arrived, or never will.
func (s *stream) idle() bool { return s.gone || s.ctrls == 0 && s.busy == 0 && s.told == [3]bool{} }

// complete takes a completion.
func (s *stream) complete(wc *roce.WC) {
	switch {
	case wc.ID == isRecv && wc.Status == roce.WCSuccess:
		s.taken++
		s.received(wc)
		return
	case wc.ID == isRecv:
	case wc.ID&sentKind == sentData:
		s.slots++
		s.busy--
		s.free += int(wc.ID &^ sentKind)
	default:
		s.ctrls--
		if wc.ID == sentBye {
			s.gone = true
		}
	}
	switch wc.Status {
	case roce.WCSuccess:
	case roce.WCWRFlushErr: // the connection below has ended, or another request says why
		s.fail(syscall.ECONNRESET)
	default:
		s.fail(fmt.Errorf("the connection is lost: %v", wc.Status))
	}
}

// received takes a message.
func (s *stream) received(wc *roce.WC) {
	if wc.Opcode != roce.WCRecvRDMAWithImm {
		s.broken("%v instead of a WRITE with immediate data", wc.Opcode)
		return
	}
	switch op, v := opOf(wc.Imm), valueOf(wc.Imm); op {
	case opData, opDataMore:
		s.data(v, wc.ByteLen)
	case opSGL:
		s.credit = uint16(v)
		if wc.ByteLen != 0 {
			s.granted(wc.ByteLen)
		}
	case opIOMap:
		s.mapped(v, wc.ByteLen)
	case opCtrl:
		s.control(v)
	default:
		s.broken("message %#x", wc.Imm)
	}
}

func (s *stream) control(ctrl uint32) {
	switch {
	case ctrl == ctrlDisconnect, ctrl == ctrlShutdown && s.sendEnd:
		s.readEnd, s.sendEnd, s.gone = true, true, true
	case ctrl == ctrlShutdown:
		s.readEnd = true
	}
}

// settle is called after some completions.
func (s *stream) settle() {
	if !s.gone && s.taken > 0 {
		if err := s.qp.PostRecv(s.repost[:s.taken]...); err != nil {
			s.fail(err)
		}
	}
	s.taken = 0
	s.advance()
}

// readable says whether read returns at once.
func (s *stream) readable() bool { return s.unread > 0 || s.readEnd || s.gone }

// read takes bytes that have arrived. After the last it returns io.EOF, or why the
// connection failed.
func (s *stream) read(p []byte) (n int, err error) {
	n = s.take(p)
	switch {
	case n > 0:
		s.advance()
	case len(p) == 0:
	case s.err != nil:
		err = s.err
	case s.readEnd || s.gone:
		err = io.EOF
	}
	return n, err
}
