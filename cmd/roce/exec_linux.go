package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// replace makes this process the program. It returns on failure only.
func replace(path string, args, env []string) error {
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args, env))
}
