#!/bin/sh
# setup.sh: install the Debian packages that the interoperability tests need; packages.sh says how, and what the exit status means.
#
# The guests see this machine's file system read-only, so tools that run in the guest are installed here.
exec "$(dirname "$0")/../packages.sh" "interop setup" <<'needs'
qemu-system-x86_64 qemu-system-x86
ip iproute2
nft nftables
ethtool ethtool
depmod kmod
xz xz-utils
tshark tshark
ibv_rc_pingpong ibverbs-utils
ib_write_bw perftest
mckey rdmacm-utils
nvme nvme-cli
dpkg:ibverbs-providers ibverbs-providers
dpkg:python3-pyverbs python3-pyverbs
needs
