// Package transport is the InfiniBand transport as pure state machines: a queue
// pair gets packets, requests and the time, and hands back packets, completions
// and the time at which it wants to be called next. It opens no socket, reads no
// clock, takes no lock and starts no goroutine; package roce does all that.
//
// A [QP] consists of a sender and a receiver. Those of RC are a requester
// (requester.go makes packets of send requests, completer.go completes them,
// recover.go and rtt.go say what is sent again and when, selective.go what two of this
// package tell each other for that, window.go bounds what is in flight) and a responder (responder.go takes
// requests, stash.go keeps those that came early, acknowledge.go and resources.go
// answer them); UC and UD send by
// unreliable.go and receive by ucreceiver.go and udreceiver.go. receives.go is
// what all receivers share, localops.go what senders do without a packet. modify.go has the states and their rules.
//
// # Concurrency
//
// The methods of a QP are called by the owner of its engine, one at a time; only
// its State and [Counters] may be read by anybody. [SQ], [RQ], [CQ] and [Outbox] are what the
// owner implements.
//
// # Errors
//
// Only Modify returns errors. What is wrong with a packet is counted (see
// [Counter]); what is wrong with a request is the status of its completion.
package transport
