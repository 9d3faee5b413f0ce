package sim

import (
	"fmt"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// request is a send request and, if it consumes one, the receive request of the
// other side.
type request struct {
	id    uint64
	op    roce.WROpcode
	size  int
	key   uint64 // of its contents
	imm   uint32
	flags roce.SendFlags

	local    scatter // payload, or where a READ puts it; nil with Inline
	remote   piece   // of WRITE and READ
	va       uint64  // ... as the request names it
	rkey     uint32  // ... or that a SEND closes
	grant    *grant  // through which it goes, or that a local operation is about
	access   roce.Access
	held     bool    // remote is allocated
	done     bool    // known to have completed at its own side
	recv     scatter // of the receive request
	received bool
	arrived  bool // contents at the other side were compared

	floor, compare uint64 // of an atomic, see words
	after          int

	pool  *pool         // of the peer, which its receive comes from, or that XRC names
	group bool          // a datagram to the group
	last  ib.PSN        // of its packets, once they have been sent
	heard map[*side]int // how often an unreliable service delivered it, and to whom
}

func (r *request) consumes() bool { return r.sends() || r.op == roce.WRWriteWithImm }
func (r *request) writes() bool   { return r.op == roce.WRWrite || r.op == roce.WRWriteWithImm }
func (r *request) sends() bool {
	return r.op == roce.WRSend || r.op == roce.WRSendWithImm || r.op == roce.WRSendWithInv
}

// isLocal says whether the request sends nothing.
func (r *request) isLocal() bool {
	return r.op == roce.WRBindMW || r.op == roce.WRRegMR || r.op == roce.WRLocalInv
}

// isBind1 says whether it is posted by BindMW.
func (r *request) isBind1() bool { return r.op == roce.WRBindMW && r.grant.kind == window1 }

func (r *request) String() string {
	return fmt.Sprintf("request %#x (opcode %d, %d bytes, flags %#x)", r.id, r.op, r.size, r.flags)
}

// recvID marks the IDs of receive requests.
const recvID = 1 << 63
