# SPDX-License-Identifier: LGPL-2.1-only
"""A discovery leaves no record, with CHAP or without."""

import os

import pytest

from kit.iscsi_runs import (
    ALICE,
    DISCOVERY,
    Killed,
)
from kit.iscsi_world import (
    PORTAL,
    record_text,
    transcript,
)
from relvmoiscsi.host.iscsi.login import OpenIscsi
from relvmoiscsi.host.iscsi.notes import new_note
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.iscsi.status import IscsiFailed


def test_a_discovery_keeps_no_record(world, iscsi):
    before = world.tree()

    found = iscsi.discover(PORTAL)

    assert [(str(target.portal), target.tpgt, target.iqn) for target in found] == [
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:open"),
        ("127.0.0.1:3261", 1, "iqn.2026-01.test:open"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:chap"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:mutual"),
        ("127.0.0.1:3260", 1, "iqn.2026-01.test:acl"),
    ]
    assert world.calls == [DISCOVERY]
    assert world.tree() == before


def test_lines_that_are_no_target_and_repetitions_are_passed_over(world, iscsi):
    line = "[fd00::1]:3260,2 iqn.x\n"
    world.answers["discovery"] = lambda argv: (0, "hello\n" + line + line + "10.0.0.1:3260,-1 iqn.y\n\n", "")

    assert iscsi.discover(PORTAL) == [(Portal("fd00::1", 3260), 2, "iqn.x")]


@pytest.mark.parametrize("there", [False, True], ids=["new record", "record was there"])
@pytest.mark.parametrize("label", ["discoverydb chap", "discoverydb chap wrong"])
def test_a_discovery_with_chap_leaves_the_records_as_they_were(world, iscsi, there, label):
    if there:
        world.put_discovery_record(record_text("discovery").replace("# END", "unknown.key = kept\n# END"))
    before = world.tree()
    seen = []

    def discovery(argv):
        seen.extend(world.records().values())
        return transcript(label)

    world.answers["discovery with CHAP"] = discovery
    world.answers["discovery"] = "discovery needs chap"
    if label.endswith("wrong"):
        with pytest.raises(IscsiFailed, match="as CHAP user 'alice' failed: the target refused") as caught:
            iscsi.discover(PORTAL, ALICE)
        assert caught.value.sm_key == "ISCSILogin"
    else:
        assert len(iscsi.discover(PORTAL, ALICE)) == 5

    assert "discovery.sendtargets.auth.password = secretsecret1\n" in seen[0]
    assert "secretsecret1" not in repr(world.calls)
    assert world.tree() == before


def test_chap_is_for_a_discovery_that_wants_it(world, iscsi):
    assert len(iscsi.discover(PORTAL, ALICE)) == 5

    assert world.calls == [DISCOVERY]


@pytest.mark.parametrize("chap, label", [(None, "discovery needs chap"), (ALICE, "discovery closed")])
def test_a_discovery_that_fails_otherwise_is_not_tried_with_chap(world, iscsi, chap, label):
    world.answers["discovery"] = label

    with pytest.raises(IscsiFailed, match="The discovery at 127.0.0.1:3260 failed"):
        iscsi.discover(PORTAL, chap)

    assert world.calls == [DISCOVERY]


def test_a_discovery_that_was_killed_is_cleaned_up(world, iscsi):
    before = world.tree()

    def killed(argv):
        raise Killed()

    world.answers["discovery with CHAP"] = killed
    world.answers["discovery"] = "discovery needs chap"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenIscsi, "_give_up", lambda self, note: note.close())
        with pytest.raises(Killed):
            iscsi.discover(PORTAL, ALICE)
    assert world.records()

    iscsi.recover()
    assert world.tree() == before


def test_a_discovery_record_that_a_killed_run_had_just_made_is_found(world, iscsi):
    note = new_note(world.host, iqn="", portal=list(PORTAL), discovery=True)
    note.add(lasting=[os.path.join(world.root, "etc/iscsi")])
    note.close()
    world.put_discovery_record()

    iscsi.recover()

    assert world.records() == {}
