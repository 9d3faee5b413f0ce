package wire

import "crypto/sha3"

// Request is one command to a verbs peer: a line of JSON on its standard input, answered by one line of JSON, a Response, on its
// standard output. Objects are named by small numbers that the harness chooses. Op is one of:
//
//	open     Addr: open the device that owns this local address; answers GID, MTU (bytes, the largest path MTU)
//	mr       MR, Len, Access: register fresh zeroed memory, persistent if Access has flush_persistent; answers VA and RKey
//	mw       MW, Type (1 or 2): allocate a memory window; answers RKey
//	srq      SRQ, Depth: create a shared receive queue
//	limit    SRQ, N: arm its limit event
//	qp       QP, Depth, Service, SRQ, Extended: create a queue pair, state RESET; answers QPN
//	connect  QP and the attributes that its service needs: RESET, INIT, RTR, RTS
//	ah       AH, DestGID: create an address handle
//	back     AH, MR, Off: create one for the sender of the datagram that was received last, by the 40 bytes at Off
//	fill     MR, Off, Len, Seed: write the pattern; an empty Seed means that many bytes of value Byte
//	check    MR, Off, Len, Seed (or Byte): compare; answers Bad (how many bytes differ) and First (offset of the first)
//	setword  MR, Off, Word: store a word in host order
//	word     MR, Off: answers Word
//	recv     QP or SRQ, WRs: post receives as one list
//	send     QP, WRs: post send requests as one list; answers RKey if the last is a BIND_MW: the window's new key. The bind of a
//	         window of type 1 is a list of its own
//	poll     N, TimeoutMS: wait for N completions; answers those that came
//	events   TimeoutMS, N: wait for N asynchronous events; answers those that came
//	state    QP: answers State and PathMigState
//	arm      QP, SrcPort: load an alternate path from this source port and rearm (only on this stack, as migrate)
//	migrate  QP: change to the alternate path
//	destroy  QP, SRQ, MR, MW or AH (the one that is not 0)
//	quit     end the program
type Request struct {
	Op      string   `json:"op"`
	Addr    string   `json:"addr,omitempty"`
	MR      int      `json:"mr,omitempty"`
	MW      int      `json:"mw,omitempty"`
	Type    int      `json:"type,omitempty"`
	QP      int      `json:"qp,omitempty"`
	AH      int      `json:"ah,omitempty"`
	SRQ     int      `json:"srq,omitempty"`
	Depth   int      `json:"depth,omitempty"`
	Service string   `json:"service,omitempty"` // RC (or empty), UC, UD
	Access  []string `json:"access,omitempty"`  // local_write, remote_write, remote_read, remote_atomic, mw_bind, flush_global, flush_persistent
	Off     int      `json:"off,omitempty"`
	Len     int      `json:"len,omitempty"`
	Seed    string   `json:"seed,omitempty"`
	Byte    byte     `json:"byte,omitempty"`
	Word    uint64   `json:"word,omitempty"`

	Extended bool `json:"extended,omitempty"` // the queue pair takes ATOMIC_WRITE and FLUSH: needs rdma-core 45

	// Attributes of connect. MTU is in bytes, AckTimeout and MinRNRTimer are the wire's 5-bit codes, RdAtomic bounds READs in both roles.
	MTU         int    `json:"mtu,omitempty"`
	DestGID     string `json:"dest_gid,omitempty"`
	DestQPN     uint32 `json:"dest_qpn,omitempty"`
	RQPSN       uint32 `json:"rq_psn,omitempty"`
	SQPSN       uint32 `json:"sq_psn,omitempty"`
	AckTimeout  int    `json:"ack_timeout,omitempty"`
	Retry       int    `json:"retry,omitempty"`
	RNRRetry    int    `json:"rnr_retry,omitempty"`
	MinRNRTimer int    `json:"min_rnr_timer,omitempty"`
	RdAtomic    int    `json:"rd_atomic,omitempty"`
	Spread      bool   `json:"spread,omitempty"`   // send from a source port of the queue pair's own, as rxe always does
	SrcPort     uint16 `json:"src_port,omitempty"` // of the alternate path
	QKey        uint32 `json:"qkey,omitempty"`

	WRs       []WR `json:"wrs,omitempty"`
	N         int  `json:"n,omitempty"`
	TimeoutMS int  `json:"timeout_ms,omitempty"`
}

