package roce_test

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// portWatch is a backend that remembers the source ports of what it receives.
type portWatch struct {
	netio.Backend
	mu   sync.Mutex
	seen []uint16 // each once, in order of appearance
}

func (w *portWatch) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := w.Backend.Recv(now, dst)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		if p := dst[i].Src.Port(); !slices.Contains(w.seen, p) {
			w.seen = append(w.seen, p)
		}
	}
	return n, err
}

// take returns what was seen and forgets it.
func (w *portWatch) take() []uint16 {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seen
	w.seen = nil
	return s
}

// TestSourcePort: requests and answers leave from the port of their queue pair,
// 4791 unless told otherwise, and the ICRC covers it; the receiver takes packets
// of a queue pair from any port, also from one that changes.
func TestSourcePort(t *testing.T) {
	for _, addrs := range [][2]string{{"127.0.0.1", "127.0.0.2"}, {"::1", "::1"}} {
		watch := map[string]*portWatch{}
		dev := func(addr string) *roce.Device {
			if watch[addr] == nil {
				watch[addr] = &portWatch{}
			}
			return openUDP(t, addr, roce.Config{Wrap: func(b netio.Backend) netio.Backend {
				watch[addr].Backend = b
				return watch[addr]
			}})
		}
		da := dev(addrs[0])
		db := da
		if addrs[1] != addrs[0] {
			db = dev(addrs[1])
		}
		a, b := rocetest.New(t, da, rocetest.Options{}), rocetest.New(t, db, rocetest.Options{})
		remote := func(e *rocetest.Endpoint) roce.Remote {
			return roce.Remote{Addr: e.Dev.Addr(), QPN: e.QP.Num(), PSN: e.QP.PSN()}
		}
		must(t, a.QP.Connect(remote(b), roce.Conn{SourcePort: 0xd001}))
		must(t, b.QP.Connect(remote(a), roce.Conn{Access: roce.RemoteWrite, SourcePort: 0xd002}))
		transfer := func(id int, want ...uint16) {
			t.Helper()
			fill(a.MR.Bytes(), id)
			must(t, a.QP.PostSend(roce.SendWR{ID: uint64(id), Opcode: roce.WRWrite, Flags: roce.Signaled,
				SGE: []roce.SGE{a.MR.SGE(0, 100_000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
			if wc := a.Next(t); wc.ID != uint64(id) || wc.Status != roce.WCSuccess {
				t.Fatalf("%v: %v", wc.ID, wc.Status)
			}
			if !bytes.Equal(a.MR.Bytes()[:100_000], b.MR.Bytes()[:100_000]) {
				t.Error("bytes differ")
			}
			var seen []uint16
			for _, w := range watch {
				seen = append(seen, w.take()...)
			}
			slices.Sort(seen)
			if !slices.Equal(seen, want) {
				t.Errorf("%s: packets came from ports %#x, want %#x", addrs[0], seen, want)
			}
		}
		transfer(1, 0xd001, 0xd002)
		// A new address vector in SQD, as ibv_modify_qp allows; 0 is the device's port.
		for i, port := range []uint16{0xd003, 0} {
			must(t, a.QP.Modify(&roce.Attr{State: roce.StateSQD}, roce.MaskState))
			attr, _ := a.QP.Query()
			attr.AV.SourcePort = port
			must(t, a.QP.Modify(&attr, roce.MaskAV))
			must(t, a.QP.Modify(&roce.Attr{State: roce.StateRTS}, roce.MaskState))
			if port == 0 {
				port = testPort
			}
			want := []uint16{port, 0xd002}
			slices.Sort(want)
			transfer(2+i, want...)
		}
		for _, d := range []*roce.Device{da, db} {
			for _, name := range []string{"drop_icrc", "drop_ip_id", "drop_source_address", "drop_unknown_qp", "tx_port_failed"} {
				if n := d.Counters()[name]; n > 0 {
					t.Errorf("%s: %s = %d", addrs[0], name, n)
				}
			}
		}
		da.Close()
		db.Close()
	}
}

// TestSourcePortTaken: a port that cannot be had costs a counted detour, no packet.
func TestSourcePortTaken(t *testing.T) {
	be, err := netio.ListenUDP(netio.UDPConfig{Addr: netip.MustParseAddrPort("127.0.0.1:53504")}) // 0xd100
	must(t, err)
	defer be.Close()
	a, b := udpPair(t, roce.Config{}, rocetest.Options{Conn: roce.Conn{SourcePort: 0xd100}})
	fill(a.MR.Bytes(), 1)
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{a.MR.SGE(0, 100_000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	want(t, a.Next(t), 1, roce.WCWrite, roce.WCSuccess)
	if !bytes.Equal(a.MR.Bytes()[:100_000], b.MR.Bytes()[:100_000]) {
		t.Error("bytes differ")
	}
	if n := a.Dev.Counters()["tx_port_failed"]; n < 100_000/4096 {
		t.Errorf("tx_port_failed = %d", n)
	}
	if n := b.Dev.Counters()["drop_icrc"]; n > 0 {
		t.Errorf("drop_icrc = %d", n)
	}
}
