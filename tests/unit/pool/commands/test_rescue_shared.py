# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool rescue` of a disk that a halted clone has too: the clone does not start while the disk is lent."""

import pytest


@pytest.fixture
def shared(lab, copy, pool_command):
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    lab.vm("helper", lab.vdi("Testing", "data")[0])
    assert pool_command("clone", copy, "web", "--name", "web too", "--yes").status == 0
    return ["rescue", copy, "root disk", "--vm", "helper"]


def test_plan_and_question_say_which_vm_cannot_start_meanwhile(shared, pool_command, type_in, tmp_path):
    words = (
        "warning: VMs that are shut down have this disk too: 'web too'. No such VM can start while 'helper' runs with "
    )
    type_in("n\n")
    for more in (["--dry-run"], [], ["--yes", "-q", "--log", tmp_path / "log"]):
        assert words in " ".join(pool_command(*shared, *more).err.split()), more
    assert "Take the disk back first: `relvmoiscsi pool rescue --done --vm " in (tmp_path / "log").read_text()


def test_a_disk_of_no_other_vm_has_no_warning(shared, pool_command):
    assert "warning" not in pool_command("rescue", "a copy", "data", "--vm", "helper", "--dry-run").err
