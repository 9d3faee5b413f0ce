package congestion

import (
	"math"
	"time"

	"github.com/goroce/goroce/transport/cc"
)

// Jain is Jain's index of fairness of the rates: 1 if all are the same, 1/n if one
// has everything (Jain, Chiu, Hawe 1984).
func Jain(rates []float64) float64 {
	var sum, squares float64
	for _, r := range rates {
		sum += r
		squares += r * r
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(rates)) * squares)
}

// active are the flows that send during the whole of window w.
func (r *Result) active(w int) (l []int) {
	from, to := time.Duration(w)*r.Window, time.Duration(w+1)*r.Window
	for i, f := range r.Flows {
		if f.Start <= from && (f.Stop == 0 || f.Stop >= to) {
			l = append(l, i)
		}
	}
	return l
}

// JainOf is the fairness of window w among the flows that send.
func (r *Result) JainOf(w int) float64 {
	var rates []float64
	for _, i := range r.active(w) {
		rates = append(rates, r.Rates[w][i])
	}
	return Jain(rates)
}

// Mean is each flow's rate from a time on.
func (r *Result) Mean(from time.Duration) []float64 {
	first := int(from / r.Window)
	mean := make([]float64, len(r.Flows))
	for _, rates := range r.Rates[first:] {
		for i, x := range rates {
			mean[i] += x / float64(len(r.Rates)-first)
		}
	}
	return mean
}

// Utilisation is the share of the receiver's link that was used from a time on.
func (r *Result) Utilisation(from time.Duration) float64 {
	sum := 0.0
	for _, x := range r.Mean(from) {
		sum += x
	}
	return sum / r.Rate
}

// MeanQueue is the average of the queue from a time on, in bytes.
func (r *Result) MeanQueue(from time.Duration) float64 {
	part := r.Queue[from/sample:]
	sum := 0
	for _, q := range part {
		sum += q
	}
	return float64(sum) / float64(len(part))
}

// Fair is how long after a time the fairness over windows is at least 0.9, and stays
// so for ten windows or to the end; false if that does not happen.
func (r *Result) Fair(after time.Duration) (time.Duration, bool) {
	good := 0
	for w := int(after / r.Window); w < len(r.Rates); w++ {
		if r.JainOf(w) < 0.9 {
			good = 0
		} else if good++; good == 10 || w == len(r.Rates)-1 {
			return time.Duration(w+1-good+1)*r.Window - after, true
		}
	}
	return 0, false
}

// FixedPoint is where the fluid model of DCQCN comes to rest with n flows: the share
// of packets that are marked and the queue in bytes (Zhu et al., SIGCOMM 2015,
// equations 5 to 9). There the rate of each flow is 1/n of the link's, alpha is the
// probability of a mark within K, and two balances hold: what CNPs take from target
// and rate is what the timer and the byte counter give back. With the second put into
// the first, p is the only unknown; the queue is where RED marks as many. Where senders
// know round trip times, those of that queue are added to K and Tr, and CNPs are no
// closer than half of one (see cc.DCQCN). Hyper increase is not in the model.
func FixedPoint(d cc.DCQCN, cfg Config, n int) (p, queue float64) {
	rate := cfg.Rate / float64(n) / (8 * wireSize) // packets per second
	rai := float64(d.RAI) / (8 * ipSize)
	b, f, s := float64(d.B)/ipSize, float64(d.F), cfg.Switch
	waiting := func(p float64) float64 {
		return min(float64(s.Kmin)+p/s.Pmax*float64(s.Kmax-s.Kmin), float64(s.Kmax))
	}
	surplus := func(p float64) float64 {
		rtt := 4*cfg.Delay.Seconds() + (waiting(p)+2*wireSize)*8/cfg.Rate
		if cfg.NoRTT {
			rtt = 0
		}
		tau, k, tr := max(cnpInterval.Seconds(), rtt/2), d.K.Seconds()+rtt, d.Tr.Seconds()+rtt
		any := func(packets float64) float64 { return 1 - math.Pow(1-p, packets) } // at least one mark
		steps := func(packets float64) float64 { return p / (math.Pow(1-p, -packets) - 1) }
		byBytes, byTime := steps(b), steps(tr*rate)
		gap := tau * rai * rate * (math.Pow(1-p, f*b)*byBytes + math.Pow(1-p, f*tr*rate)*byTime) / any(tau*rate) // target - rate
		return gap/2*rate*(byBytes+byTime) - rate*any(k*rate)/(2*tau)*any(tau*rate)
	}
	low, high := 1e-9, 0.5
	for range 200 {
		if p = math.Sqrt(low * high); surplus(p) > 0 {
			low = p
		} else {
			high = p
		}
	}
	return p, waiting(p)
}
