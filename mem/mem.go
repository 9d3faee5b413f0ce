// Package mem is the protection side of a channel adapter: memory regions over
// memory that the caller owns, their keys, the checks that every local and
// remote access passes, and cursors that copy between packets and lists of
// segments.
//
// An address (the iova of a region, the VA of a request, the Addr of an SGE)
// is a number that names a byte of a region; it is never dereferenced. What is
// touched is always a sub-slice of the []byte that was registered. That slice
// may be Go heap memory, which the region keeps alive, or memory of C or of a
// mapping made into a slice with unsafe.Slice, which its owner must keep until
// after [Table.Deregister].
//
// # Concurrency
//
// What makes and removes the objects of one [Table] (Register, Deregister and so
// on) is serialised by the caller. What queue pairs execute (Bind, Invalidate,
// FastRegister) may run beside it, and beside each other. Lookups, which are what
// cursors do when they are opened, take no lock and may run beside everything. A
// [Cursor] belongs to one goroutine at a time. The
// methods of [Region] may be called by anyone at any time.
//
// # Visibility
//
// Programs poll the last byte of a message, or a flag that a later message
// writes. [Cursor.CopyIn] therefore stores the end of each copy last, with one
// atomic store where it is a whole aligned word: whoever sees it sees all of
// that copy and all earlier copies. Go programs look at such words through the
// accessors of Region, or with sync/atomic.
package mem

import (
	"fmt"
	"strings"
)

// MaxSGE is the most entries a scatter/gather list may have.
const MaxSGE = 32

// Access is a set of rights of a memory region or a queue pair, numbered as
// ibv_access_flags.
type Access uint32

const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	MWBind          Access = 1 << 4
	ZeroBased       Access = 1 << 5 // addresses of the region start at 0
	OnDemand        Access = 1 << 6 // no effect: nothing is ever pinned
	HugeTLB         Access = 1 << 7 // no effect
	FlushGlobal     Access = 1 << 8
	FlushPersistent Access = 1 << 9
	RelaxedOrdering Access = 1 << 20 // no effect: writes stay ordered
)

// optional are the rights a device may ignore (IBV_ACCESS_OPTIONAL_RANGE of
// ibv_reg_mr(3): bits 20 to 29); known are those it must understand.
const (
	optional Access = 0x3ff00000
	known           = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind |
		ZeroBased | OnDemand | HugeTLB | FlushGlobal | FlushPersistent
)

var accessNames = []struct {
	bit  Access
	name string
}{
	{LocalWrite, "LOCAL_WRITE"}, {RemoteWrite, "REMOTE_WRITE"}, {RemoteRead, "REMOTE_READ"},
	{RemoteAtomic, "REMOTE_ATOMIC"}, {MWBind, "MW_BIND"}, {ZeroBased, "ZERO_BASED"},
	{OnDemand, "ON_DEMAND"}, {HugeTLB, "HUGETLB"}, {FlushGlobal, "FLUSH_GLOBAL"},
	{FlushPersistent, "FLUSH_PERSISTENT"}, {RelaxedOrdering, "RELAXED_ORDERING"},
}

// String names the rights as ibverbs does, without the prefix IBV_ACCESS_.
func (a Access) String() string {
	if a == 0 {
		return "0"
	}
	var s []string
	for _, n := range accessNames {
		if a&n.bit != 0 {
			s = append(s, n.name)
			a &^= n.bit
		}
	}
	if a != 0 {
		s = append(s, fmt.Sprintf("%#x", uint32(a)))
	}
	return strings.Join(s, "|")
}

// PD is the number of a protection domain.
type PD uint32

// SGE is one entry of a scatter/gather list. An entry of length 0 names no
// memory and is not checked, whatever its key.
type SGE struct {
	Addr   uint64 // address within the region: its iova plus an offset
	Length uint32 // bytes
	LKey   uint32
}

// Status is the outcome of an access check or of a copy.
type Status uint8

// The checks are made in this order, entry by entry, and the first that fails
// is the answer: the number of entries, then for each the key, the protection
// domain or queue pair, the rights, overflow, range. On the wire all of them are the same NAK
// (IBTA 9.7.4.1.5); the order is fixed so that tests and logs tell causes apart
// and so that a key of another domain reveals nothing about its region.
const (
	OK           Status = iota
	BadKey              // nothing has this key, or it was deregistered or closed since
	WrongPD             // the region or window belongs to another protection domain
	WrongQP             // the window is open to another queue pair
	AccessDenied        // the region, or the cursor, does not allow it
	Overflow            // address + length exceeds 2^64 - 1
	OutOfRange          // not wholly within the region or the cursor
	Misaligned          // an atomic not on its natural boundary
	TooManySGE          // more than MaxSGE entries
	Fault               // the memory behind a valid range cannot be accessed
	WrongKind           // what the key names cannot be bound, invalidated, registered
	NotFree             // it has to be invalidated before
	Busy                // windows are bound to it, or somebody else is changing it
)

var statusNames = [...]string{
	"ok", "bad key", "wrong protection domain", "wrong queue pair", "access denied", "address overflow",
	"out of range", "misaligned", "too many SGEs", "memory fault", "wrong kind of object", "not free", "in use",
}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}
