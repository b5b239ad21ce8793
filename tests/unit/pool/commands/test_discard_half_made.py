# SPDX-License-Identifier: LGPL-2.1-only
"""The commands on a copy with clones that a run has not finished: it was interrupted, or works still."""

import pytest

from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory


@pytest.fixture
def vm(lab, copy, pool_command):
    """An unfinished clone of "web"."""
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    assert pool_command("clone", copy, "web", "--name", "web too", "--yes").status == 0
    (vm,) = lab.pool.db.refs("VM", name_label="web too")
    config = lab.pool.db.get("VM", vm, "other_config")
    lab.pool.db.set("VM", vm, "other_config", {key: text for key, text in config.items() if key != inventory.DONE})
    lab.pool.db.set("VM", vm, "is_a_template", True)
    return vm


WORDS = (
    ("discard", "a copy", "--with-vms", "--yes"),
    ("discard", "a copy", "--yes"),
    ("discard", "a copy", "--dry-run"),
    ("restore", "a copy", "web", "--yes", "--shutdown"),
    ("rescue", "a copy", "root disk", "--vm", "web", "--rw", "--yes"),
    ("clone", "a copy", "web", "--same-networks", "--yes"),
)


@pytest.mark.parametrize("words", WORDS)
def test_nobody_is_told_to_destroy_a_vm_that_another_client_makes(lab, copy, vm, pool_command, words):
    """Beside a live `clone`, `discard` and `restore` printed the command that destroys its VM, and no lock."""
    with connect(lab.where()) as calls:
        name = lock_keys.name_of(records.read(calls).srs[lab.pool.db.refs("SR", name_label="a copy")[0]])
        with lock.held(calls, [name], "clone"):
            ran = pool_command(*words)
    assert ran.status == 4 and "vm-destroy" not in ran.out + ran.err
    assert f"Another client has locked {name}: `relvmoiscsi pool clone` of " in " ".join(ran.err.split())


def test_map_says_which_clone_is_unfinished(copy, vm, pool_command):
    assert "\n  unfinished clone 'web too'\n" in pool_command("map", copy).out


@pytest.mark.parametrize("words", [("map", "a copy"), *WORDS[3:]])
def test_nobody_is_told_to_repeat_an_attach_that_works_still(lab, copy, pool_command, words):
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    for vdi in lab.pool.db.refs("VDI", SR=sr):
        lab.pool.db.destroy("VDI", vdi)
    with connect(lab.where()) as calls, lock.held(calls, [lock_keys.name_of(records.read(calls).srs[sr])], "attach"):
        ran = pool_command(*words)
    assert ran.status == 4 and ": `relvmoiscsi pool attach` of " in " ".join(ran.err.split())


@pytest.mark.parametrize("words", WORDS[:4])
def test_a_vm_that_is_finished_after_the_look_is_not_called_unfinished(lab, copy, vm, pool_command, words):
    uuid = lab.pool.db.get("VM", vm, "uuid")
    done = {**lab.pool.db.get("VM", vm, "other_config"), inventory.DONE: uuid}
    lab.before("VM.get_record", lambda: lab.pool.db.set("VM", vm, "other_config", done))
    ran = pool_command(*words)
    assert ran.status == 4 and "Another client has just made the VM 'web too'." in ran.err
    assert "vm-destroy" not in ran.out + ran.err


def test_no_answer_advises_an_option_that_is_refused(lab, copy, vm, pool_command):
    dry = pool_command("discard", copy, "--dry-run")
    assert "with --yes alone, the run would be refused: add --leave-vms\n" in dry.out
    for more in ((), ("--with-vms",)):
        ran = pool_command("discard", copy, "--yes", *more)
        assert ran.status == 4 and f"`xe vm-destroy uuid={lab.pool.db.get('VM', vm, 'uuid')}`" in ran.err
    lab.pool.api.vms.vm_destroy("", vm)
    assert pool_command("discard", copy, "--yes").status == 0
