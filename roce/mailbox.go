package roce

import (
	"context"
	"sync"
)

// mailbox is a queue of events: filled from under any lock without waiting, and
// waited on by goroutines, or by programs with a loop of their own through a
// descriptor.
type mailbox[T any] struct {
	mu   sync.Mutex // leaf
	list []T        // from head on
	head int
	bell eventFD       // readable while the list is not empty or the box is closed
	shut bool          // closed: the bell rings for ever
	more chan struct{} // one token: there is something to take
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{more: make(chan struct{}, 1)} }

// push appends v, unless there are most already.
func (m *mailbox[T]) push(v T, most int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list)-m.head >= most {
		return false
	}
	if m.head > len(m.list)/2 { // move up, so that the storage is used again
		n := copy(m.list, m.list[m.head:])
		clear(m.list[n:])
		m.list, m.head = m.list[:n], 0
	}
	m.list = append(m.list, v)
	m.bell.ring()
	m.wake()
	return true
}

// wake leaves a token for one who waits.
func (m *mailbox[T]) wake() {
	select {
	case m.more <- struct{}{}:
	default:
	}
}

func (m *mailbox[T]) pop() (v T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.head == len(m.list) {
		return v, false
	}
	v = m.list[m.head]
	clear(m.list[m.head : m.head+1])
	m.head++
	m.settle()
	return v, true
}

// settle brings token and bell in line after something was taken out.
func (m *mailbox[T]) settle() {
	switch {
	case m.head < len(m.list):
		m.wake() // for the next one who waits
	case !m.shut:
		m.list, m.head = m.list[:0], 0
		m.bell.silence()
	}
}

// removeIf takes out all that match, if there are at least want.
func (m *mailbox[T]) removeIf(match func(T) bool, want int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var kept []T
	for _, v := range m.list[m.head:] {
		if !match(v) {
			kept = append(kept, v)
		}
	}
	if len(m.list)-m.head-len(kept) < want {
		return false
	}
	m.list, m.head = kept, 0
	m.settle()
	return true
}

// next waits for the next event. It returns ctx's error when that ends, and
// ErrClosed when one of the others has ended and nothing is left. What is there
// already is returned whatever has ended.
func (m *mailbox[T]) next(ctx context.Context, closed, gone <-chan struct{}) (v T, err error) {
	for end := false; ; {
		select {
		case <-closed:
			end = true
		case <-gone:
			end = true
		default:
		}
		if v, ok := m.pop(); ok {
			return v, nil
		}
		if end {
			return v, ErrClosed
		}
		select {
		case <-m.more:
		case <-closed:
		case <-gone:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// fd returns the descriptor, which is made at the first call.
func (m *mailbox[T]) fd() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fd, err := m.bell.open()
	if err == nil && (m.shut || m.head < len(m.list)) {
		m.bell.ring()
	}
	return fd, err
}

// close makes the descriptor readable for ever.
func (m *mailbox[T]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shut = true
	m.bell.ring()
}

// closeFD closes the descriptor, if there is one.
func (m *mailbox[T]) closeFD() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bell.close()
}
