#!/usr/bin/env bash
# Run tests/vm as root of a machine with a Linux kernel of its own: tools/e2e.sh uml|qemu [pytest argument]...
#
#   uml    User-Mode Linux: the kernel is a process of this machine. It has everything but Fibre Channel over Ethernet.
#   qemu   the distribution's kernel in an emulated PC, which takes ten times as long. It can run every test.
#
# User-Mode Linux does not boot on every processor. Where it does not, or is missing, the run goes on in the emulated PC.
#
# Neither uses hardware virtualisation (/dev/kvm may hang), so each is the same on every machine. The guest sees the file
# system of this machine read-only, with a layer in memory above: nothing is installed or copied, and no test changes
# this machine. What is left afterwards: build/e2e (E2E_RESULTS) with junit.xml, output.txt, console.txt, dmesg.txt, logs/.
#
# E2E_BOOT_LIMIT, E2E_SUITE_LIMIT: seconds; E2E_MEMORY: of the machine. Exit status: pytest's; 70 if the machine gave no
# verdict; 77 if the machine could not be started here at all (a failure when CI=true).
# shellcheck disable=SC2317 # start_uml and start_qemu are called by name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

NO_VERDICT=70
CANNOT_RUN=77
machine=${1:?usage: tools/e2e.sh uml|qemu [pytest argument]...}
shift
boot_limit=${E2E_BOOT_LIMIT:-600}
[ "$machine" = qemu ] || boot_limit=180 # four seconds of a processor; if it hangs, the other machine takes over
suite_limit=${E2E_SUITE_LIMIT:-2400}
memory=${E2E_MEMORY:-3G}
of_run=("RELVMOISCSI_SEED=${RELVMOISCSI_SEED:-$RANDOM}" "RELVMOISCSI_WHOLE=${RELVMOISCSI_WHOLE:-}") # the sample that is taken
results=$(realpath -m "${E2E_RESULTS:-build/e2e}")
PATH=$PATH:/usr/sbin:/sbin

cannot_run() {
    not_run "e2e: $*" || exit 1
    exit "$CANNOT_RUN"
}

need() {
    local program
    for program in "$@"; do command -v "$program" >/dev/null || cannot_run "there is no $program"; done
}

arguments=("$@")

# emulate <why User-Mode Linux cannot>: the same run in the emulated PC, from its beginning
emulate() {
    echo "tools/e2e.sh: $1; the tests run in the emulated PC, which takes longer" >&2
    exec 8>&-
    exec tools/e2e.sh qemu ${arguments[@]+"${arguments[@]}"}
}

# what_it_needs: $kernel is what the machine boots
what_it_needs() {
    [ "$(id -u)" -eq 0 ] || cannot_run "needs root; run \`make vm\` as root"
    tools/need-packages.sh e2e
    need busybox iscsid iscsiadm lvm multipath multipathd udevadm modprobe ip
    tools/venv.sh current
    tools/venv.sh py36
    [ -x .venv/current/bin/python ] || cannot_run ".venv/current could not be made"
    case $machine in
        uml)
            command -v linux.uml >/dev/null || emulate "there is no linux.uml"
            kernel=$(command -v linux.uml)
            ;;
        qemu)
            [ "$(uname -m)" = x86_64 ] || cannot_run "the emulated PC is made for x86_64, this machine is $(uname -m)"
            need qemu-system-x86_64 mke2fs
            kernel=$(printf '%s\n' /boot/vmlinuz-*-amd64 | sort -V | tail -n 1)
            [ -r "$kernel" ] || cannot_run "there is no /boot/vmlinuz-*-amd64; apt-get install linux-image-amd64"
            tools/venv.sh vm
            [ -x .venv/vm/bin/vng ] || cannot_run ".venv/vm/bin/vng could not be made"
            ;;
        *)
            echo "tools/e2e.sh: there is no machine called $machine" >&2
            exit 2
            ;;
    esac
}

# What is compiled here need not be compiled there, more slowly.
pythons=()
compile() {
    local python
    for python in .venv/current/bin/python .venv/py36/bin/python /usr/bin/python3; do
        [ -x "$python" ] || continue
        pythons+=("$python")
        "$python" -m compileall -q relvmoiscsi tests drivers bench
        "$python" -c 'import XenAPI, pytest; pytest.main(["--version"])' >/dev/null 2>&1 || true
    done
}

# -- User-Mode Linux --------------------------------------------------------------------------------------------------

start_uml() {
    exec timeout --kill-after=10 "$1" "$kernel" "mem=$memory" root=/dev/root rootfstype=hostfs rootflags=/ ro quiet \
        con=null con0=null,fd:1 init="$PWD/tools/e2e-guest.sh" \
        "E2E_MACHINE=uml" "E2E_PROJECT=$PWD" "E2E_RESULTS=$results" "${of_run[@]}" >"$results/console.txt" 2>&1
}

# -- the emulated PC --------------------------------------------------------------------------------------------------

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

