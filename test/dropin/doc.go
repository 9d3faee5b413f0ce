// Package dropin runs programs of Debian's packages on the drop-in libraries of
// cmd/dropin, both ends in this host, each with an address of 127.0.0.0/8.
//
// The libraries are built for it, or are those of $ROCE_DROPIN. `go test` runs a core
// of the cases, `make dropintest` all (-dropin.all).
package dropin
