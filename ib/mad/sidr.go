package mad

import (
	"strconv"

	"github.com/goroce/goroce/ib"
)

// SIDRREQ asks which datagram queue pair serves a service (IBTA 12.11).
type SIDRREQ struct {
	RequestID   uint32
	PKey        ib.PKey
	ServiceID   ServiceID
	PrivateData []byte
}

// Attr returns AttrSIDRREQ.
func (m *SIDRREQ) Attr() Attr { return AttrSIDRREQ }

func (m *SIDRREQ) layout(l layout) {
	u32(l, 0, &m.RequestID)
	u16(l, 4, &m.PKey)
	u64(l, 8, &m.ServiceID)
	data(l, 16, SIDRREQPrivateData, &m.PrivateData)
}

// SIDRREP answers a SIDRREQ (IBTA 12.11).
type SIDRREP struct {
	RequestID   uint32
	Status      SIDRStatus
	QPN         ib.QPN
	ServiceID   ServiceID
	QKey        uint32
	Info        []byte // at most InfoSize bytes
	PrivateData []byte
}

// Attr returns AttrSIDRREP.
func (m *SIDRREP) Attr() Attr { return AttrSIDRREP }

func (m *SIDRREP) layout(l layout) {
	u32(l, 0, &m.RequestID)
	u8(l, 4, &m.Status)
	info(l, 5, 0, 24, InfoSize, &m.Info)
	u24(l, 8, &m.QPN)
	u64(l, 12, &m.ServiceID)
	u32(l, 20, &m.QKey)
	data(l, 96, SIDRREPPrivateData, &m.PrivateData)
}

// SIDRStatus is the outcome of a service id resolution (IBTA 12.11; Linux
// include/rdma/ib_cm.h).
type SIDRStatus uint8

// The outcomes.
const (
	SIDROK              SIDRStatus = iota
	SIDRUnsupported                // no such service
	SIDRRejected                   // by the service's owner
	SIDRNoQP                       // no queue pair to be had
	SIDRRedirect                   // ask elsewhere
	SIDRBadClassVersion            //
)

// String returns the outcome in words.
func (s SIDRStatus) String() string {
	names := [...]string{"ok", "service id not supported", "rejected", "no QP", "redirect", "unsupported class version"}
	if int(s) < len(names) {
		return names[s]
	}
	return "SIDR status " + strconv.Itoa(int(s))
}
