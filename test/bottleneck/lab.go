//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
)

// twoNets is two namespaces, with the forwarder between them.
type twoNets struct {
	*forwarder
	name [2]string
}

// ifaceMTU carries a path MTU of 4096.
const ifaceMTU = 4200

func newTwoNets(c queueConfig) (*twoNets, error) {
	pid := os.Getpid()
	n := &twoNets{name: [2]string{fmt.Sprintf("bottleneck-a-%d", pid), fmt.Sprintf("bottleneck-b-%d", pid)}}
	var tuns [2]*tun
	for i, ns := range n.name {
		t, err := newTUN(fmt.Sprintf("bn%d-%d", i, pid))
		if err != nil {
			return n, err
		}
		tuns[i] = t
		commands := []string{
			"netns add " + ns,
			fmt.Sprintf("link set %s netns %s", t.name, ns),
			fmt.Sprintf("-n %s link set lo up", ns),
			fmt.Sprintf("-n %s link set %s up mtu %d txqueuelen 10000", ns, t.name, ifaceMTU),
			fmt.Sprintf("-n %s route add %s/24 dev %s", ns, addr(1-i, 0), t.name),
		}
		for flow := range maxFlows {
			commands = append(commands, fmt.Sprintf("-n %s addr add %s/32 dev %s", ns, addr(i, flow), t.name))
		}
		for _, args := range commands {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return n, fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
		}
	}
	f, err := newForwarder(tuns[0], tuns[1], c)
	n.forwarder = f
	return n, err
}

// maxFlows is how many addresses there are on each side.
const maxFlows = 16

// addr is where one end of a flow is: side 0 sends.
func addr(side, flow int) string { return fmt.Sprintf("10.98.%d.%d", 1+side, flow) }

// lost is how many packets the kernel had no room for before the forwarder read them.
func (n *twoNets) lost() (lost int, err error) {
	for i, ns := range n.name {
		out, err := exec.Command("ip", "-n", ns, "-s", "-j", "link", "show", "dev", n.tuns[i].name).Output()
		if err != nil {
			return 0, fmt.Errorf("ip link show: %w", err)
		}
		var links []struct {
			Stats struct{ TX struct{ Dropped int } } `json:"stats64"`
		}
		if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
			return 0, fmt.Errorf("ip link show says %s", out)
		}
		lost += links[0].Stats.TX.Dropped
	}
	return lost, nil
}

func (n *twoNets) close() error {
	var err error
	if n.forwarder != nil {
		err = n.forwarder.close()
	}
	for _, ns := range n.name {
		exec.Command("ip", "netns", "del", ns).Run() // it may not be there
	}
	return err
}

// report is what we need of the JSON of roce perf.
type report struct {
	Results []struct {
		Gbit float64 `json:"gbit_per_sec"`
	}
	Counters map[string]uint64
}

// flow is a roce perf of each side.
type flow struct {
	ends [2]*lab.Process // the client and the server
}

const firstPort = 18515

// startFlow starts the server, waits for it and starts the client.
func (n *twoNets) startFlow(roce string, i int, args ...string) (f flow, err error) {
	port := firstPort + i
	start := func(side int, more ...string) (*lab.Process, error) {
		argv := []string{"ip", "netns", "exec", n.name[side], roce, "perf", "write_bw", "--json", "-e", "-u", "17", "-p", fmt.Sprint(port), "--addr", addr(side, i)}
		return lab.StartProcess(nil, append(append(argv, args...), more...)...)
	}
	if f.ends[1], err = start(1); err != nil {
		return f, err
	}
	if err = f.ends[1].WaitPort(port, 10*time.Second); err == nil {
		f.ends[0], err = start(0, addr(1, i))
	}
	return f, err
}

// end waits for both and returns their reports.
func (f flow) end(timeout time.Duration) (client, server report, err error) {
	for i, r := range []*report{&client, &server} {
		status, e := f.ends[i].Wait(timeout)
		if e == nil && status != 0 {
			e = fmt.Errorf("roce perf ended with status %d: %s", status, strings.TrimSpace(f.ends[i].Stderr()))
		}
		if e == nil {
			e = json.Unmarshal([]byte(f.ends[i].Stdout()), r)
		}
		err = errors.Join(err, e)
	}
	if err == nil && len(client.Results) != 1 {
		err = errors.New("roce perf has measured nothing")
	}
	return client, server, err
}

func (f flow) kill() {
	for _, p := range f.ends {
		if p != nil {
			p.Kill()
		}
	}
}
