//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// device is an open device.
type device struct {
	*roce.Device
	events *eventTable
	peers  *roce.PD // of address handles that nobody uses: the connection manager makes one of each peer of datagrams
}

// goroceOpen opens a device at a local address. Of an error why gets the text, cut at
// n bytes.
//
//export goroceOpen
func goroceOpen(addr, name *C.char, h *C.uint32_t, why *C.char, n C.size_t) C.int {
	d, err := open(C.GoString(addr), C.GoString(name))
	if err != nil {
		text := append([]byte(err.Error()), 0)
		out := unsafe.Slice((*byte)(unsafe.Pointer(why)), n)
		out[copy(out[:n-1], text)] = 0
		return errnoOf(err)
	}
	*h = devices.add(d)
	return 0
}

// closeTimeout is more than a program waits that has many threads on few processors:
// closing a device of a kernel does not fail for that.
const closeTimeout = 30 * time.Second

func open(addr, name string) (*device, error) {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	d, err := roce.Open(roce.Config{Addr: a, Name: name, StatDir: os.Getenv("GOROCE_STAT"), CloseTimeout: closeTimeout})
	if err != nil {
		return nil, err
	}
	peers, err := d.AllocPD()
	if err != nil {
		d.Close()
		return nil, err
	}
	return &device{Device: d, events: newEvents(), peers: peers}, nil
}

//export goroceClose
func goroceClose(h C.uint32_t) C.int {
	return destroy(&devices, h, func(d *device) error { return d.Close() })
}

// The capabilities of the device: bits of ibv_device_cap_flags, and of its
// extension (IB_UVERBS_DEVICE_FLUSH_GLOBAL, _FLUSH_PERSISTENT, _ATOMIC_WRITE of
// Linux include/uapi/rdma/ib_user_verbs.h).
const (
	capabilities = C.IBV_DEVICE_AUTO_PATH_MIG | C.IBV_DEVICE_CURR_QP_STATE_MOD | C.IBV_DEVICE_PORT_ACTIVE_EVENT |
		C.IBV_DEVICE_RC_RNR_NAK_GEN | C.IBV_DEVICE_SRQ_RESIZE | C.IBV_DEVICE_MEM_WINDOW | C.IBV_DEVICE_XRC |
		C.IBV_DEVICE_MEM_MGT_EXTENSIONS | C.IBV_DEVICE_MEM_WINDOW_TYPE_2B
	capabilitiesEx = 1<<38 | 1<<39 | 1<<40
)

//export goroceQueryDevice
func goroceQueryDevice(h C.uint32_t, a *C.struct_ibv_device_attr, flags *C.uint64_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	q := d.Query()
	*a = C.struct_ibv_device_attr{
		max_mr_size: C.uint64_t(q.MaxMRSize), page_size_cap: 1<<64 - 4096, max_qp: C.int(q.MaxQP), max_qp_wr: C.int(q.MaxQPWR),
		device_cap_flags: capabilities, max_sge: C.int(q.MaxSGE), max_sge_rd: C.int(q.MaxSGE), max_cq: C.int(q.MaxCQ), max_cqe: C.int(q.MaxCQE),
		max_mr: C.int(q.MaxMR), max_pd: C.int(q.MaxMR), max_qp_rd_atom: C.int(q.MaxQPRdAtom), max_res_rd_atom: C.int(q.MaxResRdAtom),
		max_qp_init_rd_atom: C.int(q.MaxQPInitRdAt), atomic_cap: C.enum_ibv_atomic_cap(q.AtomicCap), max_mw: C.int(q.MaxMW),
		max_mcast_grp: C.int(q.MaxMcastGrp), max_mcast_qp_attach: C.int(q.MaxMcastQPAttach),
		max_total_mcast_qp_attach: C.int(q.MaxMcastGrp * q.MaxMcastQPAttach), max_ah: C.int(q.MaxAH),
		max_srq: C.int(q.MaxQP), max_srq_wr: C.int(q.MaxSRQWR), max_srq_sge: C.int(q.MaxSGE), max_pkeys: 1,
		phys_port_cnt: C.uint8_t(q.PhysPortCount), vendor_id: 0xffffff, // as rxe: of no company
	}
	*flags = capabilities | capabilitiesEx
	return 0
}

