package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goroce/goroce/roce"
)

func TestDevinfo(t *testing.T) {
	w := newWorld(t)
	o := w.run("devinfo", "-v", "--addr", "127.0.0.1")
	o.want(t, "devinfo", 0)
	for _, want := range []string{
		"hca_id:                  127.0.0.1\n", "PORT_ACTIVE (4)", "active_mtu:          4096 (5)", "GID[0]:              ::ffff:127.0.0.1, RoCE v2",
		"link_layer:          Ethernet", "max_msg_sz:          0x80000000", "max_sge:               32",
	} {
		if !strings.Contains(o.out, want) {
			t.Errorf("no %q in\n%s", want, o.out)
		}
	}
}

// Every device that the list names can be asked for by name, and is the same then.
func TestDevinfoNames(t *testing.T) {
	list, err := listDevices()
	if err != nil || len(list) == 0 {
		t.Fatalf("devices %v, error %v", list, err)
	}
	w := newWorld(t)
	for i, d := range list {
		if d.Name != fmt.Sprintf("roce%d", i) {
			t.Errorf("device %d is called %s", i, d.Name)
		}
		o := w.run("devinfo", "-d", d.Name)
		if o.status != 0 || !strings.Contains(o.out, d.Addr) {
			t.Errorf("%s: %+v", d.Name, o)
		}
	}
}

// devinfo needs no socket: it says the same while the address is in use.
func TestDevinfoOpensNothing(t *testing.T) {
	w := newWorld(t)
	a, _, _ := w.app()
	a.open = func(roce.Config) (*roce.Device, error) { t.Error("a device was opened"); return nil, roce.ErrClosed }
	if status := a.run(t.Context(), []string{"devinfo", "-v"}); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// What devinfo says without a device is what an open device says.
func TestDevinfoAgreesWithDevice(t *testing.T) {
	w := newWorld(t)
	for _, address := range []string{"127.0.0.1", "127.0.0.77", "::1"} {
		info, err := describe(addr(address))
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		a, _, _ := w.app()
		dev, err := a.open(roce.Config{Addr: addr(address)})
		if err != nil {
			t.Fatal(err)
		}
		port, err := dev.QueryPort()
		gids := dev.GIDs()
		dev.Close()
		if err != nil || port.ActiveMTU.Bytes() != info.ActiveMTU || port.State != info.state || port.Interface != info.Interface ||
			port.LinkMTU != info.LinkMTU || len(gids) != len(info.GIDs) || gids[0].String() != info.GIDs[0].GID {
			t.Errorf("%s: devinfo %+v, device %+v %v, %v", address, info, port, gids, err)
		}
	}
}

func TestDevinfoJSON(t *testing.T) {
	w := newWorld(t)
	base := `
		devices[].name string
		devices[].addr string
		devices[].interface string
		devices[].state string
		devices[].link_mtu number
		devices[].max_mtu number
		devices[].active_mtu number
		devices[].link_layer string
		devices[].gids[].index number
		devices[].gids[].gid string
		devices[].gids[].type string`
	o := w.run("devinfo", "--json")
	o.want(t, "devinfo", 0)
	wantSchema(t, schema(t, o.out), base)
	o = w.run("devinfo", "--json", "-v", "-a", "127.0.0.1")
	o.want(t, "devinfo", 0)
	wantSchema(t, schema(t, o.out), base+`
		devices[].limits.max_mr_size number
		devices[].limits.max_msg_sz number
		devices[].limits.max_qp number
		devices[].limits.max_qp_wr number
		devices[].limits.max_sge number
		devices[].limits.max_cqe number
		devices[].limits.max_srq_wr number
		devices[].limits.max_inline_data number
		devices[].limits.max_qp_rd_atom number
		devices[].limits.max_qp_init_rd_atom number
		devices[].limits.atomic_cap string
		devices[].limits.phys_port_cnt number`)
}
