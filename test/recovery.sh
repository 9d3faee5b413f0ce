#!/bin/bash
# Goodput of `roce perf` under loss and reordering, ours to ours, between two network
# namespaces on this machine: `make recovery` prints the table of docs/recovery.md.
# Packets are lost one by one in nftables, with segmentation left on or switched off
# on the veth pair (tx-udp-segmentation: on, one drop takes a whole run of packets),
# and reordered by the fault wrapper of roce perf. Needs root, iproute2, nftables and
# ethtool.
set -eu -o pipefail
roce=$1 count=${2:-256} runs=${3:-3} # messages of 1 MiB; of which the best counts

a=rec-a-$$ b=rec-b-$$
cleanup() { ip netns del $a 2>/dev/null || true; ip netns del $b 2>/dev/null || true; rm -f "$server"; }
server=$(mktemp)
trap cleanup EXIT
ip netns add $a
ip netns add $b
ip -n $a link add v0 mtu 4200 type veth peer name v0 mtu 4200 netns $b
for n in $a $b; do
	ip -n $n link set lo up
	ip -n $n link set v0 up
done
ip -n $a addr add 10.99.0.1/24 dev v0
ip -n $b addr add 10.99.0.2/24 dev v0

segmentation() {
	local n
	for n in $a $b; do ip netns exec $n ethtool -K v0 tx-udp-segmentation "$1" >/dev/null 2>&1; done
}

# lose N of 1000 packets that come in, on both sides.
lose() {
	local n
	for n in $a $b; do
		ip netns exec $n nft "flush ruleset"
		[ "$1" = 0 ] || ip netns exec $n nft -f - <<-RULES
			table ip loss {
				chain input {
					type filter hook input priority 0;
					udp dport 4791 numgen random mod 1000 < $1 drop
				}
			}
		RULES
	done
}

# once runs a test, with further flags, and prints the client's JSON.
once() {
	ip netns exec $b "$roce" perf "$1" --addr 10.99.0.2 -s 1048576 -n "$count" -t 16 -u 17 --json "${@:2}" >"$server" 2>/dev/null &
	for _ in $(seq 100); do ip netns exec $b ss -Hltn 'sport = 18515' | grep -q . && break; sleep 0.05; done
	ip netns exec $a "$roce" perf "$1" --addr 10.99.0.1 -s 1048576 -n "$count" -t 16 -u 17 --json "${@:2}" 10.99.0.2
	wait
}

# goodput prints the best of some runs: what else the machine does only takes away.
goodput() {
	for _ in $(seq "$runs"); do once "$@"; done | python3 -c '
import json, sys
best, text, at = None, sys.stdin.read(), 0
while at < len(text.rstrip()):
    r, n = json.JSONDecoder().raw_decode(text[at:].lstrip())
    at = len(text) - len(text[at:].lstrip()) + n
    x, c = r["results"][0], r["counters"]
    rate = x["size"] * x["iters"] / x["seconds"] / 1e6
    if best is None or rate > best[0]:
        best = rate, c
print("%.0f MB/s (%s)" % (best[0], ", ".join("%d %s" % (best[1].get(k, 0), v) for k, v in
    (("retransmitted_pkts", "again"), ("ack_probes", "probes"), ("local_ack_timeout_err", "timeouts"), ("spurious_retrans", "in vain")))))'
}

row() { printf '| %s | %s | %s |\n' "$1" "$(goodput write_bw "${@:2}")" "$(goodput read_bw "${@:2}")"; }

echo "$count MiB in messages of 1 MiB, the best of $runs runs; path MTU 4096, $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg), Linux $(uname -r)"
echo
echo '| network | WRITE | READ |'
echo '|---|---|---|'
for seg in off on; do
	segmentation $seg
	for n in 0 1 10 50; do
		lose $n
		row "nftables, $(python3 -c "print($n / 10)") % lost, segmentation $seg"
	done
done
lose 0
row "wrapper, nothing" --loss 1e-9
row "wrapper, 1 % overtaken by 3 to 50" --reorder 1
