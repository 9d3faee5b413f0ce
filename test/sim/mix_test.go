package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// received calls f for the first receive of UC or UD that completes and that f
// accepts.
func received(f func(s *side, x *wcRef) bool) func([]wcRef) []wcRef {
	done := false
	return func(l []wcRef) []wcRef {
		for i := 0; i < len(l) && !done; i++ {
			s := l[i].n.w.byQPN[l[i].n.i][l[i].wc.QPN]
			done = l[i].wc.ID&recvID != 0 && l[i].wc.Status == roce.WCSuccess && s.lossy() && f(s, &l[i])
		}
		return l
	}
}

// TestOrderChecksCatch: the checks of what is in memory when a message comes, and of
// the rules of the wire, notice what they are there for.
func TestOrderChecksCatch(t *testing.T) {
	cfg := adjacent(2)
	cfg.Services, cfg.Conns, cfg.Requests, cfg.Roam, cfg.Drain = []roce.QPType{roce.RC, roce.XRCSend}, 4, 60, false, false
	posted := func(f func(s *side, r *request)) func(w *world) {
		return func(w *world) {
			for _, s := range w.sides {
				for _, r := range s.ops[s.completed:s.posted] {
					f(s, r)
				}
			}
		}
	}
	catches(t, cfg, []injected{
		{"a WRITE is missing when the message behind it is received", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for _, x := range l {
					if s := x.n.w.byQPN[x.n.i][x.wc.QPN]; x.wc.ID&recvID != 0 {
						posted(func(from *side, r *request) {
							if from == s.peer && r.writes() && r.size > 0 && !r.arrived {
								r.remote.bytes()[0] ^= 1
							}
						})(x.n.w)
					}
				}
				return l
			}
		}, "is not in the peer's memory"},
		{"a fence is not kept", func(h *hooks) {
			h.step = posted(func(_ *side, r *request) { r.flags |= roce.Fence })
		}, "has a fence, and READ"},
		{"a solicited event is forgotten", func(h *hooks) {
			h.step = posted(func(_ *side, r *request) { r.flags |= roce.Solicited })
		}, "solicited event bit|was received as"},
		{"a drained send queue goes on", func(h *hooks) {
			h.step = posted(func(s *side, _ *request) { s.drain, s.resumeAt = drained, roce.Never })
		}, "from a drained send queue"},
		{"packets are longer than the path MTU", func(h *hooks) {
			h.step = posted(func(s *side, _ *request) { s.w.mtu[s.peer.qp.Num()] = 100 })
		}, "the path MTU is 100"},
		{"a WRITE goes elsewhere", func(h *hooks) {
			h.step = posted(func(_ *side, r *request) { r.va++ })
		}, ": address 0x"},
		{"PSNs are left out", func(h *hooks) {
			h.step = once(50, func(w *world) {
				for _, s := range w.sides {
					s.flow.next = s.flow.next.Add(-3)
				}
			})
		}, "is sent before|bytes left after|was never sent"},
	})
}

// TestUnreliableChecksCatch: the checks of UC and UD notice what they are there for.
func TestUnreliableChecksCatch(t *testing.T) {
	cfg := adjacent(2)
	cfg.Services, cfg.Conns, cfg.Roam = []roce.QPType{roce.UC, roce.UD}, 4, false
	catches(t, cfg, []injected{
		{"a byte of a packet changes, with a right ICRC", func(h *hooks) {
			h.backend = func(_ int, b netio.Backend) netio.Backend { return &flipper{Backend: b, at: 20} }
		}, "is none of the messages"},
		{"a message is received twice", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for i, x := range l {
					s := x.n.w.byQPN[x.n.i][x.wc.QPN]
					next := x.wc
					next.ID++
					from, to := s.poolBuffer(x.wc.ID), s.poolBuffer(next.ID)
					if x.wc.ID&recvID != 0 && s.lossy() && x.wc.Status == roce.WCSuccess && to != nil && to.holds(0, 0, 0) < 0 && x.wc.ByteLen > 100 {
						to.copy(from, int(x.wc.ByteLen))
						return slices.Insert(l, i+1, wcRef{x.n, next})
					}
				}
				return l
			}
		}, "received more often than its packets were"},
		{"a receive is passed over", func(h *hooks) {
			h.completions = received(func(_ *side, x *wcRef) bool { x.wc.ID++; return true })
		}, "completed, but"},
		{"a message of the group comes to who is not attached", func(h *hooks) {
			h.step = func(w *world) {
				for _, s := range w.sides {
					if s.attached {
						s.attached, s.attachAt = false, roce.Never
					}
				}
			}
		}, "is none of the messages"},
		{"immediate data is wrong", func(h *hooks) {
			h.completions = received(func(_ *side, x *wcRef) bool { x.wc.Imm++; return x.wc.Flags&roce.WCWithImm != 0 })
		}, "is none of the messages"},
		{"a request completes with an error", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef { l[0].wc.Status = roce.WCLocLenErr; return l }
		}, "local length error"},
		{"a byte of the target of a WRITE changes", func(h *hooks) {
			h.step = once(200, func(w *world) {
				for _, s := range w.sides {
					for _, r := range s.ops[:s.posted] {
						if r.held && r.size > 0 {
							r.remote.bytes()[0] ^= 1
							return
						}
					}
				}
				w.fail("no WRITE was posted")
			})
		}, "neither whole nor not at all"},
		{"a byte outside of all buffers changes", func(h *hooks) {
			h.step = once(200, func(w *world) { a := w.sides[0].arenas[0]; a.buf[len(a.buf)-1] ^= 1 })
		}, "was overwritten"},
		{"a receive is not flushed", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				return slices.DeleteFunc(l, func(x wcRef) bool { return x.wc.Status == roce.WCWRFlushErr })
			}
		}, "were not flushed"},
		{"a PSN is sent again", func(h *hooks) {
			h.step = once(5, func(w *world) {
				for _, s := range w.sides {
					s.flow.next = s.flow.next.Add(1)
				}
			})
		}, "once more|datagram with PSN"},
	})
}

