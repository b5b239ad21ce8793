# SPDX-License-Identifier: LGPL-2.1-only
"""What a command on VMs says next fits what is there."""

import pytest

from relvmoiscsi.formats import saved_vms


@pytest.fixture
def web(lab):
    return lab.vm("web", lab.vdi("Production", "root disk")[0])


def test_saved_records_are_named_only_where_the_copy_may_have_some(lab, web, copy, pool_command):
    """A person was sent to records that no `save-vms` has made."""
    words = ("clone", copy, "--all", "--isolated", "lab", "--dry-run")
    said = "they will not be cloned: 'data' ("
    ran = pool_command(*words)
    assert said in ran.err and "`rescue` lends a single disk." in ran.err and "--from-snapshot" not in ran.err
    (sr,) = lab.pool.db.refs("SR", name_label=copy)
    lab.pool.db.create("VDI", SR=sr, name_label=saved_vms.NAME_LABEL, managed=True, virtual_size="8388608")
    assert "--from-snapshot clones VMs from saved records." in pool_command(*words).err


def test_a_restore_that_was_done_before_has_the_same_next_step(web, copy, pool_command):
    first, again = (pool_command("restore", copy, "web", "--yes").out for _ in range(2))
    assert "already restored" in again and first.partition("\nnext: ")[2] == again.partition("\nnext: ")[2] != ""
    later = [line for line in first.splitlines() if line.startswith(("  later:", "  or:"))]
    assert len(later) == 2 and all(line in again for line in later)


@pytest.mark.parametrize("columns", ["80", "60"])
def test_a_person_pastes_the_ends_of_a_restore_whole(lab, web, copy, pool_command, monkeypatch, columns):
    """At 80 columns, --shutdown stood in a line of its own: a shell ran the first line without it."""
    monkeypatch.setenv("COLUMNS", columns)
    uuid = lab.pool.db.get("VM", web, "uuid")
    printed = pool_command("restore", copy, "web", "--yes").out.splitlines()
    for end in (f"--home {uuid}", f"--undo {uuid} --shutdown"):
        assert [line for line in printed if line.endswith(f"`relvmoiscsi pool restore {end}`")]


def test_a_restored_vm_that_runs_is_not_started(lab, web, copy, pool_command):
    assert pool_command("restore", copy, "web", "--yes").status == 0
    lab.pool.api.vms.vm_start("", web)
    assert "next: " not in pool_command("restore", copy, "web", "--yes").out


def test_a_hidden_base_copy_is_said_to_be_one(lab, copy, pool_command):
    """`map` lists it, and the advice was to look there."""
    (sr,) = lab.pool.db.refs("SR", name_label=copy)
    (base,) = lab.pool.db.records("VDI", SR=sr, name_label="base copy").values()
    original = lab.vdi("Production", "base copy")[1]["uuid"]
    lab.vm("helper", lab.vdi("Testing", "data")[0])
    for text in ("base copy", base["uuid"], original):
        ran = pool_command("rescue", copy, text, "--vm", "helper", "--yes")
        assert ran.status == 3 and f"{text!r} is a hidden base copy" in ran.err and "There is no" not in ran.err
