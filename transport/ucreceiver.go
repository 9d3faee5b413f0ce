package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// ucReceiver is the half of a UC queue pair that takes SENDs and WRITEs. It
// answers nothing. A message of which a packet is missing, or which breaks a
// rule, is dropped without a word to either side (IBTA 9.8.2; Linux
// drivers/infiniband/sw/rxe/rxe_resp.c, classes D and D1): what had come of a
// WRITE stays in memory, the receive that a SEND had taken serves the next
// message. Only a bad receive buffer of our own is an error of the queue pair.
//
// A message begins with any FIRST or ONLY packet, whatever its PSN: unlike rxe,
// which drops the first packet after a broken message, too.
type ucReceiver struct {
	receives
	silent
	target mem.Cursor // where the payload of the message goes
	ucState
}

// ucState is what a reset clears as a whole.
type ucState struct {
	mtu       int    // path MTU in bytes
	expected  uint64 // sequence number of the next packet
	inMessage bool
	kind      ib.OpKind // KindSend or KindWrite
	offset    uint64    // bytes received
	length    uint64    // bytes announced by the RETH (WRITE)
}

func (r *ucReceiver) reset() {
	r.target.Reset()
	r.haveWQE, r.ucState = false, ucState{}
}

func (r *ucReceiver) start(a *Attr) {
	r.reset()
	r.mtu = a.PathMTU.Bytes()
	r.expected = firstSeq(a.RQPSN)
	r.target.Serve(uint32(r.q.cfg.Num))
	r.grow()
}

func (r *ucReceiver) flush() {
	r.abandon()
	r.flushReceives()
}

// abandon forgets the message, but not the receive it has taken.
func (r *ucReceiver) abandon() {
	r.inMessage = false
	r.target.Reset()
}

// drop abandons the message and counts why.
func (r *ucReceiver) drop(why Counter) {
	r.abandon()
	r.q.count(why)
}

// receive takes one packet. The next expected PSN is always the one after it
// (IBTA 9.8.2.2): a peer cannot get out of step for good.
func (r *ucReceiver) receive(now time.Duration, in *Inbound) {
	info := in.Info()
	seq := extend(in.PSN(), r.expected)
	missing := seq != r.expected
	r.expected = seq + 1
	if missing {
		r.q.count(OutOfSequence)
	}
	if r.inMessage && (missing || info.Pos.Starts() || info.Op != r.kind) {
		r.drop(DropMessage)
	}
	if !r.inMessage && !info.Pos.Starts() {
		r.q.count(DropMessage) // the rest of a message that is dropped
		return
	}
	if !fitsMTU(info.Pos, len(in.Payload()), r.mtu) {
		r.drop(RespRemoteInvalid)
		return
	}
	if info.Pos.Starts() {
		r.inMessage, r.kind, r.offset = true, info.Op, 0
	}
	if info.Op == ib.KindSend {
		r.send(now, in)
	} else {
		r.write(in)
	}
}

// send takes a packet of a SEND.
func (r *ucReceiver) send(now time.Duration, in *Inbound) {
	p, pos := in.Payload(), in.Info().Pos
	if !r.takeWQE() {
		r.drop(DropNoReceive)
		return
	}
	if pos.Starts() {
		sges := r.wqe.SGE
		if pos == ib.PosOnly && len(p) == 0 {
			sges = nil // no memory is touched, so no key is looked at
		}
		if r.target.Local(r.q.cfg.Mem, r.q.cfg.PD, sges, mem.LocalWrite) != mem.OK {
			r.failReceive(now)
			return
		}
	}
	if uint64(len(p)) > r.target.Len()-r.offset {
		r.drop(RespLocalLengthErr)
		return
	}
	if r.target.CopyIn(r.offset, p) != mem.OK {
		r.failReceive(now)
		return
	}
	r.offset += uint64(len(p))
	if pos.Ends() {
		r.abandon() // it is whole
		r.completeReceive(in, WCRecv, r.offset, r.q.attr.DestQPN, 0)
	}
}

// write takes a packet of an RDMA WRITE.
func (r *ucReceiver) write(in *Inbound) {
	p, info := in.Payload(), in.Info()
	// Immediate data consumes a receive, at the last packet (IBTA 9.4.3).
	if info.Imm && !r.takeWQE() {
		r.drop(DropNoReceive)
		return
	}
	if info.Pos.Starts() && !r.openWrite(in.RETH()) {
		return
	}
	if left := r.length - r.offset; info.Pos.Ends() != (uint64(len(p)) == left) || uint64(len(p)) > left {
		r.drop(RespRemoteInvalid)
		return
	}
	if r.target.CopyIn(r.offset, p) != mem.OK {
		r.drop(RespRemoteAccessErr)
		return
	}
	r.offset += uint64(len(p))
	if info.Pos.Ends() {
		r.abandon() // it is whole
	}
	if info.Imm {
		r.completeReceive(in, WCRecvRDMAWithImm, r.length, r.q.attr.DestQPN, 0)
	}
}

// openWrite checks the right and the range of a WRITE, all of it at its first
// packet, and makes it the target.
func (r *ucReceiver) openWrite(h ib.RETH) bool {
	if r.q.attr.Access&mem.RemoteWrite == 0 || h.Length > maxMessage {
		r.drop(RespRemoteInvalid)
		return false
	}
	r.length = uint64(h.Length)
	if r.target.Remote(r.q.cfg.Mem, r.q.cfg.PD, h.RKey, h.VA, r.length, mem.RemoteWrite) != mem.OK {
		r.drop(RespRemoteAccessErr)
		return false
	}
	return true
}

// failReceive ends the message and with it the queue pair: the buffers of its
// receive cannot be written.
func (r *ucReceiver) failReceive(now time.Duration) {
	r.abandon()
	r.failBuffer(now)
}

// silent is the part of a receiver that never transmits anything.
type silent struct{}

func (silent) resize()                                           {}
func (silent) wants() Want                                       { return 0 }
func (silent) control(time.Duration, Outbox)                     {}
func (silent) transmit(_ time.Duration, _ Outbox, _ int) (n int) { return 0 }
