package rnet

import (
	"context"
	"net"
	"net/netip"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// Dial is Config.Dial with the zero Config.
func Dial(network, address string) (*Conn, error) {
	return Config{}.Dial(context.Background(), network, address)
}

// Dial connects to an address, "host:port". network is tcp, tcp4 or tcp6, where tcp
// means the port space of that name of rdma_cm. Errors are a *net.OpError with that of
// rdmacm.Dial, as syscall.ECONNREFUSED when nobody listens.
func (c Config) Dial(ctx context.Context, network, address string) (*Conn, error) {
	to, err := resolve(ctx, "tcp", network, address)
	if err == nil {
		err = needPeer(to, address)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	conn, err := c.dial(ctx, to)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: Addr{to}, Err: err}
	}
	return conn, nil
}

func (c Config) dial(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	dev, release, err := c.device(c.LocalAddr.Addr(), to.Addr())
	if err != nil {
		return nil, err
	}
	conn, err := newConn(dev, release, c)
	if err != nil {
		return nil, err
	}
	cm, err := conn.connect(func(cfg rdmacm.Config) (*rdmacm.Conn, error) {
		cfg.Device, cfg.LocalAddr = dev, netip.AddrPortFrom(dev.Addr(), c.LocalAddr.Port())
		return rdmacm.Dial(ctx, to.String(), cfg)
	})
	if err != nil {
		return nil, err
	}
	peer, err := parseConnData(cm.PrivateData())
	if err != nil {
		conn.abandon(cm)
		return nil, err
	}
	conn.start(cm, peer, Addr{cm.LocalAddr()}, Addr{cm.RemoteAddr()})
	return conn, nil
}

// connect makes the connection below, with f.
func (c *Conn) connect(f func(rdmacm.Config) (*rdmacm.Conn, error)) (*rdmacm.Conn, error) {
	var began *rdmacm.Conn
	told := c.s.local()
	cm, err := f(rdmacm.Config{
		PD: c.pd, QP: c.qpConfig(), Access: roce.RemoteWrite, PrivateData: told.append(nil),
		ResponderResources: -1, InitiatorDepth: -1, FlowControl: true, // no READs, as rsocket.c
		Prepare: func(m *rdmacm.Conn) error {
			began = m
			return c.s.prepare(m.QP())
		},
	})
	if err != nil {
		c.abandon(began)
	}
	return cm, err
}

// abandon gives back, in the background, what an attempt to connect had.
func (c *Conn) abandon(cm *rdmacm.Conn) {
	go func() {
		if cm != nil {
			cm.Shutdown(context.Background())
		}
		c.free()
	}()
}
