# SPDX-License-Identifier: LGPL-2.1-only
"""The drawing of the states is made of their table: nothing is missing, nothing lies on something else."""

import importlib.util
from html import unescape
from xml.etree import ElementTree

import pytest

from kit.rpm_tools import TOP
from relvmoiscsi.resignature.protocol.states import STATES, TRANSITIONS

SPEC = importlib.util.spec_from_file_location("state_drawing", str(TOP / "docs/_ext/state_drawing.py"))
state_drawing = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(state_drawing)

NAMES = [state.name for state in STATES]
MOVES = {(way.state, way.becomes) for way in TRANSITIONS if way.state != way.becomes}


@pytest.fixture(scope="module")
def svg():
    return ElementTree.fromstring(state_drawing.drawing(NAMES[:4], NAMES[4:], TRANSITIONS))


def words(svg):
    return [unescape(text.text) for text in svg.iter("text")]


def boxes(svg):
    """Of each box: left, top, right, bottom."""
    for box in svg.iter("rect"):
        left, top, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        yield left, top, left + width, top + height


def test_each_state_is_a_box(svg):
    assert len(list(boxes(svg))) == len(NAMES)
    assert [name for name in NAMES if words(svg).count(name) != 1] == []


def test_each_way_from_a_state_to_another_is_an_arrow_with_its_events(svg):
    arrows = [path for path in svg.iter("path") if path.get("marker-end")]
    events = [way.event for way in TRANSITIONS if (way.state, way.becomes) in MOVES]

    assert len(arrows) == len(MOVES)
    assert sorted(words(svg)) == sorted(NAMES + events)


def test_all_of_it_is_within_the_picture(svg):
    _, _, width, height = map(float, svg.get("viewBox").split())
    places = [(float(text.get("x")), float(text.get("y"))) for text in svg.iter("text")]

    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert all(0 < left < right < width and 0 < top < bottom < height for left, top, right, bottom in boxes(svg))


def test_no_text_lies_on_another_or_on_a_box(svg):
    places = [(float(text.get("x")), float(text.get("y")), text.text) for text in svg.iter("text")]
    said = [place for place in places if place[2] not in NAMES]

    assert len({(x, y) for x, y, _ in said}) == len(said)
    assert [text for x, y, text in said for box in boxes(svg) if box[0] <= x <= box[2] and box[1] <= y <= box[3]] == []


def test_the_row_is_what_follows_each_other_and_the_rest_stands_aside():
    ways = [("a", "go", "b"), ("b", "go", "c"), ("b", "fall", "x"), ("x", "mend", "a"), ("c", "back <", "a")]

    svg = ElementTree.fromstring(state_drawing.drawing(["a", "b", "c"], ["x"], [*ways, ("a", "stay", "a")]))

    tops = [box[1] for box in boxes(svg)]
    assert tops[0] == tops[1] == tops[2] < tops[3]
    assert sorted(words(svg)) == sorted(["a", "b", "c", "x", "go", "go", "fall", "mend", "back <"])
