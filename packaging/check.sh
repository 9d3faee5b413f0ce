#!/bin/bash
# check.sh: check what `make package` has built, with the tools that this machine has.
# usage: packaging/check.sh PACKAGE.deb
set -euo pipefail
cd "$(dirname "$0")/.."

deb=${1:?usage: packaging/check.sh PACKAGE.deb}
skipped=()
have() { command -v "$1" >/dev/null || { skipped+=("$1"); return 1; }; }

file -b build/roce | grep -q 'statically linked' || { echo "build/roce is not static"; exit 1; }
contents=$(dpkg-deb --contents "$deb")
for member in /usr/bin/roce /usr/share/man/man1/roce-dump.1.gz /usr/share/bash-completion/completions/roce \
	/usr/lib/systemd/system/roce-serve.service /usr/share/doc/roce/{NOTICE,copyright,third-party-licences.txt.gz}; do
	grep -q " \.$member\$" <<<"$contents" || { echo "$deb lacks $member"; exit 1; }
done
build/roce --version | grep -q "^roce $(dpkg-deb --field "$deb" Version), go" || { echo "build/roce has another version than $deb"; exit 1; }
bash -n build/deb/usr/share/bash-completion/completions/roce
if have dockerfilelint; then # npm install -g dockerfilelint
	dockerfilelint packaging/Containerfile
fi
if have lintian; then
	lintian --fail-on error,warning "$deb"
fi
if have systemd-analyze; then
	unit=build/roce-serve.service # of the command that was built here
	sed "s,/usr/bin/roce,$PWD/build/roce," packaging/roce-serve.service >"$unit"
	SYSTEMD_LOG_LEVEL=err systemd-analyze verify --man=no "$unit"
fi
echo "package: checked${skipped[*]:+, without ${skipped[*]}}"
