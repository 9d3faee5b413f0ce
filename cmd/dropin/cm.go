//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
	"github.com/goroce/goroce/transport"
	"golang.org/x/sys/unix"
)

// cmMu guards the queues of all event channels, and who is in them: connections come
// and go rarely.
var cmMu sync.Mutex

// cmChannel is an event channel: a queue, and a descriptor of the C side's that is
// readable while something is in it.
type cmChannel struct {
	fd    int
	rung  bool
	queue []cmEvent
}

// cmEvent is an event, and the id that counts it: of a request that of the listener.
type cmEvent struct {
	id *cmID
	c  C.struct_goroce_cm_event
}

// cmID is an rdma_cm_id.
type cmID struct {
	ctx context.Context // ends with the id
	end context.CancelFunc

	// Guarded by cmMu:
	cookie  C.uintptr_t
	channel *cmChannel
	given   C.uint32_t // events handed out

	mu       sync.Mutex
	listener *rdmacm.Listener
	request  *rdmacm.Request
	conn     *rdmacm.Conn
	groups   map[netip.Addr]*rdmacm.Conn
}

var (
	cmChannels table[cmChannel]
	cmIDs      table[cmID]
)

//export goroceCMChannel
func goroceCMChannel(fd C.int) C.uint32_t { return cmChannels.add(&cmChannel{fd: int(fd)}) }

//export goroceCMCloseChannel
func goroceCMCloseChannel(h C.uint32_t) { cmChannels.remove(h) }

// goroceCMCreate makes an id.
//
//export goroceCMCreate
func goroceCMCreate(channel C.uint32_t, cookie C.uintptr_t) C.uint32_t {
	return cmIDs.add(newCMID(cmChannels.get(channel), cookie))
}

func newCMID(ch *cmChannel, cookie C.uintptr_t) *cmID {
	ctx, end := context.WithCancel(context.Background())
	return &cmID{ctx: ctx, end: end, cookie: cookie, channel: ch, groups: map[netip.Addr]*rdmacm.Conn{}}
}

// goroceCMAdopt tells the id of a request by which cookie the C side knows it.
//
//export goroceCMAdopt
func goroceCMAdopt(h C.uint32_t, cookie C.uintptr_t) {
	if i := cmIDs.get(h); i != nil {
		cmMu.Lock()
		i.cookie = cookie
		cmMu.Unlock()
	}
}

// goroceCMMigrate moves an id to another channel, with its events.
//
//export goroceCMMigrate
func goroceCMMigrate(h, channel C.uint32_t) C.int {
	i, to := cmIDs.get(h), cmChannels.get(channel)
	if i == nil || to == nil {
		return C.EINVAL
	}
	cmMu.Lock()
	defer cmMu.Unlock()
	for _, ev := range i.channel.take(i) {
		to.push(ev)
	}
	i.channel = to
	return 0
}

// take removes the events of an id from the queue and returns them. cmMu is held.
func (c *cmChannel) take(i *cmID) (list []cmEvent) {
	kept := c.queue[:0]
	for _, ev := range c.queue {
		if ev.id == i {
			list = append(list, ev)
		} else {
			kept = append(kept, ev)
		}
	}
	clear(c.queue[len(kept):])
	c.queue = kept
	c.settle()
	return list
}

// push appends an event. cmMu is held.
func (c *cmChannel) push(ev cmEvent) {
	c.queue = append(c.queue, ev)
	c.settle()
}

// settle makes the descriptor readable or not. It is read only when it was rung: it
// may be a blocking one. cmMu is held.
func (c *cmChannel) settle() {
	if want := len(c.queue) > 0; want != c.rung {
		c.rung = want
		word := binary.NativeEndian.AppendUint64(nil, 1)
		if want {
			unix.Write(c.fd, word)
		} else {
			unix.Read(c.fd, word)
		}
	}
}

// tell puts an event of the id into its channel, unless the id has ended.
func (i *cmID) tell(c C.struct_goroce_cm_event) {
	cmMu.Lock()
	defer cmMu.Unlock()
	if i.ctx.Err() == nil {
		i.channel.push(cmEvent{i, c})
	}
}

// goroceCMTell is for events that the C side knows itself.
//
//export goroceCMTell
func goroceCMTell(h, typ C.uint32_t, status C.int) {
	if i := cmIDs.get(h); i != nil {
		i.tell(C.struct_goroce_cm_event{_type: typ, status: status})
	}
}

// goroceCMGetEvent takes the next event, or returns EAGAIN.
//
//export goroceCMGetEvent
func goroceCMGetEvent(channel C.uint32_t, ev *C.struct_goroce_cm_event) C.int {
	c := cmChannels.get(channel)
	if c == nil {
		return C.EINVAL
	}
	cmMu.Lock()
	defer cmMu.Unlock()
	if len(c.queue) == 0 {
		return C.EAGAIN
	}
	e := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	c.settle()
	e.id.given++
	*ev = e.c
	ev.id = e.id.cookie
	return 0
}

