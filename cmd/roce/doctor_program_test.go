//go:build linux

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeDropin puts files with the names of the libraries into a folder that roce exec
// looks into.
func fakeDropin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1", "libgoroce.so"} {
		if err := os.WriteFile(filepath.Join(dir, lib), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("ROCE_DROPIN", dir)
	return dir
}

// programFile is an ELF file with a loader, or with none.
func programFile(t *testing.T, loader string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, program(loader), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each reason for which a program finds no device is a line of its own, and status 1.
// With libraries that work test/dropin asks.
func TestDoctorProgram(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		name, program, addr, dropin string
		want                        []string // the beginnings of lines
	}{
		{name: "no libraries", program: "sh", dropin: empty, want: []string{"failure  dropin   the drop-in libraries are in none of " + empty, "ok       device   roce0 would be at 127.0.0.1"}},
		{name: "no such program", program: "no-such-program", want: []string{"failure  program  exec: \"no-such-program\": executable file not found"}},
		{name: "linked statically", program: programFile(t, ""), want: []string{"failure  program  ", "linked statically"}},
		{name: "musl", program: programFile(t, "/lib/ld-musl-x86_64.so.1"), want: []string{"failure  program  ", "linked with musl"}},
		{name: "damaged libraries", program: "sh", want: []string{"failure  loader   ERROR: ld.so: object '"}},
		{name: "no loader", program: programFile(t, "/nowhere/ld.so"), want: []string{"failure  loader   /nowhere/ld.so --list "}},
		{name: "neither address nor prefix", program: "sh", addr: "here", want: []string{"failure  device   ROCE_ADDR or --addr: \"here\" is neither an IP address nor a prefix"}},
		{name: "no address in the prefix", program: "sh", addr: "198.51.100.0/24", want: []string{"failure  device   UDP port "}},
		{name: "not of this machine", program: "sh", addr: "198.51.100.1", want: []string{"failure  address  198.51.100.1 is not an address of this machine", "failure  port     198.51.100.1 port "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fakeDropin(t)
			if c.dropin != "" {
				t.Setenv("ROCE_DROPIN", c.dropin)
			}
			if c.addr == "" {
				c.addr = "127.0.0.1"
			}
			t.Setenv("ROCE_ADDR", c.addr)
			got := newWorld(t).run("doctor", "--", c.program)
			got.want(t, "doctor", exitFailure) // the libraries are empty files
			for _, want := range c.want {
				if !strings.Contains("\n"+got.out, want) {
					t.Errorf("no %q in\n%s", want, got.out)
				}
			}
			if !strings.Contains(got.out, "  means: ") || !strings.Contains(got.out, "  do: ") {
				t.Errorf("a failure without what it means and what to do:\n%s", got.out)
			}
		})
	}
}

// Of a script nothing is known, and nothing is wrong.
func TestDoctorProgramScript(t *testing.T) {
	fakeDropin(t)
	got := newWorld(t).run("doctor", "--addr", "127.0.0.1", "--", "ldd")
	got.want(t, "doctor", exitOK)
	if !strings.Contains(got.out, "ldd is not of ELF, a script perhaps") {
		t.Error(got.out)
	}
}

// A port that somebody has is found for one address; of a prefix the next one is taken.
func TestDoctorProgramPort(t *testing.T) {
	fakeDropin(t)
	t.Setenv("ROCE_ADDR", "") // --addr comes first, and is all there is
	w := newWorld(t)
	defer w.serving("--addr", "127.0.0.1")()
	if got := w.run("doctor", "--addr", "127.0.0.1", "--", "sh"); !strings.Contains(got.out, "failure  port     127.0.0.1 port ") {
		t.Errorf("a port in use:\n%s", got.out)
	}
	if got := w.run("doctor", "--addr", "127.0.0.0/24", "--", "sh"); !strings.Contains(got.out, "ok       device   roce0 would be at 127.0.0.2") {
		t.Errorf("the next address:\n%s", got.out)
	}
}

// The command line: a host may stand before the program, which may have arguments.
func TestDoctorProgramUsage(t *testing.T) {
	fakeDropin(t)
	w := newWorld(t)
	for _, args := range [][]string{{"doctor", "--"}, {"doctor", "a", "b", "--", "sh"}, {"doctor", "--addr", "10.0.0.0/8"}} {
		w.run(args...).want(t, strings.Join(args, " "), exitUsage)
	}
	got := w.run("doctor", "--json", "--addr", "127.0.0.1", "nowhere.invalid", "--", "no-such-program", "--flag")
	got.want(t, "doctor with a host", exitFailure)
	for _, check := range []string{`"check": "program"`, `"check": "name"`} {
		if !strings.Contains(got.out, check) {
			t.Errorf("no %s in\n%s", check, got.out)
		}
	}
}

// The addresses are tried in the order of the libraries.
func TestCandidates(t *testing.T) {
	local := []netip.Addr{addr("127.0.0.1"), addr("fe80::1%eth0"), addr("fd00::1"), addr("10.0.0.1"), addr("::1"), addr("10.0.1.1")}
	all := candidates(local, netip.Prefix{})
	want := []netip.Addr{addr("10.0.0.1"), addr("10.0.1.1"), addr("fd00::1"), addr("127.0.0.1"), addr("127.0.0.2")}
	if len(all) != 3+254+1 || !slices.Equal(all[:5], want) || all[256] != addr("127.0.0.254") || all[257] != addr("::1") {
		t.Errorf("all: %v", all)
	}
	for prefix, want := range map[string][]netip.Addr{
		"10.0.1.0/24":    {addr("10.0.1.1")},
		"fd00::/8":       {addr("fd00::1")},
		"127.0.9.128/30": {addr("127.0.9.129"), addr("127.0.9.130"), addr("127.0.9.131")},
		"192.0.2.0/24":   nil,
	} {
		if got := candidates(local, netip.MustParsePrefix(prefix)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", prefix, got, want)
		}
	}
}

// What gets more rights than who runs it loads no library of LD_LIBRARY_PATH.
func TestGainsRights(t *testing.T) {
	path := programFile(t, "/lib64/ld-linux-x86-64.so.2")
	if got := gainsRights(path, 0o755); got != "" {
		t.Errorf("an ordinary program %s", got)
	}
	for _, mode := range []os.FileMode{os.ModeSetuid | 0o755, os.ModeSetgid | 0o755} {
		if got := gainsRights(path, mode); !strings.Contains(got, "set-user-ID") {
			t.Errorf("%v: %q", mode, got)
		}
	}
	// CAP_NET_RAW, as setcap writes it (Linux include/uapi/linux/capability.h, struct vfs_cap_data).
	caps := []byte{0: 1, 3: 2, 5: 1 << 5, 19: 0} // effective, version 2, permitted
	if err := unix.Setxattr(path, "security.capability", caps, 0); err != nil {
		t.Skipf("setcap: %v", err)
	}
	if got := gainsRights(path, 0o755); !strings.Contains(got, "setcap") {
		t.Errorf("with capabilities: %q", got)
	}
}
