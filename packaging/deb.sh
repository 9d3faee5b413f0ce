#!/bin/bash
# deb.sh: build a Debian package of the command roce in build/, from build/roce.
# usage: packaging/deb.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: packaging/deb.sh VERSION}
arch=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}
root=build/deb
rm -rf "$root"
mkdir -p "$root"/DEBIAN "$root"/usr/{bin,lib/systemd/system} "$root"/usr/share/{man/man1,doc/roce} \
	"$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}

install -m 755 build/roce "$root"/usr/bin/roce
install -m 644 packaging/roce-serve.service "$root"/usr/lib/systemd/system/
build/roce man "$root"/usr/share/man/man1
gzip -9n "$root"/usr/share/man/man1/*
build/roce completion bash >"$root"/usr/share/bash-completion/completions/roce
build/roce completion zsh >"$root"/usr/share/zsh/vendor-completions/_roce
build/roce completion fish >"$root"/usr/share/fish/vendor_completions.d/roce.fish

doc=$root/usr/share/doc/roce
{
	printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: goroce\nSource: https://github.com/goroce/goroce\n\n'
	printf 'Files: *\nCopyright: 2026 The goroce authors\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n .\n'
	printf ' The Go modules in the command and their licences are in\n /usr/share/doc/roce/third-party-licences.txt.gz.\n'
} >"$doc"/copyright
install -m 644 NOTICE "$doc"/NOTICE
packaging/licences.sh | gzip -9n >"$doc"/third-party-licences.txt.gz
gzip -9nc CHANGELOG.md >"$doc"/NEWS.gz
{
	printf 'roce (%s) unstable; urgency=medium\n\n  * See NEWS.gz.\n\n' "$version"
	printf ' -- The goroce authors <goroce@example.org>  %s\n' "$(date -uRd "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc"/changelog.gz

# Go links statically, and its code is not position independent.
mkdir -p "$root"/usr/share/lintian/overrides
printf 'roce: %s\n' 'statically-linked-binary [usr/bin/roce]' 'hardening-no-pie [usr/bin/roce]' >"$root"/usr/share/lintian/overrides/roce

cat >"$root"/DEBIAN/control <<CONTROL
Package: roce
Version: $version
Section: net
Priority: optional
Architecture: $arch
Maintainer: The goroce authors <goroce@example.org>
Installed-Size: $(du -ks "$root"/usr | cut -f1)
Homepage: https://github.com/goroce/goroce
Description: RoCEv2 in user space: RDMA without a card
 The command roce speaks RoCEv2 (RDMA over UDP port 4791) from an ordinary
 process, without a kernel module, an RDMA device or privileges. It plays with
 the programs of rdma-core and perftest, finds out why RoCE does not work
 between two hosts, and shows what is on the wire.
CONTROL
chmod -R u=rwX,go=rX "$root"
deb=build/roce_${version}_$arch.deb
dpkg-deb --build --root-owner-group "$root" "$deb" >/dev/null
echo "$deb"
