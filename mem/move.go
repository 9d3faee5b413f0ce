//go:build !race

package mem

const raceEnabled = false

// move copies len(dst) bytes from src, which is at least as long. What an
// adapter reads or writes is not the race detector's business: see move_race.go.
func move(dst, src []byte) { copy(dst, src) }
