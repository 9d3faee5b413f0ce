package roce_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// allowedEnd is a manual UD endpoint that allows some peers, and a stranger's backend.
func allowedEnd(t *testing.T, v6 bool, allow ...string) (*rocetest.Endpoint, netio.Backend) {
	t.Helper()
	self, other := "10.0.0.1", "10.0.0.2"
	if v6 {
		self, other = "fd00::1", "fd00::2"
	}
	fabric := netio.NewFabric()
	d, err := roce.Open(roce.Config{Backend: openFabric(t, fabric, self), Manual: true, AllowPeers: prefixes(allow...)})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	e := rocetest.New(t, d, rocetest.Options{QP: roce.QPConfig{Type: roce.UD}})
	must(t, e.QP.Activate(0x11))
	return e, openFabric(t, fabric, other)
}

// sealedUD returns a datagram to a queue pair with the ICRC of a flow.
func sealedUD(from, to netip.AddrPort, qpn ib.QPN, qkey uint32) []byte {
	b := make([]byte, ib.OpUDSendOnly.Info().HeaderLen+4+ib.ICRCSize)
	ib.BTH{Opcode: ib.OpUDSendOnly, PKey: ib.DefaultPKey, DestQP: qpn}.Put(b)
	ib.DETH{QKey: qkey, SrcQP: 9}.Put(b[ib.BTHSize:])
	flow := ib.NewFlow(from, to)
	flow.Seal(0, b)
	return b
}

// TestAllowPeers: packets come through from the networks that are allowed, and from
// no others; an address of no such network is refused as a peer and as a handle, a
// group is not.
func TestAllowPeers(t *testing.T) {
	for _, c := range []struct {
		v6    bool
		allow []string
		in    bool
	}{
		{false, nil, true},
		{true, nil, true},
		{false, []string{"10.0.0.2/32"}, true},
		{false, []string{"10.0.0.3/32"}, false},
		{false, []string{"192.168.0.0/16", "10.0.0.77/8"}, true}, // host bits do not matter
		{false, []string{"fd00::/16"}, false},
		{true, []string{"fd00::/127"}, false},
		{true, []string{"fd00::/126"}, true},
		{true, []string{"0.0.0.0/0"}, false},
	} {
		e, stranger := allowedEnd(t, c.v6, c.allow...)
		self := netip.AddrPortFrom(e.Dev.Addr(), netio.Port)
		must(t, e.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{e.MR.SGE(0, 100)}}))
		b := sealedUD(stranger.LocalAddr(), self, e.QP.Num(), 0x11)
		_, err := stranger.Send(0, []netio.Run{{Dst: self, Buf: b}})
		must(t, err)
		settle(e.Dev, 1)
		var wc [1]roce.WC
		n, err := e.CQ.Poll(wc[:])
		must(t, err)
		if dropped := e.Dev.Counters()["drop_not_allowed"]; (n == 1) != c.in || (dropped == 1) == c.in {
			t.Errorf("%v, IPv6 %v: %d messages, %d dropped", c.allow, c.v6, n, dropped)
		}

		addr := stranger.LocalAddr().Addr()
		rc, err := e.PD.CreateQP(roce.QPConfig{SendCQ: e.CQ})
		must(t, err)
		var ce *roce.ConfigError
		_, ah := e.PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(addr)})
		for what, err := range map[string]error{
			"Connect":  rc.Connect(roce.Remote{Addr: addr, QPN: 5}, roce.Conn{}),
			"CreateAH": ah,
		} {
			if refused := errors.As(err, &ce) && ce.Field == "AV.DGID" && strings.Contains(err.Error(), "AllowPeers"); refused == c.in || err != nil != refused {
				t.Errorf("%v: %s: %v", c.allow, what, err)
			}
		}
		group := netip.MustParseAddr("239.1.1.1")
		if c.v6 {
			group = netip.MustParseAddr("ff15::1")
		}
		_, err = e.PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(group)})
		must(t, err)
	}
}

// TestAllowPeersErrors: a prefix that would allow nothing is refused, and so is a
// device whose list differs from that of its port.
func TestAllowPeersErrors(t *testing.T) {
	for _, p := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		var ce *roce.ConfigError
		if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), AllowPeers: []netip.Prefix{p}}); !errors.As(err, &ce) || ce.Field != "AllowPeers" {
			t.Errorf("%v: %v", p, err)
		}
	}
	openUDP(t, "127.0.0.1", roce.Config{AllowPeers: prefixes("127.0.0.0/8", "10.0.0.0/8")})
	openUDP(t, "127.0.0.1", roce.Config{AllowPeers: prefixes("10.9.9.9/8", "127.0.0.0/8", "127.0.0.0/8")}) // the same
	var ce *roce.ConfigError
	if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), Port: testPort}); !errors.As(err, &ce) || ce.Field != "AllowPeers" {
		t.Errorf("a device on the same address with another list: %v", err)
	}
}

// TestUnknownQPWarnings: who sends to queue pairs that do not exist is told to the
// logger, so many times a second, if the ICRC is right; each packet is counted.
func TestUnknownQPWarnings(t *testing.T) {
	for _, c := range []struct {
		name         string
		rate         int
		level        slog.Level
		icrc         bool
		told, beyond int // of 10 packets at once, and 10 more after 1.5 s
	}{
		{"default", 0, slog.LevelWarn, true, 20, 0},
		{"3 per second", 3, slog.LevelWarn, true, 6, 14},
		{"none", -1, slog.LevelWarn, true, 0, 0},
		{"nobody listens", 3, slog.LevelError, true, 0, 0},
		{"damaged", 3, slog.LevelWarn, false, 0, 14},
	} {
		t.Run(c.name, func(t *testing.T) {
			fabric, log := netio.NewFabric(), new(logBook)
			d, err := roce.Open(roce.Config{Backend: openFabric(t, fabric, "10.0.0.1"), Manual: true, UnknownQPRate: c.rate,
				Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: c.level}))})
			must(t, err)
			defer d.Close()
			stranger := openFabric(t, fabric, "10.0.0.2")
			self := netip.AddrPortFrom(d.Addr(), netio.Port)
			for _, now := range []time.Duration{time.Second, 2500 * time.Millisecond} {
				for range 10 {
					b := sealedUD(stranger.LocalAddr(), self, 0x1234, 0)
					if !c.icrc {
						b[len(b)-1]++
					}
					_, err := stranger.Send(0, []netio.Run{{Dst: self, Buf: b}})
					must(t, err)
				}
				settle(d, now)
			}
			told := strings.Count(log.String(), "from=10.0.0.2:4791 qpn=4660 opcode=UD_SEND_ONLY")
			n := d.Counters()
			if told != c.told || n["drop_unknown_qp"] != 20 || n["unknown_qp_rate_limited"] != uint64(c.beyond) {
				t.Errorf("told %d times, dropped %d, limited %d:\n%s", told, n["drop_unknown_qp"], n["unknown_qp_rate_limited"], log)
			}
		})
	}
}
