#!/usr/bin/env bash
# The Ansible collection in ansible/:
#
#   tools/collection.sh build     its tarball, in build/collection
#   tools/collection.sh sanity    what is in the tarball before ansible-test sanity and units, without containers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

built=build/collection

build() {
    tools/venv.sh ansible
    rm -rf "$built"
    .venv/ansible/bin/ansible-galaxy collection build ansible --output-path "$built" </dev/null
}

# ansible-test wants a place of this name, not in a git tree that ignores it; makes venvs of its own in its home, and takes
# what they need from PyPI. Only the script that puts pip into a venv comes from elsewhere: Python has one of its own.
sanity() {
    local home=$PWD/build/ansible-test elsewhere place bin=$PWD/.venv/ansible/bin pip
    build
    own_tmpdir
    elsewhere=$(mktemp -d)
    # shellcheck disable=SC2064 # this very directory
    trap "rm -rf '$elsewhere'" EXIT
    place=$elsewhere/ansible_collections/relvmoiscsi/pool
    mkdir -p "$place" "$home/.ansible/test/cache"
    tar -xzf "$built"/*.tar.gz -C "$place"
    pip=$(sed -n "s/^ *pip='\([0-9.]*\)',$/\1/p" \
        "$bin"/../lib/python3*/site-packages/ansible_test/_internal/python_requirements.py | head -n 1)
    printf 'import ensurepip\nensurepip.bootstrap(default_pip=True)\n' >"$home/.ansible/test/cache/get_pip_${pip//./_}.py"
    cd "$place"
    export HOME=$home PATH=$bin:$PATH LC_ALL=C.UTF-8
    local python
    python=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    ansible-test sanity --requirements --python "$python" </dev/null
    ansible-test units --requirements --python "$python" </dev/null
}

case ${1:-} in
    build | sanity) "$1" ;;
    *)
        echo "usage: tools/collection.sh build|sanity" >&2
        exit 2
        ;;
esac
