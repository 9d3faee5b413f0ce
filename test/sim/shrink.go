package sim

import (
	"maps"
	"slices"
)

// Shrink looks for a small schedule that still fails, beginning with one that does,
// and tries about so many. Requests go first: with fewer packets, fewer faults matter.
func Shrink(s Schedule, tries int, fails func(Schedule) bool) Schedule {
	try := func(t Schedule) bool {
		if tries--; tries < 0 || !fails(t) {
			return false
		}
		s = t
		return true
	}
	for _, what := range slices.Sorted(maps.Keys(simplifications)) {
		t := s
		t.Without = append(slices.Clip(s.Without), what)
		try(t)
	}
	for before := -1; before != len(s.Requests)+len(s.Faults); {
		before = len(s.Requests) + len(s.Faults)
		reduce(s.Requests, func(l []requestRef) bool { t := s; t.Requests = l; return try(t) })
		reduce(s.Faults, func(l []Fault) bool { t := s; t.Faults = l; return try(t) })
	}
	return s
}

// reduce looks for a part of a list that fails and of which no item can be left out
// (delta debugging: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
// Input"). It tries without all, then without ever smaller pieces.
func reduce[T any](all []T, fails func([]T) bool) {
	if len(all) == 0 || fails(nil) {
		return
	}
	for piece := (len(all) + 1) / 2; ; {
		smaller := false
		for at := 0; at < len(all) && len(all) > 1; {
			rest := slices.Concat(all[:at], all[min(at+piece, len(all)):])
			if len(rest) > 0 && fails(rest) {
				all, smaller = rest, true
			} else {
				at += piece
			}
		}
		switch {
		case piece > 1:
			piece = (piece + 1) / 2
		case !smaller:
			return
		}
	}
}