// poolBuffer is the buffer of a posted receive of the side's pool, or nil.
func (s *side) poolBuffer(id uint64) scatter {
	if s.pool == nil {
		return nil
	}
	return s.pool.posted[id]
}

// copy copies the first n bytes of another buffer.
func (b scatter) copy(from scatter, n int) {
	var all []byte
	for _, p := range from {
		all = append(all, p.bytes()...)
	}
	all = all[:n]
	for _, p := range b {
		all = all[copy(p.bytes(), all):]
	}
}

// TestGrantChecksCatch: so do those of windows, fast registrations and paths.
func TestGrantChecksCatch(t *testing.T) {
	cfg := adjacent(2)
	cfg.Services, cfg.Conns, cfg.Requests, cfg.Roam = []roce.QPType{roce.RC}, 4, 60, true
	find := func(w *world, wc *roce.WC) *request {
		for _, s := range w.sides {
			for _, r := range s.ops[:s.posted] {
				if r.id == wc.ID && r.grant != nil {
					return r
				}
			}
		}
		return nil
	}
	catches(t, cfg, []injected{
		{"a bind opens nothing", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for _, x := range l {
					if r := find(x.n.w, &x.wc); r != nil && r.op == roce.WRBindMW && r.grant.state == opening {
						r.grant.mw, _ = x.n.pd.AllocMW(r.grant.mw.Type())
					}
				}
				return l
			}
		}, "the window is not open"},
		{"a window stays open", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for _, x := range l {
					if r := find(x.n.w, &x.wc); r != nil && r.op == roce.WRBindMW && r.grant.state == opening {
						r.grant.state = closing
					}
				}
				return l
			}
		}, "is still open"},
		{"another key is closed", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for i := range l {
					if l[i].wc.Flags&roce.WCWithInv != 0 {
						l[i].wc.Imm ^= 0x100
					}
				}
				return l
			}
		}, "was received as"},
		{"a message closes a key that nobody gave", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for _, x := range l {
					if x.wc.Flags&roce.WCWithInv != 0 {
						for _, g := range x.n.w.byQPN[x.n.i][x.wc.QPN].grants {
							g.key++
						}
					}
				}
				return l
			}
		}, "has closed the unknown key"},
		{"a request through a window is counted twice", func(h *hooks) {
			h.step = once(500, func(w *world) {
				for _, s := range w.sides {
					for _, g := range s.grants {
						g.pending++
					}
				}
			})
		}, "requests at the end"},
		{"a path is cut that there is no other for", func(h *hooks) {
			h.step = func(w *world) {
				for _, s := range w.sides {
					s.roams, s.cut, s.cutPort = false, w.now > 20*time.Microsecond, netio.Port
				}
			}
		}, "retry counter exceeded"},
		{"a queue pair migrates unasked", func(h *hooks) {
			h.step = func(w *world) {
				for _, s := range w.sides {
					if a, _ := s.qp.Query(); s.roams && a.PathMigState == roce.MigArmed {
						s.roams = false
						s.qp.Migrate()
					}
				}
			}
		}, "event path migrated"},
	})
}
