#!/bin/bash
# wireguard.sh ROCE: `roce perf` between two network namespaces through WireGuard in user space. It needs root,
# wireguard-go and wg (Debian packages wireguard-go and wireguard-tools); it removes what it made.
set -euo pipefail
roce=$(realpath "$1")
left=goroce-wgl-$$ right=goroce-wgr-$$ wgl=gwl$$ wgr=gwr$$
keys=$(mktemp -d)
export WG_PROCESS_FOREGROUND=1 LOG_LEVEL=error
children=()
cleanup() {
	kill "${children[@]}" 2>/dev/null || true
	wait || true
	ip netns del "$left" 2>/dev/null || true
	ip netns del "$right" 2>/dev/null || true
	rm -rf "$keys"
}
trap cleanup EXIT

# Two hosts with a wire between them.
ip netns add "$left"
ip netns add "$right"
ip link add v0 netns "$left" type veth peer name v1 netns "$right"
ip -n "$left" addr add 192.0.2.1/24 dev v0
ip -n "$right" addr add 192.0.2.2/24 dev v1
ip -n "$left" link set v0 up
ip -n "$right" link set v1 up
ip -n "$left" link set lo up
ip -n "$right" link set lo up

# The tunnel: inside, the hosts are 10.99.0.1 and 10.99.0.2.
(umask 077; wg genkey >"$keys/left"; wg genkey >"$keys/right")
ip netns exec "$left" wireguard-go "$wgl" >/dev/null 2>&1 & children+=($!)
ip netns exec "$right" wireguard-go "$wgr" >/dev/null 2>&1 & children+=($!)
for _ in $(seq 100); do
	[ -S "/var/run/wireguard/$wgl.sock" ] && [ -S "/var/run/wireguard/$wgr.sock" ] && break
	sleep 0.1
done
ip netns exec "$left" wg set "$wgl" listen-port 51820 private-key "$keys/left" \
	peer "$(wg pubkey <"$keys/right")" allowed-ips 10.99.0.2/32 endpoint 192.0.2.2:51820
ip netns exec "$right" wg set "$wgr" listen-port 51820 private-key "$keys/right" \
	peer "$(wg pubkey <"$keys/left")" allowed-ips 10.99.0.1/32 endpoint 192.0.2.1:51820
ip -n "$left" addr add 10.99.0.1/24 dev "$wgl"
ip -n "$right" addr add 10.99.0.2/24 dev "$wgr"
ip -n "$left" link set "$wgl" mtu 1420 up
ip -n "$right" link set "$wgr" mtu 1420 up

ip netns exec "$left" "$roce" devinfo --addr 10.99.0.1
ip netns exec "$left" "$roce" perf write_bw --verify --addr 10.99.0.1 -n 200 --json >/dev/null & children+=($!)
for _ in $(seq 100); do # until it listens
	ip netns exec "$left" ss -Htln 'sport = :18515' | grep -q . && break
	sleep 0.1
done
ip netns exec "$right" "$roce" perf write_bw --verify -n 200 10.99.0.1
ip netns exec "$right" wg show "$wgr" transfer
