package roce

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"
)

// checkPersistent says whether all of b lies in shared mappings of files: of
// nothing else can msync make anything persistent.
func checkPersistent(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer f.Close()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := at + uintptr(len(b))
	for lines := bufio.NewScanner(f); lines.Scan() && at < end; {
		var from, to uintptr
		var rights string
		// 7f01a000-7f01c000 rw-s 00000000 fe:01 1234 /path, in order of address
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); err != nil || to <= at {
			continue
		}
		if from > at || !strings.HasSuffix(rights, "s") {
			break
		}
		at = to
	}
	if at < end {
		return errors.New("the memory is not a mapping of a file with MAP_SHARED")
	}
	return nil
}
