//go:build !linux

package capture

import (
	"context"
	"errors"
)

// Live captures on an interface; only Linux has a way that this package knows.
func Live(context.Context, string) (Source, error) {
	return nil, errors.New("capturing is implemented on Linux only: capture with another program, and read its file")
}
