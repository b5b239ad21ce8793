# SPDX-License-Identifier: LGPL-2.1-only
"""`make demo` goes through to its end: it is the first thing that a newcomer runs."""

from kit.rpm_tools import TOP, succeed


def test_the_guided_tour_reaches_its_end():
    said = succeed("bash", "tools/demo.sh", cwd=str(TOP))

    assert "has been rolled back" in said and "was finished" in said and "== Now yours" in said
    assert "NOT RUN" not in said, said
