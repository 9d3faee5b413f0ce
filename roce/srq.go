package roce

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goroce/goroce/transport"
)

// SRQ is a shared receive queue (ibv_srq): queue pairs of its protection domain
// that are created with QPConfig.SRQ take their receive requests from it, in the
// order in which they were posted. A receive completes on the receive queue of
// the queue pair that took it.
//
// One of an XRC domain serves the targets of that domain instead: messages whose
// senders name its number. Its receives complete on its own completion queue, with
// the number of the target in WC.QPN, and the messages use the memory of its
// protection domain.
type SRQ struct {
	dev    *Device
	pd     *PD
	refs   atomic.Int32 // queue pairs that use it
	maxSGE int

	// Of one of an XRC domain:
	xrcd *XRCD
	cq   *CQ
	t    transport.SRQ // under the engine lock

	mu        sync.Mutex // below the engine lock, above nothing but leaves
	ring      *recvRing
	limit     int // tell when fewer receives than this are left; 0: do not
	destroyed bool
}

// SRQConfig is what a shared receive queue is made of (ibv_srq_init_attr).
type SRQConfig struct {
	MaxWR  int // requests, 0 means 128
	MaxSGE int // segments of a request, 0 means 4
	Limit  int // see SRQAttr

	// XRCD makes it one of an XRC domain (IBV_SRQT_XRC), with the completion
	// queue of its receives; both are of the same device. nil means neither.
	XRCD *XRCD
	CQ   *CQ
}

// SRQAttr are the attributes of a shared receive queue (ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int // requests it has room for, at least what was asked for
	MaxSGE int // segments of a request
	// Limit arms the event EventSRQLimit: when a request is taken and fewer
	// than Limit are left. The event disarms it, Limit is 0 then.
	Limit int
}

// SRQMask selects what SRQ.Modify changes, numbered as ibv_srq_attr_mask.
type SRQMask uint32

const (
	SRQMaxWR SRQMask = 1 << 0
	SRQLimit SRQMask = 1 << 1
)

// CreateSRQ makes a shared receive queue (ibv_create_srq, ibv_create_srq_ex).
func (p *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	if err := p.dev.gone(); err != nil {
		return nil, err
	}
	if err := fillLimits([]limit{
		{"MaxWR", &cfg.MaxWR, 128, maxSRQWR},
		{"MaxSGE", &cfg.MaxSGE, 4, maxSGE},
	}); err != nil {
		return nil, err
	}
	s := &SRQ{dev: p.dev, pd: p, maxSGE: cfg.MaxSGE, ring: newRecvRing(cfg.MaxWR, cfg.MaxSGE)}
	if err := s.setLimit(cfg.Limit, s.ring.size()); err != nil {
		return nil, err
	}
	if err := s.join(cfg.XRCD, cfg.CQ); err != nil {
		return nil, err
	}
	p.refs.Add(1)
	return s, nil
}

// use counts one queue pair more, unless the queue is destroyed.
func (s *SRQ) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.destroyed {
		s.refs.Add(1)
	}
	return !s.destroyed
}

// PostRecv posts receive requests in order (ibv_post_srq_recv), never waiting. On
// a *PostError the requests before its Index were posted.
func (s *SRQ) PostRecv(wrs ...RecvWR) error {
	if err := s.dev.gone(); err != nil {
		return &PostError{0, "", err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.destroyed {
		return &PostError{0, "", ErrClosed}
	}
	return s.ring.post(wrs, "shared receive queue")
}

// Pop implements transport.RQ. It is called with the engine lock held.
func (s *SRQ) Pop(dst *transport.RecvWQE) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.ring.Pop(dst)
	if ok && s.ring.len() < s.limit {
		s.limit = 0
		s.dev.report(AsyncEvent{Type: EventSRQLimit, SRQ: s}) // a mailbox is a leaf
	}
	return ok
}

// Modify arms the limit, changes the size, or both (ibv_modify_srq). The size
// cannot be less than the requests that are posted. Queue pairs go on meanwhile.
// With an error nothing is changed.
func (s *SRQ) Modify(a SRQAttr, mask SRQMask) error {
	if mask&^(SRQMaxWR|SRQLimit) != 0 {
		return &ConfigError{"mask", fmt.Sprintf("%#x", uint32(mask)), "allowed are SRQMaxWR and SRQLimit"}
	}
	if err := s.dev.gone(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.destroyed {
		return ErrClosed
	}
	ring := s.ring
	if mask&SRQMaxWR != 0 {
		if least := max(1, ring.len()); a.MaxWR < least || a.MaxWR > maxSRQWR {
			return &ConfigError{"MaxWR", a.MaxWR, fmt.Sprintf("allowed are %d to %d: %d requests are posted", least, maxSRQWR, ring.len())}
		}
		ring = newRecvRing(a.MaxWR, s.maxSGE)
	}
	if mask&SRQLimit != 0 {
		if err := s.setLimit(a.Limit, ring.size()); err != nil {
			return err
		}
	}
	if ring != s.ring {
		s.ring.moveTo(ring)
		s.ring = ring
		s.limit = min(s.limit, ring.size())
	}
	return nil
}

// setLimit arms the limit of a queue with room for size requests.
func (s *SRQ) setLimit(n, size int) error {
	if n < 0 || n > size {
		return &ConfigError{"Limit", n, fmt.Sprintf("allowed are 0 (no event) to %d", size)}
	}
	s.limit = n
	return nil
}

// Query returns the attributes (ibv_query_srq).
func (s *SRQ) Query() SRQAttr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SRQAttr{MaxWR: s.ring.size(), MaxSGE: s.maxSGE, Limit: s.limit}
}

// Destroy frees the queue (ibv_destroy_srq); what is posted never completes. It
// returns ErrBusy while a queue pair uses it. Targets do not: what names the number
// of a destroyed queue ends its connection.
func (s *SRQ) Destroy() error {
	if s.xrcd != nil {
		e := s.xrcd.dom.e
		e.lock()
		defer e.unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.destroyed {
		return ErrClosed
	}
	if s.refs.Load() > 0 {
		return fmt.Errorf("shared receive queue: %w", ErrBusy)
	}
	s.destroyed = true
	s.pd.refs.Add(-1)
	if s.xrcd != nil {
		s.cutOff()
		s.cq.letGo(s.xrcd.dom.e)
		s.xrcd.refs--
	}
	return nil
}
