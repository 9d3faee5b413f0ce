//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"unsafe"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"golang.org/x/sys/unix"
)

// pair is a queue pair.
type pair struct {
	*roce.QP
	typ    roce.QPType
	queues pages
	given  *eventTable
}

// pages are the memory of its work queues.
type pages []byte

// Alloc implements roce.QueueMemory.
func (p *pages) Alloc(n int) unsafe.Pointer {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		// As for Go's own memory, there is no way on without.
		panic(err)
	}
	*p = b
	return unsafe.Pointer(unsafe.SliceData(b))
}

func (p pages) free() {
	if p != nil {
		unix.Munmap(p)
	}
}

//export goroceCreateQP
func goroceCreateQP(dev C.uint32_t, c *C.struct_goroce_qp) C.int {
	d := devices.get(dev)
	if d == nil {
		return C.EINVAL
	}
	p := &pair{typ: roce.QPType(c._type), given: d.events}
	err := p.create(c)
	if err != nil {
		p.queues.free()
		return errnoOf(err)
	}
	p.given.own(p.QP, c.cookie)
	c.handle, c.num = qps.add(p), C.uint32_t(p.Num())
	return 0
}

// create makes the queue pair that c asks for, and says what came of it.
func (p *pair) create(c *C.struct_goroce_qp) (err error) {
	if c._type == C.IBV_QPT_XRC_RECV {
		x := xrcds.get(c.xrcd)
		if x == nil {
			return unix.EINVAL
		}
		p.QP, err = x.CreateQP()
		return err
	}
	pd, send := pds.get(c.pd), cqs.get(c.send_cq)
	if pd == nil || send == nil {
		return unix.EINVAL
	}
	cfg := roce.QPConfig{
		Type: roce.QPType(c._type), SendCQ: send.CQ, SigAll: c.sig_all != 0,
		MaxSendWR: int(c.cap.max_send_wr), MaxRecvWR: int(c.cap.max_recv_wr), MaxSendSGE: int(c.cap.max_send_sge), MaxRecvSGE: int(c.cap.max_recv_sge),
		MaxInline: int(c.cap.max_inline_data), Memory: &p.queues,
	}
	if q := cqs.get(c.recv_cq); q != nil {
		cfg.RecvCQ = q.CQ
	}
	if s := srqs.get(c.srq); s != nil {
		cfg.SRQ = s.SRQ
	}
	if p.QP, err = pd.CreateQP(cfg); err != nil {
		return err
	}
	_, cfg = p.Query()
	putCap(&c.cap, &cfg)
	p.tell(&c.queues)
	return nil
}

// tell says where the work queues are.
func (p *pair) tell(q *C.struct_goroce_queues) {
	l := p.Layout()
	base := unsafe.Pointer(unsafe.SliceData([]byte(p.queues)))
	word := func(at int) *C.uint32_t { return (*C.uint32_t)(unsafe.Add(base, at)) }
	*q = C.struct_goroce_queues{
		state:         word(l.State),
		send_produced: word(l.SendProduced), send_consumed: word(l.SendConsumed), send_idle: word(l.SendIdle), recv_produced: word(l.RecvProduced), recv_consumed: word(l.RecvConsumed),
		send:        (*C.struct_goroce_send)(unsafe.Add(base, l.SendEntries)),
		send_sges:   (*C.struct_ibv_sge)(unsafe.Add(base, l.SendSGEs)),
		send_inline: (*C.uint8_t)(unsafe.Add(base, l.SendInline)),
		max_len:     C.uint32_t(l.MaxLen),
	}
	if l.RecvEntries != 0 {
		q.recv, q.recv_sges = (*C.struct_goroce_recv)(unsafe.Add(base, l.RecvEntries)), (*C.struct_ibv_sge)(unsafe.Add(base, l.RecvSGEs))
	}
}

