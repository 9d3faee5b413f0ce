//go:build linux && !race

package dropin

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// suite is where Debian's package rdma-core has the tests of rdma-core.
const suite = "/usr/share/doc/rdma-core/tests"

// notOurs are tests of other devices, and of what processes share through a kernel.
var notOurs = regexp.MustCompile(`^test_(mlx5|efa|cuda|shared_pd)`)

// copySuite puts the tests into a folder, unpacked.
func copySuite(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(suite + "/*")
	if err != nil || len(files) == 0 {
		t.Skipf("no tests in %s: test/dropin/setup.sh installs the packages", suite)
	}
	for _, path := range files {
		name := filepath.Base(path)
		if notOurs.MatchString(name) {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var r io.Reader = f
		if plain, packed := strings.CutSuffix(name, ".gz"); packed {
			name = plain
			if r, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(r)
		f.Close()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A test prints its name and, behind a docstring or words of its own, what came of it.
var (
	begins  = regexp.MustCompile(`^(test_\w+) \(tests\.(\w+)\.(\w+)(?:\.\w+)?\)`)
	verdict = regexp.MustCompile(`(?:^| \.\.\. (?:.*?))(ok|FAIL|ERROR|skipped '(.*)'|skipped "(.*)")$`)
)

// outcomes reads what the tests print with -v: of each test ok, FAIL, ERROR, or why it
// was skipped.
func outcomes(out string) map[string]string {
	all := map[string]string{}
	name := ""
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		if m := begins.FindStringSubmatch(s.Text()); m != nil {
			name = m[2] + "." + m[3] + "." + m[1]
		}
		if m := verdict.FindStringSubmatch(s.Text()); m != nil && name != "" {
			all[name] = m[1]
			if why := m[2] + m[3]; why != "" {
				all[name] = "skipped: " + why
			}
			name = ""
		}
	}
	return all
}

// TestRdmaCore: rdma-core's own tests of verbs (pyverbs), both ends on one device. None
// fails, and those that are skipped are the ones of testdata/rdmacore-skips.txt, for the
// reasons given there.
func TestRdmaCore(t *testing.T) {
	const python = "/usr/bin/python3" // that of the package python3-pyverbs
	if exec.Command(python, "-c", "import pyverbs").Run() != nil {
		t.Skip("no pyverbs: test/dropin/setup.sh installs the packages")
	}
	dir := filepath.Join(t.TempDir(), "tests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	copySuite(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := server.command(ctx, t, python, filepath.Join(dir, "run_tests.py"), "--dev", "roce0", "-v")
	text, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	got := outcomes(string(text))
	want := expectedSkips(t)
	ok := 0
	for _, name := range slices.Sorted(maps.Keys(got)) {
		switch v := got[name]; {
		case v == "ok":
			ok++
			if want[name] != "" && !ofMachine.MatchString(want[name]) {
				t.Errorf("%s runs, and is listed as skipped", name)
			}
		case v != "skipped: "+want[name]:
			t.Errorf("%s: %s, want ok or %q", name, v, want[name])
		}
	}
	for name := range want {
		if _, ran := got[name]; !ran {
			t.Errorf("%s is listed as skipped, and not there", name)
		}
	}
	t.Logf("%d ok, %d skipped of %d", ok, len(got)-ok, len(got))
	contains(t, string(text), fmt.Sprintf(`(?m)^Ran %d tests`, len(got)))
	if ok < 86 { // as many as on rxe of Linux 6.12
		t.Errorf("%d tests are ok", ok)
	}
}

// ofMachine are reasons that other machines may not have.
var ofMachine = regexp.MustCompile(`huge pages|/dev/dri`)

// expectedSkips reads the list: a test and, after a tab, the reason it prints.
func expectedSkips(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/rdmacore-skips.txt")
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, why, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			t.Fatalf("no tab in %q", line)
		}
		list[name] = why
	}
	return list
}
