#!/usr/bin/env bash
# Build build/rpm/relvmoiscsi-<version>-1.noarch.rpm, and relvmoiscsi-pool beside it:
# supp-pack/build-rpm.sh [--key KEY] [output directory]. It prints the path of the first. With a key of gpg's, it signs
# both, and puts the public key beside them.
#
# The same source gives the same package, byte for byte: times are those of SOURCE_DATE_EPOCH or else of the last commit,
# and nothing of the machine goes in. Outside of a git repository the newest file tells the time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh
export LC_ALL=C TZ=UTC
umask 022

command -v rpmbuild >/dev/null || {
    echo "supp-pack/build-rpm.sh: there is no rpmbuild; on Debian: apt-get install rpm" >&2
    exit 1
}

key=
if [ "${1:-}" = --key ]; then
    key=$2
    shift 2
fi
output=${1:-build/rpm}
mkdir -p "$output"
output=$(realpath "$output")
own_tmpdir
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# what goes into the package; tests and tools do not
sources() {
    printf '%s\0' COPYING README.rst CHANGES.rst drivers/ReLVMoISCSISR drivers/ReLVMoHBASR drivers/plugins/relvmoiscsi
    printf '%s\0' supp-pack/{relvmoiscsi,relvmoiscsi.8,relvmoiscsi.conf,relvmoiscsi.tmpfiles,sm-whitelist,xapi.service.conf}
    printf '%s\0' udev/*.rules
    find relvmoiscsi '(' -name '*.py' -o -name '*.schema.json' ')' -print0
    find docs -name '*.rst' -print0
}

version=$(sed -n 's/^__version__ = "\([^"]*\)"$/\1/p' relvmoiscsi/__init__.py)
[ -n "$version" ] || {
    echo "supp-pack/build-rpm.sh: relvmoiscsi/__init__.py has no line \`__version__ = \"...\"\`" >&2
    exit 1
}
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git -c safe.directory='*' log -1 --format=%ct 2>/dev/null) ||
        SOURCE_DATE_EPOCH=$(sources | xargs -0 stat --format=%Y | sort -n | tail -n 1)
fi
export SOURCE_DATE_EPOCH

name=relvmoiscsi-$version
mkdir -p "$work/SOURCES" "$work/SPECS"
sources | sort -z | tar --create --no-recursion --transform="s|^|$name/|" \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w --format=ustar \
    --null --files-from=- |
    gzip -9n >"$work/SOURCES/$name.tar.gz"
sed -e "s/@VERSION@/$version/g" -e "s/@DATE@/$(date --date="@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')/" \
    supp-pack/relvmoiscsi.spec >"$work/SPECS/relvmoiscsi.spec"

# Nobody's ~/.rpmmacros, and a database of packages that is empty everywhere.
HOME=$work rpmbuild -bb --quiet --nodeps \
    --define "_topdir $work" \
    --define "_dbpath $work/rpmdb" \
    --define "_buildhost reproducible" \
    --define "use_source_date_epoch_as_buildtime 1" \
    --define "source_date_epoch_from_changelog 0" \
    ${RPMBUILD_OPTIONS:+$RPMBUILD_OPTIONS} \
    "$work/SPECS/relvmoiscsi.spec" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}

built=$work/RPMS/noarch
rpm=$built/$name-1.noarch.rpm pool=$built/relvmoiscsi-pool-$version-1.noarch.rpm
[ -z "$key" ] || python3 supp-pack/build_pack.py --key "$key" --sign "$rpm" "$pool" >&2
find "$output" -maxdepth 1 '(' -name 'relvmoiscsi-*.rpm' -o -name RPM-GPG-KEY-relvmoiscsi ')' -delete
install -m 644 "$rpm" "$pool" ${key:+"$built/RPM-GPG-KEY-relvmoiscsi"} "$output"
install -m 644 "$work/SPECS/relvmoiscsi.spec" "$output"
(cd "$output" && sha256sum relvmoiscsi-*.rpm) >&2  # a person compares these in dom0; stdout is for programs
echo "$output/${rpm##*/}"
