//go:build linux && !race

package dropin

import (
	"bufio"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// symbols returns the names with versions that a library defines.
func symbols(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range list {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS && s.Version != "" {
			names[s.Name+"@"+s.Version] = true
		}
	}
	return names
}

// Each symbol of the libraries of rdma-core 44 and 56 (Debian 12 and 13) is there,
// with its version: that of the host's packages, where they are installed, and those
// of the recorded lists.
func TestSymbols(t *testing.T) {
	dir := libraries(t)
	for _, name := range []string{"libibverbs", "librdmacm"} {
		t.Run(name, func(t *testing.T) {
			ours := symbols(t, filepath.Join(dir, name+".so.1"))
			f, err := os.Open("testdata/" + name + "-56.txt")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			n := 0
			for s := bufio.NewScanner(f); s.Scan(); n++ {
				if !ours[s.Text()] {
					t.Errorf("%s of rdma-core 56 is missing", s.Text())
				}
			}
			if n < 60 {
				t.Errorf("the list has %d symbols", n)
			}
			installed := "/usr/lib/x86_64-linux-gnu/" + name + ".so.1"
			if _, err := os.Stat(installed); errors.Is(err, fs.ErrNotExist) {
				return
			}
			for s := range symbols(t, installed) {
				if !ours[s] {
					t.Errorf("%s of the installed library is missing", s)
				}
			}
		})
	}
}
