# SPDX-License-Identifier: LGPL-2.1-only
"""The runs that docs/ansible.rst shows are real: the same words, with the examples as they are, print the same
lines, but for UUIDs, SCSIids and the date. Their modules have interpreters of their own.
"""

import re

from conftest import COLLECTION, TOP
from kit.documented import is_in_order, shown_in

PAGE = (TOP / "docs/ansible.rst").read_text(encoding="utf-8")
EXAMPLES = COLLECTION / "examples"
HOSTS = ("xs1", "xs2", "xs3")
RUNS = [(argv, lines) for program, argv, lines in shown_in(PAGE) if program == "ansible-playbook"]


def snapshot_anew(day):
    """As the array's own collection does it; no other clone is behind the target."""
    day.world.luns = [lun for lun in day.world.luns if lun.scsi_id not in (day.clone, day.other)]
    day.clone = day.lab.clone("Production")


def arguments(words, hosts):
    """(playbook, the words behind it) of a run; tests have an inventory of their own. The page's has `hosts`."""
    assert words[0] == "-i" and (EXAMPLES / words[1]).is_file()
    found = set(re.findall("^    (\\w+):$", (EXAMPLES / words[1]).read_text(), re.MULTILINE))
    assert hosts <= found, "the hosts that the page shows are in the inventory"
    return EXAMPLES / words[2], [word.replace("$PWD", str(EXAMPLES)) for word in words[3:]]


def attached(stage, played):
    row = played.having("map")["luns"][0]
    assert (row["scsi_id"], row["status"]) == (stage.clone, "attached")
    assert row["hosts"] == dict.fromkeys(HOSTS, "plugged")
    assert stage.world.sr_uuid(stage.clone) == row["new_sr"]
    mapped = played.having("map")["map"]
    assert len(mapped[row["new_sr"]]) == 4
    again = changes_nothing(stage, EXAMPLES / "attach.yml")
    assert again.having("map")["map"] == mapped


def forgotten(stage, _):
    assert not stage.lab.summary()
    changes_nothing(stage, EXAMPLES / "forget.yml")


def changes_nothing(stage, playbook):
    """The second time."""
    summary = stage.lab.summary()
    again = stage.play(playbook)
    assert (again.status, again.changed) == (0, 0), again.out
    assert stage.lab.summary() == summary
    return again


AFTERWARDS = {"attach.yml": attached, "forget.yml": forgotten}  #: a run that is none of --check


def test_the_runs_on_the_page_print_what_it_says(day):
    """The clone of Testing is left alone by `attach.yml`, and would be in the way of the fleet."""
    uuids, before = {}, day.lab.summary()
    for words, lines in RUNS:
        playbook, others = arguments(words, {"site1"} if lines else set())
        if words[2].startswith("fleet"):
            snapshot_anew(day)
        played = day.play(playbook, *others, anew=True)
        assert played.status == 0, played.out
        if words[2] in AFTERWARDS and "--check" not in words:
            assert played.changed == 1
            AFTERWARDS[words[2]](day, played)
        printed = list(map(str.rstrip, played.out.splitlines()))
        scsi_id = next((line.split()[-1] for line in lines if "scsi_id:" in line), "")
        wanted = [line.replace(scsi_id, day.clone) if scsi_id else line for line in lines]
        assert is_in_order(wanted, printed, uuids), (words, wanted, played.out)

    assert [words[2] for words, _ in RUNS] == ["attach.yml", "attach.yml", "forget.yml", "fleet/dr_test.yml"]
    assert day.lab.summary() == before
