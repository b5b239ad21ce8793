# SPDX-License-Identifier: LGPL-2.1-only
"""`make bench`: eight numbers that somebody feels, each beside its goal, all of one run.

`make bench PAGE=1` is for a release. It measures more, and writes docs/costs.rst and bench/cost.svg.
"""

import os
import platform
import sys
import time
from typing import List

from bench import counts, one_vdi, over_iscsi, page, pool, startup, timing, vm
from bench.table import Number, print_numbers, print_table

PLOT = "bench/cost.svg"


def main(writes_page: bool) -> int:
    began = time.monotonic()
    machine = _machine()
    print_table("The machine", ("machine", "cores", "kernel", "python", "load"), [machine])
    numbers: List[Number] = []
    with vm.measuring():  # beside counts, which are exact whatever else the machine does
        numbers += over_iscsi.round_trips()
        numbers += counts.numbers()
    numbers += vm.numbers()
    numbers += timing.numbers()
    numbers += over_iscsi.copies()
    numbers += pool.numbers()
    numbers += startup.numbers()
    print_numbers(numbers)
    if writes_page:
        _write_page()
    missed = [one.what for one in numbers if one.is_met is False]
    print(f"\n{len(missed)} of {len(numbers)} goals missed; {time.monotonic() - began:.0f} s")
    return 0


def _write_page() -> None:
    one_vdi.print_bytes()
    times = timing.print_all()
    try:
        page.update()
    except KeyError as title:
        sys.exit(f"{page.PAGE} stays as it is: this run has not printed the table {title}")
    from bench import plot  # noqa: PLC0415 - matplotlib, which no measurement should have beside it

    plot.draw(times, PLOT)
    print(f"\n{page.PAGE} and {PLOT} are of this run")


def _machine() -> List[object]:
    load = f"{os.getloadavg()[0]:.1f}"
    return [platform.machine(), os.cpu_count(), platform.release(), platform.python_version(), load]


if __name__ == "__main__":
    sys.exit(main(writes_page="--page" in sys.argv[1:]))
