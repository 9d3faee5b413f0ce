package main

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/pcapng"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

var lastLine = regexp.MustCompile(`\nall \d+ bytes of \d+ operations were right, both ways, in \d+\.\d s\n$`)

// The demo with small messages: two endpoints, every byte right, clean and with
// faults, a capture that reads back.
func TestDemo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	o := newWorld(t).run("demo", "--size-max", "64KiB", "--budget", "2ms", "--pcap", file)
	o.want(t, "demo", 0)
	if !lastLine.MatchString(o.out) {
		t.Errorf("the last line does not say that all was right:\n%s", o.out)
	}
	for _, want := range []string{"between 127.0.0.1 and 127.0.0.2", "SEND", "WRITE", "READ", "64 KiB", "4097 B", "every ICRC right, in " + file, "tshark -r " + file} {
		if !strings.Contains(o.out, want) {
			t.Errorf("no %q in\n%s", want, o.out)
		}
	}
	if strings.Contains(o.out, "1 MiB") {
		t.Errorf("messages longer than asked for:\n%s", o.out)
	}
	tshark(t, file)
}

// tshark, if there is one, finds known packets in the capture, of both sections, and
// none malformed.
func tshark(t *testing.T, file string) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("no tshark")
		return
	}
	port := captureUDPPort(t, file)
	run := func(filter string) int {
		out, err := exec.Command(path, "-r", file, "--disable-protocol", "rpcordma", "-d", "udp.port=="+port+",infiniband", "-Y", filter).Output()
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
		return strings.Count(string(out), "\n")
	}
	check, err := checkCapture(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := run("infiniband.bth"); n != check.Packets {
		t.Errorf("tshark knows %d of %d packets", n, check.Packets)
	}
	if n := run("_ws.malformed"); n != 0 {
		t.Errorf("tshark finds %d malformed packets", n)
	}
}

// One address: one device with two queue pairs.
func TestDemoOneAddress(t *testing.T) {
	for _, address := range []string{"127.0.0.31", "::1"} {
		o := newWorld(t).run("demo", "--addr", address, "--size-max", "4097", "--budget", "1ms", "--pcap", filepath.Join(t.TempDir(), "x"))
		o.want(t, "demo", 0)
		if !lastLine.MatchString(o.out) || !strings.Contains(o.out, "between "+address+" and "+address) {
			t.Errorf("%s", o.out)
		}
	}
}

// Where the second address does not exist, the demo says so and goes on.
func TestDemoWithoutSecondAddress(t *testing.T) {
	a, out, errs := newWorld(t).app()
	a.demoAddrs = [2]netip.Addr{addr("127.0.0.32"), addr("198.51.100.7")}
	if status := a.run(t.Context(), strings.Fields("demo --size-max 1 --budget 1ms --pcap none")); status != 0 {
		t.Fatalf("exit status %d\n%s%s", status, out, errs)
	}
	if want := "198.51.100.7 cannot be used"; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "between 127.0.0.32 and 127.0.0.32") {
		t.Errorf("no %q in\n%s", want, out)
	}
}

// Where the port is taken, the demo says by whom and takes another one.
func TestDemoPortTaken(t *testing.T) {
	w := newWorld(t)
	a, out, errs := w.app()
	a.demoAddrs = [2]netip.Addr{addr("127.0.0.33"), addr("127.0.0.34")}
	busyUDP(t, netip.AddrPortFrom(a.demoAddrs[0], w.port))
	if status := a.run(t.Context(), strings.Fields("demo --size-max 1 --budget 1ms --pcap none")); status != 0 {
		t.Fatalf("exit status %d\n%s%s", status, out, errs)
	}
	if want := "taking port 14791 instead"; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "in use by") {
		t.Errorf("no %q in\n%s", want, out)
	}
}

func TestDemoJSON(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	o := w.run("demo", "--json", "--size-max", "5000", "--budget", "1ms", "--pcap", file, "--seed", "7")
	o.want(t, "demo", 0)
	wantSchema(t, schema(t, o.out), `
		endpoints[] string
		port number
		seed number
		fault_rate number
		rows[].operation string
		rows[].size number
		rows[].clean.operations number
		rows[].clean.p50_usec number
		rows[].clean.p99_usec number
		rows[].clean.gbit_per_sec number
		rows[].clean.retries number
		rows[].faulty.operations number
		rows[].faulty.p50_usec number
		rows[].faulty.p99_usec number
		rows[].faulty.gbit_per_sec number
		rows[].faulty.retries number
		capture.file string
		capture.packets number
		operations number
		bytes_checked number
		seconds number
		ok bool`)
	var r demoResult
	if err := json.Unmarshal([]byte(o.out), &r); err != nil {
		t.Fatal(err)
	}
	sizes := map[int]int{}
	for _, row := range r.Rows {
		sizes[row.Size]++
		if row.Clean.Operations < 2*2 || row.Faulty.Operations < 2*2 {
			t.Errorf("%s of %d bytes: %d and %d operations, at least one alone and some together each way are due",
				row.Operation, row.Size, row.Clean.Operations, row.Faulty.Operations)
		}
	}
	for _, size := range []int{0, 1, 1024, 4096, 4097, 5000} {
		if sizes[size] != 3 {
			t.Errorf("%d operations with %d bytes, want SEND, WRITE and READ", sizes[size], size)
		}
	}
	if !r.OK || r.BytesChecked == 0 {
		t.Errorf("%+v", r)
	}
}

