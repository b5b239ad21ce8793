# SPDX-License-Identifier: LGPL-2.1-only
"""Who looks for a thought finds its module: the package says where each one is."""

import re
from pathlib import Path

from relvmoiscsi import resignature


def test_the_package_names_every_module():
    modules = {path.stem for path in Path(resignature.__file__).parent.rglob("*.py")} - {"__init__"}

    words = set(re.findall(r"[a-z0-9_]+", resignature.__doc__))

    assert modules - words == set()


#: which rooms a room may import; none of them leads back
ROOMS = {
    "protocol": set(),
    "reading": set(),
    "merge": {"protocol", "reading"},
    "planning": {"protocol", "reading", "merge"},
    "writing": {"protocol", "reading", "planning"},
    "recovery": {"protocol", "reading", "planning", "writing"},
}


def test_the_rooms_of_a_run_import_each_other_one_way():
    found = {room: set() for room in ROOMS}
    for room, others in found.items():
        for module in (Path(resignature.__file__).parent / room).rglob("*.py"):
            others.update(re.findall(r"^from relvmoiscsi\.resignature\.(\w+)[. ]", module.read_text(), re.MULTILINE))
        others -= {room}

    assert found == ROOMS
