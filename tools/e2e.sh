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
    if installs; then
        tools/venv.sh py36
        [ ! -x .venv/py36/bin/python ] || pythons+=(.venv/py36/bin/python)
    fi
    [ -x .venv/current/bin/python ] || cannot_run ".venv/current could not be made"
    case $machine in
        uml)
            command -v linux.uml >/dev/null || emulate "there is no linux.uml"
            kernel=$(command -v linux.uml)
            ;;
        qemu)
            [ "$(uname -m)" = x86_64 ] || cannot_run "the emulated PC is made for x86_64, this machine is $(uname -m)"
            need qemu-system-x86_64 mke2fs cpio
            kernel=$(printf '%s\n' /boot/vmlinuz-*-amd64 | sort -V | tail -n 1)
            [ -r "$kernel" ] || cannot_run "there is no /boot/vmlinuz-*-amd64; apt-get install linux-image-amd64"
            ;;
        *)
            echo "tools/e2e.sh: there is no machine called $machine" >&2
            exit 2
            ;;
    esac
}

# Only test_installed.py installs the package, and only it has a use for Python 3.6.
installs() { [[ "${arguments[*]}" != *tests/vm/* || "${arguments[*]}" == *test_installed* ]]; }

# What is compiled here need not be compiled there, more slowly; pytest compiles tests in a way of its own.
pythons=(.venv/current/bin/python /usr/bin/python3)
compile() {
    local python
    for python in "${pythons[@]}"; do "$python" -m compileall -q relvmoiscsi tests/kit; done
    env -u PYTHONDONTWRITEBYTECODE PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 RELVMOISCSI_VM="$results" \
        RELVMOISCSI_MACHINE="$machine" .venv/current/bin/python -m pytest -q --collect-only \
        "${arguments[@]:-tests/vm}" >/dev/null || true # the machine tells what is wrong
}

# What a toolstack or an installed package of ours brings: on the host of the tests nobody has installed either.
absent=(opt/xensource usr/libexec/sm etc/xensource etc/xensource-inventory etc/xapi.conf etc/xapi.conf.d etc/xapi.d
    etc/xcp var/lib/xcp var/xapi {etc,usr/lib}/systemd/system/xapi.service.d
    usr/share/relvmoiscsi usr/sbin/relvmoiscsi etc/relvmoiscsi.conf)

# make_hidden <file>: an upper layer. A character device 0,0 there hides what the layer below has by that name.
make_hidden() {
    local root=$1.d path found=("${absent[@]}")
    for path in /{etc,usr/lib}/udev/rules.d/*{relvmoiscsi,xapi,xs-mpath}*.rules; do
        [ ! -e "$path" ] || found+=("${path#/}")
    done
    mkdir "$root"
    for path in "${found[@]}"; do
        [ -d "/${path%/*}" ] || continue # what is not there may come while the guest runs
        mkdir -p "$root/${path%/*}"
        mknod "$root/$path" c 0 0
    done
    (cd "$root" && find . -type d -exec chmod --reference='/{}' '{}' ';')
    tar --create --directory="$root" --file="$1" .
    rm -rf "$root"
}

# -- User-Mode Linux --------------------------------------------------------------------------------------------------

# make_registers <file>: without it, User-Mode Linux does not boot on a processor with AMX. Where there is no compiler, the
# machine starts as it is.
make_registers() {
    registers=
    ! cc -O2 -Wall -Werror -shared -fPIC -o "$1" tools/uml_registers.c -ldl || registers=$1
}

start_uml() {
    exec timeout --kill-after=10 "$1" env LD_PRELOAD="$registers" "$kernel" "mem=$memory" root=/dev/root \
        rootfstype=hostfs rootflags=/ ro quiet con=null con0=null,fd:1 init="$PWD/tools/e2e-guest.sh" \
        "E2E_MACHINE=uml" "E2E_PROJECT=$PWD" "E2E_RESULTS=$results" "${of_run[@]}" >"$results/console.txt" 2>&1
}

# -- the emulated PC --------------------------------------------------------------------------------------------------

# make_disk <image>: the project and what Python starts with, as hundreds of processes read them. To open a file of this
# machine takes the emulated one several turns, each time: three quarters of the start of a driver.
make_disk() {
    local image=$1 stage=$1.d python
    mkdir "$stage"
    # tar answers 1 for a directory that changes meanwhile: a stage beside this one writes its compiled files
    {
        printf '%s\n' "$PWD"/{relvmoiscsi,drivers,tests,bench}
        for python in "${pythons[@]}"; do
            "$python" -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("stdlib")))'
        done
        .venv/current/bin/python -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("purelib")))'
    } | { tar --create --absolute-names --exclude='config-*' --exclude='*.opt-?.pyc' --exclude='*.pyc.*' \
        --exclude='python3*/'{test,idlelib,tkinter,ensurepip,lib2to3,turtledemo,pydoc_data,dist-packages} \
        --exclude='site-packages/'{mypy,mypyc,*mypyc*.so,pip,setuptools,hypothesis,docutils,ruff,ast_serialize} \
        --files-from=- || [ $? = 1 ]; } |
        tar --extract --absolute-names --transform="s,^/,$stage/,"
    truncate --size="$(($(du -sm "$stage" | cut -f1) * 5 / 4 + 32))M" "$image"
    mke2fs -q -t ext4 -O ^has_journal -i 4096 -m 0 -d "$stage" "$image"
    rm -rf "$stage"
}

# make_kernel <file>: the kernel, unpacked here, which takes an emulated processor seconds; as it is where it is not xz
make_kernel() {
    .venv/current/bin/python - "$kernel" "$1" <<'END'
import lzma, sys
with open(sys.argv[1], "rb") as file:
    packed = file.read()
at = packed.find(b"\xfd7zXZ\0")
with open(sys.argv[2], "wb") as file:
    file.write(packed if at < 0 else lzma.LZMADecompressor().decompress(packed[at:]))
END
}

# make_initrd <file>: what mounts the file systems of this machine, and starts the guest's part from there
make_initrd() {
    local root=$1.d module version=${kernel#*/vmlinuz-}
    mkdir -p "$root"/{bin,dev,host,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in virtio_pci virtio_blk 9p 9pnet_virtio overlay ext4; do
        modprobe --set-version "$version" --ignore-install --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | grep -v /arch/ | # what a processor has that this one has not
        awk '!seen[$0]++ { printf "%s %02d\n", $0, NR }' |
        while read -r module number; do cp "$module" "$root/modules/$number.ko"; done
    cat >"$root/init" <<END
#!/bin/busybox sh
export PATH=/bin
busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do busybox insmod "\$module"; done
busybox mount -t 9p -o "ro,version=9p2000.L,trans=virtio,cache=loose,msize=512000" hostroot /host
busybox mount -o move /dev /host/dev
exec busybox switch_root /host "$PWD/tools/e2e-guest.sh"
END
    chmod 755 "$root/init"
    (cd "$root" && find . | cpio --quiet --create --format=newc) >"$1"
    rm -rf "$root"
}

start_qemu() {
    # Every avoided microsecond of the kernel counts tenfold.
    # rcu_expedited: taking a SCSI or device-mapper device away waits for grace periods, dozens of them in one test.
    # oops=panic and panic=-1: a broken kernel ends the run instead of hanging until the limit.
    # norandmaps: the emulator translates the code of a program once if the code is at one address in every process.
    # no_timer_check: on a busy machine the emulated timer fails a test at boot, and the kernel gives up.
    local kernel_options="mitigations=off norandmaps rcupdate.rcu_expedited=1 nokaslr no5lvl apparmor=0 nowatchdog cryptomgr.notests"
    kernel_options+=" init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off cgroup_disable=memory psi=0"
    kernel_options+=" console=ttyS0 oops=panic panic=-1 no_timer_check loglevel=4"
    # a plain processor: with the vectors and protections of the newest, emulated programs take an eighth longer.
    # rdrand: without it the kernel has no random numbers for half a minute, and whoever asks for them waits
    exec timeout --kill-after=10 "$1" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
        -machine q35 -cpu qemu64,+rdrand -accel tcg,tb-size=512 -m "$memory" \
        -kernel "$results/kernel" -initrd "$results/initrd" \
        -append "$kernel_options E2E_MACHINE=qemu E2E_PROJECT=$PWD E2E_RESULTS=$results ${of_run[*]}" \
        -serial "file:$results/console.txt" \
        -fsdev "local,id=hostroot,path=/,readonly=on,security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=hostroot,mount_tag=hostroot \
        -fsdev "local,id=results,path=$results,security_model=none" \
        -device virtio-9p-pci,fsdev=results,mount_tag=results \
        -drive "file=$results/disk.img,if=virtio,format=raw,readonly=on" >/dev/null 2>&1
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
if installs; then supp-pack/build-rpm.sh "$results/rpm" >/dev/null; fi
compile
make_hidden "$results/hidden.tar"
if [ "$machine" = uml ]; then
    make_registers "$results/registers.so"
else
    make_disk "$results/disk.img"
    make_kernel "$results/kernel"
    make_initrd "$results/initrd"
fi

trap 'stop; rm -f "$results"/{hidden.tar,registers.so,disk.img,kernel,initrd}' EXIT
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
