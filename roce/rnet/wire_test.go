package rnet

import (
	"encoding/hex"
	"strings"
	"testing"
)

// The layout is that of struct rs_conn_data (librdmacm, rsocket.c).
func TestConnData(t *testing.T) {
	d := connData{credits: 384, maps: 8, list: segment{0x1122334455667788, 0x99aabbcc, 2}, data: segment{0x0102030405060708, 0x090a0b0c, 65536}}
	wire := "01020180" + "00000008" + "1122334455667788" + "99aabbcc" + "00000002" + "0102030405060708" + "090a0b0c" + "00010000"
	if got := hex.EncodeToString(d.append(nil)); got != wire {
		t.Errorf("got  %s\nwant %s", got, wire)
	}
	for _, c := range []struct {
		name string
		edit func(b []byte) []byte
		want connData
		err  string
	}{
		{"as it is", func(b []byte) []byte { return b }, d, ""},
		{"padded by the connection manager", func(b []byte) []byte { return append(b, make([]byte, 16)...) }, d, ""},
		{"big-endian, no table", func(b []byte) []byte { b[1] = 1; return b }, connData{true, 384, 0, d.list, d.data}, ""},
		{"short", func(b []byte) []byte { return b[:39] }, connData{}, "has 39 bytes"},
		{"version", func(b []byte) []byte { b[0] = 2; return b }, connData{}, "version 2"},
		{"no list", func(b []byte) []byte { b[23] = 0; return b }, connData{}, "no entry"},
	} {
		b, _ := hex.DecodeString(wire)
		got, err := parseConnData(c.edit(b))
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// The number of mapped areas in 8 bits, rs_value_to_scale and back.
func TestScale(t *testing.T) {
	for _, c := range []struct{ n, back int }{{0, 0}, {1, 1}, {127, 127}, {128, 128}, {129, 128}, {255, 128}, {256, 256}, {300, 256}, {1000, 768}, {maxMaps, maxMaps}} {
		if got := fromScale(toScale(c.n)); got != c.back {
			t.Errorf("%d becomes %d, want %d", c.n, got, c.back)
		}
	}
}
