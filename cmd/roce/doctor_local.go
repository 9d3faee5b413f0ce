package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// checkAddress finds the local address, and that of the host.
func (d *diagnosis) checkAddress(ctx context.Context) bool {
	const check = "address"
	if d.o.host != "" && !d.findPeer(ctx) {
		return false
	}
	d.local = d.o.addr
	if !d.local.IsValid() && d.peer.IsValid() {
		src, err := netio.SourceFor(d.peer)
		if err != nil {
			d.fail("route", "packets cannot be sent there", "add a route, or bring the interface up that has one: ip route get "+d.peer.String(), "no route to %v: %v", d.peer, err)
			return false
		}
		d.local = besideLoopback(src, d.peer)
		d.ok("route", "%v is reached from %v", d.peer, d.local)
	}
	if !d.local.IsValid() {
		var err error
		if d.local, err = firstAddr(); err != nil {
			d.fail(check, "RoCEv2 needs an IP address", "ip addr add, and ip link set up", "%v", err)
			return false
		}
	}
	if d.peer.IsValid() && d.peer.Is4() != d.local.Is4() {
		d.fail(check, "both ends need the same IP version", "choose --addr or HOST", "%v and %v are of different IP versions", d.local, d.peer)
		return false
	}
	return true
}

// findPeer finds the address of the host.
func (d *diagnosis) findPeer(ctx context.Context) bool {
	var err error
	if d.peer, err = addrOf(ctx, d.o.host); err != nil {
		d.fail("name", "the host cannot be found", "use its IP address", "%v", err)
		return false
	}
	return true
}

// checkInterface looks at the interface of the local address.
func (d *diagnosis) checkInterface() {
	info, err := describe(d.local)
	if err != nil {
		d.fail("address", "a device is a local address", "'roce devinfo' lists those of this machine", "%v is not an address of this machine", d.local)
		return
	}
	d.ok("address", "%v is on %s", d.local, info.Interface)
	up := info.state.String() == "PORT_ACTIVE"
	want := d.o.mtu.Bytes()
	switch need := want + headers(d.local); {
	case info.ActiveMTU == 0:
		d.fail("mtu", "not even the smallest path MTU, 256, fits", "ip link set "+info.Interface+" mtu 1500", "%s has MTU %d", info.Interface, info.LinkMTU)
	case !up:
		d.fail("link", "nothing can be sent or received", "ip link set "+info.Interface+" up", "%s is down", info.Interface)
	case info.ActiveMTU < want:
		d.warn("mtu", "messages are cut into more packets; it works, and is slower", fmt.Sprintf("ip link set %s mtu %d on all hosts, and as much in the switches; or use -m %d", info.Interface, need, info.ActiveMTU),
			"%s has MTU %d: path MTU %d does not fit, %d does", info.Interface, info.LinkMTU, want, info.ActiveMTU)
	default:
		d.ok("mtu", "%s has MTU %d: path MTU %d fits", info.Interface, info.LinkMTU, want)
	}
}

// sysModule is where the kernel lists its modules; tests have their own.
var sysModule = "/sys/module"

// checkKernel looks for modules that want the same packets.
func (d *diagnosis) checkKernel() {
	loaded := func(name string) bool {
		_, err := os.Stat(filepath.Join(sysModule, name))
		return err == nil
	}
	switch {
	case loaded("mlx5_ib"):
		d.warn("nic", "while RoCE is enabled in the card it takes packets to port 4791 for itself, and this process sees none of them",
			"use another interface, or: devlink dev param set pci/... name enable_roce value false cmode driverinit, and devlink dev reload pci/...", "mlx5_ib is loaded: a ConnectX card may do RoCE itself")
	case loaded("rdma_rxe"):
		d.warn("rxe", "as soon as it has a device it holds port 4791 of this network namespace", "rdma link delete NAME for its devices, or a network namespace of your own", "the rxe module is loaded")
	default:
		d.ok("kernel", "neither rxe nor mlx5_ib is loaded")
	}
}

// checkPort opens the UDP port.
func (d *diagnosis) checkPort() {
	port := d.app.port
	be, err := netio.ListenUDP(netio.UDPConfig{Addr: netip.AddrPortFrom(d.local, port)})
	if err != nil {
		do := "give this process an address of its own: a secondary address, an ipvlan, on loopback 127.0.0.2"
		why := err.Error()
		var listen *netio.ListenError
		if errors.As(err, &listen) {
			why = listen.Why
		}
		if strings.Contains(why, "rxe") {
			do = "rdma link delete NAME, or rmmod rdma_rxe"
		}
		d.fail("port", "no device can be opened here", do, "%v port %d: %s", d.local, port, why)
		return
	}
	d.be = be
	d.ok("port", "UDP port %d of %v is free", port, d.local)
}

