// Package interop holds the tests of this stack against the Linux kernel's RoCE driver, rxe.
//
// Kernels 6.1, 6.12 and 7.2 of Debian boot once each in QEMU; an agent of ours inside runs programs for the tests; a tap device in a network
// namespace of our own connects guest and host, and everything that crosses it is captured and checked. The guest's programs are those of
// this machine (rdma-core and perftest of Debian 12) and, for what they lack, those of Debian 13, which are fetched as the kernels are.
//
// Environment (without GOROCE_INTEROP the guest tests skip):
//
//	GOROCE_INTEROP=subset     each value of every parameter at least once per kernel; what make test runs
//	GOROCE_INTEROP=full       the whole product; what make interop runs
//	GOROCE_INTEROP=reference  a second guest stands in for this stack: does rxe itself pass the cases?
//	GOROCE_INTEROP=goodput    TestGoodput instead: how fast data moves under loss; what make goodput runs
//	GOROCE_INTEROP=reports    TestReports instead: roce interop against rxe; what make reports runs, and docs/reports keeps
//	GOROCE_INTEROP=perftest   TestPerftest instead: perftest over each service; what make perftest runs, and docs/reports keeps
//	GOROCE_TABLE=FILE         the page of results that a run of all groups writes: docs/interop.md with make interop
//	GOROCE_CACHE=DIR          where kernels and the newer rdma-core are kept, instead of ~/.cache/goroce
//
// go test -run chooses among the cases as usual, e.g. -run 'TestInterop/trixie/loss'. It needs root and the packages that setup.sh names.
// A failed case leaves its capture, the guest's console and its programs' output in build/interop/KERNEL/CASE.
package interop
