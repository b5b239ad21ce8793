#!/usr/bin/env bash
# What a run costs, beside what people would use instead. As root: LVM on loop devices as well, and the SR driver in the
# VM of tools/e2e.sh. tools/bench.sh --page also writes docs/costs.rst and bench/cost.svg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/need-packages.sh
tools/venv.sh bench
tools/venv.sh py36
if [ ! -x .venv/bench/bin/python ]; then
    echo "tools/bench.sh: .venv/bench could not be made, see above" >&2
    exit 1
fi

PATH=$PATH:/usr/sbin:/sbin PYTHONPATH=.:tests PYTHONUNBUFFERED=1 exec .venv/bench/bin/python -m bench "$@"