// goroceQueryPort describes the port. Speed and width are those of a link of
// 10 Gb/s: nobody knows what a UDP socket can do.
//
//export goroceQueryPort
func goroceQueryPort(h C.uint32_t, a *C.struct_ibv_port_attr) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	p, err := d.QueryPort()
	if err != nil {
		return errnoOf(err)
	}
	const (
		width4X, speed2_5G  = 2, 1
		linkUp, linkDisable = 5, 3
	)
	*a = C.struct_ibv_port_attr{
		state: C.enum_ibv_port_state(p.State), max_mtu: C.enum_ibv_mtu(p.MaxMTU), active_mtu: C.enum_ibv_mtu(p.ActiveMTU),
		gid_tbl_len: C.int(p.GIDTblLen), port_cap_flags: C.IBV_PORT_CM_SUP | C.IBV_PORT_IP_BASED_GIDS, max_msg_sz: C.uint32_t(p.MaxMsg), pkey_tbl_len: 1,
		active_width: width4X, active_speed: speed2_5G, phys_state: linkUp, link_layer: C.IBV_LINK_LAYER_ETHERNET, flags: C.IBV_QPF_GRH_REQUIRED,
	}
	if p.State != roce.PortActive {
		a.phys_state = linkDisable
	}
	return 0
}

// goroceQueryGID returns the one entry of the GID table.
//
//export goroceQueryGID
func goroceQueryGID(h C.uint32_t, gid *C.union_ibv_gid, ifindex *C.uint32_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	*gid = C.union_ibv_gid(d.GIDs()[0])
	*ifindex = 0
	if _, index, _, _, err := netio.PortOf(d.Addr()); err == nil {
		*ifindex = C.uint32_t(index)
	}
	return 0
}

//export goroceAllocPD
func goroceAllocPD(h C.uint32_t, pd *C.uint32_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	p, err := d.AllocPD()
	if err == nil {
		*pd = pds.add(p)
	}
	return errnoOf(err)
}

//export goroceDeallocPD
func goroceDeallocPD(h C.uint32_t) C.int { return destroy(&pds, h, (*roce.PD).Dealloc) }

// goroceRegMR registers n bytes at addr, which requests name by iova.
//
//export goroceRegMR
func goroceRegMR(pd C.uint32_t, addr unsafe.Pointer, n C.size_t, iova C.uint64_t, access C.uint, h, key *C.uint32_t) C.int {
	p := pds.get(pd)
	if p == nil || addr == nil || n == 0 {
		return C.EINVAL
	}
	m, err := p.RegisterMR(unsafe.Slice((*byte)(addr), n), roce.Access(access), roce.IOVA(uint64(iova)))
	if err != nil {
		return errnoOf(err)
	}
	*h, *key = mrs.add(m), C.uint32_t(m.LKey())
	return 0
}

// goroceReregMR changes what flags say; pd may be 0 and addr nil where they do not.
//
//export goroceReregMR
func goroceReregMR(h C.uint32_t, flags C.int, pd C.uint32_t, addr unsafe.Pointer, n C.size_t, access C.uint) C.int {
	m, p := mrs.get(h), pds.get(pd)
	change := roce.ReregFlags(flags)
	if m == nil || change&roce.ReregTranslation != 0 && (addr == nil || n == 0) {
		return C.EINVAL
	}
	var buf []byte
	if change&roce.ReregTranslation != 0 {
		buf = unsafe.Slice((*byte)(addr), n)
	}
	return errnoOf(m.Reregister(change, p, buf, roce.Access(access), roce.IOVA(uint64(uintptr(addr)))))
}

//export goroceDeregMR
func goroceDeregMR(h C.uint32_t) C.int { return destroy(&mrs, h, (*roce.MR).Deregister) }

//export goroceAllocMW
func goroceAllocMW(pd C.uint32_t, typ C.enum_ibv_mw_type, h, key *C.uint32_t) C.int {
	types := map[C.enum_ibv_mw_type]roce.MWType{C.IBV_MW_TYPE_1: roce.MWType1, C.IBV_MW_TYPE_2: roce.MWType2B}
	p, t := pds.get(pd), types[typ]
	if p == nil || t == 0 {
		return C.EINVAL
	}
	m, err := p.AllocMW(t)
	if err != nil {
		return errnoOf(err)
	}
	*h, *key = mws.add(m), C.uint32_t(m.RKey())
	return 0
}

