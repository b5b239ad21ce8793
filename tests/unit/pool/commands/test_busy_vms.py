# SPDX-License-Identifier: LGPL-2.1-only
"""A VM with another operation of xapi under way: xapi exports no record of it, and says so after two minutes."""

import pytest

from kit.office import RESTORE
from relvmoiscsi.pool.vms import checked_export

pytestmark = pytest.mark.states
CLONE = ("clone", "copy", "web", "--isolated", "lab", "--yes")
SAYS = "The pool is busy with the VM 'web': snapshot. "


def work(office, *operations):
    """These operations are under way on the VM "web"."""
    office.pool.db.set("VM", office.web, "current_operations", {f"task {each}": each for each in operations})


@pytest.fixture(autouse=True)
def attentive(monkeypatch):
    monkeypatch.setattr(checked_export, "LOOK_SECONDS", 0.0)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(checked_export, "BUSY_SECONDS", 0.05)


@pytest.mark.parametrize("words", [CLONE, ("save-vms", "Production", "--yes")], ids=["clone", "save-vms"])
def test_the_operation_that_does_not_end_is_named(office, pool_command, impatient, words):
    work(office, "snapshot")
    ran = pool_command(*words)
    told = " ".join((ran.err + ran.out).split())
    assert ran.status in (4, 9) and SAYS in told and "Wait, then repeat the command." in told


def test_a_plan_of_save_vms_says_for_what_the_run_waits(office, pool_command):
    work(office, "snapshot")
    says = SAYS + "The run waits 1 min at most, and leaves out a VM that stays busy."
    dry = ("save-vms", "Production", "--dry-run")
    assert says in " ".join(pool_command(*dry).out.split()) and pool_command(*dry, "--json").json["notes"] == [says]
    work(office, "migrate_send")
    assert pool_command(*dry, "--json").json["notes"] == []


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_a_disk_of_a_busy_vm_is_not_lent_and_the_plan_says_so(office, pool_command, refused, how):
    assert pool_command("clone", "copy", "web", "--isolated", "lab", "--name", "the clone", "--yes").status == 0
    (clone,) = office.pool.db.refs("VM", name_label="the clone")
    office.pool.db.set("VM", clone, "current_operations", {"task x": "start"})
    refused(4, "The pool is busy with the VM 'the clone': start.", "rescue", "copy", "root disk", "--vm", "db", how)


@pytest.mark.parametrize("words", [CLONE, ("save-vms", "Production", "--yes")], ids=["clone", "save-vms"])
def test_an_operation_that_ends_is_waited_for(office, pool_command, words):
    work(office, "snapshot")
    looks = []

    def before(method, params):
        if method == "VM.get_record" and params[1] == office.web:
            looks.append(method)
            if len(looks) == 2:
                work(office)

    office.pool.api.before = before
    assert pool_command(*words).status == 0


def test_an_operation_that_begins_since_is_named_where_xapi_does_not_answer(office, pool_command):
    def before(method, _params):
        if method == "GET /export_metadata":
            work(office, "snapshot")

    office.pool.api.before = before
    ran = pool_command(*CLONE)
    told = " ".join((ran.err + ran.out).split())
    assert ran.status in (4, 9) and SAYS in told and "did not answer" not in told


def test_a_pool_that_does_not_answer_for_no_reason_is_told_as_that(office, pool_command):
    def before(method, _params):
        if method == "GET /export_metadata":
            work(office, "snapshot")
        elif method == "VM.get_record":
            work(office)

    office.pool.api.before = before
    ran = pool_command(*CLONE)
    assert ran.status in (6, 9) and "did not answer /export_metadata" in " ".join((ran.err + ran.out).split())


def test_a_vm_that_migrates_is_cloned(office, pool_command, impatient):
    work(office, "migrate_send")
    assert pool_command(*CLONE).status == 0


@pytest.mark.parametrize("words", [RESTORE, ("restore", "--undo", "web", "--yes")], ids=["restore", "undo"])
def test_an_operation_that_begins_before_the_first_change_leaves_the_vm_as_it_was(halted, pool_command, words):
    """From the first look of the command to its lock, another client may have begun."""
    if "--undo" in words:
        assert pool_command(*RESTORE).status == 0
    before = halted.pool.db.record("VM", halted.web)

    def begin(method, _params):
        if method == "pool.add_to_other_config":  # the lock
            work(halted, "clone")

    halted.pool.api.before = begin
    ran = pool_command(*words)
    text = " ".join((ran.err + ran.out).split())
    assert ran.status == 4 and "The pool is busy with the VM 'web': clone. Nothing was changed." in text
    assert "may be swapped" not in text and "start is blocked" not in text
    now = halted.pool.db.record("VM", halted.web)
    assert [now[name] for name in ("other_config", "blocked_operations", "VBDs")] == [
        before[name] for name in ("other_config", "blocked_operations", "VBDs")
    ]


@pytest.mark.parametrize("end", [("--undo",), ("--home",), ("--on-copy", "--keep")], ids=["undo", "home", "keep"])
def test_a_restore_that_another_client_ends_before_the_lock_leaves_the_vm_as_it_is(restored, pool_command, end):
    def ended(method, _params):
        if method == "pool.add_to_other_config":  # the lock
            config = restored.pool.db.get("VM", restored.web, "other_config")
            left = {key: text for key, text in config.items() if not key.startswith("relvmoiscsi:restore")}
            restored.pool.db.set("VM", restored.web, "other_config", left)

    restored.pool.api.before = ended
    ran = pool_command("restore", *end, "web", "--yes")
    text = " ".join((ran.err + ran.out).split())
    assert ran.status == 4 and "Another client has just ended the restore of the VM 'web'. Nothing was changed." in text
