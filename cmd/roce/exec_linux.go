package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// replace makes this process the program. It returns on failure only.
func replace(path string, args, env []string) error {
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args, env))
}

// hasCapabilities says whether a file gives its process capabilities.
func hasCapabilities(path string) bool {
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}
