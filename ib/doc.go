// Package ib holds the wire formats and constants of the InfiniBand transport
// as RoCEv2 carries it: sequence and queue pair numbers, header layouts, the
// opcode table, a validated packet view and the invariant CRC.
//
// It is a leaf: no goroutine, no clock, no lock, no allocation. Everything is
// a value or works on bytes the caller owns, so every function may be called
// concurrently as long as the caller does not write the bytes it passes at the
// same time; types whose methods change state say so.
//
// A receiver calls [Parse] once per packet and then only accessors that cannot
// fail, and [Flow.Recover] or [Flow.Verify] for the ICRC. A sender calls the Put
// method of each header in wire order, copies the payload, adds zero pad bytes
// and calls [Flow.Seal].
//
// Rules are cited as "IBTA" followed by a chapter of the InfiniBand Architecture
// Specification, Volume 1 (RoCEv2 is its Annex A17), or as a Linux source file.
package ib

// Port is the UDP destination port of RoCEv2 (IBTA Annex A17; IANA "roce").
const Port = 4791
