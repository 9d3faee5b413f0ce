//go:build !linux

package roce

import (
	"errors"
	"fmt"
)

// eventFD is a descriptor for the poll loops of others, which only Linux has.
type eventFD struct{}

func (*eventFD) open() (int, error) {
	return 0, fmt.Errorf("roce: descriptor for events: %w: on this system only goroutines can wait", errors.ErrUnsupported)
}

func (*eventFD) ring()    {}
func (*eventFD) silence() {}
func (*eventFD) close()   {}
