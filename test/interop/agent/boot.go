//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/test/interop/wire"
)

const mount9p = "trans=virtio,version=9p2000.L,msize=512000,cache=loose"

// boot takes the guest from the initial RAM disk to a running system with the device rxe0.
func boot() error {
	b, err := os.ReadFile(wire.ConfigPath)
	if err != nil {
		return err
	}
	var c wire.GuestConfig
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	if err := mountRoot(c); err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	os.Setenv("LC_ALL", "C.UTF-8")
	return network(c)
}

type mount struct {
	dev, dir, kind string
	flags          uintptr
	data           string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.dev, m.dir, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.dev, m.dir, err)
	}
	return nil
}

// mountRoot loads the modules for the root file system, stacks the root and moves into it.
func mountRoot(c wire.GuestConfig) error {
	for _, m := range []mount{{"proc", "/proc", "proc", 0, ""}, {"sysfs", "/sys", "sysfs", 0, ""}, {"dev", "/dev", "devtmpfs", 0, ""}} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for _, name := range c.Modules {
		if err := loadModule(filepath.Join(wire.ModuleDir, name)); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	for _, m := range []mount{
		{"hostroot", "/ro", "9p", unix.MS_RDONLY, mount9p},
		{"rw", "/rw", "tmpfs", 0, ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for _, d := range []string{"/rw/upper", "/rw/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := (mount{"root", "/root", "overlay", 0, "lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work"}).do(); err != nil {
		return err
	}
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(d, "/root"+d, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", d, err)
		}
	}
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, m := range []mount{
		{"modules", "/lib/modules/" + c.Kernel, "9p", unix.MS_RDONLY, mount9p},
		{"pts", "/dev/pts", "devpts", 0, ""},
		{"shm", "/dev/shm", "tmpfs", 0, ""},
		{"run", "/run", "tmpfs", 0, ""},
		{"tmp", "/tmp", "tmpfs", 0, ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// network brings up eth0 and rxe0 upon it.
func network(c wire.GuestConfig) error {
	cmds := [][]string{
		{"modprobe", "-a", "rdma_rxe", "ib_uverbs", "rdma_ucm"},
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "set", "eth0", "up", "mtu", fmt.Sprint(c.MTU)},
	}
	for _, a := range c.Addrs {
		cmds = append(cmds, []string{"ip", "addr", "add", a, "dev", "eth0", "nodad"})
	}
	cmds = append(cmds, []string{"rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"})
	for _, argv := range cmds {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
	}
	return nil
}
