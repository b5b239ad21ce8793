#!/usr/bin/env bash
# Run tests/vm inside a small VM: a real kernel with iSCSI target and initiator, udev, multipath and LVM2.
#
#   tools/e2e.sh [pytest argument]...      boot, run, say the verdict; `make e2e`
#   tools/e2e.sh serve                     boot and stay, for `again`; end it with ctrl-c
#   tools/e2e.sh again [pytest argument]...  run in the VM of `serve`, with the sources as they are now
#   tools/e2e.sh again sh <command>        look around in the VM of `serve`
#
# The guest is emulated (QEMU) and has the distribution's kernel; no hardware virtualisation is used (/dev/kvm may hang),
# so it is the same on every machine. It sees this machine's file system, read-only, with a layer in memory above it:
# nothing is installed, built or copied, and nothing the tests do reaches this machine.
# What is left afterwards: build/e2e (E2E_RESULTS) with junit.xml, output.txt, console.txt, dmesg.txt, logs/.
#
# E2E_BOOT_LIMIT, E2E_SUITE_LIMIT: seconds; E2E_MEMORY, E2E_CPUS (1): of the VM. Exit status: pytest's; 70 if the VM
# gave no verdict; 77 if it could not be started here at all (a failure when CI=true).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

NO_VERDICT=70
CANNOT_RUN=77
boot_limit=${E2E_BOOT_LIMIT:-240}
suite_limit=${E2E_SUITE_LIMIT:-2400}
results=$(realpath -m "${E2E_RESULTS:-build/e2e}")
PATH=$PATH:/usr/sbin:/sbin

cannot_run() {
    not_run "e2e: $*" || exit 1
    exit "$CANNOT_RUN"
}

newest_kernel() {
    printf '%s\n' /boot/vmlinuz-*-amd64 | sort -V | tail -n 1
}

# `serve` takes its jobs from files in the results directory: `job` holds the arguments, each ended by a zero byte.
again() {
    [ -e "$results/serving" ] || { echo "tools/e2e.sh: nobody serves in $results" >&2; exit "$NO_VERDICT"; }
    rm -f "$results/verdict" "$results/job-output"
    printf '%s\0' "$@" >"$results/job.new"
    [ $# -gt 0 ] || : >"$results/job.new"
    : >"$results/job-output"
    mv "$results/job.new" "$results/job"
    tail -f -n +1 "$results/job-output" &
    local tail=$!
    # shellcheck disable=SC2064 # this very process
    trap "kill $tail 2>/dev/null || true" EXIT
    while [ -e "$results/serving" ] && [ ! -s "$results/verdict" ]; do sleep 0.3; done
    sleep 0.3
    exit "$(cat "$results/verdict" 2>/dev/null || echo "$NO_VERDICT")"
}

{ # read to the end before anything runs: the file may change while the VM does
mode=run
case ${1:-} in
    again) shift; again "$@" ;;
    serve) shift; mode=serve suite_limit=${E2E_SUITE_LIMIT:-14400} ;;
esac

[ "$(id -u)" -eq 0 ] || cannot_run "needs root; run \`make e2e\` as root"
[ "$(uname -m)" = x86_64 ] || cannot_run "the VM is made for x86_64, this machine is $(uname -m)"
tools/need-packages.sh e2e
for program in qemu-system-x86_64 busybox mke2fs iscsid iscsiadm lvm multipath multipathd udevadm modprobe ip; do
    command -v "$program" >/dev/null || cannot_run "there is no $program"
done
tools/venv.sh current
tools/venv.sh py36
[ -x .venv/current/bin/python ] || cannot_run ".venv/current could not be made"
kernel=$(newest_kernel)
[ -r "$kernel" ] || cannot_run "there is no /boot/vmlinuz-*-amd64; apt-get install linux-image-amd64"
tools/venv.sh vm
[ -x .venv/vm/bin/vng ] || cannot_run ".venv/vm/bin/vng could not be made"

mkdir -p "$results"
exec 8>"$results.lock"
flock --nonblock 8 || { echo "tools/e2e.sh: another run writes to $results; set E2E_RESULTS" >&2; exit "$NO_VERDICT"; }
find "$results" -mindepth 1 -delete
if [ $# -gt 0 ]; then printf '%s\0' "$@"; fi >"$results/arguments"
if [[ "$*" != *tests/vm/test_* || "$*" == *test_installed* ]]; then # it alone installs it
    supp-pack/build-rpm.sh "$results/rpm" >/dev/null
fi
# What is compiled here need not be compiled there, tens of times slower.
pythons=()
for python in .venv/current/bin/python .venv/py36/bin/python /usr/bin/python3; do
    [ ! -x "$python" ] || pythons+=("$python")
done
for python in "${pythons[@]}"; do
    "$python" -m compileall -q relvmoiscsi tests drivers bench
done

# make_disk <image>: the project and what Python starts with, as hundreds of processes read them. To open a file of this
# machine takes the emulated one several turns, each time: three quarters of the start of a driver.
make_disk() {
    local image=$1 stage=$1.d python
    mkdir "$stage"
    {
        printf '%s\n' "$PWD"/{relvmoiscsi,drivers,tests,bench}
        for python in "${pythons[@]}"; do
            "$python" -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("stdlib")))'
        done
        .venv/current/bin/python -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("purelib")))'
    } | tar --create --absolute-names --exclude='config-*' --exclude='*.opt-?.pyc' \
        --exclude='python3*/'{test,idlelib,tkinter,ensurepip,lib2to3,turtledemo,pydoc_data,dist-packages} \
        --exclude='site-packages/'{mypy,mypyc,*mypyc*.so,pip,setuptools,hypothesis,docutils,ruff,ast_serialize} \
        --files-from=- |
        tar --extract --absolute-names --transform="s,^/,$stage/,"
    truncate --size="$(($(du -sm "$stage" | cut -f1) * 5 / 4 + 32))M" "$image"
    mke2fs -q -t ext4 -O ^has_journal -i 4096 -m 0 -d "$stage" "$image"
    rm -rf "$stage"
}
make_disk "$results/disk.img"

