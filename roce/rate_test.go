package roce

import (
	"testing"
	"time"

	"github.com/goroce/goroce/transport/cc"
)

// Changes of rates that nobody has been told of yet are bounded; those beyond are
// counted. They are told in order.
func TestRateChangesAreBounded(t *testing.T) {
	var told []RateChange
	q := &QP{num: 7, e: &engine{}, dev: &Device{cfg: Config{OnRate: func(c RateChange) { told = append(told, c) }}}}
	change := q.trace()
	for i := range maxRates + 3 {
		change(time.Duration(i), "cnp", cc.State{Rate: cc.Rate(i + 1)})
	}
	if n := q.e.drops.reasons[dropRate].Load(); n != 3 {
		t.Errorf("%d dropped, want 3", n)
	}
	list := q.e.rates.take(nil)
	if tellRates(list); len(told) != maxRates || told[9] != (RateChange{QPN: 7, At: 9, Why: "cnp", Rate: 10}) {
		t.Errorf("%d told, %+v", len(told), told[9])
	}
	if list = q.e.rates.take(list); len(list) != 0 {
		t.Errorf("%d told twice", len(list))
	}
	if (&QP{dev: &Device{}}).trace() != nil {
		t.Error("changes are kept for nobody")
	}
}
