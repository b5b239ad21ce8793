# SPDX-License-Identifier: LGPL-2.1-only
"""The tours of tools/: what they print themselves fits 80 columns, as the results of the command do."""

import re
import runpy

from kit.shell import TOP

TOUR = runpy.run_path(str(TOP / "tools/playground.py"), run_name="tour")["TOUR"]


def test_no_heading_is_wider_than_80_columns():
    demo = re.findall('^heading "(.*)"$', (TOP / "tools/demo.sh").read_text(encoding="utf-8"), re.MULTILINE)
    night = [f"{number}. {what}" for number, (what, *_) in enumerate(TOUR, 1)]

    assert demo and night and [each for each in (*demo, *night) if len(f"== {each}") > 80] == []
