package network

import "testing"

// A share that grows from 0 to Pmax between Kmin and Kmax is marked, then all; only what
// lies between takes a random number.
func TestREDMarks(t *testing.T) {
	for _, tt := range []struct {
		red     RED
		backlog int
		draw    float64 // -1: none
		want    bool
	}{
		{RED{100, 300, 0.4}, 0, -1, false},
		{RED{100, 300, 0.4}, 100, -1, false},
		{RED{100, 300, 0.4}, 101, 0.0019, true},
		{RED{100, 300, 0.4}, 101, 0.0021, false},
		{RED{100, 300, 0.4}, 200, 0.199, true},
		{RED{100, 300, 0.4}, 200, 0.2, false},
		{RED{100, 300, 0.4}, 300, 0.399, true},
		{RED{100, 300, 0.4}, 300, 0.4, false},
		{RED{100, 300, 0.4}, 301, -1, true},
		{RED{300, 300, 0.4}, 300, -1, false},
		{RED{300, 300, 0.4}, 301, -1, true},
		{RED{0, 0, 1}, 1000, -1, false},
	} {
		draws := 0
		got := tt.red.Marks(tt.backlog, func() float64 { draws++; return tt.draw })
		if got != tt.want || (draws == 1) != (tt.draw >= 0) || draws > 1 {
			t.Errorf("%+v: %v, %d numbers drawn", tt, got, draws)
		}
	}
}
