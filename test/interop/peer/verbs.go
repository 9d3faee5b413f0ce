package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/interop/wire"
)

var accessNames = map[string]roce.Access{
	"local_write":   roce.LocalWrite,
	"remote_write":  roce.RemoteWrite,
	"remote_read":   roce.RemoteRead,
	"remote_atomic": roce.RemoteAtomic,
	"mw_bind":       roce.MWBind,

	"flush_global":     roce.FlushGlobal,
	"flush_persistent": roce.FlushPersistent,
}

func access(names []string) (acc roce.Access, err error) {
	for _, n := range names {
		a, ok := accessNames[n]
		if !ok {
			return 0, fmt.Errorf("unknown right %q", n)
		}
		acc |= a
	}
	return acc, nil
}

var verbs = map[string]roce.WROpcode{
	"SEND":      roce.WRSend,
	"SEND_IMM":  roce.WRSendWithImm,
	"WRITE":     roce.WRWrite,
	"WRITE_IMM": roce.WRWriteWithImm,
	"READ":      roce.WRRead,
	"SEND_INV":  roce.WRSendWithInv,
	"BIND_MW":   roce.WRBindMW,
	"LOCAL_INV": roce.WRLocalInv,
	"FETCH_ADD": roce.WRAtomicFetAdd,
	"CMP_SWAP":  roce.WRAtomicCmpSwp,
	"FLUSH":     roce.WRFlush,

	"ATOMIC_WRITE": roce.WRAtomicWrite,
}

var opcodeNames = map[roce.WCOpcode]string{
	roce.WCSend:            "SEND",
	roce.WCWrite:           "WRITE",
	roce.WCRead:            "READ",
	roce.WCBindMW:          "BIND_MW",
	roce.WCLocalInv:        "LOCAL_INV",
	roce.WCFetchAdd:        "FETCH_ADD",
	roce.WCCompSwap:        "CMP_SWAP",
	roce.WCAtomicWrite:     "ATOMIC_WRITE",
	roce.WCFlush:           "FLUSH",
	roce.WCRecv:            "RECV",
	roce.WCRecvRDMAWithImm: "RECV_IMM",
}

var eventNames = map[roce.EventType]string{
	roce.EventCQErr:       "CQ_ERR",
	roce.EventQPFatal:     "QP_FATAL",
	roce.EventQPReqErr:    "QP_REQ_ERR",
	roce.EventQPAccessErr: "QP_ACCESS_ERR",
	roce.EventCommEst:     "COMM_EST",
	roce.EventSQDrained:   "SQ_DRAINED",
	roce.EventDeviceFatal: "DEVICE_FATAL",
	roce.EventPathMig:     "PATH_MIG",
	roce.EventPathMigErr:  "PATH_MIG_ERR",
	roce.EventSRQLimit:    "SRQ_LIMIT_REACHED",
}

var services = map[string]roce.QPType{"": roce.RC, "RC": roce.RC, "UC": roce.UC, "UD": roce.UD}

// connect sets exactly the attributes of the request, through Modify as a verbs program does.
func connect(qp *roce.QP, r *wire.Request) error {
	acc, err := access(r.Access)
	if err != nil {
		return err
	}
	mtu, ok := ib.MTUFromBytes(r.MTU)
	if !ok {
		return fmt.Errorf("path MTU %d", r.MTU)
	}
	dest, err := netip.ParseAddr(r.DestGID)
	if err != nil {
		return err
	}
	init, rtr, rts := masks(qp)
	if err := qp.Modify(&roce.Attr{State: roce.StateInit, PortNum: 1, Access: acc, QKey: r.QKey}, init); err != nil {
		return err
	}
	av := roce.AddressVector{DGID: ib.GIDFromAddr(dest), HopLimit: 64}
	if r.Spread {
		av.SourcePort = ib.SourcePort(qp.Num(), ib.QPN(r.DestQPN))
	}
	if err := qp.Modify(&roce.Attr{
		State: roce.StateRTR, PathMTU: mtu, DestQPN: ib.QPN(r.DestQPN), RQPSN: ib.PSN(r.RQPSN), MaxDestRdAtomic: uint8(r.RdAtomic),
		MinRNRTimer: ib.RNRTimer(r.MinRNRTimer), AV: av,
	}, rtr); err != nil {
		return err
	}
	return qp.Modify(&roce.Attr{
		State: roce.StateRTS, SQPSN: ib.PSN(r.SQPSN), Timeout: ib.AckTimeout(r.AckTimeout), RetryCnt: uint8(r.Retry),
		RNRRetry: uint8(r.RNRRetry), MaxRdAtomic: uint8(r.RdAtomic),
	}, rts)
}

// masks says which attributes the service of a queue pair needs.
func masks(qp *roce.QP) (init, rtr, rts roce.AttrMask) {
	init, rtr, rts = roce.MaskState|roce.MaskPKeyIndex|roce.MaskPort, roce.MaskState, roce.MaskState|roce.MaskSQPSN
	_, made := qp.Query()
	if made.Type == roce.UD {
		return init | roce.MaskQKey, rtr, rts
	}
	init |= roce.MaskAccess
	rtr |= roce.MaskAV | roce.MaskPathMTU | roce.MaskDestQPN | roce.MaskRQPSN
	if made.Type == roce.RC {
		rtr |= roce.MaskMaxDestRdAtomic | roce.MaskMinRNRTimer
		rts |= roce.MaskTimeout | roce.MaskRetryCnt | roce.MaskRNRRetry | roce.MaskMaxRdAtomic
	}
	return init, rtr, rts
}

