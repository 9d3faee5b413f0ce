//go:build linux

// Package lab makes a laboratory out of one Linux machine: kernels fetched from Debian, a guest in QEMU under software emulation with an
// rxe device, a network namespace with a tap device between the guest and this machine, captures of what crosses it and faults put into it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Kernel is an unpacked kernel with its modules.
type Kernel struct {
	Suite   string // Debian suite: bookworm, trixie, sid
	Release string // as uname -r prints, e.g. 6.1.0-37-amd64
	Dir     string // Dir/boot or Dir/lib/modules/RELEASE has the image, Dir/lib/modules/RELEASE the modules
}

// Modules is the folder of the kernel's modules.
func (k *Kernel) Modules() string { return filepath.Join(k.Dir, "lib/modules", k.Release) }

// Image is the path of the kernel image.
func (k *Kernel) Image() (string, error) {
	for _, p := range []string{filepath.Join(k.Dir, "boot/vmlinuz-"+k.Release), filepath.Join(k.Modules(), "vmlinuz")} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no kernel image for %s below %s", k.Release, k.Dir)
}

// FetchKernel returns the kernel of a Debian suite, from the cache or, the first time, from this machine's Debian mirror through apt.
func FetchKernel(ctx context.Context, suite string) (k *Kernel, err error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "kernels", suite)
	have := func() bool {
		k, err = cachedKernel(suite, dir)
		return err == nil
	}
	if err := fetchOnce(dir, have, func(tmp string) (string, error) {
		a, err := newApt(ctx, suite, tmp)
		if err != nil {
			return "", err
		}
		if err := a.downloadKernel(); err != nil {
			return "", err
		}
		return a.unpack(indexModules)
	}); err != nil {
		return nil, fmt.Errorf("fetch the kernel of Debian %s: %w", suite, err)
	}
	return k, err
}

// cachedKernel looks for a whole kernel: modules.dep is the last file that unpack writes.
func cachedKernel(suite, dir string) (*Kernel, error) {
	deps, err := filepath.Glob(filepath.Join(dir, "lib/modules/*/modules.dep"))
	if err != nil || len(deps) != 1 {
		return nil, fmt.Errorf("%d kernels in %s", len(deps), dir)
	}
	k := &Kernel{Suite: suite, Dir: dir, Release: filepath.Base(filepath.Dir(deps[0]))}
	_, err = k.Image()
	return k, err
}

// downloadKernel puts the kernel's packages into the folder for them.
func (a *apt) downloadKernel() error {
	// linux-image-amd64 depends on the versioned packages; newer suites split the kernel into image, binary, modules and base.
	out, err := a.run("apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return err
	}
	image := kernelDepends(out, "image")
	if len(image) == 0 {
		return errors.New("linux-image-amd64 depends on no kernel")
	}
	out, err = a.run("apt-cache", "depends", image[0])
	if err != nil {
		return err
	}
	pkgs := append(image[:1], kernelDepends(out, "binary", "modules", "base")...)
	_, err = a.run("apt-get", append([]string{"-q", "download"}, pkgs...)...)
	return err
}

// kernelDepends picks the packages linux-KIND-VERSION, VERSION beginning with a digit, from the output of apt-cache depends.
func kernelDepends(out string, kinds ...string) []string {
	var pkgs []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 2 || f[0] != "Depends:" {
			continue
		}
		for _, kind := range kinds {
			rest, ok := strings.CutPrefix(f[1], "linux-"+kind+"-")
			if ok && rest[0] >= '0' && rest[0] <= '9' {
				pkgs = append(pkgs, f[1])
			}
		}
	}
	return pkgs
}

// indexModules indexes the modules of an unpacked kernel. Merged-/usr suites keep modules below /usr/lib: they are moved to /lib.
func indexModules(ctx context.Context, root string) error {
	usr := filepath.Join(root, "usr/lib/modules")
	lib := filepath.Join(root, "lib/modules")
	if _, err := os.Stat(usr); err == nil {
		if err := os.MkdirAll(lib, 0o755); err != nil {
			return err
		}
		if err := mergeInto(lib, usr); err != nil {
			return err
		}
	}
	release, err := os.ReadDir(lib)
	if err != nil {
		return err
	}
	if len(release) != 1 {
		return fmt.Errorf("%d kernel releases in %s", len(release), lib)
	}
	_, err = command(ctx, root, "depmod", "-b", root, release[0].Name())
	return err
}

// mergeInto moves every file below src to the same place below dst.
func mergeInto(dst, src string) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dst, rel), 0o755)
		}
		return os.Rename(path, filepath.Join(dst, rel))
	})
}
