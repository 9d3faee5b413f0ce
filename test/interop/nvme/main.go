// Command nvme is NVMe over Fabrics on this stack, for the tests with the Linux kernel as the peer.
//
//	nvme target -addr ADDR -nqn NQN -bytes N   a disk of N bytes in memory; at the end of standard input it says whether the disk has the
//	                                           pattern that a host was to write, and ends with status 0 if it has
//	nvme host -addr ADDR -nqn NQN -bytes N     finds the subsystem by discovery, writes the pattern to its namespace 1, reads and compares
//
// The pattern is 8 bytes for each number from 0 on, little endian.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/nvme"
)

const port = "4420"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nvme:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || args[0] != "target" && args[0] != "host" {
		return fmt.Errorf("want target or host as the first argument")
	}
	flags := flag.NewFlagSet("nvme "+args[0], flag.ContinueOnError)
	var addr netip.Addr
	flags.TextVar(&addr, "addr", addr, "address of the target")
	nqn := flags.String("nqn", "nqn.2026-11.goroce:disk", "name of the subsystem")
	n := flags.Int("bytes", 1<<20, "bytes to write and to compare, a multiple of 512")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "target" {
		return target(addr, *nqn, *n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return host(ctx, net.JoinHostPort(addr.String(), port), *nqn, *n)
}

func pattern(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, i)
	}
	return b[:n]
}

func target(addr netip.Addr, nqn string, n int) error {
	dev, err := roce.Open(roce.Config{Addr: addr})
	if err != nil {
		return err
	}
	defer dev.Close()
	disk := make([]byte, n)
	t, err := nvme.Listen(net.JoinHostPort(addr.String(), port), nvme.TargetConfig{
		SubNQN: nqn, Device: dev, Disk: disk, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Println("listening")
	io.Copy(io.Discard, os.Stdin)
	if err := t.Close(); err != nil {
		return err
	}
	return compare(disk)
}

func compare(got []byte) error {
	want := pattern(len(got))
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(got), got[i], want[i])
	}
	fmt.Printf("%d bytes are right\n", len(got))
	return nil
}

// host does what `nvme discover`, `nvme connect` and two dd do.
func host(ctx context.Context, addr, nqn string, n int) error {
	found, err := discover(ctx, addr, nqn)
	if err != nil {
		return err
	}
	h, err := nvme.Connect(ctx, found, nvme.HostConfig{SubNQN: nqn, KeepAlive: 15 * time.Second})
	if err != nil {
		return err
	}
	defer h.Close(ctx)
	c := h.Controller()
	fmt.Printf("controller %d, model %q, subsystem %s\n", c.CNTLID, strings.TrimRight(string(c.Model[:]), " \x00"), &c.SubNQN)
	ids, err := h.Namespaces(ctx)
	if err != nil {
		return err
	}
	if len(ids) != 1 || ids[0] != 1 {
		return fmt.Errorf("namespaces %v, want number 1 alone", ids)
	}
	disk, err := h.Namespace(ctx, ids[0])
	if err != nil {
		return err
	}
	if have := disk.Data.Blocks * uint64(disk.BlockSize); have < uint64(n) {
		return fmt.Errorf("the namespace has %d bytes, want at least %d", have, n)
	}
	return copyAndCompare(ctx, disk, n)
}

// copyAndCompare writes the pattern, the first blocks one by one, which fit into capsules, and reads it.
func copyAndCompare(ctx context.Context, disk *nvme.Namespace, n int) error {
	data := pattern(n)
	alone := min(8*disk.BlockSize, n)
	for off := 0; off < alone; off += disk.BlockSize {
		if err := disk.Write(ctx, data[off:][:disk.BlockSize], uint64(off/disk.BlockSize)); err != nil {
			return err
		}
	}
	if err := disk.Write(ctx, data[alone:], uint64(alone/disk.BlockSize)); err != nil {
		return err
	}
	if err := disk.Flush(ctx); err != nil {
		return err
	}
	clear(data)
	if err := disk.Read(ctx, data, 0); err != nil {
		return err
	}
	return compare(data)
}

// discover returns where the subsystem is, as the discovery subsystem at addr has it.
func discover(ctx context.Context, addr, nqn string) (string, error) {
	h, err := nvme.Connect(ctx, addr, nvme.HostConfig{})
	if err != nil {
		return "", err
	}
	defer h.Close(ctx)
	entries, err := h.Discover(ctx)
	if err != nil {
		return "", err
	}
	for i := range entries {
		if e := &entries[i]; e.SubNQN.String() == nqn {
			fmt.Printf("found %s at %s, port %s\n", nqn, &e.Address, e.Port())
			return net.JoinHostPort(e.Address.String(), e.Port()), nil
		}
	}
	return "", fmt.Errorf("%s is not among the %d subsystems at %s", nqn, len(entries), addr)
}
