# SPDX-License-Identifier: LGPL-2.1-only
"""The doctor on what is set for calls of the SR driver."""

import pytest

from relvmoiscsi.doctor.settings import CONFIG, KEEPS_ALL, MAKES_ONE, examine_vdis


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, KEEPS_ALL),
        ("", KEEPS_ALL),
        ("[driver]\nvdis = all\n", KEEPS_ALL),
        ("[driver]\nvdis = one\n", MAKES_ONE),
        ("[driver]\ndeadline = soon\nvdis = one\n", MAKES_ONE),
    ],
)
def test_what_is_in_force_is_said(world, text, sentence):
    if text is not None:
        world.put(CONFIG, text)

    finding = examine_vdis(world.host())

    assert (finding.name, finding.status, finding.sentence) == ("vdis", "ok", sentence)


@pytest.mark.parametrize("line", ["vdis = two", "copy = lots"])
def test_a_setting_that_does_not_read_is_a_problem(world, line):
    world.put(CONFIG, f"[driver]\n{line}\n")

    finding = examine_vdis(world.host())

    assert (finding.name, finding.status) == ("vdis", "problem")
    assert f"The setting {line.split()[0]} in section [driver] of {CONFIG} is" in finding.sentence
    assert finding.advice


def test_a_line_that_would_not_be_read_is_a_problem(world):
    world.put(CONFIG, "[Driver]\nVdis=ONE\n")

    finding = examine_vdis(world.host())

    assert (finding.name, finding.status) == ("vdis", "problem")
    assert f"The line '[Driver]' of {CONFIG} is not read" in finding.sentence


def test_a_file_that_cannot_be_read_leaves_it_unknown(world):
    world.directory(CONFIG)

    finding = examine_vdis(world.host())

    assert (finding.name, finding.status) == ("vdis", "unknown")
    assert "cannot be read: Is a directory." in finding.sentence
