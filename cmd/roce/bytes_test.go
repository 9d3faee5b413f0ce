package main

import "testing"

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4097": 4097, "1b": 1, "64K": 64 << 10, "64KiB": 64 << 10, "1 MiB": 1 << 20, "2g": 2 << 30,
	} {
		if n, err := parseBytes(text); err != nil || n != want {
			t.Errorf("parseBytes(%q) = %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "1T", "1KK", "0x10", "99999999999G", "9223372036854775807K", "4 4"} {
		if n, err := parseBytes(text); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", text, n)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1: "1 B", 1024: "1 KiB", 4097: "4097 B", 64 << 20: "64 MiB", 3 << 30: "3 GiB", 1 << 40: "1024 GiB"} {
		if s := bytesText(n); s != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, s, want)
		}
	}
}
