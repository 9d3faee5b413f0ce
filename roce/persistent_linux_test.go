package roce_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestPersistentFlush: memory of a mapped file can be flushed, all of it and a part
// that begins within a page; a failing msync is the peer's failure (IBTA A19).
func TestPersistentFlush(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "pmem"))
	must(t, err)
	defer f.Close()
	const size = 3 << 20
	must(t, f.Truncate(size))
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	mapped := true
	defer func() {
		if mapped {
			unix.Munmap(m)
		}
	}()
	a, b := rocetest.Options{Conn: roce.Conn{Access: roce.RemoteWrite | roce.FlushPersistent}}.Pair(t)
	mr, err := b.PD.RegisterMR(m, roce.LocalWrite|roce.RemoteWrite|roce.FlushPersistent)
	must(t, err)
	copy(a.MR.Bytes(), "to stay")
	flush := func(id uint64, level roce.FlushLevel, off, n int, status roce.WCStatus) {
		t.Helper()
		must(t, a.QP.PostSend(roce.SendWR{ID: id, Opcode: roce.WRFlush, Flags: roce.Signaled, RemoteAddr: mr.Addr() + uint64(off), RKey: mr.RKey(),
			Flush: roce.Flush{Placement: roce.PlacePersistent, Level: level, Length: uint32(n)}}))
		want(t, a.Next(t), id, roce.WCFlush, status)
	}
	must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 7)}, RemoteAddr: mr.Addr() + 5000, RKey: mr.RKey()}))
	flush(1, roce.FlushRange, 5000, 7, roce.WCSuccess)
	got := make([]byte, 7)
	if _, err := f.ReadAt(got, 5000); err != nil || string(got) != "to stay" {
		t.Errorf("the file has %q, %v", got, err)
	}
	flush(2, roce.FlushMR, 0, 0, roce.WCSuccess)
	flush(3, roce.FlushRange, 100, size-100, roce.WCSuccess)
	must(t, unix.Munmap(m))
	mapped = false
	flush(4, roce.FlushRange, 0, 8, roce.WCRemOpErr)
}

// TestPersistentNeedsAFile: what msync cannot make persistent is refused at once.
func TestPersistentNeedsAFile(t *testing.T) {
	a, _ := rocetest.Pair(t)
	anon, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(anon)
	f, err := os.Create(filepath.Join(t.TempDir(), "pmem"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(8192))
	private, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(t, err)
	defer unix.Munmap(private)
	for name, buf := range map[string][]byte{"heap": make([]byte, 8192), "anonymous": anon, "private mapping": private} {
		var re *mem.RegisterError
		if _, err := a.PD.RegisterMR(buf, roce.FlushPersistent); !errors.As(err, &re) || re.Field != "access" {
			t.Errorf("%s: %v, want an error that names access", name, err)
		}
	}
	if _, err := a.PD.RegisterMR(nil, roce.FlushPersistent); err != nil {
		t.Errorf("no memory at all: %v", err)
	}
}
