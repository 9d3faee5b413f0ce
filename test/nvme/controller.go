package nvme

import "time"

// controller is what a host has of the target: an admin queue and the queues that joined it. Target.mu guards what changes.
type controller struct {
	id        uint16
	discovery bool
	host      connectData
	kato      time.Duration // 0: the host may be silent
	silence   *time.Timer   // ends the controller
	cc, csts  uint32
	async     uint32 // the feature
	queues    map[uint16]*targetQueue
}

// newController makes the controller of an admin queue.
func (t *Target) newController(q *targetQueue, data *connectData, kato uint32) *controller {
	t.mu.Lock()
	defer t.mu.Unlock()
	// There are fewer connections than numbers, so one is free.
	for t.last = t.last%0xffef + 1; t.controllers[t.last] != nil; t.last = t.last%0xffef + 1 {
	}
	c := &controller{
		id: t.last, discovery: data.SubNQN.String() == DiscoveryNQN, host: *data,
		queues: map[uint16]*targetQueue{0: q},
	}
	t.controllers[c.id] = c
	t.setKeepAlive(c, kato)
	return c
}

// setKeepAlive sets the time, in ms, that the host may be silent; it gets as much again, because its own timer may be late.
func (t *Target) setKeepAlive(c *controller, kato uint32) {
	if c.silence != nil {
		c.silence.Stop()
		c.silence = nil
	}
	if c.kato = time.Duration(kato) * time.Millisecond; c.kato > 0 {
		c.silence = time.AfterFunc(2*c.kato, func() {
			t.log.Info("the host is silent", "controller", c.id, "for", 2*c.kato)
			t.end(c)
		})
	}
}

// heard says that the host of a controller lives.
func (t *Target) heard(c *controller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.silence != nil {
		c.silence.Reset(2 * c.kato)
	}
}

// join adds an I/O queue to the controller that its Connect command names.
func (t *Target) join(q *targetQueue, qid uint16, data *connectData) (*controller, Status, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.controllers[data.CNTLID]
	switch {
	case c == nil || c.discovery || c.host.HostNQN != data.HostNQN || c.host.SubNQN != data.SubNQN:
		return nil, connectInvalidParam, connectOffsetCNTLID
	case c.csts&cstsReady == 0:
		return nil, sequenceError, 0
	case int(qid) > t.cfg.MaxQueues:
		return nil, connectInvalidParam, connectOffsetQID
	case c.queues[qid] != nil:
		return nil, connectBusy, 0
	}
	c.queues[qid] = q
	return c, success, 0
}

// end ends all queues of a controller, and so the controller.
func (t *Target) end(c *controller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.controllers[c.id] != c {
		return // it has ended
	}
	delete(t.controllers, c.id)
	if c.silence != nil {
		c.silence.Stop()
		c.silence = nil
	}
	for _, q := range c.queues {
		q.stop()
	}
}

// left takes a queue that has ended from its controller, which ends with its admin queue.
func (t *Target) left(q *targetQueue) {
	if q.qid == 0 {
		t.end(q.ctrl)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(q.ctrl.queues, q.qid)
}
