#!/usr/bin/env bash
# The part of tools/e2e.sh that runs inside the machine, as its first process.
set -euo pipefail
project=$E2E_PROJECT results=$E2E_RESULTS machine=$E2E_MACHINE
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
unset E2E_PROJECT E2E_RESULTS E2E_MACHINE

# Each start of a program takes an emulated processor a tenth of a second, and busybox, which is linked to nothing, a third
# of that.
mount() { busybox mount "$@"; }
umount() { busybox umount "$@"; }
mkdir() { busybox mkdir "$@"; }

# layers_of_uml, layers_of_qemu <directory>: $layers are the file systems of the host, mounted there
# shellcheck disable=SC2317 # called by name
layers_of_uml() {
    local modules
    modules=/usr/lib/uml/modules/$(uname -r)
    insmod "$modules/kernel/fs/overlayfs/overlay.ko"
    mkdir -p "$1"/{host,results}
    mount -t hostfs -o ro,/ none "$1/host"
    mount -t hostfs -o "$results" none "$1/results"
    layers=$1/host
}

# shellcheck disable=SC2317 # called by name
layers_of_qemu() {
    mkdir -p "$1"/{disk,host,results}
    mount -t ext4 -o ro /dev/vda "$1/disk" # what is read often (tools/e2e.sh)
    mount -o bind / "$1/host"
    mount -t 9p -o "version=9p2000.L,trans=virtio,msize=512000" results "$1/results"
    layers=$1/disk:$1/host
}

# A root that can be written everywhere. /run, with udev's database, comes along.
enter_new_root() {
    local top=/run/e2e what
    "layers_of_$machine" $top
    mkdir -p $top/memory
    mount -t tmpfs -o size=80%,mode=755 tmpfs $top/memory
    mkdir -p $top/memory/{upper,work,root}
    busybox tar -x -f "$top/results/hidden.tar" -C $top/memory/upper
    mount -t overlay -o "lowerdir=$layers,upperdir=$top/memory/upper,workdir=$top/memory/work" overlay $top/memory/root
    mkdir -p "$top/memory/root/oldroot" "$top/memory/root$results"
    busybox pivot_root $top/memory/root $top/memory/root/oldroot
    for what in dev proc run sys; do mount -o move "/oldroot/$what" "/$what"; done
    mount -o move $top/results "$results"
    umount -l /oldroot
    hide_what_others_do
}

# /tmp is the guest's own, even if the project or the results lie below it on the host.
hide_what_others_do() {
    mkdir -p /run/e2e/keep/{project,results}
    mount -o bind "$project" /run/e2e/keep/project
    mount -o move "$results" /run/e2e/keep/results
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o mode=1777 tmpfs /var/tmp
    if [ -d "$project" ]; then umount /run/e2e/keep/project; else
        mkdir -p "$project"
        mount -o move /run/e2e/keep/project "$project"
    fi
    mkdir -p "$results"
    mount -o move /run/e2e/keep/results "$results"
}

# What an init has made when it starts anything.
first_process() {
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    # User-Mode Linux starts a program for each event of a device, as of old; udev listens by itself
    [ ! -e /sys/kernel/uevent_helper ] || echo >/sys/kernel/uevent_helper
    mount -t tmpfs -o mode=755 tmpfs /run
    ulimit -n 1048576 2>/dev/null || true
}

system_directories() {
    mkdir -p /dev/shm /dev/pts "/usr/lib/modules/$(uname -r)"
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t devpts devpts /dev/pts
    [ "$machine" = qemu ] || mount -o bind "/usr/lib/uml/modules/$(uname -r)" "/usr/lib/modules/$(uname -r)"
}

run_pytest() {
    local arguments=() status=0
    mapfile -d '' -t arguments <"$results/arguments"
    if [ ${#arguments[@]} -eq 0 ] || [ "${arguments[0]#-}" != "${arguments[0]}" ]; then
        arguments=(tests/vm "${arguments[@]}")
    fi
    cd "$project"
    # a test that stands still for 15 minutes ends all of them, and tells where each of its threads stands
    local standing_still=(-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true)
    # memory that pytest has once had stays its own: in User-Mode Linux a page costs 80 microseconds
    env MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_TOP_PAD_=1048576 \
        PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 RELVMOISCSI_VM="$results" RELVMOISCSI_MACHINE="$machine" \
        .venv/current/bin/python -m pytest -m vm -p no:cacheprovider "${standing_still[@]}" \
        --junitxml="$results/junit.xml" -o junit_logging=no --durations=15 "${arguments[@]}" </dev/null || status=$?
    cd /
    dmesg >"$results/dmesg.txt"
    cp -r /run/e2e/logs "$results/" 2>/dev/null || true
    echo "$status" >"$results/verdict"
}

main() {
    first_process
    cd /
    enter_new_root
    cd /
    exec </dev/null >>"$results/output.txt" 2>&1 3>&- 4>&- 5>&-
    system_directories
    hostname e2e
    /lib/systemd/systemd-udevd --daemon
    touch "$results/up"
    run_pytest
    busybox poweroff -f
}

# read to the end before anything runs: the file may change meanwhile
main
exit
