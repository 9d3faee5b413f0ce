//go:build linux && !race

package dropin

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The programs of rsockets: rstream and riostream check each byte (-T v).
func TestRsocket(t *testing.T) {
	for i, args := range []string{
		"rstream -S 1000 -C 50 -T v", "rstream -S 100000 -C 50 -T b -T v", "rstream -S 100000 -C 50 -T a -T v", "rstream -S 1000 -C 50 -T n -T v",
		"riostream -S 1000 -C 50 -T v", "riostream -S 100000 -C 50 -T b -T v", "riostream -S 1000 -C 50 -T n -T v",
	} {
		t.Run(args, func(t *testing.T) {
			if i > 0 {
				needAll(t)
			}
			words := append(strings.Fields(args), "-p", freePort(t))
			out, _ := converse(t, server.addr, append(words[:len(words):len(words)], "-b", server.addr), append(words[:len(words):len(words)], "-s", server.addr))
			contains(t, out, `(?m)^custom +\S+ +50 `)
		})
	}
}

// rcopy: a file arrives as it was.
func TestRcopy(t *testing.T) {
	needAll(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := make([]byte, 3<<20+7)
	rand.NewChaCha8([32]byte{1}).Read(data)
	if err := os.WriteFile(from, data, 0o644); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	converse(t, server.addr, []string{"rcopy", "-p", port}, []string{"rcopy", from, server.addr + ":" + to, "-p", port})
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, %d bytes of %d, or others", err, len(got), len(data))
	}
}
