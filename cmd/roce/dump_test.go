package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/goroce/goroce/ib"
)

const rxeCapture = "../../ib/testdata/rxe/rxe-linux-6.12.pcap"

// captures returns a capture of the repository and those of the folder that
// GOROCE_CAPTURES names.
func captures(t *testing.T) []string {
	dir := os.Getenv("GOROCE_CAPTURES")
	if dir == "" {
		return []string{rxeCapture}
	}
	more, err := filepath.Glob(filepath.Join(dir, "*", "*.pcap"))
	if err != nil || len(more) == 0 {
		t.Fatalf("no capture in %s (%v)", dir, err)
	}
	return append(more, rxeCapture)
}

// dumpedAll is what --json prints.
type dumpedAll struct {
	Packets []dumpedJSON
	Flows   []json.RawMessage
	Summary dumpSum
}

func (w *world) dumpJSON(args ...string) (all dumpedAll) {
	w.t.Helper()
	o := w.run(append([]string{"dump", "--json"}, args...)...)
	o.want(w.t, "dump", 0)
	if err := json.Unmarshal([]byte(o.out), &all); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// dump and tshark find the same packets with the same opcode, queue pair and PSN, and
// all ICRCs are right.
func TestDumpAgreesWithTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark")
	}
	w := newWorld(t)
	for _, file := range captures(t) {
		out, err := exec.Command(tshark, "-r", file, "--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib", "--disable-heuristic", "eth_over_ib",
			"-Y", "infiniband.bth", "-T", "fields", "-e", "frame.number", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.destqp", "-e", "infiniband.bth.psn").Output()
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			var n, op, qp, psn int
			if _, err := fmt.Sscanf(line, "%d %v %v %d", &n, &op, &qp, &psn); err != nil {
				t.Fatalf("%s: tshark says %q: %v", file, line, err)
			}
			want = append(want, fmt.Sprintln(n, ib.Opcode(op), ib.QPN(qp), psn))
		}
		all := w.dumpJSON(file)
		var got []string
		for _, p := range all.Packets {
			got = append(got, fmt.Sprintln(p.Frame, p.Opcode, p.DestQP, p.PSN))
		}
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("%s: packet %q, tshark has %q", file, got[i], want[i])
			}
		}
		if s := all.Summary; len(got) != len(want) || s.RoCE != len(want) || s.Right != len(want) || s.Wrong != 0 {
			t.Errorf("%s: %d packets, tshark has %d; %+v", file, len(got), len(want), s)
		}
	}
}

