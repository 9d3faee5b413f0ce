// Package sim runs whole stacks in virtual time, in one goroutine: devices with
// Config.Manual next to each other or over links and a switch (package network), which
// lose, repeat, reorder, damage and cut off packets, and programs that post a random
// mix of requests and check everything they can see: all operations of RC, XRC, UC and
// UD, from and to memory regions, windows, fast registrations and multicast groups,
// over paths that change. All of it follows from one number, the seed, so that a failing
// run can be repeated packet by packet:
//
//	go test ./test/sim -run TestSeeds -sim.seed=17 -sim.trace
//
// More seeds than a test run has time for:
//
//	go test ./test/sim -run 'TestSeeds|TestFailures' -sim.from=1000 -sim.seeds=4000 -timeout 0
//
// Of a run that fails the faults and requests are recorded, and reduced to few that are
// enough (shrink.go); what is printed then runs with -sim.schedule.
//
// soak.go lets connections follow each other for hours.
//
// What is checked:
//   - every request completes exactly once, successfully and in queue order;
//   - a message of UC or UD that is received is whole, from its sender, and comes no
//     more often than its packets do (unreliable.go);
//   - every byte is right: contents depend on position and request, on both sides,
//     and source buffers are overwritten as soon as their request has completed;
//   - no other byte of a registered region ever changes;
//   - keys open memory when their bind or registration has completed, to the peer
//     until it or the owner has closed them (grants.go);
//   - when a message is received, all WRITEs before it are in memory;
//   - atomics are linearizable: one order of all of them explains what each found
//     (atomics.go);
//   - every packet that leaves is well formed, fits the path MTU, and keeps the
//     rules of the wire that a peer could be hurt by (monitor.go);
//   - no request notices that its connection migrates to another path (paths.go);
//   - a connection that ends, for whatever reason, flushes what it has left and
//     disturbs no other (failure.go);
//   - nothing hangs: something is always due, and nothing takes a minute.
//
// XRC has one more program (xrc_test.go): connections that reach several receive queues
// of their domain, in protection domains of their own, and one that is destroyed.
package sim
