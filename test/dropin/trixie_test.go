//go:build linux && !race

package dropin

import (
	"path/filepath"
	"strings"
	"testing"
)

// perftest 25.01, and what it loads of rdma-core 56, of the root of Debian 13 that the
// tests of test/interop unpack, on the libraries that are built here.
func TestTrixie(t *testing.T) {
	needAll(t)
	root := trixie(t)
	loader := filepath.Join(root, "lib64", "ld-linux-x86-64.so.2")
	path := libraries(t) + ":" + filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	for _, args := range []string{
		"ib_write_bw -n 1000", "ib_send_bw -n 1000", "ib_read_bw -n 1000", "ib_atomic_bw -n 1000", "ib_write_lat -n 1000", "ib_send_lat -c UD -n 1000",
		"ib_read_lat -n 1000", "ib_send_bw -e -q 4 -n 1000", "ib_write_bw -a -n 10", "ib_send_bw --use-srq -n 1000", "ib_send_bw -c XRC -n 1000",
	} {
		t.Run(args, func(t *testing.T) {
			words := strings.Fields(args)
			words[0] = filepath.Join(root, "usr/bin", words[0])
			contains(t, perftest(t, append([]string{loader, "--library-path", path}, words...)), `#bytes[^\n]*\n\s*\d+ +\d+ `)
		})
	}
}
