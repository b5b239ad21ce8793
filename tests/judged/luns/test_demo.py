# SPDX-License-Identifier: LGPL-2.1-only
"""`make demo` goes through to its end: it is the first thing that a newcomer runs."""

import subprocess

from kit.rpm_tools import TOP


def test_the_guided_tour_reaches_its_end():
    ran = subprocess.run(
        ["bash", "tools/demo.sh"],
        cwd=str(TOP),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    said = ran.stdout.decode()

    assert ran.returncode == 0, said
    assert "has been rolled back" in said and "was finished" in said and "== Now yours" in said
    assert "NOT RUN" not in said, said
