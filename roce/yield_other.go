//go:build !linux

package roce

// yieldThread would let other threads of this processor run.
func yieldThread() {}
