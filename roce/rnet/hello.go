package rnet

import (
	"errors"
	"net"
	"net/netip"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// listen reads the UDP socket.
func (c *PacketConn) listen() {
	defer c.reader.Done()
	var buf [datagramSize]byte
	for {
		n, from, err := c.udp.ReadFromUDPAddrPort(buf[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // of an earlier datagram, as a port that nobody has
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		if c.hello(buf[:n], from) {
			c.udp.WriteToUDPAddrPort(appendHello(buf[:0], c.from.Addr(), opCtrl, c.qp.Num()), from)
		}
	}
}

// hello takes a datagram of the UDP socket and says whether to tell the number of our
// queue pair.
func (c *PacketConn) hello(b []byte, from netip.AddrPort) (answer bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	op, qpn, data, ok := parseHello(b, c.from.Addr())
	switch {
	case !ok:
		c.dropped[dropHello]++
		return false
	case c.to.IsValid() && from != c.to:
		c.dropped[dropOther]++
		return false
	}
	c.learn(from, qpn)
	if op == opData && c.enqueue(datagram{from: from, data: append([]byte(nil), data...), slot: -1}) {
		c.wake.Broadcast()
	}
	return op == opData
}

// learn notes the queue pair behind an address.
func (c *PacketConn) learn(from netip.AddrPort, qpn ib.QPN) {
	known, ok := c.peers[from]
	if ok && known.qpn == qpn {
		return
	}
	if !ok && len(c.peers) >= maxPeers {
		for addr, peer := range c.peers { // any
			c.dropped[forgotPeer]++
			c.forget(addr, peer)
			break
		}
	}
	if ok {
		c.forget(from, known)
	}
	ah, err := c.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(from.Addr())})
	if err != nil { // the device is closed: there is nobody to tell
		return
	}
	c.peers[from] = &packetPeer{ah: ah, qpn: qpn}
}

func (c *PacketConn) forget(addr netip.AddrPort, p *packetPeer) {
	delete(c.peers, addr)
	p.forgot = true
	p.settle()
}
