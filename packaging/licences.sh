#!/bin/bash
# licences.sh: print the licence of each Go module that is part of the command roce, and of Go itself.
set -euo pipefail
cd "$(dirname "$0")/.."

print() { # name, folder
	local file found=
	printf '\n==== %s\n\n' "$1"
	for file in "$2"/LICENSE* "$2"/LICENCE* "$2"/COPYING* "$2"/NOTICE*; do
		[ -f "$file" ] || continue
		cat "$file"
		found=yes
	done
	[ -n "$found" ] || { echo "licences.sh: $1 has no licence in $2" >&2; exit 1; }
}

echo "The command roce contains the following, under the licences that follow each name."
print "The Go standard library, $(go env GOVERSION)" "$(go env GOROOT)"
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/roce | sort -u |
	while read -r path version dir; do
		print "$path $version" "$dir"
	done
