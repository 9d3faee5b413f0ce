#!/bin/bash
# container.sh: do what packaging/Containerfile says, without a container engine: run its RUN line in an
# export of the last commit, put what it copies into a folder, and run the command there as the user it names.
set -euo pipefail
cd "$(dirname "$0")/.."

src=build/container/src root=build/container/root file=packaging/Containerfile
rm -rf build/container
mkdir -p "$src" "$root"
git archive HEAD | tar -x -C "$src"
line() { sed -n "s/^$1 //p" "$file"; }

(cd "$src" && sh -ec "$(line RUN)")
line 'COPY --from=build' | while read -r -a words; do
	to=${words[-1]}
	for from in "${words[@]:0:${#words[@]}-1}"; do
		case $to in
		*/) install -D "$src/${from#/src/}" "$root$to$(basename "$from")" ;;
		*) install -D "$src/${from#/src/}" "$root$to" ;;
		esac
	done
done
command=$(line ENTRYPOINT | tr -d '[]"')
if [ "$(id -u)" = 0 ]; then
	chmod 755 build/container "$root"
	chroot --userspec="$(line USER)" "$root" "$command" "$(line CMD | tr -d '[]"')" --help >/dev/null
else
	"$root$command" "$(line CMD | tr -d '[]"')" --help >/dev/null
fi
echo "$root: $(ls "$root" | tr '\n' ' ')"