// The verdicts on packets with a known ICRC: right, and wrong when one bit of the
// packet is not.
func TestDumpVerdicts(t *testing.T) {
	dir := os.Getenv("GOROCE_CAPTURES")
	if dir == "" {
		t.Skip("set GOROCE_CAPTURES to the folder of captures (with wild/ in it) to run this test")
	}
	text, err := os.ReadFile(filepath.Join(dir, "wild", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Bytes, Opcode string
		LinkType            glayers.LinkType
		Verified            bool `json:"icrc_verified"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors, %v", len(vectors), err)
	}
	w := newWorld(t)
	for _, v := range vectors {
		raw, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all := w.dumpJSON(writeCapture(t, v.LinkType, raw))
		var op ib.Opcode
		fmt.Sscan(v.Opcode, &op)
		if len(all.Packets) != 1 || all.Packets[0].ICRC != "ok" || !v.Verified || all.Packets[0].Opcode != op.String() {
			t.Errorf("%s: %+v", v.Name, all.Packets)
		}
	}
}

// writeCapture makes a capture file.
func writeCapture(t *testing.T, link glayers.LinkType, frames ...[]byte) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "*.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	w.WriteFileHeader(65535, link)
	for i, b := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
	}
	return f.Name()
}

// firstFrames returns frames of the capture of rxe.
func firstFrames(t *testing.T, n int) (frames [][]byte) {
	t.Helper()
	f, err := os.Open(rxeCapture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for len(frames) < n {
		b, _, err := r.ReadPacketData()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b[:42], []byte{ib.Port >> 8, ib.Port & 0xff}) {
			frames = append(frames, b)
		}
	}
	return frames
}

// A wrong ICRC is shown, counted in the last line, and makes the exit status 1.
func TestDumpWrongICRC(t *testing.T) {
	frames := firstFrames(t, 3)
	frames[1][len(frames[1])-6] ^= 0x40
	o := newWorld(t).run("dump", writeCapture(t, glayers.LinkTypeEthernet, frames...))
	o.want(t, "dump", 1)
	lines := strings.Split(strings.TrimSpace(o.out), "\n")
	if last := lines[len(lines)-1]; last != "packets 3 roce 3 icrc-ok 2 icrc-bad 1" {
		t.Errorf("last line %q", last)
	}
	if !strings.HasSuffix(lines[1], "WRONG ICRC") || strings.Contains(lines[0]+lines[2], "WRONG") || !strings.Contains(o.out, "wrong ICRCs 1") {
		t.Errorf("printed\n%s", o.out)
	}
	if o.err != "roce: 1 of 3 packets have a wrong ICRC\n" {
		t.Errorf("error %q", o.err)
	}
}

// Standard input is a file, -c ends the reading, -q leaves the packets out.
func TestDumpStandardInput(t *testing.T) {
	b, err := os.ReadFile(rxeCapture)
	if err != nil {
		t.Fatal(err)
	}
	a, out, errs := newWorld(t).app()
	a.stdin = bytes.NewReader(b)
	if status := a.run(t.Context(), []string{"dump", "-q", "-c", "100", "-"}); status != 0 {
		t.Fatalf("exit status %d: %s", status, errs)
	}
	text := out.String()
	if !strings.HasPrefix(text, "flow ") || !strings.HasSuffix(text, " roce 100 icrc-ok 100 icrc-bad 0\n") {
		t.Errorf("printed\n%s", text)
	}
}

// With -v all fields of a message of the connection manager are there.
func TestDumpShowsMessages(t *testing.T) {
	o := newWorld(t).run("dump", "-v", rxeCapture)
	o.want(t, "dump", 0)
	for _, want := range []string{
		" UD_SEND_ONLY qp 0x000001 ", " qkey 0x80010000 CM REQ service RDMA_PS_TCP port ", "CM REP qp 0x", "CM DREQ", "CM SIDRREP",
		"    MAD: class CM class_version 2 method 3 ", " retry_count 7 ", " primary.local_gid ::ffff:10.77.0.", " va 0x", " ACK credits 31 msn ", "    RETH: va 0x",
		"ATOMIC_ACKNOWLEDGE ", " was 0x", " imm 0x", "    BTH: opcode RC_",
	} {
		if !strings.Contains(o.out, want) {
			t.Errorf("nowhere is %q", want)
		}
	}
}

// Mistakes in the command line are exit status 2, files that are none 1.
func TestDumpMistakes(t *testing.T) {
	w := newWorld(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("not a capture"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 2, "give files"}, {"-i lo x.pcap", 2, "beside -i"}, {"-c -1 x", 2, "-c -1"}, {"--duration 1s x", 2, "with -i"}, {"--port 0 x", 2, "--port 0"},
		{"/nowhere.pcap", 1, "/nowhere.pcap: no such file"}, {text, 1, "neither a pcap nor a pcapng file"}, {"-i nowhere0", 1, "there is no interface nowhere0"},
	} {
		o := w.run(append([]string{"dump"}, strings.Fields(c.args)...)...)
		o.want(t, c.args, c.status)
		if !strings.Contains(o.err, c.want) || strings.Count(o.err, "\n") != 1 {
			t.Errorf("%s: %q, want %q", c.args, o.err, c.want)
		}
	}
}

func TestDumpJSON(t *testing.T) {
	o := newWorld(t).run("dump", "--json", rxeCapture)
	o.want(t, "dump", 0)
	wantSchema(t, schema(t, o.out, "packets[].headers", "packets[].headers.*", "flows[].opcodes"), `
		packets[].frame number
		packets[].time string
		packets[].link string
		packets[].src string
		packets[].dst string
		packets[].opcode string
		packets[].dest_qp string
		packets[].psn number
		packets[].payload number
		packets[].icrc string
		packets[].retransmitted bool
		packets[].out_of_order bool
		packets[].ce bool
		packets[].headers.*.* bool
		packets[].headers.*.* number
		packets[].headers.*.* string
		flows[].transport string
		flows[].src string
		flows[].dst string
		flows[].dest_qp string
		flows[].src_qp string
		flows[].packets number
		flows[].bytes number
		flows[].seconds number
		flows[].gbit_per_sec number
		flows[].opcodes.* number
		flows[].retransmitted number
		flows[].out_of_order number
		flows[].missing number
		flows[].rnr_naks number
		flows[].cnps number
		flows[].ce_marks number
		flows[].malformed number
		flows[].icrc_bad number
		flows[].rtt.samples number
		flows[].rtt.min_usec number
		flows[].rtt.p50_usec number
		flows[].rtt.p99_usec number
		flows[].rtt.max_usec number
		summary.packets number
		summary.roce number
		summary.icrc_ok number
		summary.icrc_bad number
		summary.dropped number`)
}

// Captured live, packets that a host sends and receives in one piece are taken
// apart, and all ICRCs are right.
func TestDumpLive(t *testing.T) {
	out := inNamespace(t, `
ip link set lo up
$ROCE dump -i lo -c 200 >dump & pid=$!
while kill -0 $pid 2>/dev/null; do $ROCE demo --addr 127.0.0.1 --size-max 64KiB --budget 1ms --pcap none >demo; done
wait $pid
cat dump`)
	if !strings.Contains(out, " segment 2/") || !strings.HasSuffix(out, " roce 200 icrc-ok 200 icrc-bad 0\n") {
		t.Errorf("printed\n%s", out)
	}
}
