# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN of a plugged copy is damaged, and the pool's records show the copy as it was: what uses a disk of the copy
fails before a change, and what puts an end to its use works.
"""

import pytest

from kit.damage import DAMAGES
from kit.pool.errors import XenError
from relvmoiscsi.pool import lock, lock_keys
from relvmoiscsi.pool.commands import clone_command
from relvmoiscsi.pool.connection import connect

pytestmark = pytest.mark.states
CANNOT = "cannot be read. SR.scan: "


@pytest.fixture
def web(lab, copy):
    """A VM that runs from "Production"."""
    return lab.vm("web", lab.vdi("Production", "root disk")[0], state="Running")


@pytest.fixture
def helper(lab, copy):
    return lab.vm("helper", lab.vdi("Testing", "data")[0])


@pytest.fixture
def damage(lab, clone):
    return lambda: DAMAGES["metadata text"](lab.world.lun(clone).disk)


def state(lab):
    return {table: lab.pool.db.records(table) for table in ("VM", "VBD", "VIF", "VDI", "network")}


USES = {
    "clone": ("clone", "a copy", "web", "--isolated", "night"),
    "restore": ("restore", "a copy", "web", "--shutdown"),
    "rescue": ("rescue", "a copy", "data", "--vm", "helper"),
}


@pytest.mark.parametrize("use", USES)
def test_what_uses_a_damaged_copy_fails_and_changes_nothing(lab, web, helper, damage, pool_command, use):
    damage()
    before = state(lab)
    ran = pool_command(*USES[use], "--yes", "--quiet")
    assert (ran.status, ran.out) == (6, "") and CANNOT in ran.err and state(lab) == before
    told = " ".join(ran.err.split())
    assert "The copy 'a copy' (" in told and "Nothing was changed. " in told and "run `relvmoiscsi pool discard" in told


@pytest.mark.parametrize("use", USES)
def test_what_was_done_before_the_damage_is_not_called_ready(lab, web, helper, damage, pool_command, use):
    """`clone` said "already there" with the command that starts the clone, and ended with 0."""
    assert pool_command(*USES[use], "--yes").status == 0
    damage()
    before = state(lab)
    ran = pool_command(*USES[use], "--yes")
    assert ran.status == 6 and CANNOT in ran.err and "next: " not in ran.out and state(lab) == before


@pytest.mark.parametrize("use", USES)
def test_a_dry_run_does_not_scan_the_copy_and_says_that_the_run_does(lab, web, helper, pool_command, use):
    """A scan changes the pool's records of VDIs that are new on the LUN, or gone."""
    scans, real = [], lab.answer("SR.scan", lambda *words: scans.append(words) or real(*words))
    before = lab.pool.db.records("SR"), state(lab)
    ran = pool_command(*USES[use], "--dry-run")
    assert (ran.status, scans) == (0, []) and (lab.pool.db.records("SR"), state(lab)) == before
    assert "The run would scan the copy first, and change nothing if" in " ".join(ran.out.split())


def test_a_clone_scans_the_copy_once_before_its_first_change_and_once_after_the_last(lab, web, pool_command):
    seen = []
    lab.pool.api.before = lambda method, _params: seen.append(method)
    assert pool_command(*USES["clone"], "--yes").status == 0
    changes = [method for method in seen if method in ("Async.SR.scan", "network.create", "VM.set_is_a_template")]
    assert changes == ["Async.SR.scan", "network.create", "VM.set_is_a_template", "Async.SR.scan"]


def test_a_clone_that_another_client_keeps_waiting_leaves_no_network(lab, clone, web, pool_command, monkeypatch):
    """The network was made before the lock was taken."""
    before = state(lab)
    with connect(lab.where()) as calls:
        other = lock.Held(calls, [lock_keys.name_for(clone)], "restore")
        monkeypatch.setattr(clone_command, "ask", lambda *_: other.take())
        ran = pool_command(*USES["clone"], "--yes")
        other.release()
    assert ran.status == 4 and f"Another client has locked {clone}" in ran.err and state(lab) == before


def test_why_a_copy_cannot_be_read_is_told_where_each_later_question_fails(lab, web, damage, pool_command):
    """Another error hid it: that of the question for the name of the copy."""
    damage()
    seen = []

    def before(method, _params):
        seen.append(method)
        if "Async.SR.scan" in seen and method.startswith("SR."):
            raise XenError("INTERNAL_ERROR", "later")

    lab.pool.api.before = before
    ran = pool_command(*USES["clone"], "--yes")
    assert ran.status == 6 and "The copy 'a copy' (" in ran.err and CANNOT in ran.err and "later" not in ran.err


@pytest.mark.parametrize("moment", ["SR.get_by_uuid", "SR.get_name_label", "Async.SR.scan"])
def test_a_copy_that_is_gone_at_the_scan_is_not_to_be_discarded_again(lab, clone, web, pool_command, moment):
    """The advice was to discard the SR that another client had removed, and the status that of a damaged LUN."""
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    lab.before(moment, lambda: lab.pool.db.destroy("SR", sr))
    ran = pool_command(*USES["clone"], "--yes")
    assert ran.status == 4 and "Another client has discarded the copy" in ran.err and "pool discard" not in ran.err


def test_a_copy_that_cannot_be_read_after_the_clones_were_made_is_an_error(lab, web, pool_command):
    """Cron reads the exit status and stderr."""
    calls = []

    def scan(*words):
        calls.append(words)
        if len(calls) == 2:
            raise XenError("SR_BACKEND_FAILURE_40", "", "The SR scan failed", "")
        return real(*words)

    real = lab.answer("SR.scan", scan)
    ran = pool_command(*USES["clone"], "--yes", "--quiet")
    assert (ran.status, ran.out) == (6, "") and "VM 'web': The copy " in ran.err and CANNOT in ran.err
    assert "The VM was made." in ran.err
    assert [vm for vm in lab.pool.db.records("VM").values() if "relvmoiscsi:done" in vm["other_config"]]


def test_a_copy_that_is_gone_after_the_clones_were_made_is_an_error_of_each_clone(lab, web, pool_command):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    lab.before("Async.SR.scan", lambda: lab.pool.db.destroy("SR", sr), 2)
    ran = pool_command(*USES["clone"], "--yes", "--quiet")
    assert ran.status == 4 and "Another client has discarded the copy" in ran.err and "The VM was made." in ran.err


def test_the_ways_back_and_the_discard_need_no_readable_copy(lab, web, helper, damage, pool_command):
    for words in (USES["restore"], USES["rescue"], ("clone", "a copy", "helper")):
        pool_command(*words, "--yes")
    damage()
    for words in (("restore", "--undo", "web"), ("rescue", "a copy", "--done"), ("discard", "a copy", "--with-vms")):
        assert pool_command(*words, "--yes").status == 0
