//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// newc is what the kernel unpacks; GNU cpio knows the format too, but need not be installed.
func TestInitrdArchive(t *testing.T) {
	var ar cpio
	ar.add("dir", 0o040755, nil)
	ar.add("dir/file", 0o100644, []byte("hello"))
	ar.addDevice("dev", 0o020600, 5, 1)
	b := ar.end()
	type entry struct {
		name, mode, data, major, minor string
	}
	var got []entry
	for len(b) > 0 {
		if string(b[:6]) != "070701" {
			t.Fatalf("no magic at an entry: %q", b[:min(len(b), 20)])
		}
		field := func(i int) string { return string(b[6+8*i : 14+8*i]) }
		var size, nameSize int
		fmt.Sscanf(field(6), "%x", &size)
		fmt.Sscanf(field(11), "%x", &nameSize)
		name := string(b[110 : 110+nameSize-1])
		data := (110 + nameSize + 3) &^ 3
		got = append(got, entry{name, field(1), string(b[data : data+size]), field(9), field(10)})
		b = b[(data+size+3)&^3:]
	}
	want := []entry{
		{"dir", "000041ED", "", "00000000", "00000000"},
		{"dir/file", "000081A4", "hello", "00000000", "00000000"},
		{"dev", "00002180", "", "00000005", "00000001"},
		{"TRAILER!!!", "00000000", "", "00000000", "00000000"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// modules.dep lists what a module needs, the deepest last: it must be loaded first.
func TestModulesLoadAfterWhatTheyNeed(t *testing.T) {
	deps := "kernel/a.ko.xz: kernel/b.ko.xz kernel/c.ko.xz\nkernel/b.ko.xz: kernel/c.ko.xz\nkernel/c.ko.xz:\nkernel/d-e.ko: kernel/c.ko.xz\n"
	got, err := moduleOrder(deps, "kernel/built-in.ko\n", []string{"a", "built_in", "d_e"})
	want := []string{"kernel/c.ko.xz", "kernel/b.ko.xz", "kernel/a.ko.xz", "kernel/d-e.ko"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := moduleOrder(deps, "", []string{"absent"}); err == nil {
		t.Error("a module that the kernel does not have is no error")
	}
}

func TestKernelPackagesFromAptCache(t *testing.T) {
	out := "linux-image-7.2-amd64\n  Depends: kmod\n  Depends: linux-binary-7.2-amd64\n  Depends: linux-modules-7.2-amd64\n  Depends: linux-base\n" +
		"  Depends: linux-base-7.2-amd64\n |Depends: initramfs-tools\n  Suggests: linux-doc-7.2\n"
	want := []string{"linux-binary-7.2-amd64", "linux-modules-7.2-amd64", "linux-base-7.2-amd64"}
	if got := kernelDepends(out, "binary", "modules", "base"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMirrorIsTheOneAptUses(t *testing.T) {
	for _, c := range []struct{ name, file, content, want string }{
		{"one line", "sources.list", "# deb http://no/debian\ndeb [arch=amd64] http://m.example/debian/ bookworm main\n", "http://m.example/debian"},
		{"deb822", "sources.list.d/debian.sources", "Types: deb\nURIs: http://security.example/debian-security\n\nURIs: https://n.example/debian\n", "https://n.example/debian"},
		{"another vendor only", "sources.list.d/x.list", "deb https://packages.example/apt stable main\n", "http://deb.debian.org/debian"},
	} {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755)
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := mirror(dir); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestGIDIndexByAddress(t *testing.T) {
	table := "0:fe80:0000:0000:0000:5054:00ff:fe77:0002\n1:0000:0000:0000:0000:0000:ffff:0a4d:0002\n2:fd77:0000:0000:0000:0000:0000:0000:0002\n3:0000:0000:0000:0000:0000:0000:0000:0000\n"
	for addr, want := range map[string]int{"10.77.0.2": 1, "fd77::2": 2} {
		if got, err := gidIndex(table, addr); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", addr, got, err, want)
		}
	}
	if _, err := gidIndex(table, "10.77.0.3"); err == nil {
		t.Error("an address that is not in the table was found")
	}
}

func TestLossCountersFromListing(t *testing.T) {
	listing := `table netdev t {
	chain arriving {
		type filter hook ingress device "tap0" priority filter; policy accept;
		udp dport 4791 numgen random mod 100 < 2 counter packets 7 bytes 812 drop
		udp dport 4791 counter packets 310 bytes 99000
	}
}`
	if c, err := parseCounts(listing); err != nil || c != (LossCount{7, 310}) {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := parseCounts("table netdev t {\n}"); err == nil {
		t.Error("a listing without rules gave counters")
	}
}

func TestMarkCountersFromListing(t *testing.T) {
	listing := `table netdev t {
	chain arriving {
		type filter hook ingress device "tap0" priority filter; policy accept;
		udp dport 4791 ip ecn ect0 numgen random mod 1000 < 300 counter packets 40 bytes 8120 ip ecn set ce
		udp dport 4791 ip6 ecn ect0 numgen random mod 1000 < 300 counter packets 2 bytes 812 ip6 ecn set ce
	}
}`
	if n, err := parseMarks(listing); err != nil || n != 42 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := parseMarks("table netdev t {\n}"); err == nil {
		t.Error("a listing without rules gave counters")
	}
}

// The frames of testdata/rxe.hex were captured from rxe 6.12: a SEND_ONLY over IPv4, its ACK and a SEND_ONLY over IPv6.
func rxeFrames(t *testing.T) [][]byte {
	b, err := os.ReadFile("testdata/rxe.hex")
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for line := range strings.Lines(string(b)) {
		var f []byte
		if _, err := fmt.Sscanf(line, "%x", &f); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames
}

func writeFrames(t *testing.T, frames ...[]byte) string {
	path := filepath.Join(t.TempDir(), "x.pcap")
	w, err := createPcap(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		w.write(time.Unix(1, 2), f, len(f))
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// A check that cannot fail shows nothing: every byte that the ICRC covers is damaged in turn.
func TestICRCCheckFindsEveryDamagedByte(t *testing.T) {
	frames := rxeFrames(t)
	v, err := CheckICRC(writeFrames(t, frames...))
	if err != nil || len(v.Problems) > 0 {
		t.Fatalf("clean frames: %v, %v", v.Problems, err)
	}
	total := 0
	for _, n := range v.Packets {
		total += n
	}
	if total != len(frames) || len(v.Packets) != 3 {
		t.Fatalf("%d packets of %d: %v", total, len(frames), v.Packets)
	}
	for i, f := range frames {
		bth := 14 + 20 + 8
		if f[12] == 0x86 {
			bth += 20
		}
		for at := bth; at < len(f); at++ {
			if at == bth+4 { // masked: FECN, BECN and reserved bits
				continue
			}
			bad := bytes.Clone(f)
			bad[at] ^= 0x10
			if v, err := CheckICRC(writeFrames(t, bad)); err != nil || len(v.Problems) != 1 {
				t.Errorf("frame %d, byte %d damaged: problems %v, %v", i, at, v.Problems, err)
			}
		}
	}
}

func TestICRCCheckWantsWholeDatagrams(t *testing.T) {
	f := rxeFrames(t)[0]
	for _, c := range []struct {
		name string
		at   int
		v    byte
	}{
		{"fragment", 14 + 6, 0x20},
		{"DF is not set", 14 + 6, 0},
		{"IP Identification changed", 14 + 5, f[14+5] + 1},
		{"UDP length", 14 + 20 + 5, f[14+20+5] + 1},
	} {
		bad := bytes.Clone(f)
		bad[c.at] = c.v
		if v, err := CheckICRC(writeFrames(t, bad)); err != nil || len(v.Problems) != 1 {
			t.Errorf("%s: problems %v, %v", c.name, v.Problems, err)
		}
	}
}

func TestTsharkCheck(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed")
	}
	frames := rxeFrames(t)
	path := writeFrames(t, frames...)
	if got, err := CheckTshark(t.Context(), path, len(frames)); err != nil || len(got) > 0 {
		t.Errorf("clean frames: %v, %v", got, err)
	}
	if got, err := CheckTshark(t.Context(), path, len(frames)+1); err != nil || len(got) != 1 {
		t.Errorf("a packet that tshark did not see: %v, %v", got, err)
	}
	// The ACK cut behind its BTH: the lengths in the IP and UDP headers say that nothing is missing.
	cut := bytes.Clone(frames[1][:14+20+8+12])
	cut[14+3], cut[14+20+5] = 20+8+12, 8+12
	if got, err := CheckTshark(t.Context(), writeFrames(t, cut), 1); err != nil || len(got) != 1 {
		t.Errorf("a packet without AETH: %v, %v", got, err)
	}
}

func TestProcessIsKilledWithItsChildren(t *testing.T) {
	p, err := StartProcess(nil, "sh", "-c", "sleep 1000 & echo $!; wait")
	if err != nil {
		t.Fatal(err)
	}
	var child int
	for i := 0; child == 0 && i < 500; i++ {
		fmt.Sscan(p.Stdout(), &child)
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := p.Wait(10 * time.Millisecond); err == nil {
		t.Error("a process that runs on is no error")
	}
	for i := 0; i < 500; i++ {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); len(b) == 0 || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the child %d lives on", child)
}

// A fetch that fails leaves nothing, one that succeeds is not repeated, and what is not whole is replaced.
func TestFetchOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "kept")
	whole := filepath.Join(dir, "whole")
	have := func() bool { _, err := os.Stat(whole); return err == nil }
	fills := 0
	fetch := func(name string, fail error) error {
		return fetchOnce(dir, have, func(tmp string) (string, error) {
			fills++
			made := filepath.Join(tmp, "made")
			if err := os.Mkdir(made, 0o755); err != nil {
				return "", err
			}
			return made, errors.Join(fail, os.WriteFile(filepath.Join(made, name), nil, 0o644))
		})
	}
	broken := errors.New("no network")
	if err := fetch("whole", broken); !errors.Is(err, broken) || have() {
		t.Errorf("a fetch that failed: %v, whole %t", err, have())
	}
	if err := fetch("half", nil); err == nil || have() {
		t.Errorf("half a fetch: %v, whole %t", err, have())
	}
	for range 2 {
		if err := fetch("whole", nil); err != nil || !have() || fills != 3 {
			t.Errorf("%v, whole %t, after %d fetches", err, have(), fills)
		}
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("beside it: %v, %v", left, err)
	}
}
