package roce_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// TestLimits: each limit is reported by Query, exact, and names itself in the error;
// what is freed can be had again, and a limit is that of one device.
func TestLimits(t *testing.T) {
	limits := roce.Limits{MaxQP: 3, MaxCQ: 4, MaxMR: 5, MaxAH: 6, MaxResRdAtom: 20}
	d, err := roce.Open(roce.Config{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1"), Limits: limits})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	if a := d.Query(); a.MaxQP != 3 || a.MaxCQ != 4 || a.MaxMR != 5 || a.MaxMW != 5 || a.MaxAH != 6 || a.MaxResRdAtom != 20 {
		t.Errorf("Query: %+v", a)
	}
	_, err = d.GSI() // counts for nothing
	must(t, err)
	pd, err := d.AllocPD()
	must(t, err)
	first, err := d.CreateCQ(1)
	must(t, err)
	peer := roce.Remote{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 9}
	connected := func(n int) func() (func() error, error) {
		return func() (func() error, error) {
			q, err := pd.CreateQP(roce.QPConfig{SendCQ: first})
			must(t, err)
			if err := q.Init(0); err != nil {
				return nil, err
			}
			return q.Destroy, q.RTR(peer, roce.Conn{MaxDestRdAtomic: n})
		}
	}
	for _, c := range []struct {
		limit string
		fits  int
		make  func() (free func() error, err error)
	}{
		{"MaxCQ", 3, func() (func() error, error) { // and the first
			o, err := d.CreateCQ(1)
			return func() error { return o.Destroy() }, err
		}},
		{"MaxMR", 5, func() (func() error, error) {
			o, err := pd.RegisterMR(make([]byte, 8), roce.LocalWrite)
			return func() error { return o.Deregister() }, err
		}},
		{"MaxMR", 5, func() (func() error, error) {
			o, err := pd.AllocMR(8)
			return func() error { return o.Deregister() }, err
		}},
		{"MaxMR", 5, func() (func() error, error) {
			o, err := pd.AllocMW(roce.MWType1)
			return func() error { return o.Dealloc() }, err
		}},
		{"MaxAH", 6, func() (func() error, error) {
			o, err := pd.CreateAH(roce.AddressVector{DGID: d.GIDs()[0]})
			return func() error { return o.Destroy() }, err
		}},
		{"MaxQP", 3, func() (func() error, error) {
			o, err := pd.CreateQP(roce.QPConfig{SendCQ: first})
			return func() error { return o.Destroy() }, err
		}},
		{"MaxResRdAtom", 2, connected(10)},
	} {
		for range 2 { // the second time after everything was freed
			var frees []func() error
			for i := range c.fits {
				free, err := c.make()
				if err != nil {
					t.Fatalf("%s: %d of %d: %v", c.limit, i, c.fits, err)
				}
				frees = append(frees, free)
			}
			free, err := c.make()
			var le *roce.LimitError
			if !errors.As(err, &le) || le.Limit != c.limit || !strings.Contains(err.Error(), "Config.Limits."+c.limit) {
				t.Errorf("one too many for %s: %v", c.limit, err)
			}
			if c.limit == "MaxResRdAtom" {
				must(t, free()) // the queue pair exists, it is its change that is refused
			}
			for _, free := range frees {
				must(t, free())
			}
		}
	}
}

// TestResponderResources: those of a queue pair are counted once, change with it, and
// go with RESET.
func TestResponderResources(t *testing.T) {
	d, err := roce.Open(roce.Config{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1"), Limits: roce.Limits{MaxResRdAtom: 4}})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	pd, err := d.AllocPD()
	must(t, err)
	cq, err := d.CreateCQ(1)
	must(t, err)
	a, err := pd.CreateQP(roce.QPConfig{SendCQ: cq})
	must(t, err)
	b, err := pd.CreateQP(roce.QPConfig{SendCQ: cq})
	must(t, err)
	peer := roce.Remote{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 9}
	must(t, a.Connect(peer, roce.Conn{MaxDestRdAtomic: 3}))
	must(t, b.Connect(peer, roce.Conn{MaxDestRdAtomic: 1}))
	set := func(q *roce.QP, n uint8) error {
		must(t, q.Modify(&roce.Attr{State: roce.StateSQD}, roce.MaskState))
		err := q.Modify(&roce.Attr{MaxDestRdAtomic: n}, roce.MaskMaxDestRdAtomic)
		must(t, q.Modify(&roce.Attr{State: roce.StateRTS}, roce.MaskState))
		return err
	}
	var le *roce.LimitError
	if err := set(b, 2); !errors.As(err, &le) {
		t.Errorf("3 + 2 of 4: %v", err)
	}
	must(t, set(a, 2))
	must(t, set(b, 2))
	must(t, a.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	must(t, set(b, 4))
}

// TestLimitsErrors: a limit out of its range is named.
func TestLimitsErrors(t *testing.T) {
	for field, l := range map[string]roce.Limits{
		"Limits.MaxQP":         {MaxQP: 1<<20 + 1},
		"Limits.MaxCQ":         {MaxCQ: -1},
		"Limits.MaxMR":         {MaxMR: 1<<23 + 1},
		"Limits.MaxAH":         {MaxAH: -1},
		"Limits.MaxResRdAtom":  {MaxResRdAtom: -1},
		"Limits.MaxCMID":       {MaxCMID: 1<<20 + 1},
		"Limits.MaxCMHalfOpen": {MaxCMHalfOpen: -1},
		"Limits.MaxCMTimeWait": {MaxCMTimeWait: -1},
	} {
		var ce *roce.ConfigError
		if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), Limits: l}); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