// corrupting changes one byte of the payload of the k-th full packet that comes in
// and makes the ICRC right again, as a bug of ours would.
type corrupting struct {
	netio.Backend
	left int
}

func (c *corrupting) Send(now time.Duration, runs []netio.Run) (int, error) {
	for i := range runs {
		r := &runs[i]
		for k := range r.Segments() {
			b := r.Segment(k)
			p, why := ib.Parse(b)
			if why != ib.OK || len(p.Payload()) == 0 {
				continue
			}
			if c.left--; c.left == 0 {
				p.Payload()[len(p.Payload())-1] ^= 1
				flow := ib.NewFlow(c.LocalAddr(), r.Dst)
				flow.Seal(uint16(k), b)
			}
		}
	}
	return c.Backend.Send(now, runs)
}

// One wrong byte makes the demo fail, and name it.
func TestDemoFindsWrongByte(t *testing.T) {
	w := newWorld(t)
	a, out, errs := w.app()
	a.demoAddrs = [2]netip.Addr{addr("127.0.0.35"), addr("127.0.0.36")}
	open := a.open
	a.open = func(cfg roce.Config) (*roce.Device, error) {
		inner := cfg.Wrap
		cfg.Wrap = func(be netio.Backend) netio.Backend {
			if inner != nil {
				be = inner(be)
			}
			return &corrupting{Backend: be, left: 20}
		}
		return open(cfg)
	}
	status := a.run(t.Context(), strings.Fields("demo --size-max 5000 --budget 1ms --pcap none"))
	if status != 1 || strings.Contains(out.String(), "were right") {
		t.Fatalf("exit status %d\n%s%s", status, out, errs)
	}
	if m, _ := regexp.MatchString(`^roce: clean: (SEND|WRITE|READ) of .*, 127\.0\.0\.3\d to 127\.0\.0\.3\d, operation \d+: byte \d+ is 0x[0-9a-f]{2}, expected 0x[0-9a-f]{2}\n$`, errs.String()); !m {
		t.Errorf("stderr %q", errs)
	}
}

// The check of the capture finds each kind of damage.
func TestCheckCapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	w := newWorld(t)
	w.run("demo", "--addr", "127.0.0.37", "--size-max", "1", "--budget", "1ms", "--pcap", file).want(t, "demo", 0)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := checkCapture(file); err != nil || c.Packets < 10 {
		t.Fatalf("%+v, %v", c, err)
	}
	// The last block is a packet: 20 bytes of it before the data, an IPv4 header first.
	last := len(good) - int(good[len(good)-4]) - int(good[len(good)-3])<<8
	for name, damage := range map[string]func(b []byte) []byte{
		"ICRC":    func(b []byte) []byte { b[last+28+20+8+9] ^= 1; return b }, // PSN
		"IP ID":   func(b []byte) []byte { b[last+28+4] ^= 0x80; return b },
		"opcode":  func(b []byte) []byte { b[last+28+20+8] = 0xff; return b },
		"version": func(b []byte) []byte { b[last+28] = 0x75; return b },
		"not UDP": func(b []byte) []byte { b[last+28+9] = 6; return b },
		"length":  func(b []byte) []byte { b[last+28+20+5]++; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)-4] },
		"empty":   func(b []byte) []byte { return nil },
	} {
		bad := filepath.Join(t.TempDir(), "bad")
		os.WriteFile(bad, damage(append([]byte(nil), good...)), 0o600)
		if c, err := checkCapture(bad); err == nil {
			t.Errorf("%s: accepted, %+v", name, c)
		}
	}
	if _, err := checkCapture(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is accepted")
	}
}

// captureUDPPort returns the UDP port of the first packet.
func captureUDPPort(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := pcapng.NewReader(f).Next()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(int(binary.BigEndian.Uint16(p.Data[22:])))
}
