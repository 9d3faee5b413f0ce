//go:build linux

// Package lab makes a laboratory out of one Linux machine: kernels fetched from Debian, a guest in QEMU under software emulation with an
// rxe device, a network namespace with a tap device between the guest and this machine, captures of what crosses it and faults put into it.
package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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

// CacheDir is where kernels are kept: GOROCE_CACHE, else ~/.cache/goroce.
func CacheDir() (string, error) {
	if d := os.Getenv("GOROCE_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home folder and GOROCE_CACHE is not set: %w", err)
	}
	return filepath.Join(home, ".cache/goroce"), nil
}

// FetchKernel returns the kernel of a Debian suite, from the cache or, the first time, from this machine's Debian mirror through apt.
// apt checks the signatures with the archive keyring of this machine. Nothing is installed and apt's own state is left alone.
func FetchKernel(ctx context.Context, suite string) (*Kernel, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "kernels", suite)
	if k, err := cachedKernel(suite, dir); err == nil {
		return k, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	// Everything happens beside the final place: a fetch that is interrupted leaves no half kernel behind.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), suite+"-fetch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := download(ctx, suite, tmp); err != nil {
		return nil, fmt.Errorf("fetch the kernel of Debian %s: %w", suite, err)
	}
	root := filepath.Join(tmp, "root")
	if err := unpack(ctx, filepath.Join(tmp, "deb"), root); err != nil {
		return nil, fmt.Errorf("unpack the kernel of Debian %s: %w", suite, err)
	}
	if k, err := cachedKernel(suite, dir); err == nil {
		return k, nil // another run was quicker and may have a guest on it
	}
	os.RemoveAll(dir)
	if err := os.Rename(root, dir); err != nil {
		return nil, err
	}
	return cachedKernel(suite, dir)
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

const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// download puts the kernel's packages into tmp/deb.
func download(ctx context.Context, suite, tmp string) error {
	for _, d := range []string{"lists/partial", "deb"} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o755); err != nil {
			return err
		}
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debianKeyring, mirror("/etc/apt"), suite)
	list := filepath.Join(tmp, "sources.list")
	if err := os.WriteFile(list, []byte(source), 0o644); err != nil {
		return err
	}
	opts := []string{"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::State::lists=" + filepath.Join(tmp, "lists"),
		"-o", "Dir::Cache::archives=" + filepath.Join(tmp, "deb"), "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "APT::Sandbox::User=root",
		"-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none"}
	apt := func(dir string, prog string, args ...string) (string, error) {
		return command(ctx, dir, prog, append(append([]string{}, opts...), args...)...)
	}
	if _, err := apt(tmp, "apt-get", "-q", "update"); err != nil {
		return err
	}
	// linux-image-amd64 depends on the versioned packages; newer suites split the kernel into image, binary, modules and base.
	out, err := apt(tmp, "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return err
	}
	image := kernelDepends(out, "image")
	if len(image) == 0 {
		return errors.New("linux-image-amd64 depends on no kernel")
	}
	out, err = apt(tmp, "apt-cache", "depends", image[0])
	if err != nil {
		return err
	}
	pkgs := append(image[:1], kernelDepends(out, "binary", "modules", "base")...)
	_, err = apt(filepath.Join(tmp, "deb"), "apt-get", append([]string{"-q", "download"}, pkgs...)...)
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

// mirror is the first Debian mirror that this machine's apt uses, in either format of its sources.
func mirror(etc string) string {
	files, _ := filepath.Glob(filepath.Join(etc, "sources.list.d/*"))
	for _, f := range append([]string{filepath.Join(etc, "sources.list")}, files...) {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "URIs:" && fields[0] != "deb" {
				continue
			}
			for _, w := range fields[1:] {
				w = strings.TrimSuffix(w, "/")
				if strings.HasPrefix(w, "http") && strings.HasSuffix(w, "/debian") {
					return w
				}
			}
		}
	}
	return "http://deb.debian.org/debian"
}

// unpack extracts the packages and indexes the modules. Merged-/usr suites keep modules below /usr/lib: they are moved to /lib.
func unpack(ctx context.Context, debs, root string) error {
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no packages in %s (%v)", debs, err)
	}
	for _, f := range files {
		if _, err := command(ctx, debs, "dpkg", "-x", f, root); err != nil {
			return err
		}
	}
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

// command runs a program to its end and returns its standard output; the error carries what it said.
func command(ctx context.Context, dir, prog string, args ...string) (string, error) {
	path, err := lookPath(prog)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", prog, strings.Join(args, " "), err, lastLines(stderr.String()+string(out), 5))
	}
	return string(out), nil
}

// lookPath finds a program also in the folders that only root's PATH has.
func lookPath(prog string) (string, error) {
	if p, err := exec.LookPath(prog); err == nil {
		return p, nil
	}
	for _, d := range []string{"/usr/sbin", "/sbin"} {
		p := filepath.Join(d, prog)
		if st, err := os.Stat(p); err == nil && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not installed (test/interop/setup.sh installs what is needed)", prog)
}

func lastLines(s string, n int) string {
	var lines []string
	sc := bufio.NewScanner(strings.NewReader(s))
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
