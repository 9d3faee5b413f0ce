package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is that of a package; `make build` sets it.
var version string

// versionText is what --version prints: the version of the package or, of a command
// that go install has built, of the module, and what it was built by and for.
func versionText() string {
	v := version
	if v == "" {
		v = "(devel)"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			v = info.Main.Version
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
