#!/usr/bin/env bash
# The part of tools/e2e.sh that runs inside the VM: e2e-guest.sh <project> <results> run|serve
set -euo pipefail
project=$1 results=$2 mode=$3
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
exec </dev/null 2>&1 3>&- 4>&- 5>&-
cd /

# What a toolstack or an installed package of ours brings: on this host nobody has installed either.
absent=(opt/xensource usr/libexec/sm etc/xensource etc/xensource-inventory etc/xapi.conf etc/xapi.conf.d etc/xapi.d
    etc/xcp var/lib/xcp var/xapi {etc,usr/lib}/systemd/system/xapi.service.d
    usr/share/relvmoiscsi usr/sbin/relvmoiscsi etc/relvmoiscsi.conf)

# hide_the_toolstack <host's root> <upper layer>: a character device 0,0 there hides what the layer below has by that name
hide_the_toolstack() {
    local host=$1 upper=$2 path directory found=("${absent[@]}")
    for path in "$host"/{etc,usr/lib}/udev/rules.d/*{relvmoiscsi,xapi,xs-mpath}*.rules; do
        found+=("${path#"$host"/}")
    done
    for path in "${found[@]}"; do
        directory=$(dirname "$path")
        [ -d "$host/$directory" ] || continue # what is not there may come while the guest runs
        mkdir -p "$upper/$directory"
        while [ "$directory" != . ]; do
            chmod --reference="$host/$directory" "$upper/$directory"
            directory=$(dirname "$directory")
        done
        mknod "$upper/$path" c 0 0
    done
}

# mount_host <its 9p tag> <mount point> <caching>
mount_host() {
    mount -t 9p -o "ro,version=9p2000.L,trans=virtio,$3,msize=512000" "$1" "$2"
}

# A root that is cached and that can be written everywhere. /run, with udev's database, comes along.
enter_new_root() {
    local top=/run/e2e
    mkdir -p $top/host $top/disk $top/memory
    mount_host hostroot $top/host cache=loose
    modprobe -a virtio_blk ext4
    mount -t ext4 -o ro /dev/vda $top/disk # what is read often (tools/e2e.sh)
    mount -t tmpfs -o size=80%,mode=755 tmpfs $top/memory
    mkdir -p $top/memory/{upper,work,root}
    hide_the_toolstack $top/host $top/memory/upper
    mount -t overlay -o "lowerdir=$top/disk:$top/host,upperdir=$top/memory/upper,workdir=$top/memory/work" overlay \
        $top/memory/root
    mkdir -p "$top/memory/root/oldroot" "$top/memory/root$results"
    udevadm control --exit 2>/dev/null || true
    pivot_root $top/memory/root $top/memory/root/oldroot
    local what
    for what in dev proc run sys; do mount --move "/oldroot/$what" "/$what"; done
    mount --move "/oldroot$results" "$results"
    umount --lazy /oldroot
    hide_what_others_do
}

# /tmp is the guest's own, even if the project or the results lie below it on the host.
hide_what_others_do() {
    mkdir -p /run/e2e/keep/{project,results}
    mount --bind "$project" /run/e2e/keep/project
    mount --move "$results" /run/e2e/keep/results
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o mode=1777 tmpfs /var/tmp
    if [ -d "$project" ]; then umount /run/e2e/keep/project; else
        mkdir -p "$project"
        mount --move /run/e2e/keep/project "$project"
    fi
    mkdir -p "$results"
    mount --move /run/e2e/keep/results "$results"
}

# For `serve`: the sources as they are on the host at the moment; bytecode goes to memory.
fresh_sources() {
    local top=/run/e2e/project
    mkdir -p $top/host $top/memory
    mount_host project $top/host cache=none
    mount -t tmpfs tmpfs $top/memory
    mkdir -p $top/memory/{upper,work}
    mount -t overlay -o lowerdir=$top/host,upperdir=$top/memory/upper,workdir=$top/memory/work overlay "$project"
    # what does not change and is large comes from the cached root
    mkdir -p "$project/.venv" && mount --bind /run/e2e/memory/.venv "$project/.venv"
    mkdir -p "$results" && mount --bind /run/e2e/memory/.results "$results"
}

run_shell() {
    local status=0
    (cd "$project" && bash -c "$*" </dev/null) || status=$?
    echo "$status" >"$results/verdict"
}

# run_pytest <file of arguments>: as `tools/e2e.sh` got them; `sh <command>` is for looking around in a VM that serves
run_pytest() {
    local arguments=() status=0
    mapfile -d '' -t arguments <"$1"
    if [ "${arguments[0]:-}" = sh ]; then
        run_shell "${arguments[@]:1}"
        return
    fi
    if [ ${#arguments[@]} -eq 0 ] || [ "${arguments[0]#-}" != "${arguments[0]}" ]; then
        arguments=(tests/vm "${arguments[@]}")
    fi
    cd "$project"
    env RELVMOISCSI_VM="$results" .venv/current/bin/python -m pytest -m vm -p no:cacheprovider -p no:xdist -p no:hypothesispytest \
        --junitxml="$results/junit.xml" -o junit_logging=no --durations=15 "${arguments[@]}" </dev/null || status=$?
    cd /
    dmesg >"$results/dmesg.txt"
    dmesg --level emerg,alert,crit,err,warn >"$results/dmesg-errors.txt"
    rm -rf "$results/logs"
    cp -r /run/e2e/logs "$results/" 2>/dev/null || true
    echo "$status" >"$results/verdict.new"
    mv "$results/verdict.new" "$results/verdict"
}

main() {
    enter_new_root
    cd /
    hostname e2e
    /lib/systemd/systemd-udevd --daemon
    if [ "$mode" = serve ]; then
        mkdir -p /run/e2e/memory/.venv /run/e2e/memory/.results
        mount --bind "$project/.venv" /run/e2e/memory/.venv
        mount --bind "$results" /run/e2e/memory/.results
        fresh_sources
    fi
    touch "$results/up"
    if [ "$mode" = run ]; then
        run_pytest "$results/arguments"
    else
        touch "$results/serving"
        echo "serving: tools/e2e.sh again [pytest argument]..."
        while [ -e "$results/serving" ]; do
            if [ -e "$results/job" ]; then
                mv "$results/job" "$results/job-now"
                run_pytest "$results/job-now" >"$results/job-output" 2>&1
            fi
            sleep 0.3
        done
    fi
}

# read to the end before anything runs: the file may change meanwhile
main
exit
