package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) execCommand() *cobra.Command {
	var addr, name string
	cmd := &cobra.Command{
		Use:   "exec [--addr ADDR] [--name NAME] -- PROGRAM [ARGUMENT...]",
		Short: "Run a program of libibverbs or librdmacm on goroce, with no RDMA device",
		Long: `exec runs a program so that it finds the drop-in libraries (docs/dropin.md) in
place of libibverbs.so.1 and librdmacm.so.1, and in them one device, roce0. It
needs no privileges, no kernel module and no /dev/infiniband.

The libraries are looked for in $ROCE_DROPIN, beside this command, in dropin
beside it, in the user's data folder and in /usr/local/lib/goroce and
/usr/lib/goroce; 'make dropin' builds them. 'roce doctor -- PROGRAM' says why a
program finds no device.

Exit status: that of the program; 1 when it cannot be run, 2 wrong usage.`,
		Example: "  roce exec -- ibv_devinfo -v\n  roce exec --addr 127.0.0.2 -- ib_write_bw 127.0.0.1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "no program given")
			}
			if err := checkAddrOrPrefix(addr); err != nil {
				return usagef(cmd, "--addr: %v", err)
			}
			dir, err := findDropin()
			if err != nil {
				return err
			}
			path, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			if err := checkProgram(path); err != nil {
				return err
			}
			return replace(path, args, dropinEnv(os.Environ(), dir, addr, name))
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&addr, "addr", "a", "", "local IP address of the device, or a prefix (10.0.0.0/24) of which the first free one is taken; default: the first local address whose UDP port 4791 is free")
	f.StringVar(&name, "name", "roce0", "name of the device")
	return cmd
}

// checkAddrOrPrefix checks what the library reads from $ROCE_ADDR.
func checkAddrOrPrefix(s string) error {
	if s == "" {
		return nil
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return nil
	}
	if a, err := netip.ParseAddr(s); err != nil || a.Zone() != "" {
		return fmt.Errorf("%q is neither an IP address nor a prefix such as 10.0.0.0/24", s)
	}
	return nil
}

// dropinFolders are where the libraries may be, in order.
func dropinFolders() (dirs []string) {
	if dir := os.Getenv("ROCE_DROPIN"); dir != "" {
		return []string{dir} // who says where gets that or an error
	}
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Dir(self)
		dirs = append(dirs, beside, filepath.Join(beside, "dropin"))
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		dirs = append(dirs, filepath.Join(data, "goroce"))
	} else if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".local", "share", "goroce"))
	}
	return append(dirs, "/usr/local/lib/goroce", "/usr/lib/goroce")
}

// findDropin returns the folder of the libraries.
func findDropin() (string, error) {
	dirs := dropinFolders()
	for _, dir := range dirs {
		whole := true
		for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1", "libgoroce.so"} {
			if _, err := os.Stat(filepath.Join(dir, lib)); err != nil {
				whole = false
			}
		}
		if whole {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("the drop-in libraries are in none of %s: build them with 'make dropin', or set ROCE_DROPIN to their folder", strings.Join(dirs, ", "))
}

// checkProgram refuses programs that would not load the libraries, and would find no
// device without saying why.
func checkProgram(path string) error {
	loader, err := loaderOf(path)
	switch {
	case errors.Is(err, errNoLoader):
		return fmt.Errorf("%s is linked statically: it loads no libraries", path)
	case err != nil:
		return nil // a script, whose interpreter may
	case strings.Contains(loader, "ld-musl"):
		return fmt.Errorf("%s is linked with musl: the drop-in libraries need glibc", path)
	}
	info, err := os.Stat(path)
	if err == nil && os.Getuid() != 0 {
		if gains := gainsRights(path, info.Mode()); gains != "" {
			return fmt.Errorf("%s %s: the system ignores LD_LIBRARY_PATH for it", path, gains)
		}
	}
	return nil
}

// errNoLoader says that an ELF file loads nothing.
var errNoLoader = errors.New("no loader")

// loaderOf returns the loader that an ELF file names (PT_INTERP).
func loaderOf(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(loader), "\x00"), err
		}
	}
	return "", errNoLoader
}

// gainsRights says how a program gets more rights than who runs it, if it does (Linux
// fs/exec.c and security/commoncap.c: what sets AT_SECURE).
func gainsRights(path string, mode os.FileMode) string {
	switch {
	case mode&(os.ModeSetuid|os.ModeSetgid) != 0:
		return "is set-user-ID or set-group-ID"
	case hasCapabilities(path):
		return "has capabilities (setcap)"
	}
	return ""
}

// dropinEnv adds to an environment what makes a program find the libraries, and the
// libraries their device. libibverbs is preloaded for programs that load it by dlopen: it
// stands in front of some functions of libc (docs/dropin.md).
func dropinEnv(env []string, dir, addr, name string) []string {
	path, preload := dir, filepath.Join(dir, "libibverbs.so.1")
	kept := env[:0:0]
	for _, e := range env {
		switch key, value, _ := strings.Cut(e, "="); key {
		case "LD_LIBRARY_PATH":
			if value != "" {
				path += ":" + value
			}
		case "LD_PRELOAD":
			if value != "" {
				preload += ":" + value
			}
		case "ROCE_NAME":
		case "ROCE_ADDR":
			if addr == "" {
				addr = value
			}
		default:
			kept = append(kept, e)
		}
	}
	kept = append(kept, "LD_LIBRARY_PATH="+path, "LD_PRELOAD="+preload, "ROCE_NAME="+name)
	if addr != "" {
		kept = append(kept, "ROCE_ADDR="+addr)
	}
	return kept
}
