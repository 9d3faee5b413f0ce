package roce_test

import (
	"testing"

	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
)

// ask sends a request of performance management and returns the answer.
func ask(t testing.TB, g *roce.GSI, answers <-chan received, to roce.MADAddr, h mad.Header, m mad.Message) (mad.Header, []byte) {
	t.Helper()
	var b [mad.Size]byte
	h.Put(b[:])
	mad.Put(b[:], m)
	must(t, g.Send(to, b[:]))
	r := nextMAD(t, answers)
	got, bad := mad.Parse(r.b)
	if bad != mad.OK || got.Method != mad.MethodGetResp || got.TID != h.TID || got.Attr != h.Attr {
		t.Fatalf("answer %+v (%v) to %+v", got, bad, h)
	}
	return got, r.b
}

// TestPerfMgt: a port answers with its counters, which stop at their largest value,
// resets those that it is told to, and says what it does not have (IBTA 16.1.3).
func TestPerfMgt(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{}, nil)
	a, b := ends[0], ends[1]
	_, err := b.Dev.GSI()
	must(t, err)
	g, err := a.Dev.GSI()
	must(t, err)
	must(t, g.Handle(mad.ClassPerfMgt, nil)) // ours hears the answers instead of asking back
	_, answers := listenMAD(t, a.Dev, mad.ClassPerfMgt)
	to := roce.MADAddr{Addr: b.Dev.Addr()}
	get := mad.Header{Class: mad.ClassPerfMgt, ClassVersion: 1, Method: mad.MethodGet, TID: 7, Attr: mad.AttrPortCounters}
	set := get
	set.Method = mad.MethodSet

	for range 3 { // damaged class: dropped by QP1
		must(t, g.Send(to, madOf(1, 5, 256)))
	}
	var short mad.PortCounters
	read := func(h mad.Header, m mad.PortCounters) {
		t.Helper()
		got, b := ask(t, g, answers, to, h, &m)
		if got.Status != mad.StatusOK {
			t.Fatalf("status %#x", got.Status)
		}
		mad.Decode(b, &short)
	}
	read(get, mad.PortCounters{PortSelect: 1})
	if short.RcvPkts != 4 || short.XmitPkts != 0 || short.QP1Dropped != 3 || short.RcvData != 4*(256+24)/4 {
		t.Errorf("counters %+v", short)
	}
	read(set, mad.PortCounters{PortSelect: 255, CounterSelect: 1 << 15})
	if short.RcvPkts != 0 || short.XmitPkts != 1 || short.RcvData == 0 {
		t.Errorf("counters after the reset of RcvPkts %+v", short)
	}

	get.Attr, set.Attr = mad.AttrPortCountersExtended, mad.AttrPortCountersExtended
	var long mad.PortCountersExtended
	_, m := ask(t, g, answers, to, set, &mad.PortCountersExtended{PortSelect: 1, CounterSelect: 1 << 2})
	mad.Decode(m, &long)
	if long.XmitPkts != 0 || long.RcvPkts != 1 || long.RcvData != uint64(short.RcvData)+(256+24)/4 {
		t.Errorf("extended counters %+v", long)
	}
	for _, tt := range []struct {
		name   string
		status uint16
		h      mad.Header
		m      mad.Message
	}{
		{"another port", mad.StatusBadValue, get, &mad.PortCountersExtended{PortSelect: 2}},
		{"another class version", mad.StatusBadVersion, mad.Header{Class: mad.ClassPerfMgt, ClassVersion: 2, Method: mad.MethodGet, Attr: mad.AttrPortCounters}, &short},
		{"no such attribute", mad.StatusBadMethodAttr, mad.Header{Class: mad.ClassPerfMgt, ClassVersion: 1, Method: mad.MethodGet, Attr: 0x15}, &short},
		{"Set of ClassPortInfo", mad.StatusBadMethodAttr, mad.Header{Class: mad.ClassPerfMgt, ClassVersion: 1, Method: mad.MethodSet, Attr: mad.AttrClassPortInfo}, &short},
	} {
		if got, _ := ask(t, g, answers, to, tt.h, tt.m); got.Status != tt.status {
			t.Errorf("%s: status %#x, want %#x", tt.name, got.Status, tt.status)
		}
	}
	info := mad.ClassPortInfo{Class: mad.ClassPerfMgt}
	get.Attr = mad.AttrClassPortInfo
	_, m = ask(t, g, answers, to, get, &info)
	if mad.Decode(m, &info); info.ClassVersion != 1 || info.CapabilityMask != mad.PerfCapExtWidthNoIETF|mad.PerfCapXmitWait {
		t.Errorf("ClassPortInfo %+v", info)
	}
}
