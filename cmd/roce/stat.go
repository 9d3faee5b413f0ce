package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/table"
	"github.com/goroce/goroce/roce"
	"github.com/spf13/cobra"
)

// statEnv is the environment variable that names the directory of sockets, for stat
// and for the commands that stat looks at.
const statEnv = "GOROCE_STAT"

// statOptions are the flags of stat, checked.
type statOptions struct {
	dir    string
	watch  time.Duration // 0: once
	count  int           // looks; 0: no end
	listen string
	json   bool
}

func (a *app) statCommand() *cobra.Command {
	var o statOptions
	cmd := &cobra.Command{
		Use:   "stat [flags]",
		Short: "Show counters, queue pairs and events of running programs",
		Long: `stat looks at devices of running programs: counters, queue pairs, the last
asynchronous events, and with -w the rates. A program that wants to be looked at
opens its devices with Config.StatDir, which names a directory; the commands of roce
do so when ` + statEnv + ` names one, for the devices of addresses that they are given.

With --listen the counters are served to Prometheus at /metrics.

Exit status: 0 success, 1 failure (no device there), 2 wrong usage.`,
		Example: `  export ` + statEnv + `=/run/user/1000
  roce pingpong &
  roce stat -w 1s`,
		Args: maxArgs(0, "the directory is --dir"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.dir == "" {
				o.dir = os.Getenv(statEnv)
			}
			switch {
			case o.dir == "":
				return usagef(cmd, "where are the sockets? give --dir, or set %s for stat and for the program", statEnv)
			case o.watch != 0 && o.watch < 10*time.Millisecond:
				return usagef(cmd, "-w %v: at least 10ms are needed", o.watch)
			case o.count < 0 || o.count > 0 && o.watch == 0:
				return usagef(cmd, "-n %d: a number of looks is needed, with -w", o.count)
			case o.listen != "" && (o.watch != 0 || o.json):
				return usagef(cmd, "--listen goes without -w and --json")
			}
			return a.stat(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.dir, "dir", "", "directory with the sockets (default: $"+statEnv+")")
	f.DurationVarP(&o.watch, "watch", "w", 0, "look again and again, this far apart, and show rates")
	f.IntVarP(&o.count, "count", "n", 0, "with -w: so many times (default: until interrupted)")
	f.StringVar(&o.listen, "listen", "", "serve /metrics for Prometheus at this TCP address, such as 127.0.0.1:9879")
	f.BoolVar(&o.json, "json", false, "print as JSON: one object, with -w one per look")
	return cmd
}

// statDevice is a device of a program.
type statDevice struct {
	Socket string `json:"socket"`
	PID    int    `json:"pid"`
	roce.Stats
	Rates map[string]float64 `json:"rates,omitempty"` // of the counters that changed, per second; with -w
}

func (a *app) stat(ctx context.Context, o *statOptions) error {
	if o.listen != "" {
		return a.statServe(ctx, o)
	}
	before := map[string]statDevice{}
	for n := 1; ; n++ {
		list, err := readStats(o.dir)
		if err != nil {
			return err
		}
		if len(list) == 0 && o.watch == 0 {
			return fmt.Errorf("no device in %s: a program has one there while it runs, with Config.StatDir, or %s for commands of roce", o.dir, statEnv)
		}
		for i := range list {
			list[i].rate(before[list[i].Socket])
			before[list[i].Socket] = list[i]
		}
		if err := a.statShow(o, list); err != nil {
			return err
		}
		if o.watch == 0 || n == o.count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.watch):
		}
	}
}

// rate compares a device with what it was.
func (d *statDevice) rate(before statDevice) {
	seconds := d.Seconds - before.Seconds
	if before.Socket == "" || seconds <= 0 {
		return
	}
	d.Rates = map[string]float64{}
	for name, v := range d.Counters {
		if was := before.Counters[name]; v > was {
			d.Rates[name] = float64(v-was) / seconds
		}
	}
}

