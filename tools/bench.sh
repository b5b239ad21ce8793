#!/usr/bin/env bash
# What a resignature costs, beside what people would use instead. As root: LVM on loop devices as well, and the SR driver
# in the VM of tools/e2e.sh. BENCH_PAIRS: how often the VM measures (3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/need-packages.sh
tools/venv.sh bench
tools/venv.sh py36
if [ ! -x .venv/bench/bin/python ]; then
    echo "tools/bench.sh: .venv/bench could not be made, see above" >&2
    exit 1
fi

# What the emulated VM measures, first: nothing else computes meanwhile.
rm -f build/bench/*.json
mkdir -p build/bench
E2E_RESULTS=build/bench/vm tools/e2e.sh uml tests/vm/bench_sr_create.py tests/vm/bench_procedure.py \
    -q -s --pairs="${BENCH_PAIRS:-3}" >build/bench/vm.txt 2>&1 ||
    echo "tools/bench.sh: the VM has measured nothing, build/bench/vm.txt tells why" >&2
cp build/bench/vm/driver.json build/bench/vm/procedure.json build/bench/ 2>/dev/null || true

PATH=$PATH:/usr/sbin:/sbin PYTHONPATH=.:tests PYTHONUNBUFFERED=1 exec .venv/bench/bin/python -m bench
