#!/usr/bin/env bash
# A guided tour on a real LUN: made by the storage manager of XCP-ng, with snapshots, a clone and a CBT log on it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

tools/need-packages.sh demo >&2
own_tmpdir
work=$(mktemp -d -t relvmoiscsi-demo.XXXXXX)
loops=()
tgtd_pid=
detach() {
    local loop
    for loop in "${loops[@]}"; do losetup -d "$loop"; done
    loops=()
}
trap 'stop_target; detach; rm -rf "$work"' EXIT

# The command as anyone would type it, in the directory of the demo.
as_user=()
python=python3
start=(-I -X utf8 "$PWD/tools/run.py" relvmoiscsi)
relvmoiscsi() {
    printf '\n$ relvmoiscsi %s\n' "$*"
    (cd "$work" && exec "${as_user[@]}" "$python" "${start[@]}" "$@" 2>&1)
}

# An iSCSI target on loopback with both images, tgt of the distribution: an ordinary process, and no kernel in it.
portal=
iqn=iqn.2026-01.example:array
start_target() {
    command -v tgtd >/dev/null && command -v tgtadm >/dev/null || return 1
    portal=127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    TGT_IPC_SOCKET=$work/tgt tgtd -f -D --iscsi "portal=$portal" -C 0 >"$work/tgtd.log" 2>&1 &
    tgtd_pid=$!
    local try
    for try in $(seq 50); do
        admin --op new -m target -t 1 -T $iqn 2>/dev/null && break
        kill -0 "$tgtd_pid" 2>/dev/null && [ "$try" -lt 50 ] || return 1
        sleep 0.1
    done
    admin --op new -m logicalunit -t 1 -l 1 -b "$work/original.img" &&
        admin --op new -m logicalunit -t 1 -l 2 -b "$work/third.img" && admin --op bind -m target -t 1 -I ALL
}
admin() {
    TGT_IPC_SOCKET=$work/tgt tgtadm -C 0 --lld iscsi "$@"
}
stop_target() {
    if [ -n "$tgtd_pid" ]; then
        kill -KILL "$tgtd_pid" 2>/dev/null || true
        wait "$tgtd_pid" 2>/dev/null || true
    fi
    tgtd_pid=
}

# Whoever this is, the rest is run by somebody who is not root, where that user can read the code.
become_user() {
    local candidate nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    [ "$(id -u)" -eq 0 ] || return 0
    for candidate in python3 /usr/bin/python3; do
        if "${nobody[@]}" $candidate "${start[@]}" --version >/dev/null 2>&1; then
            python=$candidate as_user=("${nobody[@]}")
            echo "The user nobody runs what follows."
            return
        fi
    done
    echo "The user nobody cannot read this directory, so root runs what follows."
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
relvmoiscsi show original.img
copy original.img clone.img

heading "2. Why the copy cannot be used: it says that it is the original"
relvmoiscsi check clone.img --original original.img | head -n 4 || true
echo "..."
lvm_sees_both

heading "3. New identities"
relvmoiscsi resignature clone.img --yes
relvmoiscsi show clone.img

heading "4. They share nothing, and nothing else changed"
relvmoiscsi check clone.img --original original.img
lvm_sees_both

heading "5. The power goes: recover rolls back before the commit, else finishes"
for writes in 9 23; do
    copy original.img second.img
    printf '\n$ python3 tools/cut_power.py second.img %d     # kill -9 after so many writes\n' "$writes"
    status=0
    { python3 tools/cut_power.py "$work/second.img" "$writes" || status=$?; } 2>/dev/null
    printf 'killed: exit status %d\n' "$status"
    relvmoiscsi show second.img || true
    relvmoiscsi recover second.img --yes
done
relvmoiscsi check second.img --original original.img

heading "6. And back again"
relvmoiscsi undo second.img --yes
relvmoiscsi show second.img | sed -n 1,4p

heading "7. The same over iSCSI, as an ordinary user, with no disk of the clone here"
copy original.img third.img
if start_target 2>>"$work/tgtd.log"; then
    become_user
    url=iscsi://$portal/$iqn
    relvmoiscsi show "$url" | tee "$work/listed"
    relvmoiscsi resignature "$url/2" --yes --scsi-id "$(awk '$1 == 2 { print $2 }' "$work/listed")"
    relvmoiscsi show "$url"
    relvmoiscsi check "$url/2" --original "$url/1"
    stop_target
else
    not_run "the run over iSCSI: tgt cannot be started here (tools/need-packages.sh demo installs it)"
fi

heading "Now yours: relvmoiscsi resignature /dev/YOUR_CLONE --dry-run"
