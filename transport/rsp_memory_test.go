package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

func (w *rspWorld) region(name string, n int, pd mem.PD, acc mem.Access) {
	w.guard[name] = slices.Concat(rspGuardBytes, rspPattern()[len(w.reg)<<16:][:n], rspGuardBytes)
	buf := w.guard[name][rspGuard:][:n:n]
	r, err := w.tab.Register(buf, pd, acc, rspIOVA)
	if err != nil {
		w.t.Fatal(err)
	}
	w.reg[name], w.fresh[name], w.alias[name] = r, slices.Clone(buf), r.Key()
}

// rspPattern is what regions are filled with: any 4 bytes of it are nearly sure
// to be found at one place only.
var rspPattern = sync.OnceValue(func() []byte {
	b := make([]byte, 8<<16+3<<20)
	rand.NewChaCha8([32]byte{2}).Read(b)
	return b
})

// sync is the mem.Sync of all regions.
func (w *rspWorld) sync(b []byte) error {
	for name, r := range w.reg {
		if at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&r.Bytes()[0])); at < uintptr(r.Len()) {
			w.syncs = append(w.syncs, fmt.Sprintf("%s@%d %d", name, at, len(b)))
		}
	}
	return w.syncErr
}

// word reads REGION@OFF.
func (w *rspWorld) word(at string) (*mem.Region, int) {
	name, off, _ := strings.Cut(at, "@")
	n, err := strconv.Atoi(off)
	if err != nil || w.reg[name] == nil {
		w.t.Fatalf("no word %q", at)
	}
	return w.reg[name], n
}

// checkMemory compares a region with payloads, "mr@16 0:256 1:10", and that all
// of it but them is as it was.
func (w *rspWorld) checkMemory(f []string) {
	w.t.Helper()
	name, off, _ := strings.Cut(f[0], "@")
	at, _ := strconv.Atoi(off)
	want := slices.Clone(w.fresh[name])
	for _, piece := range f[1:] {
		var psn, n int
		if _, err := fmt.Sscanf(piece, "grh:%d", &n); err == nil { // before a packet of n bytes
			ib.PutGRH(want[at:], rspPeer, rspSelf, rspTOS, n)
			at += ib.GRHSize
			continue
		}
		if _, err := fmt.Sscanf(piece, "%d:%d", &psn, &n); err != nil {
			w.t.Fatalf("%q: %v", piece, err)
		}
		at += copy(want[at:], rspPayload(psn, n, 0))
	}
	if got := w.reg[name].Bytes(); !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		w.t.Fatalf("memory %v differs first at offset %d", f, i)
	}
	copy(w.fresh[name], want)
}
