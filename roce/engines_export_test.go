package roce

import (
	"os"
	"strconv"
)

// GOROCE_ENGINES=2 lets all tests of the package run with so many engines, where they
// do not say how many.
func init() {
	if n, err := strconv.Atoi(os.Getenv("GOROCE_ENGINES")); err == nil {
		defaultEngines = n
	}
}
