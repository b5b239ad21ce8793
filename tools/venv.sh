#!/usr/bin/env bash
# Create or renew .venv/<name>; nothing happens when it is up to date.
#
#   current   what tests/requirements.txt lists, on the newest Python found
#   py36      what tests/requirements-py36.txt lists, on Python 3.6
#   mypy36    mypy for Python 3.6, which itself runs on the newest Python found
#   bench     what draws the plot of tools/bench.sh, on the newest Python found
#   docs      what builds the pages of docs/, on the newest Python found
#   cinder    Cinder itself, for the layer in openstack/, on the newest Python found
#   ansible   Ansible itself, for the collection in ansible/, on the newest Python found
#   uv        uv, which fills the others in a tenth of pip's time
#
# Where there is no such Python, .venv/<name> is not there afterwards; that is a failure in CI only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

name=${1:?usage: tools/venv.sh current|py36|mypy36|bench|docs|cinder|ansible|uv}
venv=.venv/$name

case $name in
    current) wanted='>= (3, 11)' requirements=tests/requirements.txt ;;
    py36) wanted='[:2] == (3, 6)' requirements=tests/requirements-py36.txt ;;
    mypy36) wanted='>= (3, 11)' requirements=tests/requirements-mypy36.txt ;;
    bench) wanted='>= (3, 11)' requirements=bench/requirements.txt ;;
    docs) wanted='>= (3, 11)' requirements=docs/requirements.txt ;;
    cinder) wanted='>= (3, 11)' requirements=openstack/requirements.txt ;;
    ansible) wanted='>= (3, 12)' requirements=ansible/requirements.txt ;;
    uv) wanted='>= (3, 11)' requirements=tests/requirements-uv.txt ;;
    *)
        echo "tools/venv.sh: there is no venv called $name" >&2
        exit 2
        ;;
esac

# Candidates, best first; one per line.
candidates() {
    local pyenv=${PYENV_ROOT:-${HOME:-/root}/.pyenv}/versions
    if [ "$name" = py36 ]; then
        printf '%s\n' "${PYTHON36:-}" python3.6
        printf '%s\n' "$pyenv"/3.6*/bin/python | sort -rV
    else
        printf '%s\n' "${PYTHON:-}" python3.13 python3.12
        printf '%s\n' "$pyenv"/3.1[2-9]*/bin/python | sort -rV
        printf '%s\n' python3
    fi
}

# A name on the PATH may be a pyenv shim that only prints an error, so each one is asked.
find_python() {
    local candidate
    while read -r candidate; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c "import sys, venv, ensurepip; assert sys.version_info $wanted" 2>/dev/null </dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done < <(candidates)
    return 1
}

mkdir -p .venv
exec 9>".venv/$name.lock"
flock 9

if ! python=$(find_python) && { tools/need-packages.sh python; ! python=$(find_python); }; then
    rm -rf "$venv"
    status=0
    not_run "$name: no Python with sys.version_info $wanted was found" || status=1
    exit "$status"
fi

stamp="$("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])') $(sha256sum <"$requirements")"
if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

# tools/requirements.sh writes the hashes. Nothing is built from source: a build would fetch its tools without a hash.
# fill_by_uv, fill_by_pip: make the venv and install what it needs; both are called by name.
# shellcheck disable=SC2317
fill_by_uv() {
    tools/venv.sh uv && "$python" -m venv --without-pip "$venv" &&
        .venv/uv/bin/uv pip install --quiet --require-hashes --no-build --python "$venv/bin/python" \
            -r "$requirements" </dev/null
}

# shellcheck disable=SC2317
fill_by_pip() {
    "$python" -m venv "$venv" &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
            -r "$requirements" </dev/null
}

echo "making $venv with $("$python" --version)"
ways=(uv pip pip pip) # uv reads no pip.conf: where that names the registry, pip knows it
[ "$name" != uv ] || ways=(pip pip pip)
for way in "${ways[@]}"; do
    rm -rf "$venv"
    if "fill_by_$way"; then
        printf '%s\n' "$stamp" >"$venv/stamp"
        exit 0
    fi
    echo "$way could not fill $venv" >&2
    sleep 3
done
rm -rf "$venv"
exit 1
