package ib

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Every packet that Linux rxe sent parses, its ICRC is right, its ID is
// recovered, and its headers written again with Put are the same bytes.
func TestRXECaptures(t *testing.T) {
	for _, f := range rxeCaptures {
		t.Run(f.file, func(t *testing.T) {
			packets := readRXE(t, f.file)
			if len(packets) != f.want {
				t.Fatalf("%d RoCE packets in the capture, want %d", len(packets), f.want)
			}
			v4, v6 := 0, 0
			for _, c := range packets {
				checkPacket(t, c)
				if c.src.Addr().Is4() {
					v4++
				} else {
					v6++
				}
			}
			if v4 < 1000 || v6 < 20 {
				t.Errorf("%d IPv4 and %d IPv6 packets: the capture should have many of both", v4, v6)
			}
		})
	}
}

// checkPacket checks everything that holds for any packet of an honest sender.
func checkPacket(t *testing.T, c captured) {
	t.Helper()
	if err := c.verify(); err != nil {
		t.Errorf("%s: %v", c.name, err)
		return
	}
	p, m := Parse(c.b)
	if m != OK {
		t.Errorf("%s: Parse: %v", c.name, m)
		return
	}
	again := encode(p)
	again[4] |= c.b[4] & 0x3f // reserved bits are written as 0
	again[8] |= c.b[8] & 0x7f
	copy(again[len(again)-ICRCSize:], c.b[len(c.b)-ICRCSize:])
	for i := range int(p.Pad()) {
		again[len(again)-ICRCSize-1-i] = c.b[len(again)-ICRCSize-1-i]
	}
	if !bytes.Equal(again, c.b) {
		t.Errorf("%s: encoded again\n%x, want\n%x", c.name, again, c.b)
	}
	if p.Info().Op == KindCNP {
		cnp := make([]byte, CNPSize)
		if PutCNP(cnp, p.DestQP()); !bytes.Equal(cnp[:CNPSize-ICRCSize], c.b[:len(c.b)-ICRCSize]) {
			t.Errorf("%s: PutCNP writes %x, the sender %x", c.name, cnp, c.b)
		}
	}
	if c.lrh == nil && c.grh == nil {
		sealed := bytes.Clone(c.b)
		clear(sealed[len(sealed)-ICRCSize:])
		f := NewFlow(c.src, c.dst)
		f.Seal(c.id, sealed)
		if !bytes.Equal(sealed, c.b) {
			t.Errorf("%s: Seal writes ICRC %x", c.name, sealed[len(sealed)-ICRCSize:])
		}
	}
}

// encode writes the headers and the payload of p with the Put methods.
func encode(p Packet) []byte {
	b := make([]byte, MaxHeaderSize+len(p.Payload())+3+ICRCSize)
	i := p.Info()
	n := p.BTH().Put(b)
	for _, h := range []struct {
		has bool
		put func([]byte) int
	}{
		{i.XRCETH, XRCETH(p.XRCSRQ()).Put},
		{i.DETH, p.DETH().Put},
		{i.FETH, p.FETH().Put},
		{i.RETH, p.RETH().Put},
		{i.AtomicETH, p.AtomicETH().Put},
		{i.AETH, p.AETH().Put},
		{i.AtomicAckETH, p.AtomicAck().Put},
		{i.Imm, p.Imm().Put},
		{i.IETH, p.IETH().Put},
	} {
		if h.has {
			n += h.put(b[n:])
		}
	}
	n += copy(b[n:], p.Payload()) + int(p.Pad()) + ICRCSize
	return b[:n]
}

// capturesDir returns the folder with the captures that are not in the
// repository, or skips.
func capturesDir(t *testing.T) string {
	dir := os.Getenv(capturesEnv)
	if dir == "" {
		t.Skipf("set %s to the folder of captures (with wild/ in it) to run this test", capturesEnv)
	}
	return dir
}