// wantBuffer is the receive buffer that the library asks for, in bytes.
const wantBuffer = 8 << 20

// checkSocket looks at what the kernel grants the socket.
func (d *diagnosis) checkSocket() {
	caps := d.be.Caps()
	if caps.MaxSegments > 1 {
		d.ok("gso", "UDP segmentation: up to %d packets with one system call", caps.MaxSegments)
	} else {
		d.warn("gso", "each packet costs a system call", "Linux 4.18 or later has it", "no UDP segmentation")
	}
	if caps.ECN {
		d.ok("ecn", "the ECN bits of packets can be seen")
	} else {
		d.warn("ecn", "congestion marks of switches are not seen", "Linux tells them", "the ECN bits of packets cannot be seen here")
	}
	// What the kernel reports is twice what was asked for, to pay for its own.
	if caps.RecvBuffer < 2*wantBuffer {
		d.warn("buffers", "packets that come faster than this process reads them are lost, and sent again", fmt.Sprintf("sysctl -w net.core.rmem_max=%d net.core.wmem_max=%d", wantBuffer, wantBuffer/2),
			"the receive buffer is %d KiB instead of %d KiB", caps.RecvBuffer/2>>10, wantBuffer>>10)
	} else {
		d.ok("buffers", "the receive buffer is %d KiB", caps.RecvBuffer/2>>10)
	}
}

// probeRun is how many packets a probe of segmentation has.
const probeRun = 4

// doctorPort is the first of the ports of which the test on loopback takes two.
const doctorPort uint16 = 24791

// checkICRC sends probes through the kernel to another socket of this process: it
// alone decides what Identifications are in the packets.
func (d *diagnosis) checkICRC(ctx context.Context) {
	const check = "icrc"
	a, b := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.AddrFrom4([4]byte{127, 0, 0, 2})
	open := func(addr netip.Addr) (be netio.Backend, err error) {
		for port := doctorPort; port < doctorPort+20; port++ {
			if be, err = netio.ListenUDP(netio.UDPConfig{Addr: netip.AddrPortFrom(addr, port)}); err == nil {
				break
			}
		}
		return be, err
	}
	from, err := open(a)
	if err != nil {
		d.warn(check, "it was not tested", "bring the loopback interface up: ip link set lo up", "no port of %v: %v", a, err)
		return
	}
	defer from.Close()
	inner, err := open(b)
	if err != nil { // systems with 127.0.0.1 alone
		if inner, err = open(a); err != nil {
			d.warn(check, "it was not tested", "", "no second port on loopback: %v", err)
			return
		}
	}
	to := echo.Serve(inner, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		start := time.Now()
		var in [16]netio.Received
		for {
			if _, err := to.Recv(time.Since(start), in[:]); err != nil || to.Wait(time.Second, false) != nil {
				return
			}
		}
	}()
	defer func() { to.Close(); <-done }()
	seen := echo.NewProber(from, to.LocalAddr(), d.o.timeout).Probe(ctx, 256, probeRun, 0)
	if d.answered(seen) == 0 {
		d.fail(check, "packets of this process do not even reach itself", "ip link set lo up, and look for a firewall on it: nft list ruleset", "no packet came through on loopback")
		return
	}
	d.judgeICRC(check, "through the kernel", seen)
}

func (d *diagnosis) answered(seen []*echo.Seen) (n int) {
	for _, s := range seen {
		if s != nil {
			n++
		}
	}
	return n
}

// judgeICRC looks at the ICRCs of a run, whose Identifications count up from 0.
func (d *diagnosis) judgeICRC(check, where string, seen []*echo.Seen) {
	for i, s := range seen {
		switch {
		case s == nil:
		case !s.ICRC && i == 0:
			d.fail(check, "all packets are dropped: something on the way changes them", "look for address translation and for what rewrites packets", "wrong ICRC of the first packet, %s", where)
			return
		case !s.ICRC:
			d.fail(check, "long messages are dropped", "open devices with NoGSO", "wrong ICRC of packet %d of a segmented run, %s", i+1, where)
			return
		case s.Src.Addr().Is4() && d.be.Caps().MaxSegments > 1 && s.ID != uint16(i):
			d.fail(check, "peers that check the ICRC against the IP header drop packets", "open devices with NoGSO", "packet %d of a segmented run has the Identification %d, %s", i+1, s.ID, where)
			return
		}
	}
	d.ok(check, "ICRCs are right, %s", where)
}

// fullSize is the size of a probe that fills a packet of the path MTU, BTH to ICRC.
func fullSize(m ib.MTU, local netip.Addr) int {
	ip := 28 // with UDP
	if !local.Is4() {
		ip = 48
	}
	return m.Bytes() + headers(local) - ip
}
