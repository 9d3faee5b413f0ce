package rdmacm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// inquire asks which queue pair serves the port (SIDR_REQ).
func (c *Conn) inquire() error {
	if err := c.needPD(); err != nil {
		return err
	}
	req := mad.SIDRREQ{ServiceID: c.cfg.PortSpace.ServiceID(c.remote.Port()), PrivateData: c.withHeader()}
	o := cm.ResolveOptions{Timeout: c.cfg.ResponseTimeout, Retries: uint8(c.cfg.Retries)}
	return c.launch(func(a *cm.Agent, now time.Duration) (cm.ID, error) {
		return a.Resolve(now, c.remote.Addr().WithZone(""), req, o)
	})
}

// needPD checks that address handles can be made for a shared queue pair.
func (c *Conn) needPD() error {
	if (c.cfg.UseQP != nil || c.cfg.QPN != 0) && c.cfg.PD == nil {
		return &roce.ConfigError{Field: "PD", Value: nil, Allowed: "the protection domain of the queue pair is needed: the address handle is made in it"}
	}
	c.pd = orPD(c.cfg.PD, c.pd)
	return nil
}

func orPD(a, b *roce.PD) *roce.PD {
	if a != nil {
		return a
	}
	return b
}

// handleTo makes the address handle of an address.
func (c *Conn) handleTo(addr netip.Addr) (err error) {
	c.ah, err = c.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(addr.WithZone("")), TrafficClass: c.cfg.TrafficClass, HopLimit: 64})
	return err
}

// resolved takes the answer (SIDR_REP).
func (c *Conn) resolved(ev *cm.Event) {
	rep := ev.SIDRREP
	if c.state != connecting {
		return
	}
	if rep.Status != mad.SIDROK {
		c.rejected(&RejectedError{Addr: c.remote, Status: rep.Status, PrivateData: rep.PrivateData})
		return
	}
	c.destQPN, c.qkey, c.private = rep.QPN, rep.QKey, rep.PrivateData
	if err := c.handleTo(c.remote.Addr()); err != nil {
		c.end(err)
		return
	}
	c.established4UD()
}

// established4UD makes a connection of port space UDP established.
func (c *Conn) established4UD() {
	c.state = established
	close(c.ready)
	c.tell(EventEstablished, nil, c.private)
}

// announce tells the peer the number of our queue pair.
func (c *Conn) announce(r *Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pd = orPD(c.cfg.PD, c.pd); c.pd != nil {
		if err := c.handleTo(c.remote.Addr()); err != nil {
			return err
		}
	}
	c.private = r.private
	rep := mad.SIDRREP{QPN: c.qpn, QKey: c.qkey, PrivateData: c.cfg.PrivateData}
	err := r.answer(func(a *cm.Agent, now time.Duration) error {
		delete(r.b.m.owners, r.id)
		return a.Answer(now, r.id, rep)
	})
	if err == nil {
		c.established4UD()
	}
	return err
}

// JoinMulticast gives a datagram queue pair that is attached to a multicast group,
// which the host joins on the device's interface (rdma_join_multicast), and an
// address handle of the group: datagrams go to Conn.AH, Conn.RemoteQPN and
// Conn.QKey. There is no subnet administration on RoCE: nothing is asked, and it
// returns at once. Close leaves the group.
//
// Of cfg it uses Device, LocalAddr, PD, QP, UseQP, Prepare, QKey, TrafficClass and
// Events. Errors are those of roce.QP.AttachMulticast and of Dial.
func JoinMulticast(group netip.Addr, cfg Config) (*Conn, error) {
	group = group.Unmap()
	if !group.IsMulticast() {
		return nil, &roce.ConfigError{Field: "group", Value: group, Allowed: "a multicast address is needed"}
	}
	cfg.PortSpace = UDP
	if err := cfg.fill(Params{}, 0); err != nil {
		return nil, err
	}
	dev, release, err := cfg.deviceFor(group)
	if err != nil {
		return nil, err
	}
	c, err := newConn(dev, release, cfg, netip.AddrPortFrom(dev.Addr(), cfg.LocalAddr.Port()), netip.AddrPortFrom(group, 0))
	if err != nil {
		return nil, err
	}
	if err := c.join(group); err != nil {
		c.mu.Lock()
		c.end(err)
		c.mu.Unlock()
		c.Close()
		return nil, fmt.Errorf("rdmacm: group %v: %w", group, err)
	}
	return c, nil
}

// join attaches the queue pair.
func (c *Conn) join(group netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.needPD(); err != nil {
		return err
	}
	if err := c.handleTo(group); err != nil {
		return err
	}
	if err := c.qp.AttachMulticast(group); err != nil {
		return err
	}
	c.group, c.destQPN = group.WithZone(""), ib.MulticastQPN
	c.state = established
	close(c.ready)
	c.tell(EventMulticastJoin, nil, nil)
	return nil
}