// WR is a send or receive work request. Verb, RemoteVA, RKey and Imm are for sends only.
type WR struct {
	ID       uint64 `json:"id"`
	Verb     string `json:"verb,omitempty"` // SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, FETCH_ADD, CMP_SWAP, ATOMIC_WRITE, FLUSH, BIND_MW, LOCAL_INV
	SGEs     []SGE  `json:"sges,omitempty"`
	RemoteVA uint64 `json:"raddr,omitempty"`
	RKey     uint32 `json:"rkey,omitempty"`
	Compare  uint64 `json:"compare_add,omitempty"` // of CMP_SWAP, or what FETCH_ADD adds
	Swap     uint64 `json:"swap,omitempty"`
	Imm      uint32 `json:"imm,omitempty"` // as a number; it travels most significant byte first

	Inv    uint32   `json:"inv,omitempty"`    // the key that SEND_INV and LOCAL_INV close
	MW     int      `json:"mw,omitempty"`     // BIND_MW: the window, bound to the piece that SGEs has
	Access []string `json:"access,omitempty"` // BIND_MW: its rights; FLUSH: flush_global, flush_persistent or both
	Len    int      `json:"len,omitempty"`    // FLUSH: bytes from RemoteVA; 0 for the whole region

	// The destination of a datagram.
	AH   int    `json:"ah,omitempty"`
	QPN  uint32 `json:"qpn,omitempty"`
	QKey uint32 `json:"qkey,omitempty"`
}

// SGE is a piece of a region: Len bytes from offset Off.
type SGE struct {
	MR  int `json:"mr"`
	Off int `json:"off"`
	Len int `json:"len"`
}

// WC is a completion. Status is libibverbs' number; Opcode is one of SEND, WRITE, READ, FETCH_ADD, CMP_SWAP, ATOMIC_WRITE, FLUSH, BIND_MW, LOCAL_INV, RECV, RECV_IMM and means something only when
// Status is 0; Len is meaningful for receives and READs.
type WC struct {
	ID     uint64 `json:"id"`
	Status int    `json:"status"`
	Text   string `json:"text"`
	Opcode string `json:"opcode,omitempty"`
	Len    int    `json:"len"`
	HasInv bool   `json:"has_inv,omitempty"`
	Inv    uint32 `json:"inv,omitempty"` // the key that the message has closed
	HasImm bool   `json:"has_imm,omitempty"`
	Imm    uint32 `json:"imm,omitempty"`
	QPN    uint32 `json:"qpn,omitempty"`
	GRH    bool   `json:"grh,omitempty"`    // 40 bytes stand before the payload
	SrcQP  uint32 `json:"src_qp,omitempty"` // with GRH
}

// Response answers a Request. Err is empty on success.
type Response struct {
	Err          string   `json:"err,omitempty"`
	GID          string   `json:"gid,omitempty"`
	MTU          int      `json:"mtu,omitempty"`
	VA           uint64   `json:"va,omitempty"`
	RKey         uint32   `json:"rkey,omitempty"`
	QPN          uint32   `json:"qpn,omitempty"`
	Bad          int      `json:"bad,omitempty"`
	First        int      `json:"first,omitempty"`
	Word         uint64   `json:"word,omitempty"`
	WCs          []WC     `json:"wcs,omitempty"`
	Events       []string `json:"events,omitempty"`         // names as in libibverbs without IBV_EVENT_, e.g. QP_ACCESS_ERR
	State        string   `json:"state,omitempty"`          // RESET, INIT, RTR, RTS, SQD, SQE, ERR
	PathMigState string   `json:"path_mig_state,omitempty"` // MIGRATED, REARM, ARMED
}

// Pattern fills b with the data that belongs to seed: SHAKE128 of the seed, so that every position differs and a shift, a repetition
// or data of another iteration (whose number is part of the seed) cannot pass. The peer in the guest computes the same.
func Pattern(b []byte, seed string) {
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
}