// address creates the address handle of a request.
func (p *peer) address(r *wire.Request) (ah *roce.AH, err error) {
	if r.Op == "back" {
		mr := p.mrs[r.MR]
		if mr == nil || r.Off < 0 || r.Off+ib.GRHSize > len(mr.Bytes()) {
			return nil, fmt.Errorf("no memory region %d with bytes %d to %d", r.MR, r.Off, r.Off+ib.GRHSize)
		}
		return p.pd.CreateAHFromWC(&p.datagram, mr.Bytes()[r.Off:][:ib.GRHSize])
	}
	dest, err := netip.ParseAddr(r.DestGID)
	if err != nil {
		return nil, err
	}
	return p.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(dest), HopLimit: 64})
}

// sges turns pieces of regions into segments.
func (p *peer) sges(pieces []wire.SGE) (sges []roce.SGE, err error) {
	for _, s := range pieces {
		mr := p.mrs[s.MR]
		if mr == nil {
			return nil, fmt.Errorf("no memory region %d", s.MR)
		}
		sges = append(sges, mr.SGE(s.Off, s.Len))
	}
	return sges, nil
}

func (p *peer) postRecv(post func(...roce.RecvWR) error, wrs []wire.WR) error {
	var list []roce.RecvWR
	for _, wr := range wrs {
		sges, err := p.sges(wr.SGEs)
		if err != nil {
			return err
		}
		list = append(list, roce.RecvWR{ID: wr.ID, SGE: sges})
	}
	return post(list...)
}

// bind binds a window to the piece of its request, under its next key.
func (p *peer) bind(qp *roce.QP, wr wire.WR, list []roce.SendWR) ([]roce.SendWR, error) {
	mw := p.mws[wr.MW]
	if mw == nil || len(wr.SGEs) != 1 || p.mrs[wr.SGEs[0].MR] == nil {
		return nil, errors.New("a bind needs a window and a piece of a region")
	}
	piece := wr.SGEs[0]
	acc, err := access(wr.Access)
	if err != nil {
		return nil, err
	}
	mr := p.mrs[piece.MR]
	addr := mr.Addr() + uint64(piece.Off)
	if mw.Type() == roce.MWType1 {
		return list, qp.BindMW(mw, roce.BindWR{ID: wr.ID, Flags: roce.Signaled, MR: mr, Addr: addr, Length: uint64(piece.Len), Access: acc})
	}
	return append(list, roce.SendWR{
		ID: wr.ID, Opcode: roce.WRBindMW, Flags: roce.Signaled, MW: mw, RKey: roce.IncRKey(mw.RKey()),
		MR: mr, Addr: addr, Length: uint64(piece.Len), Access: acc,
	}), nil
}

// flush is what a FLUSH is about; for other verbs it means nothing.
func flush(wr wire.WR) roce.Flush {
	f := roce.Flush{Length: uint32(wr.Len)}
	if wr.Len == 0 {
		f.Level = roce.FlushMR
	}
	for _, n := range wr.Access {
		switch n {
		case "flush_global":
			f.Placement |= roce.PlaceGlobal
		case "flush_persistent":
			f.Placement |= roce.PlacePersistent
		}
	}
	return f
}

func (p *peer) postSend(qp *roce.QP, wrs []wire.WR) (res wire.Response, err error) {
	var list []roce.SendWR
	for _, wr := range wrs {
		op, ok := verbs[wr.Verb]
		if !ok {
			return res, fmt.Errorf("unknown verb %q", wr.Verb)
		}
		if op == roce.WRBindMW {
			if list, err = p.bind(qp, wr, list); err != nil {
				return res, err
			}
			continue
		}
		sges, err := p.sges(wr.SGEs)
		if err != nil {
			return res, err
		}
		list = append(list, roce.SendWR{ID: wr.ID, Opcode: op, Flags: roce.Signaled, SGE: sges, Imm: wr.Imm, RemoteAddr: wr.RemoteVA, RKey: wr.RKey, InvalidateRKey: wr.Inv,
			Flush: flush(wr), AH: p.ahs[wr.AH], RemoteQPN: ib.QPN(wr.QPN), QKey: wr.QKey, CompareAdd: wr.Compare, Swap: wr.Swap})
	}
	err = qp.PostSend(list...)
	if n := len(wrs); err == nil && n > 0 && wrs[n-1].Verb == "BIND_MW" {
		res.RKey = p.mws[wrs[n-1].MW].RKey()
	}
	return res, err
}

func completion(wc roce.WC) wire.WC {
	c := wire.WC{ID: wc.ID, Status: int(wc.Status), Text: wc.Status.String(), Len: int(wc.ByteLen), QPN: uint32(wc.QPN)}
	if wc.Status == roce.WCSuccess {
		c.Opcode = opcodeNames[wc.Opcode]
		if wc.Flags&roce.WCWithImm != 0 {
			c.HasImm, c.Imm = true, wc.Imm
		}
		if wc.Flags&roce.WCWithInv != 0 {
			c.HasInv, c.Inv = true, wc.Imm
		}
		if wc.Flags&roce.WCGRH != 0 {
			c.GRH, c.SrcQP = true, uint32(wc.SrcQP)
		}
	}
	return c
}