# Most of a boot without KVM is drivers for hardware that is not there, and every avoided microsecond counts tenfold.
# rcu_expedited: taking a SCSI or device-mapper device away waits for grace periods, dozens of them in one test.
# oops=panic and virtme's own panic=-1: a broken kernel ends the run instead of hanging until the limit.
absent_hardware=kvm,kvm_amd,kvm_intel,ahci,libahci,sr_mod,cdrom,sg,i2c_i801,i2c_smbus,lpc_ich,iTCO_wdt,i6300esb
absent_hardware+=,psmouse,mousedev,joydev,evdev,pcspkr,button,powernow_k8,acpi_cpufreq,bochs,drm,serio_raw,rapl
absent_hardware+=,aesni_intel,ghash_clmulni_intel,sha512_ssse3,sha512_generic,crypto_simd,cryptd,qemu_fw_cfg
kernel_options="mitigations=off rcupdate.rcu_expedited=1 nokaslr no5lvl audit=0 apparmor=0 nowatchdog cryptomgr.notests"
# no_timer_check: on a busy machine the emulated timer fails a test at boot, and the kernel gives up.
# earlycon, keep_bootcon: what the kernel has to say when it dies; virtme-ng throws its own console away.
kernel_options+=" earlycon=uart8250,io,0x2f8,115200n8 keep_bootcon"
kernel_options+=" oops=panic no_timer_check loglevel=4 modprobe.blacklist=$absent_hardware"

# virtme-ng mounts the root without a cache: each import of pytest then takes half a minute. The guest mounts this
# second share of the same file system with one and moves into it (tools/e2e-guest.sh).
qemu_options="-fsdev local,id=hostroot,path=/,readonly=on,security_model=none,multidevs=remap"
qemu_options+=" -device virtio-9p-pci,fsdev=hostroot,mount_tag=hostroot"
qemu_options+=" -fsdev local,id=project,path=$PWD,readonly=on,security_model=none,multidevs=remap"
qemu_options+=" -device virtio-9p-pci,fsdev=project,mount_tag=project"
qemu_options+=" -drive file=$results/disk.img,if=virtio,format=raw,readonly=on"
qemu_options+=" -serial file:$results/console.txt"
# a plain processor: with the vectors and protections of the newest, emulated programs take an eighth longer
qemu_options+=" -cpu qemu64"

# start_vm <stay up at most that many seconds>; its process id is $vm
start_vm() {
    : >>"$results/output.txt"
    tail -f -n 0 "$results/output.txt" 8>&- &
    tail=$!
    start_qemu "$1" </dev/null 8>&- &
    vm=$!
}

start_qemu() {
    exec env PATH="$PWD/.venv/vm/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 timeout --kill-after=10 "$1" \
        vng --run "$kernel" --disable-kvm --cpus "${E2E_CPUS:-1}" --memory "${E2E_MEMORY:-3G}" --cwd / --rwdir="$results" \
        --append="$kernel_options" --qemu-opts="$qemu_options" \
        -- "bash '$PWD/tools/e2e-guest.sh' '$PWD' '$results' $mode" >>"$results/output.txt" 2>&1
}

# `timeout` leads a process group of its own, in which the VM is with all that it consists of.
stop_vm() {
    sleep 0.3 # what it said last
    kill "$tail" "$vm" 2>/dev/null || true
    for _ in $(seq 20); do
        kill -0 -- "-$vm" 2>/dev/null || return 0
        sleep 0.2
    done
    kill -KILL -- "-$vm" 2>/dev/null || true
}
trap 'stop_vm; rm -f "$results/serving" "$results/disk.img"' EXIT
trap 'exit 130' INT TERM HUP

# watch_vm: until it ends; $booted is how many seconds it took to come up
watch_vm() {
    local began=$SECONDS
    status=0 booted=
    while kill -0 "$vm" 2>/dev/null; do
        if [ -z "$booted" ] && [ -e "$results/up" ]; then
            booted=$((SECONDS - began))
            echo "== the VM was up after $booted s"
        elif [ -z "$booted" ] && [ $((SECONDS - began)) -gt "$boot_limit" ]; then
            echo "tools/e2e.sh: the VM was not up after $boot_limit s" >&2
            stop_vm
        fi
        sleep 0.5
    done
    wait "$vm" || status=$?
    stop_vm
}

began=$SECONDS
for attempt in 1 2; do
    start_vm $((boot_limit + suite_limit))
    watch_vm
    if [ -e "$results/up" ]; then break; fi
    echo "tools/e2e.sh: attempt $attempt: the VM ended (exit status $status) before it was up; its console:" >&2
    tail -n 40 "$results/console.txt" >&2 || true
done
[ "$status" -ne 124 ] || echo "tools/e2e.sh: the VM was stopped after $((boot_limit + suite_limit)) s" >&2

if [ ! -s "$results/verdict" ]; then
    echo "tools/e2e.sh: the VM ended (exit status $status) without a verdict; its console, at the end:" >&2
    tail -n 40 "$results/console.txt" >&2 || true
    exit "$NO_VERDICT"
fi
echo "== e2e: VM up after ${booted:-?} s, tests took $((SECONDS - began - ${booted:-0})) s; $results has the logs"
exit "$(cat "$results/verdict")"
}
