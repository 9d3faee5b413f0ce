//go:build linux

package interop

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
)

var (
	//go:embed guest/nvme.sh
	nvmeHostScript []byte
	//go:embed guest/nvmet.sh
	nvmeTargetScript []byte
)

const (
	nvmeHostPath   = "/tmp/nvme.sh" // in the guest
	nvmeTargetPath = "/tmp/nvmet.sh"
	nvmeTimeout    = 2 * time.Minute
	nvmeNQN        = "nqn.2026-11.goroce:disk"
)

// nvme lets the kernel's NVMe target serve our host, and the kernel's host write to and read from our target. The subset moves less, by
// one family each, on one kernel: loading the modules and starting the programs takes the guest 20 s.
func (s *session) nvme(t *testing.T, bin binaries) {
	if s.mode == reference || s.mode == subset && s.kernel.Suite != "trixie" {
		return
	}
	size := 64 << 20
	if s.mode == subset {
		size = 4 << 20
	}
	s.closePeers() // ours would have the port
	for path, script := range map[string][]byte{nvmeHostPath: nvmeHostScript, nvmeTargetPath: nvmeTargetScript} {
		if err := s.guest.Put(path, 0o755, script); err != nil {
			t.Fatal(err)
		}
	}
	sum := nvmeSum(size)
	t.Run("nvme", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			if s.mode == full || family == ipv4 {
				s.run(t, "nvme", fmt.Sprintf("our host, Linux target, %d MiB, %s", size>>20, family), func(c *testCase) { c.nvmet(bin, family, size, sum) })
			}
			if s.mode == full || family == ipv6 {
				s.run(t, "nvme", fmt.Sprintf("Linux host, our target, %d MiB, %s", size>>20, family), func(c *testCase) { c.nvmeConnect(bin, family, size, sum) })
			}
		}
	})
}

// nvmeSum is the SHA-256, in hexadecimal, of the pattern that both hosts write.
func nvmeSum(size int) string {
	h := sha256.New()
	for i := range uint64(size / 8) {
		h.Write(binary.LittleEndian.AppendUint64(nil, i))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// nvmet: our host finds the kernel's target, writes, reads and compares; then the kernel says what its disk has.
func (c *testCase) nvmet(bin binaries, family string, size int, sum string) {
	s := c.s
	stopped := false
	stop := func() string {
		stopped = true
		out, err := s.guest.Run(s.ctx, "sh", nvmeTargetPath, "stop", nvmeNQN)
		if err != nil {
			c.Error(err)
		}
		return out
	}
	defer func() {
		if !stopped {
			stop()
		}
	}()
	if _, err := s.guest.Run(s.ctx, "sh", nvmeTargetPath, "start", s.rxe.addr(family), family, nvmeNQN, fmt.Sprint(size)); err != nil {
		c.Fatal(err)
	}
	host := c.begin(s.us, bin.nvme, "host", "-addr", s.rxe.addr(family), "-nqn", nvmeNQN, "-bytes", fmt.Sprint(size))
	c.endsWithin(host, nvmeTimeout)
	if out := stop(); !strings.Contains(out, sum) {
		c.Errorf("the kernel's disk has SHA-256 %q, want %s", out, sum)
	}
}

// nvmeConnect: the kernel's host finds our target, writes and reads; then our target says whether its disk has what it should.
func (c *testCase) nvmeConnect(bin binaries, family string, size int, sum string) {
	s := c.s
	target, err := lab.StartProcess(nil, s.ns.Argv(bin.nvme, "target", "-addr", s.us.addr(family), "-nqn", nvmeNQN, "-bytes", fmt.Sprint(size))...)
	if err != nil {
		c.Fatal(err)
	}
	defer target.Kill()
	c.says(target, "listening")
	host := c.begin(s.rxe, "sh", nvmeHostPath, s.us.addr(family), nvmeNQN, fmt.Sprint(size))
	c.endsWithin(host, nvmeTimeout)
	if !strings.Contains(host.Stdout(), sum) {
		c.Errorf("what the kernel has read has not SHA-256 %s:\n%s%s\nour target:\n%s", sum, host.Stdout(), host.Stderr(), target.Stderr())
	}
	target.Stdin.Close()
	c.ends(target)
}
