//go:build race

package mem

const raceEnabled = true

// move copies len(dst) bytes from src, which is at least as long, unseen by the
// race detector: programs may read and write memory with atomics while a peer
// reads or writes it, as they may beside an adapter. In race builds the builtin
// copy is a call that reports both ranges even in a norace function; assignments
// are not.
//
//go:norace
func move(dst, src []byte) {
	for len(dst) >= 64 {
		*(*[64]byte)(dst) = *(*[64]byte)(src)
		dst, src = dst[64:], src[64:]
	}
	for i := range dst {
		dst[i] = src[i]
	}
}
