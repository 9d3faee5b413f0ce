package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goroce/goroce/roce/rdmacm"
)

// DiscoveryNQN is the name of the subsystem that says which others there are.
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// adminDepth is the size of an admin queue (NVME_AQ_DEPTH of Linux).
const adminDepth = 32

// maxQueueSize bounds I/O queues (NVME_RDMA_MAX_QUEUE_SIZE of Linux).
const maxQueueSize = 128

// Offsets of properties (NVMe-oF 1.1, 3.5.1).
const (
	propCAP  = 0x00
	propVS   = 0x08
	propCC   = 0x14
	propCSTS = 0x1c
)

// Bits of the properties CC and CSTS (NVMe 1.3, 3.1.5 and 3.1.6).
const (
	ccEnable         = 1
	ccShutdown       = 3 << 14
	ccShutdownNormal = 1 << 14
	ccEntrySizes     = 4<<20 | 6<<16 // 16 and 64 bytes
	cstsReady        = 1
	cstsShutdown     = 3 << 2
	cstsShutdownDone = 2 << 2
)

// version is the one of the target: 1.3.
const version = 1<<16 | 3<<8

// cmRequest is the private data of a connection request (NVMe-oF 1.1, 7.3.6.2; nvme_rdma_cm_req).
type cmRequest struct {
	Format  uint16
	QID     uint16
	HRQSize uint16 // responses that the host has receive requests for
	HSQSize uint16 // 0's based: commands that it may have under way
	_       [24]byte
}

// cmReply is the private data of an accepted one (nvme_rdma_cm_rep).
type cmReply struct {
	Format  uint16
	CRQSize uint16 // commands that the target has receive requests for
	_       [28]byte
}

// cmReject is the private data of a rejected one (nvme_rdma_cm_rej).
type cmReject struct {
	Format uint16
	Status CMStatus
}

// CMStatus says why a target rejects a connection (nvme_rdma_cm_status).
type CMStatus uint16

const (
	cmInvalidFormat  CMStatus = 2
	cmInvalidHSQSize CMStatus = 4
	cmInvalidHRQSize CMStatus = 5
	cmNoResources    CMStatus = 6
	cmInvalidIRD     CMStatus = 7
)

func (s CMStatus) Error() string {
	names := [...]string{"status 0", "invalid length", "invalid record format", "invalid queue ID", "invalid host SQ size",
		"invalid host RQ size", "no resources", "invalid IRD", "invalid ORD"}
	if int(s) < len(names) {
		return "nvme: the target rejects the connection: " + names[s]
	}
	return fmt.Sprintf("nvme: the target rejects the connection: status %d", uint16(s))
}

// rejection makes an error that says why, if the target has told.
func rejection(err error) error {
	var rejected *rdmacm.RejectedError
	var r cmReject
	if !errors.As(err, &rejected) || len(rejected.PrivateData) < binary.Size(r) {
		return err
	}
	mustCode(binary.Decode(rejected.PrivateData, binary.LittleEndian, &r))
	if r.Format != 0 || r.Status == 0 {
		return err
	}
	return fmt.Errorf("%w: %w", r.Status, err)
}

// encoded is a structure of fixed size as bytes.
func encoded(v any) []byte {
	b := make([]byte, binary.Size(v))
	mustCode(binary.Encode(b, binary.LittleEndian, v))
	return b
}

// name is a text field that ends at its first 0.
type name [256]byte

func makeName(s string) (n name) {
	copy(n[:], s)
	return n
}

func (n *name) String() string { return text(n[:]) }

// text is a field that ends at a 0, or in spaces.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(bytes.TrimRight(b, " "))
}

// padded fills a field of ASCII text with spaces.
func padded(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}

// cntlidDynamic in a Connect command asks for any controller.
const cntlidDynamic = 0xffff

// connectData goes with a Connect command (NVMe-oF 1.1, 3.3).
type connectData struct {
	HostID  [16]byte
	CNTLID  uint16
	_       [238]byte
	SubNQN  name
	HostNQN name
	_       [256]byte
}

