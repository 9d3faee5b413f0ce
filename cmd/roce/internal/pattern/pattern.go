// Package pattern makes and checks test data that depends on its position and
// on a key (an iteration, a direction), so that data which is missing, stale,
// shifted or of another message is found.
package pattern

import "encoding/binary"

// step is the increment of the splitmix64 generator (Steele, Lea, Flood: Fast
// splittable pseudorandom number generators, 2014).
const step = 0x9e3779b97f4a7c15

// Key folds several numbers into one key.
func Key(parts ...uint64) uint64 {
	var k uint64
	for _, p := range parts {
		k = mix(k + step ^ p)
	}
	return k
}

// Fill writes the data of a key into b. It allocates nothing.
func Fill(b []byte, key uint64) {
	for ; len(b) >= 8; b = b[8:] {
		key += step
		binary.LittleEndian.PutUint64(b, mix(key))
	}
	last := mix(key + step)
	for i := range b {
		b[i] = byte(last >> (8 * i))
	}
}

// Check returns the position of the first byte of b that is not the data of
// the key, or -1. It allocates nothing.
func Check(b []byte, key uint64) int {
	n := len(b)
	for ; len(b) >= 8; b = b[8:] {
		key += step
		if binary.LittleEndian.Uint64(b) != mix(key) {
			return n - len(b) + differs(b[:8], mix(key))
		}
	}
	if i := differs(b, mix(key+step)); i < len(b) {
		return n - len(b) + i
	}
	return -1
}

// From returns the key of the rest of the data of a key from byte n on, a
// multiple of 8.
func From(key uint64, n int) uint64 { return key + uint64(n/8)*step }

// At returns byte i of the data of a key.
func At(key uint64, i int) byte {
	return byte(mix(key+uint64(i/8+1)*step) >> (8 * (i % 8)))
}

// differs returns the first position where b is not the bytes of word.
func differs(b []byte, word uint64) int {
	for i := range b {
		if b[i] != byte(word>>(8*i)) {
			return i
		}
	}
	return len(b)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
