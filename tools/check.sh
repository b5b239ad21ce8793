#!/usr/bin/env bash
# Everything that can be said about the code without running its tests. All checks run; the last line tells the result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

failures=()

# check <what it is called> <command> <argument>...
check() {
    local name=$1
    shift
    heading "$name"
    "$@" </dev/null || failures+=("$name")
}

needs_python36() {
    if [ -x .venv/py36/bin/python ]; then
        "$@"
    else
        not_run "there is no Python 3.6 on this machine"
    fi
}

one_version() {
    local from_setup from_package
    from_setup=$("$bin/python" setup.py --version) || return
    from_package=$("$bin/python" -c 'import relvmoiscsi; print(relvmoiscsi.__version__)') || return
    echo "setup.py says $from_setup, the package says $from_package"
    [ "$from_setup" = "$from_package" ]
}

tools/need-packages.sh
check "venv for the checks" tools/venv.sh current
check "venv for mypy of Python 3.6" tools/venv.sh mypy36
check "venv for Python 3.6" tools/venv.sh py36
bin=.venv/current/bin

check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check "mypy, current" "$bin/mypy"
check "mypy, Python 3.6" .venv/mypy36/bin/mypy --python-version 3.6 --warn-unused-ignores
check "vermin, Python 3.6" "$bin/vermin" --no-tips --violations -t=3.6- relvmoiscsi acceptance tests setup.py \
    supp-pack drivers/ReLVMoISCSISR drivers/ReLVMoHBASR drivers/plugins/relvmoiscsi supp-pack/relvmoiscsi supp-pack/sm-whitelist
check "byte-compile, Python 3.6" needs_python36 .venv/py36/bin/python -m compileall -q relvmoiscsi acceptance tests setup.py
check "shellcheck" shellcheck -x tools/*.sh supp-pack/*.sh .ci/run
check "README.rst" "$bin/docutils" --strict --writer=null README.rst
check "CONTRIBUTING.rst" "$bin/docutils" --strict --writer=null CONTRIBUTING.rst
check "CHANGES.rst" "$bin/docutils" --strict --writer=null CHANGES.rst
check "docs" tools/docs.sh
check "references" "$bin/python" tools/references.py
check "version" one_version

heading "summary of the checks"
if [ ${#failures[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failures[@]}"
    exit 1
fi
echo "all checks passed"
