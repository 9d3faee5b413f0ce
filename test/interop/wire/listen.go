package wire

import (
	"fmt"
	"strings"
)

// Listening says whether a table in the format of /proc/net/tcp has a socket in state LISTEN (0A) on the port.
func Listening(table string, port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], suffix) {
			return true
		}
	}
	return false
}
