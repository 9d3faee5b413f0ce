package ib

// opcodes is the opcode table, indexed by opcode; HeaderLen 0 marks an opcode
// that is unknown. It is filled once, before main, and only read afterwards.
var opcodes = buildOpcodes()

// operation is one row of the specification's opcode table: the lower 5 bits,
// valid for every transport that has the operation.
type operation struct {
	code  Opcode
	name  string
	op    OpKind
	pos   Position
	has   headerSet
	rule  PayloadRule
	exact int
}

// headerSet says which extension headers follow the BTH.
type headerSet uint8

const (
	hasFETH headerSet = 1 << iota
	hasRETH
	hasAtomicETH
	hasAETH
	hasAtomicAck
	hasImm
	hasIETH
)

// operations lists the operations of connected transports in the order of their
// codes (IBTA 9.2 table of OpCode fields; FLUSH and ATOMIC_WRITE: Annex A19;
// Linux drivers/infiniband/sw/rxe/rxe_opcode.c).
var operations = [...]operation{
	{0x00, "SEND_FIRST", KindSend, PosFirst, 0, PayloadAllowed, 0},
	{0x01, "SEND_MIDDLE", KindSend, PosMiddle, 0, PayloadAllowed, 0},
	{0x02, "SEND_LAST", KindSend, PosLast, 0, PayloadAllowed, 0},
	{0x03, "SEND_LAST_WITH_IMMEDIATE", KindSend, PosLast, hasImm, PayloadAllowed, 0},
	{0x04, "SEND_ONLY", KindSend, PosOnly, 0, PayloadAllowed, 0},
	{0x05, "SEND_ONLY_WITH_IMMEDIATE", KindSend, PosOnly, hasImm, PayloadAllowed, 0},
	{0x06, "RDMA_WRITE_FIRST", KindWrite, PosFirst, hasRETH, PayloadAllowed, 0},
	{0x07, "RDMA_WRITE_MIDDLE", KindWrite, PosMiddle, 0, PayloadAllowed, 0},
	{0x08, "RDMA_WRITE_LAST", KindWrite, PosLast, 0, PayloadAllowed, 0},
	{0x09, "RDMA_WRITE_LAST_WITH_IMMEDIATE", KindWrite, PosLast, hasImm, PayloadAllowed, 0},
	{0x0a, "RDMA_WRITE_ONLY", KindWrite, PosOnly, hasRETH, PayloadAllowed, 0},
	{0x0b, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", KindWrite, PosOnly, hasRETH | hasImm, PayloadAllowed, 0},
	// From here on only the reliable transports.
	{0x0c, "RDMA_READ_REQUEST", KindReadRequest, PosOnly, hasRETH, PayloadNone, 0},
	{0x0d, "RDMA_READ_RESPONSE_FIRST", KindReadResponse, PosFirst, hasAETH, PayloadAllowed, 0},
	{0x0e, "RDMA_READ_RESPONSE_MIDDLE", KindReadResponse, PosMiddle, 0, PayloadAllowed, 0},
	{0x0f, "RDMA_READ_RESPONSE_LAST", KindReadResponse, PosLast, hasAETH, PayloadAllowed, 0},
	{0x10, "RDMA_READ_RESPONSE_ONLY", KindReadResponse, PosOnly, hasAETH, PayloadAllowed, 0},
	{0x11, "ACKNOWLEDGE", KindAck, PosOnly, hasAETH, PayloadNone, 0},
	{0x12, "ATOMIC_ACKNOWLEDGE", KindAtomicAck, PosOnly, hasAETH | hasAtomicAck, PayloadNone, 0},
	{0x13, "COMPARE_SWAP", KindCmpSwap, PosOnly, hasAtomicETH, PayloadNone, 0},
	{0x14, "FETCH_ADD", KindFetchAdd, PosOnly, hasAtomicETH, PayloadNone, 0},
	{0x16, "SEND_LAST_WITH_INVALIDATE", KindSend, PosLast, hasIETH, PayloadAllowed, 0},
	{0x17, "SEND_ONLY_WITH_INVALIDATE", KindSend, PosOnly, hasIETH, PayloadAllowed, 0},
	// From here on only RC.
	{0x1c, "FLUSH", KindFlush, PosOnly, hasFETH | hasRETH, PayloadNone, 0},
	{0x1d, "ATOMIC_WRITE", KindAtomicWrite, PosOnly, hasRETH, PayloadExact, 8},
}

func buildOpcodes() (t [256]OpcodeInfo) {
	for _, o := range operations {
		t[o.code] = o.info(TransportRC)
		if o.code <= 0x0b {
			t[0x20|o.code] = o.info(TransportUC)
		}
		if o.code <= 0x17 {
			t[0xa0|o.code] = o.info(TransportXRC)
		}
		if o.code == 0x04 || o.code == 0x05 {
			t[0x60|o.code] = o.info(TransportUD)
		}
	}
	cnp := operation{0x01, "CNP", KindCNP, PosOnly, 0, PayloadExact, cnpReserved}
	t[OpCNP] = cnp.info(TransportCNP)
	return t
}

// info lays the extension headers out for one transport, in wire order.
func (o operation) info(tr Transport) OpcodeInfo {
	response := o.op == KindReadResponse || o.op == KindAck || o.op == KindAtomicAck
	i := OpcodeInfo{
		Name:         tr.String() + "_" + o.name,
		Transport:    tr,
		Op:           o.op,
		Pos:          o.pos,
		RETH:         o.has&hasRETH != 0,
		AETH:         o.has&hasAETH != 0,
		AtomicETH:    o.has&hasAtomicETH != 0,
		AtomicAckETH: o.has&hasAtomicAck != 0,
		Imm:          o.has&hasImm != 0,
		IETH:         o.has&hasIETH != 0,
		DETH:         tr == TransportUD,
		XRCETH:       tr == TransportXRC && !response, // IBTA Annex A14: requests only
		FETH:         o.has&hasFETH != 0,
		Request:      !response && tr != TransportCNP,
		Response:     response,
		Payload:      o.rule,
		PayloadLen:   o.exact,
	}
	if tr == TransportCNP {
		i.Name = o.name
	}
	at := BTHSize
	place := func(present bool, off *uint8, size int) {
		if present {
			*off = uint8(at)
			at += size
		}
	}
	place(i.XRCETH, &i.offXRCETH, XRCETHSize)
	place(i.DETH, &i.offDETH, DETHSize)
	place(i.FETH, &i.offFETH, FETHSize)
	place(i.RETH, &i.offRETH, RETHSize)
	place(i.AtomicETH, &i.offAtomicETH, AtomicETHSize)
	place(i.AETH, &i.offAETH, AETHSize)
	place(i.AtomicAckETH, &i.offAtomicAck, AtomicAckETHSize)
	place(i.Imm, &i.offImm, ImmDtSize)
	place(i.IETH, &i.offIETH, IETHSize)
	i.HeaderLen = at
	return i
}
