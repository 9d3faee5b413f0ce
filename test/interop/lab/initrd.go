//go:build linux

package lab

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/goroce/goroce/test/interop/wire"
)

// bootModules are what the guest needs before it has a root file system.
var bootModules = []string{"virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay"}

// writeInitrd builds the initial RAM disk of a guest: the agent as /init, its configuration and the boot modules, decompressed.
func writeInitrd(ctx context.Context, path string, k *Kernel, agent string, c wire.GuestConfig) error {
	deps, err := os.ReadFile(filepath.Join(k.Modules(), "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules(), "modules.builtin"))
	if err != nil {
		return err
	}
	files, err := moduleOrder(string(deps), string(builtin), bootModules)
	if err != nil {
		return err
	}
	var ar cpio
	ar.add("dev", 0o040755, nil)
	ar.addDevice("dev/console", 0o020600, 5, 1)
	ar.add(strings.TrimPrefix(wire.ModuleDir, "/"), 0o040755, nil)
	for i, f := range files {
		b, err := readModule(ctx, filepath.Join(k.Modules(), f))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%02d-%s", i, moduleName(f))
		ar.add(strings.TrimPrefix(wire.ModuleDir, "/")+"/"+name, 0o100644, b)
		c.Modules = append(c.Modules, name)
	}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	ar.add(strings.TrimPrefix(wire.ConfigPath, "/"), 0o100644, config)
	init, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	ar.add("init", 0o100755, init)
	var z bytes.Buffer
	w, _ := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	w.Write(ar.end())
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, z.Bytes(), 0o644)
}

// moduleName is the name that modprobe uses: the file's name without folder and extensions, with underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleOrder resolves modules by modules.dep: files relative to the modules' folder, each after everything that it depends on.
// Names listed in modules.builtin need no file.
func moduleOrder(deps, builtin string, names []string) ([]string, error) {
	type entry struct {
		file  string
		needs []string
	}
	byName := map[string]entry{}
	for line := range strings.Lines(deps) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			byName[moduleName(file)] = entry{file, strings.Fields(needs)}
		}
	}
	built := map[string]bool{}
	for line := range strings.Lines(builtin) {
		built[moduleName(strings.TrimSpace(line))] = true
	}
	var order []string
	seen := map[string]bool{}
	for _, n := range names {
		e, ok := byName[n]
		if !ok {
			if built[n] {
				continue
			}
			return nil, fmt.Errorf("the kernel has no module %s", n)
		}
		// modules.dep lists the direct dependency first and the deepest one last.
		for i := len(e.needs) - 1; i >= -1; i-- {
			f := e.file
			if i >= 0 {
				f = e.needs[i]
			}
			if !seen[f] {
				seen[f] = true
				order = append(order, f)
			}
		}
	}
	return order, nil
}

// readModule returns a module's content, decompressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	tool := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
	if tool == "" {
		return os.ReadFile(path)
	}
	bin, err := lookPath(tool)
	if err != nil {
		return nil, err
	}
	b, err := exec.CommandContext(ctx, bin, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("%s -dc %s: %w", tool, path, err)
	}
	return b, nil
}

// cpio writes an archive in the "newc" format that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	b   bytes.Buffer
	ino int
}

func (c *cpio) add(name string, mode uint32, data []byte) { c.entry(name, mode, data, 0, 0) }

func (c *cpio) addDevice(name string, mode uint32, major, minor int) {
	c.entry(name, mode, nil, major, minor)
}

// entry appends one file. All fields are 8 hexadecimal digits; the name and the data are padded to 4 bytes.
func (c *cpio) entry(name string, mode uint32, data []byte, major, minor int) {
	c.ino++
	fmt.Fprintf(&c.b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	c.b.WriteString(name + "\x00")
	c.pad()
	c.b.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.b.Len()%4 != 0 {
		c.b.WriteByte(0)
	}
}

// end appends the trailer and returns the archive.
func (c *cpio) end() []byte {
	c.entry("TRAILER!!!", 0, nil, 0, 0)
	return c.b.Bytes()
}
