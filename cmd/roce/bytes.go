package main

import (
	"fmt"
	"strconv"
	"strings"
)

var byteUnits = []struct {
	name string
	n    int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// bytesText writes a number of bytes exactly: "4097 B", "64 KiB".
func bytesText(n int64) string {
	for _, u := range byteUnits {
		if n >= u.n && n%u.n == 0 {
			return fmt.Sprintf("%d %s", n/u.n, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// parseBytes reads a number of bytes: "4097", "64K", "64KiB", "1 GiB".
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "BKMGikmgb ")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	factor := int64(1)
	switch unit {
	case "", "b":
	case "k", "kib":
		factor = 1 << 10
	case "m", "mib":
		factor = 1 << 20
	case "g", "gib":
		factor = 1 << 30
	default:
		err = strconv.ErrSyntax
	}
	if err != nil || n < 0 || n > (1<<62)/factor {
		return 0, fmt.Errorf("%q is not a number of bytes such as 4097, 64K or 1MiB", s)
	}
	return n * factor, nil
}
