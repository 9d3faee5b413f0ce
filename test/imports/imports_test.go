// Package imports holds the tests that keep docs/architecture.md true: imports
// point down only, and the protocol has no clock and no goroutine.
package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// list runs `go list -deps -json` over the module for one operating system.
func list(t *testing.T, goos string) []pkg {
	t.Helper()
	readTree(t)
	cmd := exec.Command("go", "list", "-e", "-tags=dropin", "-deps", "-json=ImportPath,Imports,Deps,TestImports,XTestImports,Error", "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOFLAGS=-buildvcs=false")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list for %s: %v\n%s", goos, err, &stderr)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// readTree reads every folder of the module. `go test` repeats a cached result
// until a file or folder changes that the test itself has read; what go list
// reads does not count.
func readTree(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); name == ".git" || name == "build" || name == "testdata" {
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("not the root of the module: %v", err)
	}
	return dir
}

// docs/architecture.md, "Imports": imports point down only, on every system.
func TestImportsPointDown(t *testing.T) {
	for _, goos := range []string{"linux", "darwin", "windows"} {
		t.Run(goos, func(t *testing.T) {
			pkgs := list(t, goos)
			seen := 0
			for _, p := range pkgs {
				if _, ours := local(p.ImportPath); ours {
					seen++
					// Elsewhere a package may consist of files for Linux only.
					if p.Error != nil && goos == "linux" {
						t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
					}
				}
			}
			if seen < 3 {
				t.Fatalf("go list shows %d packages of %s: the test looks at the wrong tree", seen, module)
			}
			for _, line := range check(pkgs) {
				t.Error(line)
			}
		})
	}
}

