package rnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// PacketConn sends and receives datagrams by an unreliable datagram (UD) queue pair,
// as an rsocket of type SOCK_DGRAM does. It is a net.PacketConn, and with DialPacket
// a net.Conn.
//
// Its addresses are those of a UDP socket of the host, which it has besides: the first
// datagrams to an address go from socket to socket, and tell the numbers of the queue
// pairs; all others go from queue pair to queue pair. Datagrams may get lost, and
// overtake each other, and are dropped when more come than RecvBuffer holds, each with
// 2048 bytes.
type PacketConn struct {
	core
	dev        *roce.Device
	qp         *roce.QP
	recv, send *roce.MR
	udp        *net.UDPConn
	from       netip.AddrPort // of the UDP socket
	to         netip.AddrPort // of the one peer, if there is one
	longest    int            // bytes of a datagram
	reader     sync.WaitGroup // of the UDP socket

	// Under the core's mutex:
	peers   map[netip.AddrPort]*packetPeer
	queue   []datagram // arrived, a ring
	first   int
	count   int
	pieces  []int         // of the send buffer, those that are free
	users   []*packetPeer // where each of the others goes
	err     error
	dropped [numPacketDrops]uint64
	wr      [1]roce.SendWR
	sge     [1]roce.SGE
	again   [1]roce.RecvWR
	slot    [1]roce.SGE
}

// packetPeer is the queue pair behind an address.
type packetPeer struct {
	ah     *roce.AH
	qpn    ib.QPN
	busy   int  // datagrams under way to it
	forgot bool // the last of them takes the address handle with it
}

// settle frees the address handle if nobody needs it.
func (p *packetPeer) settle() {
	if p.forgot && p.busy == 0 {
		p.ah.Destroy()
	}
}

// datagram is one that has arrived: in a piece of the receive buffer, or by the UDP
// socket.
type datagram struct {
	from netip.AddrPort
	data []byte
	slot int // or -1
}

const (
	maxPeers  = 4096 // then one of them has to be found again
	grhSize   = ib.GRHSize
	pieceSize = grhSize + datagramSize
)

// Why PacketConn drops a datagram, or forgets a peer.
const (
	dropHeader     = iota // not the header of a datagram
	dropSource            // the header names another host than the one it is from
	dropHello             // a datagram to the UDP socket that is none of the protocol
	dropOther             // not from the peer of DialPacket
	dropFull              // by the UDP socket, with the queue full
	forgotPeer            // maxPeers are known
	numPacketDrops        // keep last
)

var packetDropNames = [numPacketDrops]string{"drop_header", "drop_source", "drop_hello", "drop_other_peer", "drop_queue_full", "forgot_peer"}

// Counters returns how many datagrams were dropped here, by reason. Those dropped
// because no piece of the receive buffer was free are in the device's drop_no_receive.
func (c *PacketConn) Counters() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[string]uint64, numPacketDrops)
	for i, n := range c.dropped {
		m[packetDropNames[i]] = n
	}
	return m
}

// newPacketConn makes a PacketConn on a device. release is called when the device is not
// needed any more. cfg is filled.
func newPacketConn(dev *roce.Device, release func(), udp *net.UDPConn, to netip.AddrPort, cfg Config) (c *PacketConn, err error) {
	at := udp.LocalAddr().(*net.UDPAddr).AddrPort()
	c = &PacketConn{
		dev: dev, udp: udp, from: netip.AddrPortFrom(dev.Addr(), at.Port()), to: to,
		peers: map[netip.AddrPort]*packetPeer{},
	}
	c.local = net.UDPAddrFromAddrPort(c.from)
	if to.IsValid() {
		c.remote = net.UDPAddrFromAddrPort(to)
	}
	defer func() {
		if err != nil {
			udp.Close()
			c.free()
		}
	}()
	sends, receives := cfg.SendBuffer/datagramSize, cfg.RecvBuffer/datagramSize
	if err = c.init(dev, release, sends+receives, c); err != nil {
		return nil, err
	}
	c.qp, err = c.pd.CreateQP(roce.QPConfig{
		Type: roce.UD, SendCQ: c.cq, MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, SigAll: true,
	})
	if err != nil {
		return nil, err
	}
	port, err := dev.QueryPort()
	if err != nil {
		return nil, err
	}
	c.longest = min(min(port.ActiveMTU.Bytes(), datagramSize)-headSize(c.from.Addr()), datagramSize-helloSize(c.from.Addr()))
	if c.send, err = c.register(sends*datagramSize, 0); err != nil {
		return nil, err
	}
	if c.recv, err = c.register(receives*pieceSize, roce.LocalWrite); err != nil {
		return nil, err
	}
	c.pieces, c.users = make([]int, sends), make([]*packetPeer, sends)
	for i := range c.pieces {
		c.pieces[i] = i
	}
	c.queue = make([]datagram, receives)
	return c, c.begin(receives)
}

