package main

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// deviceInfo is what is known of a device without opening it.
type deviceInfo struct {
	Name      string        `json:"name"` // roce0, roce1, ... in the system's order of addresses
	Addr      string        `json:"addr"`
	Interface string        `json:"interface"`
	State     string        `json:"state"`
	LinkMTU   int           `json:"link_mtu"`   // bytes of an IP packet
	MaxMTU    int           `json:"max_mtu"`    // path MTU, bytes of payload
	ActiveMTU int           `json:"active_mtu"` // the largest path MTU that fits the interface, 0 if none does
	LinkLayer string        `json:"link_layer"`
	GIDs      []gidInfo     `json:"gids"`
	Limits    *deviceLimits `json:"limits,omitempty"` // with -v

	addr  netip.Addr
	state roce.PortState
}

type gidInfo struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"`
}

// deviceLimits are the limits that programs ask a device for, named as in
// ibv_device_attr.
type deviceLimits struct {
	MaxMRSize     uint64 `json:"max_mr_size"`
	MaxMsgSize    uint64 `json:"max_msg_sz"`
	MaxQP         int    `json:"max_qp"`
	MaxQPWR       int    `json:"max_qp_wr"`
	MaxSGE        int    `json:"max_sge"`
	MaxCQE        int    `json:"max_cqe"`
	MaxSRQWR      int    `json:"max_srq_wr"`
	MaxInline     int    `json:"max_inline_data"`
	MaxQPRdAtom   int    `json:"max_qp_rd_atom"`
	MaxQPInitRdAt int    `json:"max_qp_init_rd_atom"`
	AtomicCap     string `json:"atomic_cap"`
	PhysPortCount int    `json:"phys_port_cnt"`
}

// listDevices returns one device per local address that RoCE can use.
func listDevices() ([]deviceInfo, error) {
	addrs, err := netio.LocalAddrs()
	if err != nil {
		return nil, err
	}
	var list []deviceInfo
	for _, a := range addrs {
		d, err := describe(a)
		if err != nil {
			continue // gone in the meantime
		}
		d.Name = "roce" + strconv.Itoa(len(list))
		list = append(list, d)
	}
	return list, nil
}

// describe describes the device of one local address; its name is the address.
func describe(a netip.Addr) (deviceInfo, error) {
	iface, _, mtu, up, err := netio.PortOf(a)
	if err != nil {
		return deviceInfo{}, fmt.Errorf("%v is not an address of this machine: 'roce devinfo' lists those", a)
	}
	d := deviceInfo{
		Name: a.String(), Addr: a.String(), Interface: iface, LinkMTU: mtu, MaxMTU: ib.MTU4096.Bytes(), LinkLayer: "Ethernet",
		GIDs:  []gidInfo{{0, ib.GIDFromAddr(a.WithZone("")).String(), "RoCE v2"}},
		addr:  a,
		state: roce.PortDown,
	}
	if m, ok := ib.LargestMTU(mtu - headers(a)); ok {
		d.ActiveMTU = m.Bytes()
		if up {
			d.state = roce.PortActive
		}
	}
	d.State = d.state.String()
	return d, nil
}

// headers returns the most bytes around the payload of a full packet: IP, UDP,
// BTH, RETH, immediate data, ICRC.
func headers(a netip.Addr) int {
	n := 8 + ib.BTHSize + ib.RETHSize + ib.ImmDtSize + ib.ICRCSize
	if a.Is4() {
		return 20 + n
	}
	return 40 + n
}

// deviceAddr returns the local address of a device by its name or address.
func deviceAddr(name string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return a.Unmap(), nil
	}
	list, err := listDevices()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, d := range list {
		if d.Name == name {
			return d.addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("there is no device %s: 'roce devinfo' lists them", name)
}

// limitsOf returns the limits of a device. It opens one on no network at all.
func limitsOf(a netip.Addr) (*deviceLimits, error) {
	be, err := netio.NewFabric().Open(netip.AddrPortFrom(a, netio.Port))
	if err != nil {
		return nil, err
	}
	dev, err := roce.Open(roce.Config{Backend: be, Manual: true})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	q := dev.Query()
	port, err := dev.QueryPort()
	if err != nil {
		return nil, err
	}
	return &deviceLimits{
		MaxMRSize: q.MaxMRSize, MaxMsgSize: port.MaxMsg, MaxQP: q.MaxQP, MaxQPWR: q.MaxQPWR, MaxSGE: q.MaxSGE, MaxCQE: q.MaxCQE, MaxSRQWR: q.MaxSRQWR,
		MaxInline: q.MaxInline, MaxQPRdAtom: q.MaxQPRdAtom, MaxQPInitRdAt: q.MaxQPInitRdAt, AtomicCap: q.AtomicCap.String(), PhysPortCount: q.PhysPortCount,
	}, nil
}
