package main

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
)

// statWorld opens a device with a socket in a new directory.
func statWorld(t *testing.T) (w *world, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "roce") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w = newWorld(t)
	dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), Port: w.port, StatDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.CreateQP(roce.QPConfig{SendCQ: cq}); err != nil {
		t.Fatal(err)
	}
	return w, dir
}

// A device is found by its socket, with its queue pair; a socket that nobody listens
// at any more is none.
func TestStat(t *testing.T) {
	w, dir := statWorld(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "1-10.0.0.1-1.sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	o := w.run("stat", "--dir", dir)
	o.want(t, "stat", 0)
	if !strings.HasPrefix(o.out, "roce0 127.0.0.1:") || strings.Count(o.out, " pid ") != 1 || !strings.Contains(o.out, "  qp 0x") || !strings.Contains(o.out, "  RC  RESET  -") {
		t.Errorf("printed\n%s", o.out)
	}
	o = w.run("stat", "--dir", dir, "-w", "10ms", "-n", "3")
	o.want(t, "stat -w", 0)
	if n := strings.Count(o.out, "roce0 127.0.0.1:"); n != 3 {
		t.Errorf("%d looks:\n%s", n, o.out)
	}
	a, out, _ := w.app()
	t.Setenv(statEnv, dir)
	if status := a.run(t.Context(), []string{"stat", "--json"}); status != 0 {
		t.Fatal(status)
	}
	wantSchema(t, schema(t, out.String(), "devices[].counters"), `
		devices[].socket string
		devices[].pid number
		devices[].name string
		devices[].addr string
		devices[].backend string
		devices[].seconds number
		devices[].counters.* number
		devices[].engines[].qps number
		devices[].engines[].rx_packets number
		devices[].engines[].rx_pass_dropped number
		devices[].engines[].rx_passed number
		devices[].engines[].tx_packets number
		devices[].qps[].qpn string
		devices[].qps[].engine number
		devices[].qps[].type string
		devices[].qps[].state string
		devices[].qps[].peer string
		devices[].qps[].path_mtu number
		devices[].qps[].rate_bit_per_sec number
		devices[].qps[].target_bit_per_sec number
		devices[].qps[].alpha number`)
}

// Rates are per second of the device's own clock, of what has changed.
func TestStatRates(t *testing.T) {
	before := statDevice{Socket: "x", Stats: roce.Stats{Seconds: 10, Counters: map[string]uint64{"sent_pkts": 100, "rcvd_pkts": 5}}}
	d := statDevice{Socket: "x", Stats: roce.Stats{Seconds: 12, Counters: map[string]uint64{"sent_pkts": 150, "rcvd_pkts": 5}}}
	if d.rate(before); len(d.Rates) != 1 || d.Rates["sent_pkts"] != 25 {
		t.Errorf("%v", d.Rates)
	}
	d = statDevice{Socket: "x", Stats: roce.Stats{Seconds: 1}}
	if d.rate(statDevice{}); d.Rates != nil {
		t.Errorf("the first look has rates %v", d.Rates)
	}
}

// A command whose device cannot be opened leaves no socket.
func TestStatOfCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(statEnv, dir)
	a := newApp(io.Discard, io.Discard)
	if dev, err := a.open(roce.Config{}); err == nil {
		dev.Close()
		t.Error("a device without an address is open")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// Prometheus gets all counters under names that operators of NICs know, until the
// command is interrupted.
func TestStatMetrics(t *testing.T) {
	w, dir := statWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, stop := withCancel(t)
	done := make(chan outcome)
	go func() { done <- w.runIn(ctx, "stat", "--dir", dir, "--listen", addr) }()
	var text []byte
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r, err := http.Get("http://" + addr + "/metrics")
		if err != nil && time.Now().Before(deadline) {
			continue // not yet listening
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ = io.ReadAll(r.Body)
		r.Body.Close()
		break
	}
	for _, want := range []string{
		"# TYPE rdma_port_info gauge\n", "# TYPE rdma_port_sent_pkts_total counter\n", "\nrdma_port_duplicate_request_total{device=\"roce0\",port=\"1\",addr=\"127.0.0.1:",
		"\nrdma_port_qps{device=\"roce0\"", "\nrdma_port_drop_icrc_total{",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	stop()
	o := <-done
	o.want(t, "stat --listen", 0)
}