// begin posts the receives and starts.
func (c *PacketConn) begin(receives int) error {
	if err := c.qp.Activate(datagramQKey); err != nil {
		return err
	}
	for i := range receives {
		c.postRecv(i)
	}
	if c.err != nil {
		return c.err
	}
	c.reader.Add(1)
	go c.listen()
	go func() {
		c.pump()
		c.reader.Wait()
		c.free()
		close(c.ended)
	}()
	return nil
}

// free gives everything back.
func (c *PacketConn) free() {
	if c.qp != nil {
		c.qp.Destroy()
	}
	for _, p := range c.peers {
		p.ah.Destroy()
	}
	c.core.free()
}

func (c *PacketConn) postRecv(slot int) {
	c.slot[0] = c.recv.SGE(slot*pieceSize, pieceSize)
	c.again[0] = roce.RecvWR{ID: isRecv | uint64(slot), SGE: c.slot[:]}
	if err := c.qp.PostRecv(c.again[:]...); err != nil {
		c.fail(err)
	}
}

func (c *PacketConn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// idle says that nothing posted is under way.
func (c *PacketConn) idle() bool { return c.err != nil || len(c.pieces) == cap(c.pieces) }

func (c *PacketConn) settle() {}

// complete takes a completion.
func (c *PacketConn) complete(wc *roce.WC) {
	slot := int(wc.ID &^ isRecv)
	switch {
	case wc.ID&isRecv == 0:
		c.pieces = append(c.pieces, slot)
		c.users[slot].busy--
		c.users[slot].settle()
		if wc.Status != roce.WCSuccess {
			c.fail(fmt.Errorf("a datagram was not sent: %v", wc.Status))
		}
	case wc.Status != roce.WCSuccess:
		c.fail(fmt.Errorf("the queue pair is lost: %v", wc.Status))
	case !c.arrived(slot, wc):
		c.postRecv(slot)
	}
}

// arrived queues a datagram of the queue pair, unless it is dropped.
func (c *PacketConn) arrived(slot int, wc *roce.WC) bool {
	piece := c.recv.Bytes()[slot*pieceSize:][:pieceSize]
	from, data, ok := parseHead(piece[grhSize:wc.ByteLen])
	if !ok {
		c.dropped[dropHeader]++
		return false
	}
	if h, ok := ib.ParseGRH(piece[:grhSize]); !ok || h.Src != from.Addr() {
		c.dropped[dropSource]++
		return false
	}
	return c.enqueue(datagram{from: from, data: data, slot: slot})
}

func (c *PacketConn) enqueue(d datagram) bool {
	switch {
	case c.to.IsValid() && d.from != c.to:
		c.dropped[dropOther]++
		return false
	case c.count == len(c.queue):
		c.dropped[dropFull]++
		return false
	}
	c.queue[(c.first+c.count)%len(c.queue)] = d
	c.count++
	return true
}

// ReadFrom reads one datagram and returns who has sent it; of one longer than p the
// rest is lost.
func (c *PacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromAddrPort(p)
	if err != nil {
		return n, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromAddrPort is ReadFrom with an address that needs no allocation.
func (c *PacketConn) ReadFromAddrPort(p []byte) (n int, from netip.AddrPort, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.await(&c.readBy, func() bool { return c.count > 0 || c.err != nil })
	if err == nil && c.count == 0 {
		err = c.err
	}
	if err != nil {
		return 0, from, c.opError("read", err)
	}
	d := c.queue[c.first]
	c.queue[c.first] = datagram{}
	c.first, c.count = (c.first+1)%len(c.queue), c.count-1
	n = copy(p, d.data)
	if d.slot >= 0 {
		c.postRecv(d.slot)
	}
	return n, d.from, nil
}

// Read is ReadFrom without the address.
func (c *PacketConn) Read(p []byte) (int, error) {
	n, _, err := c.ReadFromAddrPort(p)
	return n, err
}

var (
	errDialed    = errors.New("the connection has one peer: use Write")
	errNotDialed = errors.New("the connection has no peer of its own: use WriteTo")
)

// WriteTo sends one datagram to a *net.UDPAddr. It waits for room in the send buffer,
// until the write deadline.
func (c *PacketConn) WriteTo(p []byte, addr net.Addr) (int, error) {
	to, ok := addr.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return 0, c.opError("write", &roce.ConfigError{Field: "addr", Value: addr, Allowed: "a *net.UDPAddr is needed"})
	}
	return c.WriteToAddrPort(p, to.AddrPort())
}

// WriteToAddrPort is WriteTo with an address that needs no allocation.
func (c *PacketConn) WriteToAddrPort(p []byte, to netip.AddrPort) (int, error) {
	if c.to.IsValid() {
		return 0, c.opError("write", errDialed)
	}
	return c.write(p, netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port()))
}

// Write sends one datagram to the peer of DialPacket, as WriteTo.
func (c *PacketConn) Write(p []byte) (int, error) {
	if !c.to.IsValid() {
		return 0, c.opError("write", errNotDialed)
	}
	return c.write(p, c.to)
}

func (c *PacketConn) write(p []byte, to netip.AddrPort) (int, error) {
	switch {
	case to.Addr().Is4() != c.from.Addr().Is4() || to.Port() == 0:
		return 0, c.opError("write", &roce.ConfigError{Field: "addr", Value: to, Allowed: fmt.Sprintf("an address and port of the IP version of %v is needed", c.from.Addr())})
	case len(p) > c.longest:
		return 0, c.opError("write", &roce.ConfigError{Field: "len(p)", Value: len(p), Allowed: fmt.Sprintf("a datagram has up to %d bytes here", c.longest)})
	}
	known, err := c.post(p, to)
	if err == nil && !known {
		hello := append(appendHello(make([]byte, 0, datagramSize), c.from.Addr(), opData, c.qp.Num()), p...)
		_, err = c.udp.WriteToUDPAddrPort(hello, to)
	}
	if err != nil {
		return 0, c.opError("write", err)
	}
	return len(p), nil
}

// post sends a datagram by the queue pair, if the one behind the address is known.
func (c *PacketConn) post(p []byte, to netip.AddrPort) (known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.writeBy, func() bool { return len(c.pieces) > 0 || c.err != nil }); err != nil {
		return false, err
	}
	peer, known := c.peers[to]
	if c.err != nil || !known {
		return known, c.err
	}
	slot := c.pieces[len(c.pieces)-1]
	c.pieces = c.pieces[:len(c.pieces)-1]
	c.users[slot] = peer
	peer.busy++
	piece := c.send.Bytes()[slot*datagramSize:][:0:datagramSize]
	size := len(append(appendHead(piece, c.from), p...))
	c.sge[0] = c.send.SGE(slot*datagramSize, size)
	c.wr[0] = roce.SendWR{ID: uint64(slot), Opcode: roce.WRSend, SGE: c.sge[:], AH: peer.ah, RemoteQPN: peer.qpn, QKey: datagramQKey}
	return true, c.qp.PostSend(c.wr[:]...)
}

// Close ends the connection, and every method that waits. Datagrams that were written
// are sent.
func (c *PacketConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.shut(); err != nil {
		return err
	}
	c.udp.Close()
	if c.idle() {
		c.stop()
	}
	return nil
}

// Shutdown is Close, if that has not been called, and waits until all datagrams are
// sent and nothing is left of the connection, or ctx ends.
func (c *PacketConn) Shutdown(ctx context.Context) error {
	c.Close() // twice does not matter
	return c.wait(ctx)
}
