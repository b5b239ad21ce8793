# SPDX-License-Identifier: LGPL-2.1-only
"""The code map has every room and no other; README.rst leads to every page.
Other links: tools/references.py; the start page: tools/docs.sh.
"""

import re

from kit.rpm_tools import TOP

README = (TOP / "README.rst").read_text(encoding="utf-8")
LINK = re.compile(r"`([^`<]+) <([^>]+)>`__")
ARCHITECTURE = (TOP / "docs/architecture.rst").read_text(encoding="utf-8")
#: made by make, Python or pip
MADE = re.compile(r"\.|build$|dist$|htmlcov$|__pycache__$|.*\.egg-info$")


def map_of(page):
    """The rooms of the map, and what it says of each."""
    table = page[page.index("\nThe rooms\n") : page.index("\nImports\n")]
    rows = re.findall(r"^``(\S+)/``\n((?:   .*\n)+)", table, re.MULTILINE)
    return dict(rows)


def folders(place):
    return [path for path in sorted(place.iterdir()) if path.is_dir() and not MADE.match(path.name)]


def rooms(top):
    """The package and its folders at any depth, those of the tests, and whatever else is at the top."""
    places = [path for path in folders(top) if path.name != "tests"] + folders(top / "tests")
    for place in places:
        if top / "relvmoiscsi" in [place, *place.parents]:
            places += folders(place)
    return {path.relative_to(top).as_posix() for path in places}


def test_the_code_map_has_every_room_and_no_other():
    assert set(map_of(ARCHITECTURE)) == rooms(TOP)


def test_what_the_map_finds_in_a_room_is_there():
    named = [(room, name) for room, text in map_of(ARCHITECTURE).items() for name in re.findall(r"``(\w+\.py)``", text)]

    assert [(room, name) for room, name in named if not (TOP / room / name).is_file()] == []
    assert ("relvmoiscsi", "engine.py") in named


# --- README.rst and the start page


def pages():
    """Every page of docs/ but the start page; the formats have an index of their own."""
    found = {str(path.relative_to(TOP)) for path in (TOP / "docs").glob("*.rst")}
    return (found | {"docs/formats/index.rst"}) - {"docs/index.rst"}


def test_the_table_of_pages_misses_no_page_and_has_none_twice():
    table = README[README.index("\n.. all pages\n") : README.index("\n.. bugs\n")]
    listed = [target for _, target in LINK.findall(table)]
    assert sorted(listed) == sorted(pages() | {"CONTRIBUTING.rst"})
