#!/bin/sh
# nvme.sh ADDR NQN BYTES: the kernel as an NVMe host on rxe. It discovers the subsystem, connects, writes a pattern (8 bytes for each
# number from 0 on, little endian), reads it past the page cache, and disconnects. The last line is the SHA-256 of what was read.
set -eu
modprobe nvme-rdma
nvme discover -t rdma -a "$1" -s 4420 | tee /dev/stderr | grep -q "subnqn: *$2\$"
nvme connect -t rdma -a "$1" -s 4420 -n "$2"
disk=
for _ in $(seq 300); do
	for d in /dev/nvme*n1; do
		[ ! -b "$d" ] || disk=$d
	done
	[ -z "$disk" ] || break
	sleep 0.1
done
[ -n "$disk" ] || { echo "no disk has come" >&2; exit 1; }
[ "$(blockdev --getsize64 "$disk")" -eq "$3" ] || { echo "the disk has another size" >&2; exit 1; }
python3 -c '
import array, sys
for first in range(0, int(sys.argv[1]) // 8, 1 << 16):
    sys.stdout.buffer.write(array.array("Q", range(first, first + (1 << 16))).tobytes())
' "$3" | dd of="$disk" bs=512k iflag=fullblock oflag=direct status=none
dd if="$disk" bs=512k iflag=direct status=none | sha256sum
nvme disconnect -n "$2" >&2
modprobe -r nvme-rdma