func putCap(c *C.struct_ibv_qp_cap, cfg *roce.QPConfig) {
	*c = C.struct_ibv_qp_cap{
		max_send_wr: C.uint32_t(cfg.MaxSendWR), max_recv_wr: C.uint32_t(cfg.MaxRecvWR), max_send_sge: C.uint32_t(cfg.MaxSendSGE),
		max_recv_sge: C.uint32_t(cfg.MaxRecvSGE), max_inline_data: C.uint32_t(cfg.MaxInline),
	}
}

// goroceOpenQP opens the target with a number of an XRC domain.
//
//export goroceOpenQP
func goroceOpenQP(dev, xrcd, num C.uint32_t, cookie C.uintptr_t, h *C.uint32_t) C.int {
	d, x := devices.get(dev), xrcds.get(xrcd)
	if d == nil || x == nil {
		return C.EINVAL
	}
	q, err := x.OpenQP(ib.QPN(num))
	if err != nil {
		return errnoOf(err)
	}
	p := &pair{QP: q, typ: roce.XRCRecv, given: d.events}
	p.given.own(q, cookie)
	*h = qps.add(p)
	return 0
}

// goroceDestroyQP ends a queue pair. Then async is how many events of it were handed
// out.
//
//export goroceDestroyQP
func goroceDestroyQP(h C.uint32_t, async *C.uint32_t) C.int {
	return destroy(&qps, h, func(p *pair) error {
		err := p.Destroy()
		*async = p.given.disown(p.QP)
		p.queues.free()
		return err
	})
}

// ignored are attributes that XRC has no use for, and that programs may set: Linux
// drivers/infiniband/core/uverbs_cmd.c, modify_qp_mask.
var ignored = map[roce.QPType]roce.AttrMask{
	roce.XRCSend: roce.MaskMaxDestRdAtomic | roce.MaskMinRNRTimer,
	roce.XRCRecv: roce.MaskMaxRdAtomic | roce.MaskRetryCnt | roce.MaskRNRRetry,
}

// goroceModifyQP takes masks without IBV_QP_RATE_LIMIT, which the C side refuses.
//
//export goroceModifyQP
func goroceModifyQP(h C.uint32_t, a *C.struct_ibv_qp_attr, mask C.int) C.int {
	p := qps.get(h)
	if p == nil {
		return C.EINVAL
	}
	m := roce.AttrMask(mask) &^ ignored[p.typ]
	attr := roce.Attr{
		State: roce.State(a.qp_state), CurState: roce.State(a.cur_qp_state), PathMTU: ib.MTU(a.path_mtu), QKey: uint32(a.qkey),
		RQPSN: ib.PSN(a.rq_psn & 0xffffff), SQPSN: ib.PSN(a.sq_psn & 0xffffff), DestQPN: ib.QPN(a.dest_qp_num), Access: roce.Access(a.qp_access_flags),
		PKeyIndex: uint16(a.pkey_index), PortNum: uint8(a.port_num), SQDrainNotify: a.en_sqd_async_notify != 0,
		MaxRdAtomic: uint8(a.max_rd_atomic), MaxDestRdAtomic: uint8(a.max_dest_rd_atomic), MinRNRTimer: ib.RNRTimer(a.min_rnr_timer),
		Timeout: ib.AckTimeout(a.timeout), RetryCnt: uint8(a.retry_cnt), RNRRetry: uint8(a.rnr_retry),
		AltPKeyIndex: uint16(a.alt_pkey_index), AltPortNum: uint8(a.alt_port_num), AltTimeout: ib.AckTimeout(a.alt_timeout),
		PathMigState: roce.MigState(a.path_mig_state),
	}
	var ok bool
	if m&roce.MaskAV != 0 {
		if attr.AV, ok = vectorOf(&a.ah_attr); !ok {
			return C.EINVAL
		}
	}
	if m&roce.MaskAltPath != 0 {
		if attr.AltAV, ok = vectorOf(&a.alt_ah_attr); !ok {
			return C.EINVAL
		}
	}
	return errnoOf(p.Modify(&attr, m))
}