//export goroceDeallocMW
func goroceDeallocMW(h C.uint32_t) C.int { return destroy(&mws, h, (*roce.MW).Dealloc) }

// goroceCreateAH makes an address handle; number is how work queues name it.
//
//export goroceCreateAH
func goroceCreateAH(pd C.uint32_t, attr *C.struct_ibv_ah_attr, h, number *C.uint32_t) C.int {
	p := pds.get(pd)
	if p == nil || attr.port_num != 1 {
		return C.EINVAL
	}
	av, ok := vectorOf(attr)
	if !ok {
		return C.EINVAL
	}
	a, err := p.CreateAH(av)
	if err != nil {
		return errnoOf(err)
	}
	*h, *number = ahs.add(a), C.uint32_t(a.Handle())
	return 0
}

//export goroceDestroyAH
func goroceDestroyAH(h C.uint32_t) C.int { return destroy(&ahs, h, (*roce.AH).Destroy) }

// goroceInitAH says how the sender of a received datagram is reached.
//
//export goroceInitAH
func goroceInitAH(h C.uint32_t, wc *C.struct_ibv_wc, grh *C.struct_ibv_grh, attr *C.struct_ibv_ah_attr) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	w := roce.WC{Status: roce.WCStatus(wc.status), Flags: transport.WCFlags(wc.wc_flags)}
	av, err := d.AddressFromWC(&w, unsafe.Slice((*byte)(unsafe.Pointer(grh)), ib.GRHSize))
	if err == nil {
		putVector(attr, &av, 1)
	}
	return errnoOf(err)
}

// vectorOf returns the address vector of attributes, which need a global route
// (IBTA A17, RoCEv2).
func vectorOf(a *C.struct_ibv_ah_attr) (roce.AddressVector, bool) {
	g := &a.grh
	av := roce.AddressVector{
		DGID: ib.GID(g.dgid), SGIDIndex: uint8(g.sgid_index), TrafficClass: uint8(g.traffic_class), HopLimit: uint8(g.hop_limit), FlowLabel: uint32(g.flow_label) & 0xfffff, // UCX sets more bits
	}
	if label := av.FlowLabel; label != 0 {
		// Linux include/rdma/ib_verbs.h, rdma_flow_label_to_udp_sport
		av.SourcePort = 0xc000 | uint16(label&0x3fff^label>>14)
	}
	return av, a.is_global != 0
}

func putVector(a *C.struct_ibv_ah_attr, av *roce.AddressVector, port uint8) {
	*a = C.struct_ibv_ah_attr{is_global: 1, port_num: C.uint8_t(port)}
	g := &a.grh
	g.dgid, g.sgid_index, g.traffic_class = C.union_ibv_gid(av.DGID), C.uint8_t(av.SGIDIndex), C.uint8_t(av.TrafficClass)
	g.hop_limit, g.flow_label = C.uint8_t(av.HopLimit), C.uint32_t(av.FlowLabel)
}

// goroceOpenXRCD opens an XRC domain: that of a file, if there is one.
//
//export goroceOpenXRCD
func goroceOpenXRCD(h C.uint32_t, file C.int, dev, ino C.uint64_t, oflags C.int, xrcd *C.uint32_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	name := ""
	if file != 0 {
		name = fmt.Sprintf("%x:%x", uint64(dev), uint64(ino))
	}
	x, err := d.OpenXRCD(name, int(oflags))
	if err == nil {
		*xrcd = xrcds.add(x)
	}
	return errnoOf(err)
}

//export goroceCloseXRCD
func goroceCloseXRCD(h C.uint32_t) C.int { return destroy(&xrcds, h, (*roce.XRCD).Close) }

// over is a context that has ended: with it the waiting calls only look.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// blockable makes a descriptor one that the program sees as blocking, which is what
// those of libibverbs are: the C side looks at O_NONBLOCK to know what the program
// has asked for.
func blockable(fd int, err error) (C.int, error) {
	if err != nil {
		return -1, err
	}
	return C.int(fd), os.NewSyscallError("fcntl", syscall.SetNonblock(fd, false))
}