// goroceCMDestroy ends an id. Then given is how many events of it were handed out.
//
//export goroceCMDestroy
func goroceCMDestroy(h C.uint32_t, given *C.uint32_t) C.int {
	i := cmIDs.get(h)
	if i == nil {
		return C.EINVAL
	}
	cmMu.Lock()
	i.end()
	dropped := i.channel.take(i)
	*given = i.given
	cmMu.Unlock()
	cmIDs.remove(h)
	for _, ev := range dropped {
		if child := cmIDs.get(ev.c.child); ev.c.child != 0 && child != nil {
			child.close() // a request that nobody has seen
			cmIDs.remove(ev.c.child)
		}
	}
	i.close()
	return 0
}

// close ends what the id stands for.
func (i *cmID) close() {
	i.end()
	i.mu.Lock()
	defer i.mu.Unlock()
	// Each of these fails only when it has ended already.
	if i.listener != nil {
		i.listener.Close()
	}
	if i.request != nil && i.conn == nil {
		i.request.Reject(nil)
	}
	if i.conn != nil {
		i.conn.Close()
	}
	for _, c := range i.groups {
		c.Close()
	}
}

func addrOf(a *C.struct_goroce_addr) netip.AddrPort {
	addr := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&a.ip))).Unmap()
	if a.scope != 0 && addr.Is6() {
		addr = addr.WithZone(strconv.Itoa(int(a.scope)))
	}
	return netip.AddrPortFrom(addr, uint16(a.port))
}

func putAddr(c *C.struct_goroce_addr, a netip.AddrPort) {
	*c = C.struct_goroce_addr{ip: *(*[16]C.uint8_t)(unsafe.Pointer(new(a.Addr().As16()))), port: C.uint16_t(a.Port())}
	if zone, err := strconv.Atoi(a.Addr().Zone()); err == nil {
		c.scope = C.uint32_t(zone)
	}
}

// goroceCMListen lets an id take requests at an address and port of the device.
//
//export goroceCMListen
func goroceCMListen(h, dev C.uint32_t, ps C.int, at *C.struct_goroce_addr, backlog C.int) C.int {
	i, d := cmIDs.get(h), devices.get(dev)
	if i == nil || d == nil {
		return C.EINVAL
	}
	l, err := rdmacm.Listen(netip.AddrPortFrom(d.Addr(), uint16(at.port)).String(), rdmacm.ListenConfig{
		PortSpace: rdmacm.PortSpace(ps), Device: d.Device, Backlog: max(0, int(backlog)),
	})
	if err != nil {
		return errnoOf(err)
	}
	i.mu.Lock()
	i.listener = l
	i.mu.Unlock()
	go i.listen(l)
	return 0
}

// listen makes an event of each request, with an id of its own.
func (i *cmID) listen(l *rdmacm.Listener) {
	for {
		r, err := l.Accept(i.ctx)
		if err != nil {
			return
		}
		cmMu.Lock()
		child := newCMID(i.channel, 0)
		cmMu.Unlock()
		child.request = r
		c := C.struct_goroce_cm_event{_type: C.uint32_t(rdmacm.EventConnectRequest), child: cmIDs.add(child)}
		putParams(&c, r.Params(), r.PrivateData())
		putAddr(&c.src, r.LocalAddr())
		putAddr(&c.dst, r.RemoteAddr())
		i.tell(c)
	}
}

func putParams(c *C.struct_goroce_cm_event, p rdmacm.Params, private []byte) {
	boolean := map[bool]C.uint8_t{true: 1}
	c.private_len = C.uint8_t(copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.private_data)), len(c.private_data)-1), private))
	c.responder_resources, c.initiator_depth = C.uint8_t(p.ResponderResources), C.uint8_t(p.InitiatorDepth)
	c.flow_control, c.srq = boolean[p.FlowControl], boolean[p.SRQ]
	c.retry_count, c.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
}

