package cm_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport/cm"
)

// letter is a datagram on its way to the agent with a number.
type letter struct {
	to int
	b  []byte
}

// Two agents connect, over a network that is a slice.
func ExampleNew() {
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	var agents []*cm.Agent
	var network []letter
	var events []cm.Event
	for n, addr := range addrs {
		a, err := cm.New(cm.Config{
			Addr: addr, GUID: uint64(n + 1), Rand: func() uint32 { return 100 },
			Send: func(_ netip.Addr, b []byte) {
				network = append(network, letter{1 - n, append([]byte(nil), b...)})
			},
			Event: func(e cm.Event) {
				fmt.Printf("%v: %v\n", addr, e.Kind)
				events = append(events, e)
			},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		agents = append(agents, a)
	}

	const now = time.Duration(0) // nothing is lost here, so no time passes
	deliver := func() {
		for len(network) > 0 {
			l := network[0]
			network = network[1:]
			agents[l.to].Receive(now, addrs[1-l.to], l.b)
		}
	}
	service := mad.PortSpaceTCP.ServiceID(7471)
	err := agents[1].Listen(cm.Listener{Service: service})
	fmt.Println("listen:", err)
	id, err := agents[0].Connect(now, addrs[1], mad.REQ{ServiceID: service, LocalQPN: 0x11, PathMTU: ib.MTU1024}, cm.ConnectOptions{})
	fmt.Println("connect:", err)
	deliver()
	err = agents[1].SendREP(now, events[0].ID, mad.REP{LocalQPN: 0x22})
	fmt.Println("accept:", err)
	deliver()
	fmt.Println("ready to use:", agents[0].SendRTU(now, id, nil))
	deliver()
	fmt.Println(agents[0].State(id))
	// Output:
	// listen: <nil>
	// connect: <nil>
	// 10.0.0.2: REQ
	// accept: <nil>
	// 10.0.0.1: REP
	// ready to use: <nil>
	// 10.0.0.2: established
	// established
}
