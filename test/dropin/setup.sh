#!/bin/sh
# setup.sh: install the Debian packages that the drop-in libraries and their tests need; packages.sh says how, and what the exit status means.
exec "$(dirname "$0")/../packages.sh" "dropin setup" <<'needs'
gcc gcc
dpkg:libibverbs-dev libibverbs-dev
dpkg:librdmacm-dev librdmacm-dev
ibv_rc_pingpong ibverbs-utils
ib_write_bw perftest
mckey rdmacm-utils
ucx_perftest ucx-utils
dpkg:libucx-dev libucx-dev
mpirun openmpi-bin
mpicc libopenmpi-dev
fi_pingpong libfabric-bin
dpkg:rdma-core rdma-core
dpkg:python3-pyverbs python3-pyverbs
needs
