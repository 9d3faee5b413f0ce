//go:build linux

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// newerSuite is the Debian whose rdma-core has ATOMIC_WRITE and FLUSH.
const newerSuite = "trixie"

// newerPackages are what the guest's side of the cases needs of it.
var newerPackages = []string{"base-files", "ibverbs-providers", "python3-pyverbs", "perftest"}

// wholeRoot is the last file that FetchNewerRoot writes.
const wholeRoot = "etc/goroce-packages"

// FetchNewerRoot returns the folder with the programs of a Debian newer than this machine's may be, for a guest to chroot to: from the
// cache or, the first time, from the Debian mirror (35 MB, 130 MB unpacked). The packages are unpacked, not installed: no script of
// theirs runs.
func FetchNewerRoot(ctx context.Context) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "roots", newerSuite)
	want := fmt.Sprintln(newerPackages)
	have := func() bool {
		b, err := os.ReadFile(filepath.Join(dir, wholeRoot))
		return err == nil && string(b) == want
	}
	if err := fetchOnce(dir, have, func(tmp string) (string, error) {
		a, err := newApt(ctx, newerSuite, tmp)
		if err != nil {
			return "", err
		}
		if _, err := a.run("apt-get", append([]string{"-q", "-y", "--no-install-recommends", "--download-only", "install"}, newerPackages...)...); err != nil {
			return "", err
		}
		return a.unpack(func(_ context.Context, root string) error {
			return os.WriteFile(filepath.Join(root, wholeRoot), []byte(want), 0o644)
		})
	}); err != nil {
		return "", fmt.Errorf("fetch rdma-core of Debian %s: %w", newerSuite, err)
	}
	return dir, nil
}