//export goroceQueryQP
func goroceQueryQP(h C.uint32_t, a *C.struct_ibv_qp_attr, sigAll *C.int) C.int {
	p := qps.get(h)
	if p == nil {
		return C.EINVAL
	}
	q, cfg := p.Query()
	putAttr(a, &q)
	putCap(&a.cap, &cfg)
	*sigAll = 0
	if cfg.SigAll {
		*sigAll = 1
	}
	return 0
}

// putAttr fills in all but the capacities.
func putAttr(a *C.struct_ibv_qp_attr, q *roce.Attr) {
	boolean := map[bool]C.uint8_t{true: 1}
	*a = C.struct_ibv_qp_attr{
		qp_state: C.enum_ibv_qp_state(q.State), cur_qp_state: C.enum_ibv_qp_state(q.CurState), path_mtu: C.enum_ibv_mtu(q.PathMTU),
		path_mig_state: C.enum_ibv_mig_state(q.PathMigState), qkey: C.uint32_t(q.QKey), rq_psn: C.uint32_t(q.RQPSN), sq_psn: C.uint32_t(q.SQPSN),
		dest_qp_num: C.uint32_t(q.DestQPN), qp_access_flags: C.uint(q.Access), pkey_index: C.uint16_t(q.PKeyIndex), alt_pkey_index: C.uint16_t(q.AltPKeyIndex),
		en_sqd_async_notify: boolean[q.SQDrainNotify], sq_draining: boolean[q.SQDraining], max_rd_atomic: C.uint8_t(q.MaxRdAtomic),
		max_dest_rd_atomic: C.uint8_t(q.MaxDestRdAtomic), min_rnr_timer: C.uint8_t(q.MinRNRTimer), port_num: C.uint8_t(q.PortNum),
		timeout: C.uint8_t(q.Timeout), retry_cnt: C.uint8_t(q.RetryCnt), rnr_retry: C.uint8_t(q.RNRRetry), alt_port_num: C.uint8_t(q.AltPortNum),
		alt_timeout: C.uint8_t(q.AltTimeout),
	}
	putVector(&a.ah_attr, &q.AV, q.PortNum)
	putVector(&a.alt_ah_attr, &q.AltAV, q.AltPortNum)
}

//export goroceAttachMulticast
func goroceAttachMulticast(h C.uint32_t, gid *C.union_ibv_gid) C.int {
	p := qps.get(h)
	if p == nil {
		return C.EINVAL
	}
	return errnoOf(p.AttachMulticast(ib.GID(*gid).Addr()))
}

//export goroceDetachMulticast
func goroceDetachMulticast(h C.uint32_t, gid *C.union_ibv_gid) C.int {
	p := qps.get(h)
	if p == nil {
		return C.EINVAL
	}
	return errnoOf(p.DetachMulticast(ib.GID(*gid).Addr()))
}

// goroceDoorbell says that there are new requests in the work queues.
//
//export goroceDoorbell
func goroceDoorbell(h C.uint32_t) {
	if p := qps.get(h); p != nil {
		p.Doorbell()
	}
}

// goroceBindMW posts a request that opens a memory window of type 1, for mr or, with 0,
// for nothing. *key is the window's key then. The caller has the send queue to itself.
//
//export goroceBindMW
func goroceBindMW(h, mw, mr C.uint32_t, b *C.struct_ibv_mw_bind, key *C.uint32_t) C.int {
	p, w := qps.get(h), mws.get(mw)
	if p == nil || w == nil {
		return C.EINVAL
	}
	err := p.BindMW(w, roce.BindWR{
		ID: uint64(b.wr_id), Flags: roce.SendFlags(b.send_flags), MR: mrs.get(mr),
		Addr: uint64(b.bind_info.addr), Length: uint64(b.bind_info.length), Access: roce.Access(b.bind_info.mw_access_flags),
	})
	*key = C.uint32_t(w.RKey())
	return errnoOf(err)
}
