# SPDX-License-Identifier: LGPL-2.1-only
"""What a person and a program are told of a LUN in use: before, what will be finished; afterwards, what was."""

import pytest

from kit.live import STATES

#: a state, and whether something of it is finished
TOLD = {
    "clone: after_first_snap, vhd": True,
    "leaf: one_renamed, vhd": True,
    "inflate: after_zeroOut": True,
    "foreign volumes": False,
}


@pytest.fixture(params=TOLD)
def live(request):
    return STATES[request.param]()


@pytest.fixture
def image(live, tmp_path):
    path = tmp_path / "live.img"
    live.built.disk.to_file(str(path))
    return path


def told(words, sentences):
    return all(any(word in sentence for sentence in sentences) for word in words)


@pytest.mark.parametrize("arguments", [["show"], ["check"], ["resignature", "--dry-run"]])
def test_it_is_told_beforehand_and_the_work_is_left_as_it_is(live, image, unwritten, arguments):
    verb, *options = arguments
    assert told(live.said(), unwritten(0, verb, image, "--json", *options).json["notes"])
    assert told(live.said(), unwritten(0, verb, image, *options).out.splitlines())


def test_a_resignature_tells_it_and_afterwards_nothing_is_left_to_finish(live, image, command, request):
    ran = command("resignature", image, "--yes", "--json")
    assert ran.status == 0 and told(live.said(), ran.json["notes"])

    notes = command("show", image, "--json").json["notes"]
    finished = TOLD[request.node.callspec.params["live"]]
    assert not any(word in note for word in live.said() for note in notes) or not finished
    assert command("check", image).status == 0
