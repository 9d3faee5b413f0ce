//go:build linux

// Command agent is the first process of an interoperability guest: it mounts this guest's root (the host's file system, read-only,
// under a layer in memory), makes the rxe device and then takes commands over TCP. It must be built with CGO_ENABLED=0.
//
// Run by hand with an address as its argument it only serves commands there, which its tests use.
package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/test/interop/wire"
)

func main() {
	if os.Getpid() != 1 {
		if len(os.Args) != 2 {
			fmt.Fprintln(os.Stderr, "usage: agent ADDRESS:PORT (or run as the init of a guest)")
			os.Exit(2)
		}
		l, err := net.Listen("tcp", os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
		fmt.Println(wire.ReadyLine, "on", l.Addr())
		serve(l)
		return
	}
	if err := guest(); err != nil {
		fmt.Println("goroce-agent: cannot start the guest:", err)
	}
	powerOff()
}

// guest is the whole life of a guest.
func guest() error {
	if err := boot(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", wire.AgentPort))
	if err != nil {
		return err
	}
	fmt.Println(wire.ReadyLine, "on", l.Addr())
	serve(l)
	return nil
}

// powerOff ends the guest. init must not return: the kernel would panic, which also ends QEMU but looks like a crash.
func powerOff() {
	time.Sleep(100 * time.Millisecond) // for the console and the last answer
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	time.Sleep(time.Minute)
}
