package cc_test

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/transport/cc"
)

// Fixed sends at one rate, whatever happens: an algorithm of a program's own.
type Fixed cc.Rate

// New implements cc.Algorithm.
func (f Fixed) New() (cc.Controller, error) {
	if f <= 0 {
		return nil, &cc.ParamError{Param: "Fixed", Value: f, Allowed: "a rate above 0 is needed"}
	}
	return fixed{cc.Rate(f)}, nil
}

type fixed struct{ rate cc.Rate }

func (c fixed) Rate(time.Duration) cc.Rate      { return c.rate }
func (c fixed) Sent(time.Duration, int)         {}
func (c fixed) Signal(time.Duration, cc.Signal) {}
func (c fixed) State() cc.State                 { return cc.State{Rate: c.rate, Target: c.rate} }

func ExampleAlgorithm() {
	var a cc.Algorithm = Fixed(100 * cc.Mbps)
	c, err := a.New()
	fmt.Println(c.Rate(0), err)
	_, err = Fixed(0).New()
	fmt.Println(err)
	// Output:
	// 100 Mb/s <nil>
	// cc: Fixed is 0: a rate above 0 is needed
}

func ExampleDCQCN() {
	c, _ := cc.DCQCN{LineRate: 40 * cc.Gbps}.New()
	fmt.Println(c.Rate(0))
	c.Signal(0, cc.Signal{Kind: cc.CNP})
	fmt.Println(c.Rate(0))
	fmt.Println(c.Rate(55 * time.Microsecond)) // fast recovery: half of the way back
	// Output:
	// 40 Gb/s
	// 20 Gb/s
	// 30 Gb/s
}