// readStats asks all sockets of a directory, in the order of their names. What
// nobody listens at any more is left out.
func readStats(dir string) ([]statDevice, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("%w: --dir, or %s, names the directory in which programs have their sockets", err, statEnv)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*-*-*.sock"))
	if err != nil {
		return nil, err
	}
	list := []statDevice{}
	for _, name := range names {
		d := statDevice{Socket: name}
		if n, err := fmt.Sscanf(filepath.Base(name), "%d-", &d.PID); n != 1 || err != nil {
			continue
		}
		c, err := net.DialTimeout("unix", name, time.Second)
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%s belongs to another user", name)
		}
		if err != nil {
			continue // its process was killed
		}
		c.SetDeadline(time.Now().Add(2 * time.Second))
		text, err := io.ReadAll(c)
		c.Close()
		if err == nil && len(text) > 0 { // or it is just closing
			if err := json.Unmarshal(text, &d.Stats); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			list = append(list, d)
		}
	}
	return list, nil
}

// statShow prints one look.
func (a *app) statShow(o *statOptions, list []statDevice) error {
	if o.json {
		return json.NewEncoder(a.stdout).Encode(struct {
			Devices []statDevice `json:"devices"`
		}{list})
	}
	var b strings.Builder
	if o.watch != 0 && isTerminal(a.stdout) {
		b.WriteString("\x1b[H\x1b[2J") // the top of an empty screen
	}
	for _, d := range list {
		fmt.Fprintf(&b, "%s %v pid %d, %s\n", d.Name, d.Addr, d.PID, d.Backend)
		var t table.Table
		for _, name := range sortedKeys(d.Counters) {
			if v := d.Counters[name]; v != 0 {
				cells := []string{"  " + name, fmt.Sprint(v)}
				if d.Rates != nil {
					cells = append(cells, fmt.Sprintf("%.0f/s", d.Rates[name]))
				}
				t.Row(cells...)
			}
		}
		t.WriteTo(&b)
		t = table.Table{}
		for _, q := range d.QPs {
			peer := "-"
			if q.PeerQPN != "" {
				peer = q.Peer.String() + " " + q.PeerQPN
			}
			t.Row("  qp "+q.QPN, q.Type, q.State, peer, fmt.Sprintf("mtu %d", q.PathMTU))
		}
		t.WriteTo(&b)
		for _, e := range d.Events {
			fmt.Fprintf(&b, "  %s %s %s\n", e.Time.Format("15:04:05.000"), e.Type, e.QPN)
		}
	}
	if len(list) == 0 {
		b.WriteString("no device\n")
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func sortedKeys(m map[string]uint64) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// statServe serves the counters to Prometheus until it is interrupted.
func (a *app) statServe(ctx context.Context, o *statOptions) error {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		list, err := readStats(o.dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writeMetrics(w, list)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	a.progressf("serving http://%v/metrics", l.Addr())
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// writeMetrics writes the exposition format of Prometheus. The names are those of
// rdma_exporter for the port counters of other devices: rdma_port_NAME_total with
// labels device and port, where NAME is that of the counter in sysfs.
func writeMetrics(w io.Writer, list []statDevice) {
	labels := func(d *statDevice) string {
		return fmt.Sprintf(`device=%q,port="1",addr=%q,pid="%d"`, d.Name, d.Addr, d.PID)
	}
	fmt.Fprint(w, "# HELP rdma_port_info Devices that were found.\n# TYPE rdma_port_info gauge\n")
	names := map[string]uint64{}
	for i := range list {
		d := &list[i]
		fmt.Fprintf(w, "rdma_port_info{%s,backend=%q} 1\n", labels(d), d.Backend)
		for name := range d.Counters {
			names[name] = 0
		}
	}
	fmt.Fprint(w, "# HELP rdma_port_qps Queue pairs.\n# TYPE rdma_port_qps gauge\n")
	for i := range list {
		fmt.Fprintf(w, "rdma_port_qps{%s} %d\n", labels(&list[i]), len(list[i].QPs))
	}
	for _, name := range sortedKeys(names) {
		fmt.Fprintf(w, "# HELP rdma_port_%s_total Counter %s of the device.\n# TYPE rdma_port_%s_total counter\n", name, name, name)
		for i := range list {
			fmt.Fprintf(w, "rdma_port_%s_total{%s} %d\n", name, labels(&list[i]), list[i].Counters[name])
		}
	}
}
