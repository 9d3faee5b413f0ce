package nvme

import (
	"encoding/binary"
	"fmt"
	"time"
)

// execute does what a command says, and answers it; or begins it.
func (q *targetQueue) execute(r *request) error {
	switch {
	case r.cmd.Opcode == opFabrics:
		return q.fabrics(r)
	case q.ctrl == nil || !q.t.ready(q.ctrl):
		return q.respond(r, answer{status: sequenceError})
	case q.qid != 0:
		return q.ioCommand(r)
	}
	switch r.cmd.Opcode {
	case opIdentify:
		return q.respond(r, q.identify(r))
	case opGetLogPage:
		return q.respond(r, q.logPage(r))
	case opGetFeatures, opSetFeatures:
		return q.respond(r, q.features(r))
	case opKeepAlive:
		return q.respond(r, answer{})
	case opAbort:
		return q.respond(r, answer{result: 1}) // the command was not aborted: none waits long enough for that
	case opAsyncEvent:
		if q.events == asyncEvents {
			return q.respond(r, answer{status: asyncEventLimit})
		}
		q.events++ // nothing ever happens that it could be answered with
		return q.giveBack(r)
	}
	return q.respond(r, answer{status: invalidOpcode})
}

// ready says whether the host has enabled the controller.
func (t *Target) ready(c *controller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.csts&cstsReady != 0
}

// ioCommand reads and writes the disk in the memory where it is.
func (q *targetQueue) ioCommand(r *request) error {
	if r.cmd.Opcode > opRead {
		return q.respond(r, answer{status: invalidOpcode})
	}
	if r.cmd.NSID != namespaceID && (r.cmd.Opcode != opFlush || r.cmd.NSID != 0xffffffff) {
		return q.respond(r, answer{status: invalidNamespace})
	}
	if r.cmd.Opcode == opFlush {
		return q.respond(r, answer{}) // memory has no cache
	}
	lba := uint64(r.cmd.CDW[0]) | uint64(r.cmd.CDW[1])<<32
	n := uint64(uint16(r.cmd.CDW[2])) + 1
	blocks := uint64(len(q.t.cfg.Disk) / blockSize)
	switch {
	case n*blockSize > maxTransfer:
		return q.respond(r, answer{status: invalidField})
	case lba >= blocks || n > blocks-lba:
		return q.respond(r, answer{status: lbaOutOfRange})
	}
	data := place{q.t.disk, int(lba) * blockSize, int(n) * blockSize}
	if r.cmd.Opcode == opRead {
		return q.respond(r, answer{data: data})
	}
	return q.fetch(r, data, func() error { return q.respond(r, answer{}) })
}

// fabrics executes Connect and the accesses to properties.
func (q *targetQueue) fabrics(r *request) error {
	kind := uint8(r.cmd.NSID)
	switch {
	case kind == fabricsConnect && q.ctrl == nil:
		data := q.room(r, binary.Size(connectData{}))
		return q.fetch(r, data, func() error { return q.respond(r, q.connected(r, data.bytes())) })
	case kind == fabricsConnect || q.ctrl == nil:
		return q.respond(r, answer{status: sequenceError})
	case kind == fabricsPropertyGet && q.qid == 0:
		return q.respond(r, q.getProperty(r))
	case kind == fabricsPropertySet && q.qid == 0:
		return q.respond(r, q.setProperty(r))
	}
	return q.respond(r, answer{status: invalidField})
}