// The packets of NICs, of native InfiniBand and of other implementations parse
// and their ICRCs are right.
func TestWildCaptures(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(capturesDir(t), "wild", "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no capture in wild/ (%v)", err)
	}
	for _, file := range files {
		packets := readPcap(t, file)
		if len(packets) == 0 {
			t.Errorf("%s: no packet found", file)
		}
		for _, c := range packets {
			if _, m := Parse(c.b); c.lrh != nil && m == ReservedQPN && c.verify() == nil {
				continue // native subnet management goes to QP0
			}
			checkPacket(t, c)
		}
	}
}

// The same for single packets with their sources: vectors.json.
func TestWildVectors(t *testing.T) {
	d, err := os.ReadFile(filepath.Join(capturesDir(t), "wild", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Bytes, Opcode string
		LinkType            uint32
		ICRC                string `json:"icrc_wire"`
	}
	if err := json.Unmarshal(d, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		raw, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		c, err := dissect(v.LinkType, raw)
		if err != nil || c == nil {
			t.Errorf("%s: no packet found: %v", v.Name, err)
			continue
		}
		c.name = v.Name
		checkPacket(t, *c)
		if got := hex.EncodeToString(c.b[len(c.b)-ICRCSize:]); got != v.ICRC {
			t.Errorf("%s: ICRC bytes %s, want %s", v.Name, got, v.ICRC)
		}
		if want, _ := strconv.ParseUint(v.Opcode, 0, 8); Opcode(c.b[0]) != Opcode(want) {
			t.Errorf("%s: opcode %v, want %s", v.Name, Opcode(c.b[0]), v.Opcode)
		}
	}
}

// An IDTracker refuses no packet of a clean flow, however its packets are divided
// among trackers: by hosts, by address and port, by queue pair; and with the
// clock read once per packet or once per batch.
func TestIDTrackerAcceptsCaptures(t *testing.T) {
	keys := map[string]func(c captured, p Packet) string{
		"hosts": func(c captured, _ Packet) string { return fmt.Sprint(c.src.Addr(), c.dst.Addr()) },
		"ports": func(c captured, _ Packet) string { return fmt.Sprint(c.src, c.dst) },
		"QP":    func(c captured, p Packet) string { return fmt.Sprint(c.src.Addr(), p.DestQP()) },
	}
	for _, f := range rxeCaptures {
		packets := readRXE(t, f.file)
		for name, key := range keys {
			for _, batch := range []time.Duration{1, 100 * time.Microsecond, 5 * time.Millisecond} {
				trackers := map[string]*IDTracker{}
				for _, c := range packets {
					p, m := Parse(c.b)
					if m != OK || c.src.Addr().Is6() {
						continue
					}
					k := key(c, p)
					if trackers[k] == nil {
						trackers[k] = new(IDTracker)
					}
					if !trackers[k].Accept(c.at.Truncate(batch), c.id) {
						t.Errorf("by %s, batch %v: %s: ID %d refused", name, batch, c.name, c.id)
					}
				}
			}
		}
	}
}

// The ICRC of a captured RoCEv2 packet depends on every field that wire devices
// leave alone: addresses, ports, ID.
func TestFlowCoversAddresses(t *testing.T) {
	for _, c := range readRXE(t, rxeCaptures[1].file)[:200] {
		for name, f := range map[string]Flow{
			"source port":      NewFlow(netip.AddrPortFrom(c.src.Addr(), c.src.Port()^1), c.dst),
			"destination port": NewFlow(c.src, netip.AddrPortFrom(c.dst.Addr(), c.dst.Port()^0x100)),
			"source":           NewFlow(netip.AddrPortFrom(c.src.Addr().Next(), c.src.Port()), c.dst),
			"destination":      NewFlow(c.src, netip.AddrPortFrom(c.dst.Addr().Prev(), c.dst.Port())),
		} {
			if f.Verify(c.id, c.b) {
				t.Fatalf("%s: Verify accepts another %s", c.name, name)
			}
		}
	}
}
