# SPDX-License-Identifier: LGPL-2.1-only
"""Who looks for a thought finds its module: the package says where each one is."""

import re
from pathlib import Path

from relvmoiscsi import resignature


def test_the_package_names_every_module():
    modules = {path.stem for path in Path(resignature.__file__).parent.rglob("*.py")} - {"__init__"}

    words = set(re.findall(r"[a-z_]+", resignature.__doc__))

    assert modules - words == set()