// connected executes Connect with its data (NVMe-oF 1.1, 3.3).
func (q *targetQueue) connected(r *request, b []byte) answer {
	var data connectData
	mustCode(binary.Decode(b, binary.LittleEndian, &data))
	format, qid, sqSize := uint16(r.cmd.CDW[0]), uint16(r.cmd.CDW[0]>>16), int(uint16(r.cmd.CDW[1]))+1
	wrong := func(offset uint64) answer { return answer{status: connectInvalidParam, result: offset} }
	sub := data.SubNQN.String()
	switch {
	case format != 0:
		return answer{status: connectFormat}
	case qid != q.qid:
		return wrong(connectOffsetQID)
	case sqSize < 2 || sqSize > q.size:
		return wrong(connectOffsetSQSize)
	case sub != q.t.cfg.SubNQN && (sub != DiscoveryNQN || qid != 0):
		return wrong(connectOffsetSubNQN)
	case data.HostNQN.String() == "" || len(data.HostNQN.String()) > maxNQN:
		return wrong(connectOffsetHostNQN)
	case qid == 0 && data.CNTLID != cntlidDynamic:
		return wrong(connectOffsetCNTLID)
	}
	if qid == 0 {
		q.ctrl = q.t.newController(q, &data, r.cmd.CDW[2])
	} else {
		c, status, offset := q.t.join(q, qid, &data)
		if status != success {
			return answer{status: status, result: offset}
		}
		q.ctrl = c
	}
	q.sqSize, q.noFlow = sqSize, uint8(r.cmd.CDW[1]>>16)&connectNoFlow != 0
	return answer{result: uint64(q.ctrl.id)}
}

// getProperty reads a register of the controller (NVMe 1.3, 3.1).
func (q *targetQueue) getProperty(r *request) answer {
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	var value uint64
	size := 4
	switch r.cmd.CDW[1] {
	case propCAP:
		size = 8
		const (
			contiguous = 1 << 16
			timeout    = 10 << 24 // 5 s, in 500 ms
			nvm        = 1 << 37
		)
		value = maxQueueSize - 1 | contiguous | timeout | nvm
	case propVS:
		value = version
	case propCC:
		value = uint64(q.ctrl.cc)
	case propCSTS:
		value = uint64(q.ctrl.csts)
	default:
		return answer{status: invalidField}
	}
	if size == 8 != (r.cmd.CDW[0]&7 == 1) {
		return answer{status: invalidField}
	}
	return answer{result: value}
}

// setProperty writes one. Of those there are only the controller configuration may be written: what it asks for has happened at once.
func (q *targetQueue) setProperty(r *request) answer {
	if r.cmd.CDW[1] != propCC || r.cmd.CDW[0]&7 != 0 {
		return answer{status: invalidField}
	}
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	c := q.ctrl
	c.cc, c.csts = r.cmd.CDW[2], 0
	if c.cc&ccEnable != 0 {
		c.csts |= cstsReady
	}
	if c.cc&ccShutdown != 0 {
		c.csts |= cstsShutdownDone
	}
	return answer{}
}

// features sets or gets one (NVMe 1.3, 5.21).
func (q *targetQueue) features(r *request) answer {
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	set, value := r.cmd.Opcode == opSetFeatures, r.cmd.CDW[1]
	switch uint8(r.cmd.CDW[0]) {
	case featureQueues:
		if set && (uint16(value) == 0xffff || value>>16 == 0xffff) {
			return answer{status: invalidField}
		}
		n := uint64(q.t.cfg.MaxQueues - 1)
		return answer{result: n<<16 | n}
	case featureAsync:
		if set {
			q.ctrl.async = value
		}
		return answer{result: uint64(q.ctrl.async)}
	case featureKeepAlive:
		if set {
			q.t.setKeepAlive(q.ctrl, value)
		}
		return answer{result: uint64(q.ctrl.kato / time.Millisecond)}
	}
	return answer{status: invalidField}
}

// identify fills an Identify structure (NVMe 1.3, 5.15).
func (q *targetQueue) identify(r *request) answer {
	data := q.room(r, identifySize)
	b := data.bytes()
	cns := uint8(r.cmd.CDW[0])
	if cns != cnsController && q.ctrl.discovery {
		return answer{status: invalidField}
	}
	switch cns {
	case cnsController:
		mustCode(binary.Encode(b, binary.LittleEndian, q.controllerData()))
	case cnsActive:
		if r.cmd.NSID >= 0xfffffffe {
			return answer{status: invalidNamespace}
		}
		if r.cmd.NSID < namespaceID {
			binary.LittleEndian.PutUint32(b, namespaceID)
		}
	case cnsNamespace, cnsDescriptors:
		if r.cmd.NSID != namespaceID {
			return answer{status: invalidNamespace}
		}
		if cns == cnsNamespace {
			mustCode(binary.Encode(b, binary.LittleEndian, q.t.namespaceData()))
		} else {
			b[0], b[1] = 2, 16 // an NGUID, its length
			copy(b[4:], q.t.nguid[:])
		}
	default:
		return answer{status: invalidField}
	}
	return answer{data: data}
}