// docs/architecture.md, "Sans-IO": ib, mem and transport have no clock and no
// goroutine, whatever the build tags.
func TestPureLayersHaveNoClock(t *testing.T) {
	files := 0
	for _, dir := range []string{"ib", "mem", "transport"} {
		err := filepath.WalkDir(filepath.Join(root(t), dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			files++
			bad, err := checkSource(path, nil)
			for _, line := range bad {
				t.Error(line)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 3 {
		t.Fatalf("%d source files found: the test looks at the wrong tree", files)
	}
}

// The checker itself: each rule is broken once and must be reported.
func TestCheckerFinds(t *testing.T) {
	at := func(path string, imports ...string) pkg {
		return pkg{ImportPath: module + "/" + path, Imports: imports}
	}
	for _, c := range []struct {
		rule string
		pkg  pkg
		want string // part of the only line, or "" when nothing is wrong
	}{
		{"ib imports nothing of the module", at("ib", module+"/mem"), "mem is not below ib"},
		{"mem imports nothing of the module", at("mem", module+"/ib"), "ib is not below mem"},
		{"transport does not know roce", at("transport", module+"/roce"), "roce is not below transport"},
		{"transport does not know netio", at("transport/cc", module+"/roce/netio"), "roce/netio is not below transport"},
		{"netio does not know transport", at("roce/netio", module+"/transport"), "transport is not below roce/netio"},
		{"roce does not know what is built on it", at("roce", module+"/roce/rdmacm"), "roce/rdmacm is not below roce"},
		{"no library imports cmd", at("roce/rnet", module+"/cmd/roce"), "cmd is not below roce/rnet"},
		{"no library imports test", at("roce", module+"/test/interop"), "test is not below roce"},
		{"layers stay out of roce", at("roce", module+"/ib/layers"), "ib/layers is not below roce"},
		{"an indirect way up is one too", pkg{ImportPath: module + "/ib", Deps: []string{module + "/roce"}}, "depends on"},
		{"the top level is fixed", at("util"), "no layer"},

		{"no net in ib", at("ib", "net"), "ib is pure"},
		{"no net/... in transport", at("transport/cm", "net/url"), "transport is pure"},
		{"no log/slog in mem", at("mem", "log/slog"), "mem is pure"},
		{"no os in ib/mad", at("ib/mad", "os"), "ib is pure"},
		{"no os/... in transport", at("transport", "os/signal"), "transport is pure"},
		{"no sync in transport", at("transport", "sync"), "transport is pure"},
		{"no sync/atomic in ib", at("ib", "sync/atomic"), "ib is pure"},
		{"no syscall in mem", at("mem", "syscall"), "mem is pure"},
		{"no context (a clock) in transport", at("transport", "context"), "transport is pure"},
		{"no x/sys in mem", at("mem", "golang.org/x/sys/unix"), "only roce"},
		{"no foreign package in transport by any way", pkg{ImportPath: module + "/transport", Deps: []string{"golang.org/x/exp/rand"}}, "standard library alone"},

		{"no gopacket in roce", at("roce", "github.com/gopacket/gopacket"), "only ib/layers"},
		{"no gopacket in roce by any way", pkg{ImportPath: module + "/roce", Deps: []string{"github.com/gopacket/gopacket/layers"}}, "only ib/layers"},
		{"no gopacket in ib", at("ib", "github.com/gopacket/gopacket"), "only ib/layers"},
		{"no gopacket in tests of roce", pkg{ImportPath: module + "/roce", XTestImports: []string{"github.com/gopacket/gopacket/pcapgo"}}, "only ib/layers"},
		{"no netlink in rdmacm", at("roce/rdmacm", "github.com/vishvananda/netlink"), "only roce"},
		{"no x/net in rnet", at("roce/rnet", "golang.org/x/net/ipv4"), "only roce"},
		{"no cobra in roce", at("roce", "github.com/spf13/cobra"), "only cmd"},
		{"no test tool outside tests", at("roce", "github.com/google/go-cmp/cmp"), "only cmd"},
		{"no cgo in roce", at("roce", "C"), "cgo"},
		{"no cgo in the main command", at("cmd/roce", "C"), "cgo"},

		{"net/netip is fine in ib", at("ib", "net/netip", "encoding/binary", "time"), ""},
		{"sync/atomic is fine in mem", at("mem", "sync/atomic", "crypto/rand"), ""},
		{"transport on ib, mad and mem", at("transport/cm", module+"/ib", module+"/ib/mad", module+"/mem", module+"/transport"), ""},
		{"layers on ib and gopacket", at("ib/layers", module+"/ib/mad", "github.com/gopacket/gopacket"), ""},
		{"netio on ib and x/net", at("roce/netio", module+"/ib", "golang.org/x/net/bpf", "net"), ""},
		{"roce on all below", at("roce", module+"/transport/cc", module+"/roce/netio", module+"/mem", "sync", "github.com/vishvananda/netlink"), ""},
		{"rnet on rdmacm", at("roce/rnet", module+"/roce/rdmacm", "net", "context"), ""},
		{"cmd on anything", at("cmd/roce", module+"/ib/layers", module+"/roce", "github.com/spf13/cobra"), ""},
		{"cgo in the drop-in", at("cmd/dropin", "C"), ""},
		{"test tools in tests of ib", pkg{ImportPath: module + "/ib", TestImports: []string{"pgregory.net/rapid", "os", "github.com/google/go-cmp/cmp"}}, ""},
		{"others' packages are not judged", pkg{ImportPath: "golang.org/x/sys/unix", Imports: []string{"syscall"}}, ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got := check([]pkg{c.pkg})
			switch {
			case c.want == "" && len(got) != 0:
				t.Errorf("reported without cause: %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want one line with %q", got, c.want)
			}
		})
	}
}

// The source checker itself.
func TestSourceCheckerFinds(t *testing.T) {
	for _, c := range []struct{ rule, src, want string }{
		{"clock", `import "time"; var t = time.Now()`, "time.Now"},
		{"clock as a value", `import "time"; var now = time.Now`, "time.Now"},
		{"renamed import", `import clock "time"; func f() { clock.Sleep(1) }`, "time.Sleep"},
		{"dot import", `import . "time"`, "dot import"},
		{"timer", `import "time"; func f() { <-time.After(1) }`, "time.After"},
		{"goroutine", `func f() { go f() }`, "go statement"},
		{"goroutine in a literal", `var f = func() { go func() {}() }`, "go statement"},
		{"linkname", "//go:linkname nanotime runtime.nanotime\nfunc nanotime() int64", "go:linkname"},
		{"durations are fine", `import "time"; const d = 3 * time.Second; func f(now time.Duration) time.Duration { return now.Round(d) }`, ""},
		{"a method of that name is fine", `type c struct{}; func (c) Now() int { return 0 }; var x = c{}.Now()`, ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, err := checkSource("x.go", "package x\n"+c.src+"\n")
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.want == "" && len(got) != 0:
				t.Errorf("reported without cause: %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want one line with %q", got, c.want)
			}
		})
	}
}
