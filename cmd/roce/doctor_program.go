package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// checkProgram finds out whether a program would find the drop-in libraries, and in them a
// device: the way of 'roce exec', without running the program. It chooses the address that
// the other checks look at, and reports false if there is none.
func (d *diagnosis) checkProgram(ctx context.Context) bool {
	dir := d.checkLibraries()
	path, err := exec.LookPath(d.o.program)
	if err == nil {
		err = checkProgram(path)
	}
	if err != nil {
		d.fail("program", "roce exec refuses to run it", "name a program that is linked dynamically with glibc, and neither set-user-ID nor given capabilities", "%v", err)
	} else if dir != "" {
		d.checkLoader(ctx, path, dir)
	}
	return d.chooseDevice()
}

// checkLibraries looks for the libraries as roce exec does.
func (d *diagnosis) checkLibraries() string {
	dir, err := findDropin()
	if err != nil {
		d.fail("dropin", "programs find the devices of the kernel only", "build them with 'make dropin', or set ROCE_DROPIN to their folder", "%v", err)
		return ""
	}
	d.ok("dropin", "the drop-in libraries are in %s", dir)
	return dir
}

// checkLoader asks the program's loader what it would load.
func (d *diagnosis) checkLoader(ctx context.Context, path, dir string) {
	const check = "loader"
	loader, err := loaderOf(path)
	if err != nil {
		d.ok("program", "%s is not of ELF, a script perhaps: what it starts finds the libraries, unless that is linked statically, with musl, or set-user-ID", path)
		return
	}
	d.ok("program", "%s is linked with glibc", path)
	// The engine is loaded when a device is opened.
	env := dropinEnv(os.Environ(), dir, d.o.wish, d.o.name)
	for _, object := range []string{path, filepath.Join(dir, "libgoroce.so")} {
		if _, err := loads(ctx, loader, object, env); err != nil {
			d.fail(check, "the program does not start, or opens no device", "build the libraries on this machine, or on one with an older glibc; 'ldd "+object+"' tells what it needs", "%v", err)
			return
		}
	}
	with, _ := loads(ctx, loader, path, env)
	by, _ := loads(ctx, loader, path, os.Environ())
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		if from, ok := with[lib]; ok && !sameFile(from, filepath.Join(dir, lib)) {
			d.fail(check, "the program knows the devices of the kernel only", "take the RPATH out of it (patchelf --remove-rpath), or preload "+filepath.Join(dir, lib), "also with roce exec %s loads %s: an RPATH in it comes first", path, from)
			return
		}
	}
	d.ok(check, "with roce exec it loads the libraries of %s; %s", dir, byItself(by, dir))
}

// byItself says what a program does without roce exec.
func byItself(libs map[string]string, dir string) string {
	switch from, ok := libs["libibverbs.so.1"]; {
	case !ok:
		return "by itself it names none of them, and what it loads or starts later decides"
	case sameFile(from, filepath.Join(dir, "libibverbs.so.1")):
		return "by itself as well"
	default:
		return "by itself " + from + ", which knows the devices of the kernel only"
	}
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// loads returns where a loader of glibc finds what an object needs, by name; it runs no
// code of the object. What is missing is an error.
func loads(ctx context.Context, loader, object string, env []string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, loader, "--list", object)
	c.Env = env
	var out, text bytes.Buffer
	c.Stdout, c.Stderr = &out, &text
	err := c.Run()
	libs := make(map[string]string)
	for line := range strings.Lines(out.String()) {
		switch f := strings.Fields(line); {
		case len(f) >= 4 && f[1] == "=>" && f[2] == "not":
			return nil, fmt.Errorf("%s needs %s, which is not found", object, f[0])
		case len(f) >= 3 && f[1] == "=>":
			libs[filepath.Base(f[0])] = f[2]
		case len(f) > 0:
			libs[filepath.Base(f[0])] = f[0]
		}
	}
	// What cannot be preloaded is passed over, in words alone.
	if said := strings.TrimSpace(text.String()); said != "" {
		return nil, errors.New(said)
	}
	if err != nil {
		return nil, fmt.Errorf("%s --list %s: %w", loader, object, err)
	}
	return libs, nil
}

// chooseDevice finds the address that the libraries would choose.
func (d *diagnosis) chooseDevice() bool {
	if d.o.addr.IsValid() {
		return true // that of --ib-dev
	}
	addr, err := d.dropinAddr(d.o.wish)
	if err != nil {
		d.fail("device", "the program finds no device", "--addr or ROCE_ADDR with an address whose UDP port 4791 is free, 'roce devinfo' lists those of interfaces; on loopback any of 127.0.0.0/8", "%v", err)
		return false
	}
	d.o.addr = addr
	d.ok("device", "%s would be at %v", d.o.name, addr)
	return true
}

// dropinAddr returns the address of the device: as cmd/dropin/libibverbs/device.c
// chooses it.
func (d *diagnosis) dropinAddr(wish string) (netip.Addr, error) {
	if err := checkAddrOrPrefix(wish); err != nil {
		return netip.Addr{}, fmt.Errorf("ROCE_ADDR or --addr: %w", err)
	}
	if a, err := netip.ParseAddr(wish); err == nil {
		return a, nil // what is wrong with it shows when it is opened
	}
	within, _ := netip.ParsePrefix(wish)
	local, err := netio.LocalAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range candidates(local, within) {
		if be, err := netio.ListenUDP(netio.UDPConfig{Addr: netip.AddrPortFrom(a, d.app.port)}); err == nil {
			be.Close()
			return a, nil
		}
	}
	what := "each local address"
	if within.IsValid() {
		what += " within " + wish
	}
	return netip.Addr{}, fmt.Errorf("UDP port %d is taken at %s", d.app.port, what)
}

// candidates are the addresses within a prefix, if it is valid, in the order in which the
// libraries try them: those of interfaces, IPv4 first, then loopback.
func candidates(local []netip.Addr, within netip.Prefix) (list []netip.Addr) {
	base := netip.AddrFrom4([4]byte{127, 0, 0, 0})
	if a := within.Masked().Addr(); within.Bits() > 8 && a.Is4() && a.IsLoopback() {
		base = a
	}
	add := func(a netip.Addr) {
		if !within.IsValid() || within.Contains(a) {
			list = append(list, a)
		}
	}
	for _, is4 := range []bool{true, false} {
		for _, a := range local {
			if a.Is4() == is4 && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) {
				add(a)
			}
		}
	}
	for range 254 {
		base = base.Next()
		add(base)
	}
	add(netip.IPv6Loopback())
	return list
}
