#!/bin/bash
# all.sh: what `make test` does. It stops at the first failure; what the machine lacks is skipped, and named at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "make test: Debian packages that the tests need are named, and installed when root on Debian unless NOINSTALL is set;"
echo "           then gofmt, go vet, staticcheck; builds for other systems; go test -race ./... and go test ./...; a covering subset of the interop cases (Linux rxe in QEMU)."

command -v go >/dev/null || { echo "make test: FAILED: no go command in PATH; Go 1.26 or later is needed (https://go.dev/dl)"; exit 1; }

skipped=()
step() { printf '\n== %s\n' "$*"; }

# The race detector needs a C compiler, which a machine with nothing but Go may lack.
# It sets compiler to yes or no.
want_compiler() {
	compiler=yes
	command -v "$(go env CC)" >/dev/null && return
	echo "C compiler for go test -race: packages gcc libc6-dev"
	if [ -z "${NOINSTALL:-}" ] && [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then
		{ apt-get install -y -q --no-install-recommends gcc libc6-dev ||
			{ apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev; }; } </dev/null
	else
		compiler=no
		export CGO_ENABLED=0
		skipped+=("the race detector (the tests ran without it): no C compiler; as root on Debian: apt-get install gcc libc6-dev")
	fi
}

# The script of the interop tests answers 3 when it may not install what is missing.
# It sets interop to yes or no.
want_interop() {
	local status=0
	interop=yes
	test/interop/setup.sh </dev/null || status=$?
	case $status in
	0) ;;
	3)
		interop=no
		skipped+=("interop against Linux rxe: Debian packages are missing, see the first step")
		;;
	*)
		echo "make test: FAILED: test/interop/setup.sh ended with status $status"
		exit 1
		;;
	esac
	if [ $interop = yes ] && [ "$(id -u)" != 0 ]; then
		interop=no
		skipped+=("interop against Linux rxe: it needs root, for a network namespace with a tap device")
	fi
}

# The tests of the drop-in libraries skip themselves where they cannot build them.
want_dropin() {
	local status=0
	test/dropin/setup.sh </dev/null || status=$?
	case $status in
	0) ;;
	3) skipped+=("the drop-in libraries: Debian packages are missing, see the first step") ;;
	*)
		echo "make test: FAILED: test/dropin/setup.sh ended with status $status"
		exit 1
		;;
	esac
}

step "packages"
want_compiler
want_interop
want_dropin

step "gofmt, go vet, staticcheck"
make --no-print-directory lint

step "builds for Linux, macOS and Windows on amd64 and arm64"
make --no-print-directory cross

step "unit tests"
if [ "$compiler" = yes ]; then
	make --no-print-directory race
fi
make --no-print-directory plain

step "interop subset"
if [ "$interop" = yes ]; then
	GOROCE_INTEROP=subset go test -count=1 -timeout 20m ./test/interop
else
	echo "skipped"
fi

echo
echo "make test: passed"
for what in ${skipped[@]+"${skipped[@]}"}; do
	echo "make test: SKIPPED $what"
done
