package mem

import (
	"bytes"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"
)

// Memory from C may be gone or protected when a packet arrives: that is an
// answer, not a crash.
func TestFault(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	page := syscall.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Munmap(m); err != nil {
			t.Error(err)
		}
	}()
	tab := NewTable(seeded(1))
	r := register(t, tab, unsafe.Slice(unsafe.SliceData(m), 2*page), 1, LocalWrite|RemoteRead|RemoteWrite|RemoteAtomic, 0x1000)
	var c Cursor
	if s := c.Remote(tab, 1, r.Key(), 0x1000, r.Len(), RemoteRead|RemoteWrite); s != OK {
		t.Fatal(s)
	}
	var word Cursor
	if s := word.Remote(tab, 1, r.Key(), 0x1000+uint64(page), 8, RemoteAtomic|RemoteWrite); s != OK {
		t.Fatal(s)
	}
	b := bytes.Repeat([]byte{7}, 256)
	edge := uint64(page)
	for _, tt := range []struct {
		rule    string
		protect int
		off     uint64
		n       int
		out, in Status
	}{
		{"both pages there", syscall.PROT_READ | syscall.PROT_WRITE, edge - 128, 256, OK, OK},
		{"second page gone: before it", syscall.PROT_NONE, edge - 128, 128, OK, OK},
		{"second page gone: across", syscall.PROT_NONE, edge - 128, 256, Fault, Fault},
		{"second page gone: last word only", syscall.PROT_NONE, edge - 128, 136, Fault, Fault},
		{"second page gone: last byte only", syscall.PROT_NONE, edge - 128, 129, Fault, Fault},
		{"second page gone: in it", syscall.PROT_NONE, edge + 3, 50, Fault, Fault},
		{"second page read-only", syscall.PROT_READ, edge, 64, OK, Fault},
		{"it comes back", syscall.PROT_READ | syscall.PROT_WRITE, edge, 64, OK, OK},
	} {
		if err := syscall.Mprotect(m[page:], tt.protect); err != nil {
			t.Fatal(err)
		}
		if s := c.CopyOut(b[:tt.n], tt.off); s != tt.out {
			t.Errorf("%s: CopyOut: %v, want %v", tt.rule, s, tt.out)
		}
		if s := c.CopyIn(tt.off, b[:tt.n]); s != tt.in {
			t.Errorf("%s: CopyIn: %v, want %v", tt.rule, s, tt.in)
		}
		if raceEnabled && tt.protect == syscall.PROT_READ {
			continue // the race detector's own atomics cannot be recovered from
		}
		want := Fault
		if tt.protect&syscall.PROT_WRITE != 0 {
			want = OK
		}
		if _, s := word.FetchAdd(1); s != want {
			t.Errorf("%s: FetchAdd: %v, want %v", tt.rule, s, want)
		}
		if old, s := word.CompareSwap(1<<60, 0); s != want && tt.protect == syscall.PROT_NONE {
			t.Errorf("%s: CompareSwap: %d, %v, want %v", tt.rule, old, s, want)
		}
		if s := word.StoreWord(b[:8]); s != want {
			t.Errorf("%s: StoreWord: %v, want %v", tt.rule, s, want)
		}
	}
}

func TestOnlyMemoryFaultsAreAnswers(t *testing.T) {
	for name, f := range map[string]func(){
		"a bug":           func() { panic("bug") },
		"a runtime error": func() { _ = []int{}[len(t.Name())] },
		"a nil pointer":   func() { var p *int; *p = 1 },
	} {
		if !panics(func() {
			var s Status
			defer fault(&s)
			f()
		}) {
			t.Errorf("%s: swallowed", name)
		}
	}
}
