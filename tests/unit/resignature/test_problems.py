# SPDX-License-Identifier: LGPL-2.1-only
"""What a writer of the LUN puts there does not decide how often a LUN is verified, or how much is remembered of it."""

import re
from uuid import NAMESPACE_OID, uuid5

import pytest

from kit.builder import Volume, build_sr, journal, named, raw
from kit.live import clone
from kit.outcome import entropy_of
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError
from relvmoiscsi.resignature import problems
from relvmoiscsi.resignature.reading.left_behind import leavable


def test_many_journals_that_cannot_be_settled_are_a_bounded_number_of_rounds(monkeypatch):
    disks = [raw(f"disk {number}") for number in range(60)]
    uuids = list(build_sr(disks).truth.uuids.values())
    journals = [Volume(f"of {uuid}", "journal", name=f"leaf_{uuid}_1", tags=("journaler",)) for uuid in uuids]
    disk, rounds, real = build_sr([*disks, *journals]).disk, [], problems._problems
    monkeypatch.setattr(problems, "_problems", lambda *args: rounds.append(real(*args)) or rounds[-1])

    found = engine.inspect(disk)

    assert found.state == "damaged" and found.defects
    assert len(rounds) == problems._MOST_ROUNDS + 1


def unreadable(count, name="VHD"):
    """The error of a LUN with so many empty volumes, whose names say that they are VHDs, beside a whole VDI."""
    broken = [named(f"{name}-{uuid5(NAMESPACE_OID, str(number))}") for number in range(count)]
    with pytest.raises(FormatError) as error:
        engine.prepare(build_sr([raw("whole"), *broken], mgt=False).disk, entropy_of(1))
    return error.value


def test_a_command_leaves_no_more_vdis_behind_than_a_person_can_read(monkeypatch):
    monkeypatch.setattr(problems, "_MOST_LEFT_BEHIND", 5)
    assert unreadable(5).advice.count("--without ") == 5
    error = unreadable(6)
    assert error.commands == [] and "6 VDIs cannot be read. No command mends that on the clone." in error.advice


def test_a_message_has_no_more_commands_than_a_person_can_run(monkeypatch):
    monkeypatch.setattr(problems, "_MOST_COMMANDS", 5)
    error = unreadable(9, "LV-x")  # a step is to check the original
    assert error.advice.count("lvremove") == 4 and error.advice.endswith(
        " Then repeat the command: it names 5 more steps."
    )
    assert " more step" not in unreadable(4, "LV-x").advice


def test_the_defects_of_a_lun_are_counted_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(problems, "_MOST_DEFECTS", 5, raising=False)
    built = build_sr([raw("whole"), *(named(f"LV-x{number}") for number in range(9))], mgt=False)

    found = engine.inspect(built.disk)

    assert found.state == "damaged" and len(found.defects) == 6
    assert "it has more than 5 defects" in found.defects[-1].message


def test_the_vdis_of_a_lun_are_compared_once_with_those_left_behind(monkeypatch):
    """A writer of the LUN can make tens of thousands of VDIs that cannot be read: once for each takes minutes."""
    compared = []

    class Known(set):
        def difference(self, *others):
            compared.append(others)
            return Known(super().difference(*others))

    monkeypatch.setattr(problems, "leavable", lambda lun: Known(leavable(lun)))
    unreadable(30)
    assert 0 < len(compared) <= 3


def test_with_work_that_cannot_be_settled_no_leaf_is_named_that_the_storage_manager_drops():
    """The leaf of the snapshot has no VHD yet: SM drops it, and the VDI is the base again."""
    built = clone("after_lvcreate", more=(raw("odd"), journal("leaf", "odd", "no UUID"))).built
    odd, orig = built.truth.uuids["odd"], built.truth.uuids["orig"]

    found = engine.inspect(built.disk)

    assert re.findall("--without ([0-9a-f-]+)", found.problem.advice) == [odd] and len(found.defects) == 1
    kept = engine.prepare(built.disk, entropy_of(1), engine.ResignatureRequest(without=(odd,))).lun.settled().disks()
    assert orig in kept and odd not in kept