start_qemu() {
    # Most of a boot without KVM is drivers for hardware that is not there, and every avoided microsecond counts tenfold.
    # rcu_expedited: taking a SCSI or device-mapper device away waits for grace periods, dozens of them in one test.
    # oops=panic and virtme's own panic=-1: a broken kernel ends the run instead of hanging until the limit.
    local absent_hardware=kvm,kvm_amd,kvm_intel,ahci,libahci,sr_mod,cdrom,sg,i2c_i801,i2c_smbus,lpc_ich,iTCO_wdt,i6300esb
    absent_hardware+=,psmouse,mousedev,joydev,evdev,pcspkr,button,powernow_k8,acpi_cpufreq,bochs,drm,serio_raw,rapl
    absent_hardware+=,aesni_intel,ghash_clmulni_intel,sha512_ssse3,sha512_generic,crypto_simd,cryptd,qemu_fw_cfg
    local kernel_options="mitigations=off rcupdate.rcu_expedited=1 nokaslr no5lvl apparmor=0 nowatchdog cryptomgr.notests"
    kernel_options+=" init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off cgroup_disable=memory psi=0"
    # no_timer_check: on a busy machine the emulated timer fails a test at boot, and the kernel gives up.
    # earlycon, keep_bootcon: what the kernel has to say when it dies; virtme-ng throws its own console away.
    kernel_options+=" earlycon=uart8250,io,0x2f8,115200n8 keep_bootcon"
    kernel_options+=" oops=panic no_timer_check loglevel=4 modprobe.blacklist=$absent_hardware"

    # virtme-ng mounts the root without a cache: each import of pytest then takes half a minute. The guest mounts this
    # second share of the same file system with one and moves into it (tools/e2e-guest.sh).
    local qemu_options="-fsdev local,id=hostroot,path=/,readonly=on,security_model=none,multidevs=remap"
    qemu_options+=" -device virtio-9p-pci,fsdev=hostroot,mount_tag=hostroot"
    qemu_options+=" -drive file=$results/disk.img,if=virtio,format=raw,readonly=on"
    qemu_options+=" -serial file:$results/console.txt"
    # a plain processor: with the vectors and protections of the newest, emulated programs take an eighth longer
    qemu_options+=" -cpu qemu64"

    exec env PATH="$PWD/.venv/vm/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 timeout --kill-after=10 "$1" \
        vng --run "$kernel" --disable-kvm --cpus 1 --memory "$memory" --cwd / --rwdir="$results" \
        --append="$kernel_options" --qemu-opts="$qemu_options" \
        -- "E2E_MACHINE=qemu E2E_PROJECT='$PWD' E2E_RESULTS='$results' ${of_run[*]} bash '$PWD/tools/e2e-guest.sh'" >/dev/null 2>&1
}

# -- a run ------------------------------------------------------------------------------------------------------------

# start <stay up at most that many seconds>; the process id is $guest
start() {
    : >"$results/output.txt"
    tail -f -n 0 "$results/output.txt" 8>&- &
    tail=$!
    "start_$machine" "$1" </dev/null 8>&- &
    guest=$!
}

# `timeout` leads a process group of its own, in which the machine is with all that it consists of.
stop() {
    sleep 0.3 # what the guest said last
    kill "$tail" "$guest" 2>/dev/null || true
    for _ in $(seq 20); do
        kill -0 -- "-$guest" 2>/dev/null || return 0
        sleep 0.2
    done
    kill -KILL -- "-$guest" 2>/dev/null || true
}

# watch: until the machine ends; $booted is how many seconds it took to come up
watch() {
    local began=$SECONDS
    status=0 booted=
    while kill -0 "$guest" 2>/dev/null; do
        if [ -z "$booted" ] && [ -e "$results/up" ]; then
            booted=$((SECONDS - began))
        elif [ -z "$booted" ] && [ $((SECONDS - began)) -gt "$boot_limit" ]; then
            echo "tools/e2e.sh: the machine was not up after $boot_limit s" >&2
            stop
        fi
        sleep 0.5
    done
    wait "$guest" || status=$?
    stop
}

{ # read to the end before anything runs: the file may change while the machine does
what_it_needs
mkdir -p "$results"
exec 8>"$results.lock"
flock --nonblock 8 || { echo "tools/e2e.sh: another run writes to $results; set E2E_RESULTS" >&2; exit "$NO_VERDICT"; }
find "$results" -mindepth 1 -delete
if [ $# -gt 0 ]; then printf '%s\0' "$@"; fi >"$results/arguments"
if [[ "$*" != *tests/vm/* || "$*" == *test_installed* ]]; then # it alone installs it
    supp-pack/build-rpm.sh "$results/rpm" >/dev/null
fi
compile
[ "$machine" = uml ] || make_disk "$results/disk.img"

trap 'stop; rm -f "$results/disk.img"' EXIT
trap 'exit 130' INT TERM HUP
began=$SECONDS
for attempt in 1 2; do
    start $((boot_limit + suite_limit))
    watch
    if [ -e "$results/up" ]; then break; fi
    echo "tools/e2e.sh: attempt $attempt: the machine ended (exit status $status) before it was up; its console:" >&2
    tail -n 40 "$results/console.txt" >&2 || true
    [ "$machine" = qemu ] || emulate "User-Mode Linux does not boot here"
done
[ "$status" -ne 124 ] || echo "tools/e2e.sh: the machine was stopped after $((boot_limit + suite_limit)) s" >&2

if [ ! -s "$results/verdict" ]; then
    echo "tools/e2e.sh: the machine ended (exit status $status) without a verdict; its console, at the end:" >&2
    tail -n 40 "$results/console.txt" >&2 || true
    exit "$NO_VERDICT"
fi
echo "== $machine: up after ${booted:-?} s, tests took $((SECONDS - began - ${booted:-0})) s; $results has the logs"
exit "$(cat "$results/verdict")"
}
