# SPDX-License-Identifier: LGPL-2.1-only
"""README.rst leads to every page, and the start page of the HTML shows its parts."""

import re

from kit.rpm_tools import TOP

README = (TOP / "README.rst").read_text(encoding="utf-8")
INDEX = (TOP / "docs/index.rst").read_text(encoding="utf-8")
LINK = re.compile(r"`([^`<]+) <([^>]+)>`__")


def part(beginning, end):
    """What stands between two comments of README."""
    return README[README.index(f"\n.. {beginning}\n") : README.index(f"\n.. {end}\n")]


def pages():
    """Every page of docs/ but the start page; the formats have an index of their own."""
    found = {str(path.relative_to(TOP)) for path in (TOP / "docs").glob("*.rst")}
    return (found | {"docs/formats/index.rst"}) - {"docs/index.rst"}


def test_the_table_of_pages_misses_no_page_and_has_none_twice():
    listed = [target for _, target in LINK.findall(part("all pages", "bugs"))]

    assert sorted(listed) == sorted(pages() | {"CONTRIBUTING.rst"})


def test_each_link_leads_to_a_file_whose_name_it_shows():
    links = LINK.findall(README)

    assert [target for _, target in links if not (TOP / target).is_file()] == []
    assert [shown for shown, target in links if not target.startswith(shown)] == []
    assert len(links) > 20


def test_the_start_page_includes_parts_that_are_there():
    marks = re.findall(r":(?:start-after|end-before): \.\. (.*)", INDEX)

    assert len(marks) >= 4
    assert [mark for mark in marks if README.count(f"\n.. {mark}\n") != 1] == []


def test_the_start_page_lists_every_page():
    listed = set(re.findall(r"^   ([\w/-]+)$", INDEX, re.MULTILINE))

    assert {f"docs/{name}.rst" for name in listed} == pages()
