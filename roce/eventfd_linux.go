package roce

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// eventFD is a descriptor for the poll loops of others: readable between ring and
// silence. The zero value has none, and its methods then do nothing. Its owner
// serialises calls. Nothing here waits, also where somebody has made the descriptor a
// blocking one.
type eventFD struct {
	file   *os.File // closes the descriptor when the owner is garbage
	num    int
	rung   bool
	closed bool
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

// open returns the descriptor, made if there is none yet.
func (e *eventFD) open() (int, error) {
	switch {
	case e.closed:
		return 0, ErrClosed
	case e.file != nil:
		return e.num, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0, os.NewSyscallError("eventfd", err)
	}
	e.file, e.num = os.NewFile(uintptr(fd), "eventfd"), fd
	return fd, nil
}

// ring makes the descriptor readable. Each ring is an edge to those who watch
// edges. The count could overflow only after 2^64 rings.
func (e *eventFD) ring() {
	if e.file != nil {
		e.rung = true
		unix.Write(e.num, one)
	}
}

// silence ends that; one read takes the whole count.
func (e *eventFD) silence() {
	if e.file != nil && e.rung {
		e.rung = false
		var b [8]byte
		unix.Read(e.num, b[:])
	}
}

func (e *eventFD) close() {
	e.closed = true
	if e.file != nil {
		e.file.Close()
		e.file = nil
	}
}
