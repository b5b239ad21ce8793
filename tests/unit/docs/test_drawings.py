# SPDX-License-Identifier: LGPL-2.1-only
"""The drawings of docs/ say what the code does, fit their frame, and are read on a light and on a dark screen."""

from html import unescape
from xml.etree import ElementTree

import pytest

from kit.rpm_tools import TOP
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.resignature.protocol.steps import BEGIN, COMMIT, CONTENTS, HEADERS, JOURNAL, STEPS

SVG = "{http://www.w3.org/2000/svg}"
DRAWINGS = sorted((TOP / "docs").glob("*.svg"))
#: of a letter, in parts of the height of its line; of most letters less
WIDTH = 0.56


def tree(name):
    return ElementTree.parse(str(TOP / "docs" / name)).getroot()


def texts(svg):
    """(left, top, right, bottom, text) of each line of text."""
    for text in svg.iter(SVG + "text"):
        x, y, said = float(text.get("x")), float(text.get("y")), unescape(text.text)
        width = len(said) * 13 * WIDTH
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        yield left, y - 10, left + width, y + 3, said


def words(svg):
    return [said for *_, said in texts(svg)]


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_all_of_a_drawing_is_within_its_frame_and_no_text_on_another(path):
    svg = tree(path.name)
    _, _, width, height = map(float, svg.get("viewBox").split())
    places = list(texts(svg))

    assert [place for place in places if place[0] < 0 or place[2] > width or place[1] < 0 or place[3] > height] == []
    pairs = [(a, b) for n, a in enumerate(places) for b in places[:n]]
    assert [
        (a[4], b[4]) for a, b in pairs if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ] == [], "texts overlap"  # fmt: skip


def test_the_steps_and_the_states_that_a_cut_leaves_are_those_of_the_protocol():
    drawn = [(box.get("data-step"), box.get("data-state")) for box in tree("steps.svg").iter(SVG + "rect")]
    marks = {JOURNAL: "none", BEGIN: "in progress", CONTENTS: "in progress", COMMIT: "switched", HEADERS: "switched"}
    wanted = [(str(step.number), marks.get(step, "done")) for step in STEPS]

    assert [pair for pair in drawn if pair[0]] == wanted
    said = words(tree("steps.svg"))
    assert [step.name for step in STEPS if step.name not in said] == []
    assert [text for text in said if text.startswith("record: ")] == [f"record: {state}" for _, state in wanted]
    seen = [step.leaves.split(" identit")[0].split()[-1] for step in STEPS]
    assert [text.split()[0] for text in said if text.endswith(" identities")] == seen


def test_the_new_identities_of_the_clone_are_what_the_old_ones_become():
    said = words(tree("clone.svg"))
    new_sr = "db0cd78a-53f4-4682-a7b3-6e2f53d22f96"

    assert "VG_XenStorage-" + new_sr[:8] in said
    for old in ("efd24831-00a5-4192-9633-f030a9710c2b", "46ff1617-8121-4480-8d12-99227603d317"):
        assert any(old[:8] in text for text in said)
        assert any(derived_uuid(new_sr, old)[:8] in text for text in said)
