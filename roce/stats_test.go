package roce_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// Stats has the counters, the queue pairs with their peers, and the events, also
// those that NextEvent has returned; it survives JSON.
func TestStats(t *testing.T) {
	a, b := rocetest.Pair(t)
	must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRRead, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey() + 1}))
	a.Next(t)
	if ev, err := b.Dev.NextEvent(t.Context()); err != nil || ev.Type != roce.EventQPAccessErr {
		t.Fatalf("%v, %v", ev, err)
	}
	s := b.Dev.Stats()
	text, err := json.Marshal(s)
	must(t, err)
	var again roce.Stats
	must(t, json.Unmarshal(text, &again))
	for _, s := range []roce.Stats{s, again} {
		if s.Name != "roce0" || s.Addr.Addr() != b.Dev.Addr() || s.Backend == "" || s.Counters["rcvd_pkts"] == 0 {
			t.Errorf("%+v", s)
		}
		if len(s.QPs) != 1 || s.QPs[0].QPN != b.QP.Num().String() || s.QPs[0].Type != "RC" || s.QPs[0].State != "ERR" || s.QPs[0].Peer != a.Dev.Addr() || s.QPs[0].PeerQPN != a.QP.Num().String() || s.QPs[0].PathMTU == 0 {
			t.Errorf("queue pairs %+v", s.QPs)
		}
		if len(s.Events) != 1 || s.Events[0].Type != roce.EventQPAccessErr.String() || s.Events[0].QPN != b.QP.Num().String() || s.Events[0].Time.IsZero() {
			t.Errorf("events %+v", s.Events)
		}
	}
}

// A device with a StatDir has a socket there, for its own user alone, that tells its
// Stats as often as somebody connects, and is gone with it.
func TestStatDir(t *testing.T) {
	dir, err := os.MkdirTemp("", "roce") // t.TempDir is too long for a socket
	must(t, err)
	defer os.RemoveAll(dir)
	dev, err := roce.Open(roce.Config{Backend: fabricPort(t, netio.NewFabric(), "10.0.0.1"), StatDir: dir, Name: "mine"})
	must(t, err)
	defer dev.Close()
	names, _ := filepath.Glob(filepath.Join(dir, "*-10.0.0.1-*.sock"))
	if len(names) != 1 {
		t.Fatalf("sockets %v", names)
	}
	if info, err := os.Stat(names[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for range 3 {
		c, err := net.Dial("unix", names[0])
		must(t, err)
		text, err := io.ReadAll(c)
		must(t, err)
		c.Close()
		var s roce.Stats
		if err := json.Unmarshal(text, &s); err != nil || s.Name != "mine" {
			t.Errorf("%s: %v", text, err)
		}
	}
	must(t, dev.Close())
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	var config *roce.ConfigError
	if _, err := roce.Open(roce.Config{Backend: fabricPort(t, netio.NewFabric(), "10.0.0.1"), StatDir: filepath.Join(dir, "nowhere")}); !errors.As(err, &config) || config.Field != "StatDir" {
		t.Errorf("%v", err)
	}
}

// stale makes sockets in dir for the next devices of this process, as one of the same number
// has left them behind that ended without closing its own. If served, somebody does.
func stale(t *testing.T, dir string, served bool) {
	t.Helper()
	first, err := roce.Open(roce.Config{Backend: fabricPort(t, netio.NewFabric(), "10.0.0.1"), StatDir: dir})
	must(t, err)
	names, _ := filepath.Glob(filepath.Join(dir, "*-10.0.0.1-*.sock"))
	must(t, first.Close())
	if len(names) != 1 {
		t.Fatalf("sockets %v", names)
	}
	const before = "-10.0.0.1-"
	process, number, _ := strings.Cut(strings.TrimSuffix(names[0], ".sock"), before)
	n, err := strconv.Atoi(number)
	must(t, err)
	for i := range 100 { // other tests take some of the numbers
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprint(process, before, n+1+i, ".sock"), Net: "unix"})
		must(t, err)
		if served {
			t.Cleanup(func() { l.Close() })
			continue
		}
		l.SetUnlinkOnClose(false)
		must(t, l.Close())
	}
}

// A socket that a process of the same number has left behind is replaced; one that is
// served is not.
func TestStatDirStale(t *testing.T) {
	for _, served := range []bool{false, true} {
		dir, err := os.MkdirTemp("", "roce")
		must(t, err)
		defer os.RemoveAll(dir)
		stale(t, dir, served)
		dev, err := roce.Open(roce.Config{Backend: fabricPort(t, netio.NewFabric(), "10.0.0.1"), StatDir: dir})
		if served != (err != nil) {
			t.Errorf("served: %v, opened: %v", served, err)
		}
		if err == nil {
			dev.Close()
		}
	}
}

// The goroutine of an engine has labels for profiles: its number, and the address.
func TestEngineIsLabelled(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.7:4791"))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	const want = `labels: {"engine":"0", "roce":"10.0.0.7:4791"}`
	for deadline := time.Now().Add(20 * time.Second); ; {
		var profile bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&profile, 1)
		if strings.Contains(profile.String(), want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not in\n%s", want, &profile)
		}
		runtime.Gosched()
	}
}

// Stats are what package expvar prints.
func ExampleDevice_Stats() {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be, Name: "roce7"})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	v := expvar.Func(func() any { return dev.Stats() })
	expvar.Publish(dev.Name(), v) // http://.../debug/vars has it now
	fmt.Println(strings.HasPrefix(v.String(), `{"name":"roce7","addr":"10.0.0.1:4791"`))
	// Output: true
}