// configOf returns how a connection is made, of a device with a queue pair, or, if qp
// is 0, with one that the program connects by itself.
func configOf(d *device, qp C.uint32_t, p *C.struct_goroce_cm_param) (rdmacm.Config, bool) {
	q := qps.get(qp)
	if d == nil || qp != 0 && q == nil || qp == 0 && p.qp_num == 0 {
		return rdmacm.Config{}, false
	}
	count := func(n C.uint8_t, most int) int {
		if n == 0 {
			return -1 // none, where 0 means a default
		}
		return min(int(n), most)
	}
	c := rdmacm.Config{
		Device: d.Device, PD: d.peers, Linger: -1, TrafficClass: uint8(p.tos),
		ResponderResources: count(p.responder_resources, transport.MaxDestRdAtomic), InitiatorDepth: count(p.initiator_depth, transport.MaxRdAtomic),
		FlowControl: p.flow_control != 0, RetryCount: count(p.retry_count, 7), RNRRetryCount: count(p.rnr_retry_count, 7),
		PrivateData: C.GoBytes(p.private_data, C.int(p.private_len)),
	}
	if q != nil {
		c.UseQP = q.QP
	} else {
		c.QPN, c.QP.Type = ib.QPN(p.qp_num), roce.QPType(p.qp_type)
	}
	if p.timeout != 0 {
		c.AckTimeout = ib.AckTimeout(p.timeout).Duration()
	}
	return c, true
}

// goroceCMConnect connects the queue pair of an id. What comes of it are events.
//
//export goroceCMConnect
func goroceCMConnect(h, dev, qp C.uint32_t, ps C.int, src, dst *C.struct_goroce_addr, p *C.struct_goroce_cm_param) C.int {
	i := cmIDs.get(h)
	cfg, ok := configOf(devices.get(dev), qp, p)
	room, _, _, _ := rdmacm.MaxPrivateData(rdmacm.PortSpace(ps))
	if i == nil || !ok || len(cfg.PrivateData) > room {
		return C.EINVAL
	}
	cfg.PortSpace, cfg.LocalAddr = rdmacm.PortSpace(ps), addrOf(src)
	to := addrOf(dst).String()
	events := listenTo(&cfg)
	go func() {
		c, err := rdmacm.Dial(i.ctx, to, cfg)
		if err == nil {
			i.connected(c)
		}
		i.follow(c, err, events)
	}()
	return 0
}

// goroceCMAccept connects the queue pair of an id to who has asked for it.
//
//export goroceCMAccept
func goroceCMAccept(h, dev, qp C.uint32_t, ps C.int, p *C.struct_goroce_cm_param) C.int {
	i := cmIDs.get(h)
	cfg, ok := configOf(devices.get(dev), qp, p)
	_, room, _, _ := rdmacm.MaxPrivateData(rdmacm.PortSpace(ps))
	if i == nil || !ok || i.request == nil || len(cfg.PrivateData) > room {
		return C.EINVAL
	}
	events := listenTo(&cfg)
	c, err := i.request.Answer(cfg) // at once: the program may end the listener next
	if err != nil {
		return errnoOf(err)
	}
	i.connected(c)
	go func() { i.follow(c, c.Wait(i.ctx), events) }()
	return 0
}

// connected gives the id its connection.
func (i *cmID) connected(c *rdmacm.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conn = c
}

// listenTo lets a configuration's connection tell of what becomes of it.
func listenTo(cfg *rdmacm.Config) <-chan rdmacm.Event {
	events := make(chan rdmacm.Event, 16) // a connection has fewer
	cfg.Events = events
	return events
}

// follow tells of a connection, or why there is none, until it has ended.
func (i *cmID) follow(c *rdmacm.Conn, err error, events <-chan rdmacm.Event) {
	if err != nil {
		i.failed(err)
		return
	}
	if i.ctx.Err() != nil {
		c.Close() // the id was destroyed meanwhile
		return
	}
	datagrams := c.AH() != nil
	if !datagrams || i.request == nil { // who has told its datagram queue pair is told nothing (Linux cma.c, cma_accept)
		i.established(c)
	}
	if datagrams {
		return // nothing that could end
	}
	select {
	case <-c.Done():
		i.tell(C.struct_goroce_cm_event{_type: C.uint32_t(rdmacm.EventDisconnected)})
	case <-i.ctx.Done():
		return
	}
	for {
		select {
		case ev := <-events:
			if ev.Type == rdmacm.EventTimewaitExit {
				i.tell(C.struct_goroce_cm_event{_type: C.uint32_t(ev.Type)})
				return
			}
		case <-i.ctx.Done():
			return
		}
	}
}

func (i *cmID) established(conn *rdmacm.Conn) {
	typ := rdmacm.EventEstablished
	if i.request == nil && conn.QP() == nil && conn.AH() == nil {
		typ = rdmacm.EventConnectResponse // the program establishes it
	}
	c := C.struct_goroce_cm_event{_type: C.uint32_t(typ), qp_num: C.uint32_t(conn.RemoteQPN()), qkey: C.uint32_t(conn.QKey())}
	var private []byte
	if i.request == nil { // what the peer has sent with a request was told then
		private = conn.PrivateData()
	}
	putParams(&c, conn.Params(), private)
	i.tell(c)
}

