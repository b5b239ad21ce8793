# SPDX-License-Identifier: LGPL-2.1-only
"""What a writer of the LUN puts there does not decide how often a LUN is verified, or how much is remembered of it."""

from kit.builder import Volume, build_sr, raw
from relvmoiscsi import engine
from relvmoiscsi.resignature import problems


def test_many_journals_that_cannot_be_settled_are_a_bounded_number_of_rounds(monkeypatch):
    disks = [raw(f"disk {number}") for number in range(60)]
    uuids = list(build_sr(disks).truth.uuids.values())
    journals = [Volume(f"of {uuid}", "journal", name=f"leaf_{uuid}_1", tags=("journaler",)) for uuid in uuids]
    disk, rounds, real = build_sr([*disks, *journals]).disk, [], problems._problems
    monkeypatch.setattr(problems, "_problems", lambda *args: rounds.append(real(*args)) or rounds[-1])

    found = engine.inspect(disk)

    assert found.state == "damaged" and found.defects
    assert len(rounds) == problems._MOST_ROUNDS + 1
