package main

import (
	"fmt"

	"github.com/goroce/goroce/cmd/roce/internal/table"
	"github.com/goroce/goroce/roce/netio"
)

// print prints the result for people.
func (d *demo) print() {
	var t table.Table
	head := []string{"median us", "99 % us", "Gbit/s", "retries"}
	t.Row("", "", "", "", "", "clean", "|", "", "", "", "faults")
	t.Row(append(append([]string{"", "size"}, append(head, "|")...), head...)...)
	t.Rule()
	stats := func(s *demoStats) []string {
		return []string{fmt.Sprintf("%.1f", s.P50Usec), fmt.Sprintf("%.1f", s.P99Usec), fmt.Sprintf("%.3f", s.GbitPerSec), fmt.Sprint(s.Retries)}
	}
	for _, r := range d.result.Rows {
		row := append([]string{r.Operation, bytesText(int64(r.Size))}, stats(r.Clean)...)
		t.Row(append(append(row, "|"), stats(r.Faulty)...)...)
	}
	d.say("faults: 1 %% of the packets lost, 1 %% duplicated, 1 %% reordered, in each direction\n")
	t.WriteTo(d.app.stdout)
	d.say("")
	if c := d.result.Capture; c != nil {
		d.say("capture: %d packets, every ICRC right, in %s", c.Packets, c.File)
		d.say("  look at it: tshark -r %s%s", c.File, decodeAs(d.rig.port))
	}
	d.say("all %d bytes of %d operations were right, both ways, in %.1f s", d.result.BytesChecked, d.result.Operations, d.result.Seconds)
}

// decodeAs returns the options with which tshark knows the packets.
func decodeAs(port uint16) string {
	s := " --disable-protocol rpcordma"
	if port != netio.Port {
		s += fmt.Sprintf(" -d udp.port==%d,infiniband", port)
	}
	return s
}
