package netio

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WatchPort tells what holds for the interface of a local address: changed is
// called once before WatchPort returns, and then, from a goroutine of its own,
// whenever something has changed, with present for whether this host still
// has the address, and up for whether its interface carries packets (the one that
// had it last, when it is gone). The network namespace is that of the calling
// thread. stop ends the goroutine and waits for its end; changed must not call it.
//
// Only Linux can watch; elsewhere the error is errors.ErrUnsupported.
func WatchPort(addr netip.Addr, changed func(present, up bool)) (stop func(), err error) {
	w := &portWatch{addr: addr.Unmap(), changed: changed, ended: make(chan struct{})}
	// First subscribe, then look: what changes in between is noticed.
	w.news, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("netio: watch %v: %w", addr, err)
	}
	if w.ask, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		w.news.Close()
		return nil, fmt.Errorf("netio: watch %v: %w", addr, err)
	}
	// An address that is on an interface's list is gone when it is not there any
	// more; its route outlives it by a moment.
	w.find = listedLink
	if link, err := listedLink(w.ask, w.addr); link == nil && err == nil {
		w.find = linkOf
	}
	w.present, w.up = w.look()
	changed(w.present, w.up)
	go w.loop()
	return w.stop, nil
}

// portWatch watches one address. The kernel's messages say only that something
// has changed; what holds now is asked for, so that lost messages do no harm.
type portWatch struct {
	addr    netip.Addr
	changed func(present, up bool)
	news    *nl.NetlinkSocket // messages about interfaces and addresses
	ask     *netlink.Handle   // bound to the namespace, whichever thread asks
	stopped atomic.Bool
	ended   chan struct{}

	find        func(*netlink.Handle, netip.Addr) (netlink.Link, error)
	index       int // of the interface
	present, up bool
}

func (w *portWatch) stop() {
	w.stopped.Store(true)
	w.news.Close() // Receive returns
	<-w.ended
}

func (w *portWatch) loop() {
	defer close(w.ended)
	defer w.ask.Close()
	for {
		_, _, err := w.news.Receive()
		if w.stopped.Load() {
			return
		}
		// ENOBUFS: too many messages, some were lost.
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return
		}
		present, up := w.look()
		if present != w.present || up != w.up {
			w.present, w.up = present, up
			w.changed(present, up)
		}
	}
}

// look returns what holds now.
func (w *portWatch) look() (present, up bool) {
	if link, err := w.find(w.ask, w.addr); err == nil && link != nil {
		w.index = link.Attrs().Index
		return true, isUp(link.Attrs())
	}
	link, err := w.ask.LinkByIndex(w.index)
	return false, err == nil && isUp(link.Attrs())
}
