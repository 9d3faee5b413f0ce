//go:build !linux

package main

import "errors"

// replace has nothing to run: there are no programs of libibverbs elsewhere.
func replace(string, []string, []string) error { return errors.New("exec is for Linux alone") }

// hasCapabilities says whether a file gives its process capabilities, as on Linux.
func hasCapabilities(string) bool { return false }
