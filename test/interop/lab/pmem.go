//go:build linux

package lab

import "context"

// makePMem turns the guest's NVDIMM, which the kernel takes for a disk, into memory that programs map: /dev/dax0.0 (what ndctl
// create-namespace --mode=devdax does; Documentation/driver-api/nvdimm/nvdimm.rst).
const makePMem = `set -e
	modprobe -a nfit nd_pmem dax_pmem device_dax
	nd=/sys/bus/nd
	echo namespace0.0 >$nd/drivers/nd_pmem/unbind
	cat /proc/sys/kernel/random/uuid >$nd/devices/dax0.0/uuid
	echo ram >$nd/devices/dax0.0/mode
	echo namespace0.0 >$nd/devices/dax0.0/namespace
	echo dax0.0 >$nd/drivers/dax_pmem/bind
	test -c /dev/dax0.0`

// MakePMem gives the guest persistent memory, once.
func (g *Guest) MakePMem(ctx context.Context) error {
	_, err := g.Run(ctx, "sh", "-c", makePMem)
	return err
}
