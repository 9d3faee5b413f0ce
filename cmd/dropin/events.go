//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"context"
	"errors"
	"sync"
)

// eventTable counts the events of objects that were handed to the C side: that frees
// an object when the program has acknowledged them all.
type eventTable struct {
	mu    sync.Mutex
	given map[any]*given // by the object of package roce
}

type given struct {
	cookie C.uintptr_t // what the C side knows the object by
	n      C.uint32_t
}

func newEvents() *eventTable { return &eventTable{given: map[any]*given{}} }

// own makes an object known by its cookie.
func (e *eventTable) own(object any, cookie C.uintptr_t) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.given[object] = &given{cookie: cookie}
}

// disown ends that and returns how many were handed out.
func (e *eventTable) disown(object any) C.uint32_t {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.given[object]
	delete(e.given, object)
	if g == nil {
		return 0
	}
	return g.n
}

// give hands out an event, unless its object is gone.
func (e *eventTable) give(object any, cookie *C.uintptr_t) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.given[object]
	if g == nil {
		return false
	}
	g.n++
	*cookie = g.cookie
	return true
}

// noEvent is the errno of a look that found nothing.
func noEvent(err error) C.int {
	if errors.Is(err, context.Canceled) {
		return C.EAGAIN
	}
	return errnoOf(err)
}

// goroceEventFD returns the descriptor that is readable while goroceGetEvent has an
// event, or -1.
//
//export goroceEventFD
func goroceEventFD(h C.uint32_t) C.int {
	d := devices.get(h)
	if d == nil {
		return -1
	}
	fd, err := blockable(d.EventFD())
	if err != nil {
		return -1
	}
	return fd
}

// goroceGetEvent takes an asynchronous event. The cookie is that of the object it is
// about, 0 for the port. It returns EAGAIN when there is none.
//
//export goroceGetEvent
func goroceGetEvent(h C.uint32_t, typ *C.enum_ibv_event_type, cookie *C.uintptr_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	for {
		ev, err := d.NextEvent(over)
		if err != nil {
			return noEvent(err)
		}
		*typ, *cookie = C.enum_ibv_event_type(ev.Type), 0
		var object any
		switch {
		case ev.QP != nil:
			object = ev.QP
		case ev.CQ != nil:
			object = ev.CQ
		case ev.SRQ != nil:
			object = ev.SRQ
		default:
			return 0
		}
		if d.events.give(object, cookie) {
			return 0
		}
	}
}