func (q *targetQueue) controllerData() *ControllerData {
	c := &ControllerData{
		CNTLID: q.ctrl.id, Version: version, Type: controllerIO, AERLimit: asyncEvents - 1, LogAttr: lpaExtended, KeepAlive: 1,
		MDTS: 8, SQEntry: 6<<4 | 6, CQEntry: 4<<4 | 4, MaxCommands: maxQueueSize, Namespaces: 1,
		SGLs: sglsSupported | sglsKeyed | sglsInCapsule, SubNQN: makeName(q.t.cfg.SubNQN),
		CommandSize: uint32(commandSize+q.t.cfg.InlineData) / 16, ResponseSize: responseSize / 16, MaxSGL: 1,
	}
	if q.ctrl.discovery {
		c.Type, c.Namespaces, c.SubNQN = controllerDiscovery, 0, makeName(DiscoveryNQN)
	}
	padded(c.Serial[:], fmt.Sprintf("%x", q.t.nguid[:8]))
	padded(c.Model[:], "goroce RAM disk")
	padded(c.Firmware[:], "1")
	return c
}

func (t *Target) namespaceData() *NamespaceData {
	blocks := uint64(len(t.cfg.Disk) / blockSize)
	n := &NamespaceData{Blocks: blocks, Capacity: blocks, Utilization: blocks, NGUID: t.nguid}
	n.LBAF[0].Shift = blockShift
	return n
}

// logPage reads a piece of a log page (NVMe 1.3, 5.14), of at most what a request has room for.
func (q *targetQueue) logPage(r *request) answer {
	n := (uint64(r.cmd.CDW[0]>>16|r.cmd.CDW[1]<<16) + 1) * 4
	offset := uint64(r.cmd.CDW[2]) | uint64(r.cmd.CDW[3])<<32
	var page []byte
	switch id := uint8(r.cmd.CDW[0]); {
	case id == logDiscovery && q.ctrl.discovery:
		page = q.discovery()
	case id == logError || id == logFirmware:
		page = make([]byte, 512) // no error has an entry, no slot a revision
	case id == logSMART && !q.ctrl.discovery:
		page = make([]byte, 512)
		const kelvin = 300
		binary.LittleEndian.PutUint16(page[1:], kelvin)
		page[3], page[4] = 100, 10 // percent of the spare there is, and that should be
	default:
		return answer{status: invalidLogPage}
	}
	if n > dataRoom || offset > uint64(len(page)) || offset%4 != 0 {
		return answer{status: invalidField}
	}
	data := q.room(r, int(n))
	copy(data.bytes(), page[offset:])
	return answer{data: data}
}

// discovery is the discovery log page: the subsystem, at the address where the host has found us.
func (q *targetQueue) discovery() []byte {
	at := q.conn.LocalAddr()
	e := DiscoveryEntry{
		Transport: 1, AddressFamily: 1, Subsystem: 2, CNTLID: cntlidDynamic, AdminSize: adminDepth, SubNQN: makeName(q.t.cfg.SubNQN),
		Address: makeName(at.Addr().String()), QPType: 1, Provider: 4, CMService: 1,
	}
	if at.Addr().Is6() {
		e.AddressFamily = 2
	}
	padded(e.ServiceID[:], fmt.Sprint(at.Port()))
	return append(encoded(&discoveryHeader{Generation: 1, Records: 1}), encoded(&e)...)
}
