//go:build !unix

package roce

import "github.com/goroce/goroce/mem"

// msync is not there: no region can be registered with FlushPersistent.
var msync mem.Sync
