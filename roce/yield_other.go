//go:build !linux

package roce

// yieldThread would let other threads of this processor run, each for its turn.
func yieldThread() {}

// pauseThread would let them run for a moment.
func pauseThread() {}
