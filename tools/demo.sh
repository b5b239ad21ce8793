#!/usr/bin/env bash
# A guided tour on a real LUN: made by the storage manager of XCP-ng, with snapshots, a clone and a CBT log on it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

tools/need-packages.sh >&2
work=$(mktemp -d "${TMPDIR:-/tmp}/relvmoiscsi-demo.XXXXXX")
loops=()
detach() {
    local loop
    for loop in "${loops[@]}"; do losetup -d "$loop"; done
    loops=()
}
trap 'detach; rm -rf "$work"' EXIT

# The command as anyone would type it; the directory of the demo is left out of what is shown.
relvmoiscsi() {
    printf '\n$ relvmoiscsi %s\n' "${*//$work\//}"
    PYTHONPATH=$PWD PYTHONIOENCODING=utf-8 python3 -m relvmoiscsi "$@" 2>&1 | sed "s|$work/||g"
    return "${PIPESTATUS[0]}"
}

copy() {
    printf '\n$ cp --sparse=always %s %s\n' "$1" "$2"
    cp --sparse=always "$work/$1" "$work/$2"
}

attach() {
    local image loop
    [ "$(id -u)" -eq 0 ] && command -v lvm >/dev/null || return 1
    for image in "$@"; do
        loop=$(losetup -f --show "$work/$image") || return 1
        loops+=("$loop")
    done
}

# What LVM itself makes of both disks, where there is LVM; the configuration keeps it off all others.
lvm_sees_both() {
    if attach original.img clone.img 2>/dev/null; then
        printf '\n$ pvs      # LVM, with both disks in sight\n'
        LVM_SUPPRESS_FD_WARNINGS=1 lvm pvs -o pv_name,pv_uuid,vg_name --config "
            devices { filter=[\"a|^${loops[0]}\$|\",\"a|^${loops[1]}\$|\",\"r|.*|\"] use_devicesfile=0 hints=\"none\" }
            global { activation=0 } backup { backup=0 archive=0 }" 2>&1 |
            grep -v "Activation disabled" | sed "s|${loops[0]}|original  |; s|${loops[1]}|clone     |"
    fi
    detach
}

heading "1. A LUN with an SR on it, and the copy an array makes of it"
tar -xSJf tests/data/images/golden/chain.tar.xz -C "$work" chain.img
mv "$work/chain.img" "$work/original.img"
relvmoiscsi show "$work/original.img"
copy original.img clone.img

heading "2. Why the copy cannot be used: it says that it is the original"
relvmoiscsi check "$work/clone.img" --original "$work/original.img" | head -n 4 || true
echo "..."
lvm_sees_both

heading "3. New identities"
relvmoiscsi resignature "$work/clone.img" --yes
relvmoiscsi show "$work/clone.img"

heading "4. They share nothing, and nothing else changed"
relvmoiscsi check "$work/clone.img" --original "$work/original.img"
lvm_sees_both

heading "5. The power goes, in the middle of another run"
copy original.img second.img
printf '\n$ python3 tools/cut_power.py second.img 9     # kill -9 between the 9th and the 10th write\n'
status=0
{ python3 tools/cut_power.py "$work/second.img" 9 || status=$?; } 2>/dev/null
printf 'killed: exit status %d\n' "$status"
relvmoiscsi show "$work/second.img" || true
relvmoiscsi recover "$work/second.img" --yes
relvmoiscsi check "$work/second.img" --original "$work/original.img"

heading "6. And back again"
relvmoiscsi undo "$work/second.img" --yes
relvmoiscsi show "$work/second.img" | sed -n 1,4p

heading "Now yours: relvmoiscsi resignature /dev/YOUR_CLONE --dry-run"
