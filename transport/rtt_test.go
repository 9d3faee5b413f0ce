package transport

import (
	"testing"
	"time"
)

// RFC 6298, sections 2 and 5.5: SRTT + 4 RTTVAR, doubled by probes until the next sample,
// but for a while only twice, and never less than minProbe.
func TestRTTEstimate(t *testing.T) {
	const ms = time.Millisecond
	var r rtt
	if r.patience(minProbe) != Never {
		t.Errorf("patience %v without a sample", r.patience(minProbe))
	}
	for i, step := range []struct {
		sample       time.Duration // 0: a probe
		smooth, dev  time.Duration
		patience     time.Duration
		patienceText string
	}{
		{8 * ms, 8 * ms, 4 * ms, 24 * ms, "first: RTTVAR is half of it"},
		{8 * ms, 8 * ms, 3 * ms, 20 * ms, "the same again"},
		{16 * ms, 9 * ms, 4250 * time.Microsecond, 26 * ms, "a late one"},
		{0, 9 * ms, 4250 * time.Microsecond, 52 * ms, "a probe"},
		{0, 9 * ms, 4250 * time.Microsecond, 104 * ms, "another"},
		{9 * ms, 9 * ms, 3187500 * time.Nanosecond, 21750 * time.Microsecond, "a sample ends the back-off"},
	} {
		if step.sample == 0 {
			r.probes++
		} else {
			r.sample(0, step.sample, 0)
		}
		if r.smooth != step.smooth || r.dev != step.dev || r.patience(minProbe) != step.patience {
			t.Errorf("step %d, %s: SRTT %v, RTTVAR %v, patience %v", i, step.patienceText, r.smooth, r.dev, r.patience(minProbe))
		}
	}
	if r.least != 8*ms {
		t.Errorf("least %v", r.least)
	}
	for range 100 {
		r.sample(0, 20*time.Microsecond, 0)
	}
	if r.patience(minProbe) != minProbe {
		t.Errorf("patience %v on a fast path", r.patience(minProbe))
	}
	for r.probes = range 20 {
		if p := r.patience(minProbe) / minProbe; r.probes >= 2 && (p == 4) != (r.probes < 16) {
			t.Errorf("%d times the patience after %d probes", p, r.probes)
		}
	}
	r.probes = 100
	if p := r.patience(minProbe); p <= 0 || p > 2*time.Minute {
		t.Errorf("patience %v after many probes", p)
	}
}

// Karn's rule and what else makes a sample worthless.
func TestRTTSamples(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(r *rtt)
		want time.Duration // of the sample, -1 for none
	}{
		{"acknowledged", func(r *rtt) { r.start(5, 10, true, 0); r.passed(8, 10, 0); r.passed(9, 11, 0) }, 4},
		{"the first of two is timed", func(r *rtt) { r.start(5, 10, true, 0); r.start(7, 11, true, 0); r.passed(9, 12, 0) }, 4},
		{"sent again", func(r *rtt) { r.start(5, 10, true, 0); r.again(9); r.passed(9, 11, 0) }, -1},
		{"what is newer is sent again", func(r *rtt) { r.start(5, 10, true, 0); r.again(11); r.passed(9, 12, 0) }, 4},
		{"after something older that was missing", func(r *rtt) { r.start(5, 10, false, 0); r.passed(9, 11, 0) }, -1},
		{"... but answered by itself", func(r *rtt) { r.start(5, 10, false, 0); r.arrived(9, 10, 0) }, 4},
		{"itself is repeated", func(r *rtt) { r.start(5, 10, true, 0); r.gap(8); r.repeated(8, 11); r.arrived(9, 10, 0) }, -1},
		{"what is older is repeated, and it is answered by itself", func(r *rtt) { r.start(5, 10, true, 0); r.gap(8); r.repeated(8, 10); r.arrived(9, 10, 0) }, 4},
		{"... or only with what is older", func(r *rtt) { r.start(5, 10, true, 0); r.gap(8); r.repeated(8, 10); r.passed(9, 11, 0) }, -1},
		{"what is newer is missing", func(r *rtt) { r.start(5, 10, true, 0); r.gap(11); r.passed(9, 11, 0) }, 4},
		{"another is answered", func(r *rtt) { r.start(5, 10, false, 0); r.arrived(9, 11, 0) }, -1},
		{"a new one after one that was worthless", func(r *rtt) {
			r.start(5, 10, false, 0)
			r.passed(9, 11, 0)
			r.start(20, 30, true, 0)
			r.passed(26, 31, 0)
		}, 6},
	} {
		var r rtt
		c.do(&r)
		if got := r.smooth; r.known != (c.want >= 0) || r.known && got != c.want {
			t.Errorf("%s: sample %v (%v), want %v", c.name, got, r.known, c.want)
		}
	}
}

// When a path seems to hold a queue: a sample nearer to the longest of late, which comes
// down by a 32nd of its distance to the mean with each, than to the least, and a tenth
// above that; also without a sample of the last two round trips.
func TestRTTCrowded(t *testing.T) {
	const us = time.Microsecond
	var r rtt
	if !r.crowded(0) {
		t.Error("not crowded before there is a sample")
	}
	for i, step := range []struct {
		sample, most time.Duration
		crowded      bool
	}{
		{100 * us, 100 * us, false}, // alone
		{109 * us, 109 * us, false}, // the longest, but no tenth more
		{111 * us, 111 * us, true},
		{200 * us, 200 * us, true},
		{150 * us, 197469, true},
		{140 * us, 195099, false},
	} {
		r.sample(time.Second, step.sample, 0)
		if got := r.crowded(time.Second); got != step.crowded || r.most != step.most {
			t.Errorf("step %d: %v of %v to %v, mean %v: crowded %v", i, r.latest, r.least, r.most, r.smooth, got)
		}
	}
	if at := time.Second + 2*r.smooth; r.crowded(at) || !r.crowded(at+1) {
		t.Error("a sample is good for two round trips")
	}
}

// What the path holds without a queue: what was delivered in a round trip, in the share of
// it that is the least ever; of late, as it is forgotten by an eighth with each sample.
func TestRTTPath(t *testing.T) {
	var r rtt
	now, done := time.Duration(0), uint64(5000)
	for i, step := range []struct {
		took      time.Duration
		delivered uint64
		want      uint64
	}{
		{10, 9000, 0},     // with the first sample nothing is known of a queue
		{10, 8000, 8000},  // none
		{40, 20000, 7000}, // 5000: three quarters of the time it had waited
		{20, 16000, 8000},
		{5, 1000, 7000}, // there was little to send
		{10, 16000, 8000},
	} {
		r.start(now, uint64(i+1), true, done)
		now, done = now+step.took, done+step.delivered
		if r.arrived(now, uint64(i+1), done); r.path != step.want {
			t.Errorf("step %d: %d bytes, want %d", i, r.path, step.want)
		}
	}
}
