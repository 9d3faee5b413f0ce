#!/bin/sh
# packages.sh WHO: install the Debian packages that standard input names, nothing else.
#
# A line has two columns: a file that proves the package is there (or dpkg:NAME), and the package. What is printed begins with WHO.
# It names the packages that are missing, then installs them when it is root, the system is Debian and NOINSTALL is unset or empty.
# Exit status: 0 everything is there; 3 something is missing and was not installed (what needs it must be skipped, the reason is on
# standard output); any other: the installation was tried and failed.
set -u

who=$1
needs=$(cat)
PATH=$PATH:/usr/sbin:/sbin

missing=$(echo "$needs" | while read -r proof package; do
	case $proof in
	'') ;;
	dpkg:*)
		dpkg-query -W -f '${db:Status-Status}\n' "${proof#dpkg:}" 2>/dev/null | grep -qx installed || echo "$package"
		;;
	*) command -v "$proof" >/dev/null 2>&1 || echo "$package" ;;
	esac
done | tr '\n' ' ')
missing=${missing% }

if [ -z "$missing" ]; then
	echo "$who: all packages are installed"
	exit 0
fi

skip() {
	echo "$who: SKIPPED, missing packages: $missing"
	echo "$who: $1"
	exit 3
}
[ -z "${NOINSTALL:-}" ] || skip "NOINSTALL is set: nothing is installed; to install: apt-get install --no-install-recommends $missing"
[ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1 || skip "this is not Debian: install the equivalents by hand"
[ "$(id -u)" = 0 ] || skip "not root: nothing is installed; as root: apt-get install --no-install-recommends $missing"

echo "$who: installing: $missing"
export DEBIAN_FRONTEND=noninteractive
install() {
	# shellcheck disable=SC2086 # a list of package names
	apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 $missing
}
# The package lists may never have been fetched, or may name versions that the mirror no longer has: refresh them once.
install || { apt-get update -q && install; } || {
	status=$?
	echo "$who: FAILED to install: $missing"
	[ "$status" -ne 3 ] || status=1
	exit "$status"
}
echo "$who: installed: $missing"
