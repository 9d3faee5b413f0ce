#!/bin/sh
# build.sh DIR [CFLAG...]: builds the drop-in libraries into DIR: libgoroce.so, libibverbs.so.1 and librdmacm.so.1.
# The flags are for the C side, as -fsanitize=address. Run from anywhere.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
src=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-gcc}
cd "$src/../.."

# Go does not interrupt threads that run it: the signal, SIGURG, would reach the program's when they have returned,
# and end a poll, an epoll_wait or a sleep of the program with EINTR.
go build -tags dropin -buildmode=c-shared -ldflags=-X=runtime.godebugDefault=asyncpreemptoff=1 -o "$out/libgoroce.so" ./cmd/dropin

# library NAME LIB... : one C library from the folder of its name.
library() {
	name=$1
	shift
	"$cc" -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared $flags -I"$src" -I"$src/libibverbs" -I"$out" \
		-Wl,-soname,"$name.so.1" -Wl,--version-script,"$src/$name/$name.map" -Wl,-z,defs -Wl,--as-needed \
		-o "$out/$name.so.1" "$src/$name"/*.c "$@" -ldl -lpthread
}
flags="$*"
library libibverbs
library librdmacm "$out/libibverbs.so.1"
