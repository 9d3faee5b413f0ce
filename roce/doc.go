// Package roce is a RoCEv2 channel adapter in user space: verbs over UDP port
// 4791, with no kernel module, no cgo and no privileges.
//
// The nouns and their numbers are those of libibverbs: a Device is opened on a
// local IP address; it hands out protection domains (PD), memory regions (MR),
// completion queues (CQ) and queue pairs (QP). Requests are posted to a QP and
// complete on a CQ, each exactly once: with success, an error or flushed. A QP is
// a reliable (RC) or unreliable connection (UC), or sends and receives datagrams
// (UD), whose destinations are address handles (AH).
//
// # Concurrency
//
// Every method of every type may be called from any goroutine. Posting and
// polling never wait for the network. CQ.Poll makes progress itself when it
// finds nothing; a goroutine of the device does so when nobody polls. With
// Config.Manual there is no goroutine and Device.Progress is the only thing
// that moves packets.
//
// # Memory
//
// An MR covers a []byte of the caller. What a peer writes there may be read
// once the completion that covers it has been polled, or at any time through
// the MR's atomic accessors.
package roce
