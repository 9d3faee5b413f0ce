package pattern

import "testing"

var sizes = []int{0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 255, 4095, 4096, 4097}

// Every single wrong byte is found, at its place.
func TestCheckFindsEveryByte(t *testing.T) {
	for _, n := range sizes {
		b := make([]byte, n)
		Fill(b, 42)
		if i := Check(b, 42); i != -1 {
			t.Fatalf("size %d: good data refused at %d", n, i)
		}
		for i := range b {
			if b[i] != At(42, i) {
				t.Fatalf("size %d: At(%d) = %#x, filled with %#x", n, i, At(42, i), b[i])
			}
			b[i] ^= 0x10
			if got := Check(b, 42); got != i {
				t.Fatalf("size %d: byte %d is wrong, Check says %d", n, i, got)
			}
			b[i] ^= 0x10
		}
	}
}

// Stale data (another key), shifted data and data that never came are found.
func TestCheckFindsOtherData(t *testing.T) {
	b := make([]byte, 4096)
	Fill(b, Key(1, 7))
	for _, other := range []uint64{Key(1, 8), Key(7, 1), Key(2, 7), Key(1), Key()} {
		if Check(b, other) == -1 {
			t.Errorf("data of one key passes for key %#x", other)
		}
	}
	if Check(b[8:], Key(1, 7)) == -1 {
		t.Error("shifted data passes")
	}
	if Check(make([]byte, 4096), Key(1, 7)) == -1 {
		t.Error("zeros pass")
	}
}

func TestNoAllocation(t *testing.T) {
	b := make([]byte, 4099)
	if n := testing.AllocsPerRun(10, func() { Fill(b, 1); Check(b, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
