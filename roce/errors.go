package roce

import (
	"errors"
	"fmt"
	"net"
)

var (
	// ErrClosed says that the device, or the object, is closed. It is
	// net.ErrClosed to errors.Is.
	ErrClosed = fmt.Errorf("roce: %w", net.ErrClosed)
	// ErrCloseTimeout says that Config.CloseTimeout has passed before a device was
	// closed.
	ErrCloseTimeout = errors.New("roce: close timed out")
	// ErrCQOverflow says that completions were lost because the queue was
	// full. The queue pairs that use it are in the error state.
	ErrCQOverflow = errors.New("roce: completion queue overflow: more completions than entries; create it larger or poll more often")
	// ErrBusy says that an object is still used by another one (EBUSY).
	ErrBusy = errors.New("roce: object is in use")
	// ErrQueueFull says that a work queue has no free entry (ENOMEM).
	ErrQueueFull = errors.New("work queue is full")
)

// ConfigError says which field of a configuration is wrong and what is allowed.
type ConfigError struct {
	Field   string
	Value   any
	Allowed string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("roce: %s is %v: %s", e.Field, e.Value, e.Allowed)
}

// PostError says why a list of requests was not posted whole. The requests
// before Index were posted (as with bad_wr of ibv_post_send).
type PostError struct {
	Index int    // the first request that was not posted
	Field string // the field at fault, empty when the queue is
	Err   error
}

func (e *PostError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("roce: request %d: %v", e.Index, e.Err)
	}
	return fmt.Sprintf("roce: request %d: %s: %v", e.Index, e.Field, e.Err)
}

func (e *PostError) Unwrap() error { return e.Err }
