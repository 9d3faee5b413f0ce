package rdmacm_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// The logger of a device is told of connections: made, ended, and refused with the
// reason.
func TestLoggerIsToldOfConnections(t *testing.T) {
	fabric := netio.NewFabric()
	var logs [2]bytes.Buffer // read after the device has been closed
	var devs [2]*roce.Device
	for i, a := range []string{"10.0.0.1:4791", "10.0.0.2:4791"} {
		be, err := fabric.Open(netip.MustParseAddrPort(a))
		must(t, err)
		devs[i], err = roce.Open(roce.Config{Backend: be, Spin: -1, Logger: slog.New(slog.NewTextHandler(&logs[i], nil))})
		must(t, err)
	}
	l := listen(t, devs[1], rdmacm.TCP)
	accepted := accept(t, l, rdmacm.Config{})
	client, err := dial(t, devs[0], l.Addr(), rdmacm.Config{})
	must(t, err)
	server := <-accepted
	must(t, server.err)
	must(t, client.Disconnect(ctx(t), nil))
	ended(t, server.c)
	l.Close()
	if _, err := dial(t, devs[0], l.Addr(), rdmacm.Config{}); err == nil {
		t.Fatal("connected to nobody")
	}
	for _, d := range devs {
		must(t, d.Close())
	}
	for i, want := range [][]string{
		{"level=INFO msg=RDMA_CM_EVENT_ESTABLISHED", "msg=RDMA_CM_EVENT_DISCONNECTED", "level=WARN msg=RDMA_CM_EVENT_REJECTED", "remote=10.0.0.2:", "qpn=0x", "error="},
		{"level=INFO msg=RDMA_CM_EVENT_ESTABLISHED", "msg=RDMA_CM_EVENT_DISCONNECTED", "remote=10.0.0.1:"},
	} {
		for _, w := range want {
			if !strings.Contains(logs[i].String(), w) {
				t.Errorf("%q is not in\n%s", w, &logs[i])
			}
		}
	}
}
