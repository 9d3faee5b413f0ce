package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/transport"
)

// TestAHTable: handles are found by their number in their domain only, numbers do
// not come back at once, and the table grows and shrinks without losing one.
func TestAHTable(t *testing.T) {
	var tab ahTable
	pd, other := &PD{num: 1}, &PD{num: 2}
	seen := map[uint32]bool{}
	var all []*AH
	for i := range 1000 {
		a := &AH{pd: pd, path: transport.Path{SrcPort: uint16(i)}}
		if err := tab.add(a, maxAH); err != nil {
			t.Fatal(err)
		}
		if a.num == 0 || seen[a.num] {
			t.Fatalf("number %d", a.num)
		}
		seen[a.num] = true
		all = append(all, a)
	}
	for i, a := range all {
		if p, ok := tab.Path(a.num, pd.num); !ok || p.SrcPort != uint16(i) {
			t.Fatalf("handle %d: %v %v", i, p, ok)
		}
		if _, ok := tab.Path(a.num, other.num); ok {
			t.Fatalf("handle %d found in another domain", i)
		}
	}
	for _, a := range all[:500] {
		tab.remove(a)
		if _, ok := tab.Path(a.num, pd.num); ok {
			t.Fatal("found after it was removed")
		}
	}
	for range 600 {
		a := &AH{pd: pd}
		if err := tab.add(a, maxAH); err != nil || seen[a.num] {
			t.Fatalf("number %#x again: %v", a.num, err)
		}
	}
	for i, h := range []uint32{0, 1, maxAH - 1, 1<<32 - 1} {
		if _, ok := tab.Path(h, pd.num); ok {
			t.Errorf("%d: found %#x", i, h)
		}
	}
	var empty ahTable
	if _, ok := empty.Path(1<<ahSlotBits, 1); ok {
		t.Error("found in an empty table")
	}
}

// A slot whose uses wrap never gets a number of no use: 0 is no handle.
func TestAHNumbersWrap(t *testing.T) {
	var tab ahTable
	pd := &PD{num: 1}
	last := uint32(0)
	for range 5000 {
		for range 16 { // the least table
			a := &AH{pd: pd}
			if err := tab.add(a, maxAH); err != nil {
				t.Fatal(err)
			}
			if a.num < maxAH || a.num == last {
				t.Fatalf("number %#x after %#x", a.num, last)
			}
			last = a.num
			tab.remove(a)
		}
	}
	if n := len(*tab.slots.Load()); n != 16 {
		t.Errorf("%d slots", n)
	}
}

// TestStrangersAreBounded: a host keeps its tracker while it is among the last of
// its set, and a flood of made-up addresses only makes it start anew.
func TestStrangersAreBounded(t *testing.T) {
	s := newStrangers()
	host := netip.MustParseAddr("192.0.2.1")
	first := s.ids(0, host)
	for i := range 3 {
		if s.ids(time.Duration(i), host) != first {
			t.Fatal("a host's tracker moved")
		}
	}
	for i := range 100000 {
		s.ids(time.Second, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	for i := range s.sets {
		for j := range s.sets[i] {
			if s.sets[i][j].addr == host {
				t.Fatal("the host that was silent longest is still there")
			}
		}
	}
	// One that talks while others come is kept: its set forgets the silent.
	kept := s.ids(2*time.Second, host)
	for i := range strangerWays - 1 {
		s.ids(3*time.Second+time.Duration(i), host)
		s.ids(3*time.Second, netip.AddrFrom4([4]byte{11, 0, 0, byte(i)}))
	}
	if s.ids(4*time.Second, host) != kept {
		t.Error("a host that talks was forgotten")
	}
}
