#!/bin/sh
# setup.sh: install the Debian packages that the benchmarks need; packages.sh says how, and what the exit status means.
# Without ucx-utils the lines about UCX are left out.
exec "$(dirname "$0")/../packages.sh" "bench setup" <<'needs'
ip iproute2
ucx_perftest ucx-utils
needs
