package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// TOS values of probes: ECN capable, and not.
const (
	tosNone = 0
	tosECT0 = 2
)

// checkPeer looks at the way to the host and back.
func (d *diagnosis) checkPeer(ctx context.Context) {
	to := netip.AddrPortFrom(d.peer, d.app.port)
	p := echo.NewProber(d.be, to, d.o.timeout)
	seen := p.Probe(ctx, echo.Size, 1, tosNone)[0]
	if ctx.Err() != nil {
		return
	}
	if seen == nil {
		d.checkCM(ctx)
		return
	}
	d.ok("echo", "%v answers", d.peer)
	d.checkTranslation(seen)
	if !seen.ICRC {
		return // all else follows from that
	}
	d.judgeICRC("path", "at "+d.peer.String(), p.Probe(ctx, 256, probeRun, tosNone))
	d.checkPathMTU(ctx, p)
	switch s := p.Probe(ctx, echo.Size, 1, tosECT0)[0]; {
	case s == nil:
		d.fail("ecn-path", "packets of congestion control are dropped", "look for a firewall that matches TOS or DSCP", "%v answers packets without ECN bits, and none with", d.peer)
	case s.TOS&3 == 0:
		d.warn("ecn-path", "congestion control learns nothing of switches", "look for what rewrites TOS: tunnels, firewalls, switches", "the ECN bits are gone at %v", d.peer)
	default:
		d.ok("ecn-path", "ECN bits arrive at %v", d.peer)
	}
}

// checkTranslation compares the addresses on both sides.
func (d *diagnosis) checkTranslation(s *echo.Seen) {
	const means = "the ICRC covers addresses and ports: each RoCE packet is dropped as damaged"
	const do = "have no NAT between the peers: a routed network, a tunnel inside which both have addresses, host networking of containers"
	local, peer := d.be.LocalAddr(), netip.AddrPortFrom(d.peer.WithZone(""), d.app.port)
	switch {
	case s.Src.Addr() != local.Addr():
		d.fail("nat", means, do, "%v sees %v instead of %v", d.peer, s.Src, local)
	case s.Src.Port() != local.Port():
		d.fail("nat", means, do, "%v sees port %d instead of %d", d.peer, s.Src.Port(), local.Port())
	case s.Dst != peer:
		d.fail("nat", means, do, "packets to %v arrive at %v", peer, s.Dst)
	case !s.ICRC:
		d.fail("icrc", "each RoCE packet is dropped as damaged", "look for what changes packets on the way", "%v finds the ICRC wrong", d.peer)
	default:
		d.ok("nat", "%v sees our address and port as they are", d.peer)
	}
}

// checkPathMTU finds the largest path MTU whose packets come through.
func (d *diagnosis) checkPathMTU(ctx context.Context, p *echo.Prober) {
	info, err := describe(d.local)
	if err != nil {
		return
	}
	want := min(d.o.mtu.Bytes(), info.ActiveMTU)
	for m := d.o.mtu; m.Valid(); m-- {
		if m.Bytes() > want {
			continue
		}
		if p.Probe(ctx, fullSize(m, d.local), 1, tosNone)[0] == nil {
			continue
		}
		if m.Bytes() == want {
			d.ok("path-mtu", "packets of path MTU %d come through", want)
			return
		}
		d.fail("path-mtu", "messages stall and fail with retry exceeded: packets cannot be fragmented", fmt.Sprintf("raise the MTU of what is in between to %d, or use -m %d", want+headers(d.local), m.Bytes()),
			"packets of path MTU %d are lost on the way, those of %d come through", want, m.Bytes())
		return
	}
	d.fail("path-mtu", "only short messages work", "look at the MTU of what is in between", "packets of path MTU 256 are lost on the way")
}

// doctorService is a port of the connection manager at which nobody listens, as far
// as anybody knows; whoever answers for it is reached.
const doctorService = 4791

// checkCM asks a host without an echo for a connection.
func (d *diagnosis) checkCM(ctx context.Context) {
	d.be.Close() // the device needs the port
	dev, err := d.app.open(roce.Config{Addr: d.local})
	if err != nil {
		d.fail("cm", "nothing can be said of the way there", "", "%v", err)
		return
	}
	defer dev.Close()
	limited, cancel := context.WithTimeout(ctx, d.o.timeout)
	defer cancel()
	c, err := rdmacm.Dial(limited, net.JoinHostPort(d.peer.String(), strconv.Itoa(doctorService)), rdmacm.Config{Device: dev})
	var rej *rdmacm.RejectedError
	switch {
	case err == nil:
		c.Close()
		d.ok("cm", "%v accepts connections; start 'roce serve' there to look closer", d.peer)
	case errors.As(err, &rej):
		d.ok("cm", "%v speaks RoCEv2, and refuses a connection that nobody serves; start 'roce serve' there to look closer", d.peer)
	case ctx.Err() != nil:
	case dev.Counters()["drop_icrc"] > 0:
		d.fail("cm", "packets are changed on the way", "look for address translation and for what rewrites packets", "answers of %v have wrong ICRCs", d.peer)
	default:
		d.fail("cm", "a firewall drops UDP port 4791 on the way there or back, or nobody speaks RoCEv2 there",
			fmt.Sprintf("start 'roce serve --addr %v' there; on both sides: nft list ruleset, and allow udp dport %d; with a card or rxe there: rdma link", d.peer, ib.Port), "%v answers nothing", d.peer)
	}
}
