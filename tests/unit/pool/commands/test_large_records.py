# SPDX-License-Identifier: LGPL-2.1-only
"""A vm-operator writes tags, and a read-only user makes tasks, until an answer of the pool is larger than its limit."""

import pytest

from relvmoiscsi.host.xapi import rpc

pytestmark = pytest.mark.states


def refused(ran, call):
    told = " ".join(ran.err.split())
    assert ran.status == 6 and f" to {call} cannot be read: the answer " in told
    assert "Give these objects in the pool shorter or fewer texts: tags" in told and "Check --pool" not in told
    assert "gui_config of the pool" in told
    return told


@pytest.mark.parametrize("table", ["SR", "host", "network", "VDI", "pool"])
@pytest.mark.parametrize("tags", [["t" * 250000] * 8, ["", *map(str, range(100000))]], ids=["long", "many"])
def test_tags_are_named_as_the_way_to_fill_records(office, pool_command, monkeypatch, table, tags):
    limit = "_MOST_VALUES" if len(tags) > 8 else "MOST_ANSWER_BYTES"
    monkeypatch.setattr(rpc, limit, 50000 if len(tags) > 8 else 1 << 20)
    (ref, *_) = office.pool.db.refs(table)
    office.pool.db.set(table, ref, "tags", tags)
    assert "more than" in refused(pool_command("map", "copy"), table + ".get_all_records")
    office.pool.db.set(table, ref, "tags", [])
    assert pool_command("map", "copy").status == 0


def test_tasks_have_their_own_way_out(office, pool_command, monkeypatch):
    monkeypatch.setattr(rpc, "MOST_ANSWER_BYTES", 1 << 20)
    for _ in range(8):
        office.pool.db.create("task", name_label="x" * 250000)
    assert "`xe-toolstack-restart` on the master removes all tasks" in refused(
        pool_command("secrets"), "task.get_all_records"
    )
    assert pool_command("map", "copy").status == 0


def test_a_vm_operator_makes_tasks_of_imports_that_clone_reads(office, pool_command, monkeypatch):
    monkeypatch.setattr(rpc, "MOST_ANSWER_BYTES", 1 << 20)
    sr = office.pool.db.by_uuid("SR", office.copy.sr_uuid)
    for _ in range(8):
        office.pool.db.create(
            "task", name_label="relvmoiscsi: import of a VM onto the copy " + office.copy.sr_uuid,
            name_description="x" * 250000, other_config={"applies_to": sr},
        )  # fmt: skip
    refused(pool_command("clone", "copy", "web", "--isolated", "lab", "--yes"), "task.get_all_records_where")
