# SPDX-License-Identifier: LGPL-2.1-only
"""The drawings of docs/ say what the code does."""

from html import unescape
from xml.etree import ElementTree

from kit.rpm_tools import TOP
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.resignature.protocol.steps import BEGIN, COMMIT, CONTENTS, HEADERS, JOURNAL, STEPS

SVG = "{http://www.w3.org/2000/svg}"


def tree(name):
    return ElementTree.parse(str(TOP / "docs" / name)).getroot()


def words(svg):
    return [unescape(text.text) for text in svg.iter(SVG + "text")]


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