// Offsets of fields that a Connect may have wrong, as its response tells them; those in the data have a bit more.
const (
	connectOffsetQID     = 42
	connectOffsetSQSize  = 44
	connectInData        = 1 << 16
	connectOffsetCNTLID  = connectInData | 16
	connectOffsetSubNQN  = connectInData | 256
	connectOffsetHostNQN = connectInData | 512
)

// connectNoFlow is the attribute of a Connect that wants no submission queue heads.
const connectNoFlow = 1 << 2

// The log pages.
const (
	logError     = 0x01
	logSMART     = 0x02
	logFirmware  = 0x03
	logDiscovery = 0x70
)

// discoveryHeader is the beginning of the discovery log page, followed by entries of the same size.
type discoveryHeader struct {
	Generation uint64
	Records    uint64
	Format     uint16
	_          [1006]byte
}

// DiscoveryEntry is a record of the discovery log page (NVMe-oF 1.1, 5.3).
type DiscoveryEntry struct {
	Transport     uint8 // 1: RDMA
	AddressFamily uint8 // 1: IPv4, 2: IPv6
	Subsystem     uint8 // 1: discovery, 2: NVM, 3: the discovery subsystem asked
	Requirements  uint8
	PortID        uint16
	CNTLID        uint16
	AdminSize     uint16
	_             [22]byte
	ServiceID     [32]byte // text: the port
	_             [192]byte
	SubNQN        name
	Address       name
	QPType        uint8 // 1: connected
	Provider      uint8 // 1: not specified, 4: RoCEv2
	CMService     uint8 // 1: RDMA_CM
	_             [253]byte
}

// Port returns the port of the subsystem.
func (d *DiscoveryEntry) Port() string { return text(d.ServiceID[:]) }

// Identify structures (CNS values).
const (
	cnsNamespace   = 0x00
	cnsController  = 0x01
	cnsActive      = 0x02
	cnsDescriptors = 0x03
	identifySize   = 4096
)

// Types of controllers.
const (
	controllerIO        = 1
	controllerDiscovery = 2
)

// Capabilities of SGLs in Identify Controller.
const (
	sglsSupported = 1 << 0
	sglsKeyed     = 1 << 2
	sglsInCapsule = 1 << 20 // the address of data in capsules is an offset
)

// lpaExtended says in Identify Controller that Get Log Page has an offset.
const lpaExtended = 1 << 2

// ControllerData is Identify Controller (NVMe 1.3, figure 109; NVMe-oF 1.1, 4.1), with the fields that are used here.
type ControllerData struct {
	VID, SSVID   uint16
	Serial       [20]byte
	Model        [40]byte
	Firmware     [8]byte
	_            [5]byte
	MDTS         uint8 // a command's data at most, as a power of two of 4 KiB
	CNTLID       uint16
	Version      uint32
	_            [27]byte
	Type         uint8
	_            [147]byte
	AERLimit     uint8 // 0's based
	_            uint8
	LogAttr      uint8
	_            [58]byte
	KeepAlive    uint16 // granularity in 100 ms
	_            [190]byte
	SQEntry      uint8 // sizes as powers of two: required, maximum
	CQEntry      uint8
	MaxCommands  uint16
	Namespaces   uint32
	_            [16]byte
	SGLs         uint32
	_            [228]byte
	SubNQN       name
	_            [768]byte
	CommandSize  uint32 // of capsules with data, of I/O queues, in 16 bytes
	ResponseSize uint32 // the same of responses
	DataOffset   uint16 // of data in a capsule, in 16 bytes
	Attr         uint8
	MaxSGL       uint8
	_            [2292]byte
}

// NamespaceData is Identify Namespace (NVMe 1.3, figure 114), with the fields that are used here.
type NamespaceData struct {
	Blocks      uint64
	Capacity    uint64
	Utilization uint64
	_           uint8
	Formats     uint8 // 0's based
	Format      uint8 // the one in use
	_           [77]byte
	NGUID       [16]byte
	EUI64       uint64
	LBAF        [16]struct {
		Metadata uint16
		Shift    uint8 // bytes of a block as a power of two
		Speed    uint8
	}
	_ [3904]byte
}

// Features.
const (
	featureQueues    = 0x07
	featureAsync     = 0x0b
	featureKeepAlive = 0x0f
)
