#!/usr/bin/env bash
# Install the Debian packages that are missing for what is named: tools/need-packages.sh [python|demo|e2e|clients]
# `python` is what makes a venv. Without a name: what the tests and checks need outside the VM.
# Without root or apt-get: say what is missing and go on; what cannot run then says so itself.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

# program:package, told apart by program so that other distributions and other Pythons count as well
NEEDED=(python3:python3)
NEEDED_DEMO=(
    lvm:lvm2
    losetup:mount
    setpriv:util-linux
    xz:xz-utils
    tgtd:tgt
)
NEEDED_TESTS=(
    "${NEEDED_DEMO[@]}"
    wipefs:util-linux
    qemu-img:qemu-utils
    vhdiinfo:libvhdi-utils
    shellcheck:shellcheck
    rpmbuild:rpm
    rpmlint:rpmlint
    createrepo_c:createrepo-c
    xorriso:xorriso
    isoinfo:genisoimage
    gpg:gnupg
    dnf:dnf
    istgt:istgt
    iscsi-inq:libiscsi-bin
    tshark:tshark
    chromium:chromium
    zsh:zsh
)

# The VM of the end-to-end tests, and what runs inside it; only for `tools/need-packages.sh e2e`
NEEDED_E2E=(
    linux.uml:user-mode-linux
    cc:gcc
    qemu-system-x86_64:qemu-system-x86
    busybox:busybox-static
    mke2fs:e2fsprogs
    cpio:cpio
    iscsid:open-iscsi
    udevadm:udev
    multipathd:multipath-tools
    sg_inq:sg3-utils
    modprobe:kmod
    ip:iproute2
    dmsetup:dmsetup
    file:file
    pkill:procps
)

# What the clients in tests/clients run on; only for `tools/need-packages.sh clients`
NEEDED_CLIENTS=(
    node:nodejs
    npm:npm
    javac:default-jdk-headless
)

# Several stages may call at the same time.
exec 9<"$0"
flock 9

missing=()
need_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); }
need_tests() {
    NEEDED+=("${NEEDED_TESTS[@]}")
    compgen -G "/usr/lib/*/qemu/block-iscsi.so" >/dev/null || missing+=(qemu-block-extra)
    need_venv
}
case ${1:-tests} in
    python) need_venv ;;
    demo) NEEDED+=("${NEEDED_DEMO[@]}") ;;
    tests) need_tests ;;
    clients)
        need_tests
        NEEDED+=("${NEEDED_CLIENTS[@]}")
        ;;
    e2e)
        need_tests
        NEEDED+=("${NEEDED_E2E[@]}")
        # it goes into an initramfs without libraries; Debian's other busybox has some
        busybox=$(command -v busybox || true)
        if [ -n "$busybox" ] && ldd "$busybox" >/dev/null 2>&1; then missing+=(busybox-static); fi
        [ -e /usr/include/dlfcn.h ] || missing+=(libc6-dev)
        compgen -G "/boot/vmlinuz-*-amd64" >/dev/null || missing+=(linux-image-amd64)
        ;;
    *)
        echo "tools/need-packages.sh: nothing is called $1" >&2
        exit 2
        ;;
esac
for pair in "${NEEDED[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    {
        echo "MISSING: ${missing[*]}"
        echo "As root on Debian: apt-get install ${missing[*]}"
    } >&2
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
unset TMPDIR # it may be that of another user, who could replace the file
log=$(mktemp)
programs=$(mktemp -d)
trap 'rm -rf "$log" "$programs"' EXIT
# A kernel that no machine boots by itself needs no initial file system: the packages would make one twice.
compgen -G "/boot/vmlinuz*" >/dev/null || ln -s /bin/true "$programs/update-initramfs"

apt() {
    # A service that a package starts must not keep the lock (9).
    apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 \
        -o "DPkg::Path=$programs:/usr/sbin:/usr/bin:/sbin:/bin" "$@" </dev/null >"$log" 2>&1 9<&- || {
        cat "$log" >&2
        return 1
    }
}

echo "installing ${missing[*]}"
apt update || echo "apt-get update failed; trying with the package lists that are here" >&2
apt install --no-install-recommends -y "${missing[@]}"