// failed tells why there is no connection.
func (i *cmID) failed(err error) {
	var rejected *rdmacm.RejectedError
	var unreachable *rdmacm.UnreachableError
	c := C.struct_goroce_cm_event{_type: C.uint32_t(rdmacm.EventConnectError), status: -errnoOf(err)}
	switch {
	case errors.As(err, &rejected):
		c._type, c.status = C.uint32_t(rdmacm.EventRejected), C.int(rejected.Reason)
		if rejected.Reason == 0 { // port space UDP
			c._type, c.status = C.uint32_t(rdmacm.EventUnreachable), C.int(rejected.Status)
		}
		putParams(&c, rdmacm.Params{}, rejected.PrivateData)
	case errors.As(err, &unreachable):
		c._type, c.status = C.uint32_t(rdmacm.EventUnreachable), -C.ETIMEDOUT
	}
	i.tell(c)
}

//export goroceCMReject
func goroceCMReject(h C.uint32_t, private unsafe.Pointer, n C.uint8_t) C.int {
	i := cmIDs.get(h)
	if i == nil || i.request == nil {
		return C.EINVAL
	}
	return errnoOf(i.request.Reject(C.GoBytes(private, C.int(n))))
}

// goroceCMDisconnect begins to end the connection; the event tells when it has ended.
// The peer is sent the request before it returns: the program may end next.
//
//export goroceCMDisconnect
func goroceCMDisconnect(h C.uint32_t) C.int {
	i := cmIDs.get(h)
	if i == nil {
		return C.EINVAL
	}
	c := i.connection()
	if c == nil {
		return C.EINVAL
	}
	c.Disconnect(over, nil) // it fails because it does not wait, or when the connection has ended
	return 0
}

// connection returns that of the id, or nil. The id may be nil.
func (i *cmID) connection() *rdmacm.Conn {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.conn
}

// goroceCMAttr tells how a queue pair that the program connects by itself is moved to
// the state in a: RTR or RTS.
//
//export goroceCMAttr
func goroceCMAttr(h C.uint32_t, a *C.struct_ibv_qp_attr, mask *C.int) C.int {
	i := cmIDs.get(h)
	var attr *roce.Attr
	var m roce.AttrMask
	err := error(unix.EINVAL)
	if c := i.connection(); c != nil {
		attr, m, err = c.Attr(roce.State(a.qp_state))
	} else if i != nil && i.request != nil {
		attr, m, err = i.request.Attr(roce.State(a.qp_state))
	}
	if err != nil {
		return errnoOf(err)
	}
	attr.PortNum = 1
	putAttr(a, attr)
	*mask = C.int(m)
	return 0
}

// goroceCMEstablish tells the peer that the queue pair is ready, which the program has
// connected by itself.
//
//export goroceCMEstablish
func goroceCMEstablish(h C.uint32_t) C.int {
	c := cmIDs.get(h).connection()
	if c == nil {
		return C.EINVAL
	}
	return errnoOf(c.Establish())
}

// goroceCMNotify says that the peer has begun to send.
//
//export goroceCMNotify
func goroceCMNotify(h C.uint32_t) C.int {
	c := cmIDs.get(h).connection()
	if c == nil {
		return C.EINVAL
	}
	c.Notify()
	return 0
}

// goroceCMJoin joins a multicast group, with the queue pair if qp is not 0, and tells
// of it.
//
//export goroceCMJoin
func goroceCMJoin(h, dev, qp C.uint32_t, group *C.struct_goroce_addr, cookie C.uintptr_t) C.int {
	i, a := cmIDs.get(h), addrOf(group).Addr()
	if i == nil || !a.IsMulticast() {
		return C.EINVAL
	}
	if qp != 0 {
		cfg, ok := configOf(devices.get(dev), qp, &C.struct_goroce_cm_param{})
		if !ok {
			return C.EINVAL
		}
		c, err := rdmacm.JoinMulticast(a, cfg)
		if err != nil {
			return errnoOf(err)
		}
		i.mu.Lock()
		i.groups[a] = c
		i.mu.Unlock()
	}
	c := C.struct_goroce_cm_event{_type: C.uint32_t(rdmacm.EventMulticastJoin), qp_num: C.uint32_t(ib.MulticastQPN), qkey: rdmacm.UDPQKey, join: cookie}
	putAddr(&c.dst, netip.AddrPortFrom(a, 0))
	i.tell(c)
	return 0
}

//export goroceCMLeave
func goroceCMLeave(h C.uint32_t, group *C.struct_goroce_addr) C.int {
	i, a := cmIDs.get(h), addrOf(group).Addr()
	if i == nil {
		return C.EINVAL
	}
	i.mu.Lock()
	c := i.groups[a]
	delete(i.groups, a)
	i.mu.Unlock()
	if c != nil {
		c.Close()
	}
	return 0
}
