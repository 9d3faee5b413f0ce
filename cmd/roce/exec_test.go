//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The libraries are found in $ROCE_DROPIN, or, without it, in the user's data folder;
// the error names the places.
func TestFindDropin(t *testing.T) {
	t.Setenv("ROCE_DROPIN", "")
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	dir := filepath.Join(data, "goroce")
	if _, err := findDropin(); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "make dropin") {
		t.Errorf("without libraries: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1", "libgoroce.so"} {
		if _, err := findDropin(); err == nil {
			t.Errorf("found without %s", lib)
		}
		if err := os.WriteFile(filepath.Join(dir, lib), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := findDropin(); got != dir || err != nil {
		t.Errorf("found %q, %v, want %q", got, err, dir)
	}
	t.Setenv("ROCE_DROPIN", t.TempDir())
	if got, err := findDropin(); err == nil {
		t.Errorf("an empty ROCE_DROPIN is passed over: %q", got)
	}
}

// The environment of the program: the libraries come before what LD_LIBRARY_PATH had,
// --addr before ROCE_ADDR, and the rest stays.
func TestDropinEnv(t *testing.T) {
	before := []string{"A=1", "LD_LIBRARY_PATH=/x", "LD_PRELOAD=/y.so", "ROCE_ADDR=127.0.0.9", "ROCE_NAME=old"}
	got := dropinEnv(before, "/lib", "127.0.0.2", "roce1")
	want := []string{"A=1", "LD_LIBRARY_PATH=/lib:/x", "LD_PRELOAD=/lib/libibverbs.so.1:/y.so", "ROCE_NAME=roce1", "ROCE_ADDR=127.0.0.2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := dropinEnv(before, "/lib", "", "roce0"); !slices.Contains(got, "ROCE_ADDR=127.0.0.9") {
		t.Errorf("without --addr: %q", got)
	}
	if got := dropinEnv([]string{"LD_LIBRARY_PATH="}, "/lib", "", "roce0"); !slices.Contains(got, "LD_LIBRARY_PATH=/lib") {
		t.Errorf("an empty path is added to: %q", got)
	}
}

// What would not load the libraries is refused, scripts are not looked into.
func TestCheckProgram(t *testing.T) {
	if err := checkProgram("/bin/sh"); err != nil {
		t.Errorf("a program of the system: %v", err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(script); err != nil {
		t.Errorf("a script: %v", err)
	}
	for loader, want := range map[string]string{"": "statically", "/lib/ld-musl-x86_64.so.1": "musl", "/lib64/ld-linux-x86-64.so.2": ""} {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, program(loader), 0o755); err != nil {
			t.Fatal(err)
		}
		err := checkProgram(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("loader %q: %v, want %q", loader, err, want)
		}
	}
}

// program returns an ELF file with a loader, or with none.
func program(loader string) []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	b[16], b[18], b[20] = 2, 62, 1   // executable, x86-64, version
	b[32], b[52], b[54] = 64, 64, 56 // program headers after the header, sizes
	b[58] = 64
	if loader == "" {
		return b
	}
	b[56] = 1 // one program header
	p := b[64:]
	p[0] = 3 // PT_INTERP
	p[8], p[32] = 120, byte(len(loader)+1)
	return append(append(b, loader...), 0)
}

// Mistakes in the command line are told before anything is run.
func TestExecUsage(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"exec"}, "no program given"},
		{[]string{"exec", "--addr", "nowhere", "--", "true"}, "neither an IP address nor a prefix"},
		{[]string{"exec", "--addr", "fe80::1%lo", "--", "true"}, "neither an IP address nor a prefix"},
	} {
		got := w.run(c.args...)
		if got.status != exitUsage || !strings.Contains(got.err, c.want) {
			t.Errorf("%q: status %d, %q, want %d, %q", c.args, got.status, got.err, exitUsage, c.want)
		}
	}
	t.Setenv("ROCE_DROPIN", t.TempDir())
	if got := w.run("exec", "--", "true"); got.status != exitFailure || !strings.Contains(got.err, "make dropin") {
		t.Errorf("without libraries: status %d, %q", got.status, got.err)
	}
}
