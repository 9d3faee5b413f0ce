//go:build linux

package lab

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CacheDir is where kernels and roots are kept: GOROCE_CACHE, else ~/.cache/goroce.
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

// fetchOnce makes the folder dir unless have finds it whole. Everything happens in a folder beside it, so that a fetch that is interrupted
// leaves no half: fill gets that folder and returns what in it is to become dir.
func fetchOnce(dir string, have func() bool, fill func(tmp string) (string, error)) error {
	if have() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+"-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	made, err := fill(tmp)
	if err != nil {
		return err
	}
	if have() {
		return nil // another run was quicker and may have a guest on it
	}
	os.RemoveAll(dir)
	if err := os.Rename(made, dir); err != nil {
		return err
	}
	if !have() {
		return fmt.Errorf("%s is not whole after the fetch", dir)
	}
	return nil
}

const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt fetches packages of a Debian suite into a folder. It checks the signatures with the archive keyring of this machine. Nothing is
// installed and apt's own state is left alone.
type apt struct {
	ctx  context.Context
	dir  string // of everything; packages go to dir/deb
	opts []string
}

// newApt gets the package lists of the suite.
func newApt(ctx context.Context, suite, dir string) (*apt, error) {
	for _, d := range []string{"lists/partial", "deb/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debianKeyring, mirror("/etc/apt"), suite)
	list, status := filepath.Join(dir, "sources.list"), filepath.Join(dir, "status") // nothing is installed there
	for path, text := range map[string]string{list: source, status: ""} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	a := &apt{ctx: ctx, dir: dir}
	for _, o := range []string{"Dir::Etc::sourcelist=" + list, "Dir::Etc::sourceparts=/dev/null", "Dir::State::lists=" + filepath.Join(dir, "lists"),
		"Dir::State::status=" + status, "Dir::Cache::archives=" + filepath.Join(dir, "deb"), "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=",
		"APT::Sandbox::User=root", "Acquire::Retries=3", "Acquire::Languages=none"} {
		a.opts = append(a.opts, "-o", o)
	}
	_, err := a.run("apt-get", "-q", "update")
	return a, err
}

// run runs a program of apt in the folder of the packages.
func (a *apt) run(prog string, args ...string) (string, error) {
	return command(a.ctx, filepath.Join(a.dir, "deb"), prog, append(append([]string{}, a.opts...), args...)...)
}

// unpack extracts the packages that were downloaded, lets finish do the rest, and returns their root.
func (a *apt) unpack(finish func(ctx context.Context, root string) error) (string, error) {
	root, debs := filepath.Join(a.dir, "root"), filepath.Join(a.dir, "deb")
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no packages in %s (%v)", debs, err)
	}
	for _, f := range files {
		if _, err := command(a.ctx, debs, "dpkg", "-x", f, root); err != nil {
			return "", err
		}
	}
	return root, finish(a.ctx, root)
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
