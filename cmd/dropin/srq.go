//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"unsafe"

	"github.com/goroce/goroce/roce"
)

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	*roce.SRQ
	given *eventTable
}

//export goroceCreateSRQ
func goroceCreateSRQ(dev C.uint32_t, c *C.struct_goroce_srq) C.int {
	d, pd := devices.get(dev), pds.get(c.pd)
	if d == nil || pd == nil {
		return C.EINVAL
	}
	cfg := roce.SRQConfig{MaxWR: int(c.attr.max_wr), MaxSGE: int(c.attr.max_sge), Limit: int(c.attr.srq_limit), XRCD: xrcds.get(c.xrcd)}
	if q := cqs.get(c.cq); q != nil {
		cfg.CQ = q.CQ
	}
	s, err := pd.CreateSRQ(cfg)
	if err != nil {
		return errnoOf(err)
	}
	q := &sharedQueue{s, d.events}
	q.given.own(s, c.cookie)
	c.handle, c.num = srqs.add(q), C.uint32_t(s.Num())
	q.put(&c.attr)
	return 0
}

func (s *sharedQueue) put(a *C.struct_ibv_srq_attr) {
	q := s.Query()
	*a = C.struct_ibv_srq_attr{max_wr: C.uint32_t(q.MaxWR), max_sge: C.uint32_t(q.MaxSGE), srq_limit: C.uint32_t(q.Limit)}
}

//export goroceModifySRQ
func goroceModifySRQ(h C.uint32_t, a *C.struct_ibv_srq_attr, mask C.int) C.int {
	s := srqs.get(h)
	if s == nil {
		return C.EINVAL
	}
	return errnoOf(s.Modify(roce.SRQAttr{MaxWR: int(a.max_wr), Limit: int(a.srq_limit)}, roce.SRQMask(mask)))
}

//export goroceQuerySRQ
func goroceQuerySRQ(h C.uint32_t, a *C.struct_ibv_srq_attr) C.int {
	s := srqs.get(h)
	if s == nil {
		return C.EINVAL
	}
	s.put(a)
	return 0
}

// goroceDestroySRQ ends a shared receive queue. Then async is how many events of it
// were handed out.
//
//export goroceDestroySRQ
func goroceDestroySRQ(h C.uint32_t, async *C.uint32_t) C.int {
	return destroy(&srqs, h, func(s *sharedQueue) error {
		err := s.Destroy()
		if err == nil {
			*async = s.given.disown(s.SRQ)
		}
		return err
	})
}

// gorocePostSRQ posts a list of receive requests. Of an error bad is the first that
// was not posted.
//
//export gorocePostSRQ
func gorocePostSRQ(h C.uint32_t, wr *C.struct_ibv_recv_wr, bad **C.struct_ibv_recv_wr) C.int {
	s := srqs.get(h)
	for ; wr != nil; wr = wr.next {
		var err C.int = C.EINVAL
		if s != nil && wr.num_sge >= 0 {
			sges := unsafe.Slice((*roce.SGE)(unsafe.Pointer(wr.sg_list)), wr.num_sge)
			err = errnoOf(s.PostRecv(roce.RecvWR{ID: uint64(wr.wr_id), SGE: sges}))
		}
		if err != 0 {
			*bad = wr
			return err
		}
	}
	return 0
}
