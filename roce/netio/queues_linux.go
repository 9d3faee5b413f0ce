package netio

import (
	"errors"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// listenQueues opens n sockets on one address. The first is bound as the only one, so
// that the address is refused to whoever else has it or asks for it this way; then it
// lets the others join.
func listenQueues(cfg UDPConfig, n int) ([]Backend, error) {
	first, err := openUDP(cfg)
	if err != nil {
		return nil, err
	}
	if unix.SetsockoptInt(first.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) != nil {
		return Queues(first, n), nil
	}
	first.cfg.joins, cfg.joins = true, true
	each := []Backend{first}
	for range n - 1 {
		u, err := openUDP(cfg)
		if err != nil {
			for _, b := range each {
				err = errors.Join(err, b.Close())
			}
			return nil, err
		}
		each = append(each, u)
	}
	// Without it (before Linux 4.5) each flow has its socket, and packets are passed on.
	steer(first.fd, n)
	return ownQueues(each), nil
}

// steer makes the kernel choose among the n sockets of an address by queue pair
// number, as QueueOf does. The program's data begin behind the UDP header (Linux
// net/core/sock_reuseport.c, run_bpf_filter).
func steer(fd, n int) error {
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // 8 bits of BTH, then the number; what is shorter goes to the first
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xffffff},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: 1, SkipTrue: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(n)},
		bpf.RetA{},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{
		Len: uint16(len(program)), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	})
}
