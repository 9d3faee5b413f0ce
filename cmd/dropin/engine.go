//go:build dropin && linux

// Command dropin is the engine of the C libraries libibverbs and librdmacm that run
// on goroce: libgoroce.so, a c-shared library that both load when a program first
// opens a device. docs/dropin.md says how they are used,
// docs/decisions/0007-dropin.md how the work is divided.
//
// It is built by `make dropin`, with the build tag of that name: it needs a C
// compiler and the headers of libibverbs, which the rest of the module does without.
//
// Exported functions return 0 or an errno unless they say otherwise. Objects are
// named by handles. None of the functions is called in a child of a process that has
// forked: the C side sees to that.
package main

// #include "engine.h"
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goroce/goroce/roce"
)

func main() {}

// explain, the variable ROCE_DEBUG, has the reasons of refused calls printed, which an
// errno does not tell.
var explain = os.Getenv("ROCE_DEBUG") != ""

// errnoOf returns what rdma-core documents for an error, 0 for none.
func errnoOf(err error) C.int {
	if err != nil && explain {
		fmt.Fprintln(os.Stderr, "goroce:", err)
	}
	var sys syscall.Errno
	var limit *roce.LimitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &limit), errors.Is(err, roce.ErrQueueFull):
		return C.ENOMEM
	case errors.Is(err, roce.ErrBusy):
		return C.EBUSY
	case errors.Is(err, roce.ErrClosed), errors.Is(err, roce.ErrCloseTimeout):
		return C.EIO // as after a device has gone
	case errors.Is(err, roce.ErrCQOverflow):
		return C.EOVERFLOW
	case errors.Is(err, fs.ErrNotExist):
		return C.ENOENT
	case errors.Is(err, fs.ErrExist):
		return C.EEXIST
	case errors.Is(err, errors.ErrUnsupported):
		return C.EOPNOTSUPP
	case errors.As(err, &sys):
		return C.int(sys)
	}
	return C.EINVAL // a field is wrong
}

// table has objects by their handles. Lookups take no lock.
type table[T any] struct {
	mu    sync.Mutex
	free  []uint32
	slots atomic.Pointer[[]atomic.Pointer[T]]
}

// add returns the handle of v, which is not 0.
func (t *table[T]) add(v *T) C.uint32_t {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		var old []atomic.Pointer[T]
		if p := t.slots.Load(); p != nil {
			old = *p
		}
		slots := make([]atomic.Pointer[T], max(16, 2*len(old)))
		for i := range old {
			slots[i].Store(old[i].Load())
		}
		for i := len(slots) - 1; i >= max(1, len(old)); i-- {
			t.free = append(t.free, uint32(i))
		}
		t.slots.Store(&slots)
	}
	h := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	(*t.slots.Load())[h].Store(v)
	return C.uint32_t(h)
}

// get returns the object of a handle, or nil.
func (t *table[T]) get(h C.uint32_t) *T {
	p := t.slots.Load()
	if p == nil || int(h) >= len(*p) {
		return nil
	}
	return (*p)[h].Load()
}

// remove frees a handle.
func (t *table[T]) remove(h C.uint32_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[h].Store(nil)
	t.free = append(t.free, uint32(h))
}

// The objects of this process.
var (
	devices  table[device]
	pds      table[roce.PD]
	mrs      table[roce.MR]
	mws      table[roce.MW]
	ahs      table[roce.AH]
	channels table[roce.CompChannel]
	cqs      table[queue]
	srqs     table[sharedQueue]
	xrcds    table[roce.XRCD]
	qps      table[pair]
)

// destroy ends an object with f and frees its handle.
func destroy[T any](t *table[T], h C.uint32_t, f func(*T) error) C.int {
	v := t.get(h)
	if v == nil {
		return C.EINVAL
	}
	// The device may have been closed before, with everything on it.
	if err := f(v); err != nil && !errors.Is(err, roce.ErrClosed) {
		return errnoOf(err)
	}
	t.remove(h)
	return 0
}
