# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool rescue`, and beside it `restore` again and of several: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import re

import pytest

from kit.office import RESTORE, made
from kit.pool.errors import XenError

pytestmark = pytest.mark.states


def test_whoever_lends_or_takes_back_a_disk_is_told_which_disk_how_and_of_which_vm(office, pool_command, type_in):
    office.helper()
    lend = ["rescue", "copy", "data", "--vm", "helper"]
    assert "would be lent, VM 'helper', read-only" in pool_command(*lend, "--dry-run").out
    assert "would be lent, VM 'helper', with write access" in pool_command(*lend, "--rw", "--dry-run").out
    type_in("n\n")
    assert "Lend 'data' to 'helper', read-only? [y/N]" in pool_command(*lend).err
    assert pool_command(*lend, "--yes").status == 0
    type_in("n\n")
    ran = pool_command("rescue", "copy", "--done")
    assert ran.status == 4 and "Take back 'data' from 'helper', which is running? [y/N]" in ran.err


def test_a_disk_of_a_running_copy_of_a_vm_is_lent_after_the_way_that_is_told(office, pool_command, refused):
    assert pool_command("clone", "copy", "db", "--isolated", "lab", "--yes").status == 0
    office.helper()
    (clone,) = made(office)
    office.pool.db.set("VM", clone, "power_state", "Running")
    lend = ["rescue", "copy", "data", "--vm", "helper", "--yes"]
    told = "one disk. Nothing was changed. Take another VDI or another copy. Or shut 'db "
    ran = refused(4, told, *lend)
    (way,) = re.findall("`(xe vm-destroy uuid=.*?)` .*: that leaves its disks", ran.err)
    assert way.endswith(office.pool.db.get("VM", clone, "uuid"))
    office.pool.api.vms.vm_hard_shutdown("", clone)
    office.pool.api.vms.vm_destroy("", clone)
    assert pool_command(*lend).status == 0


# --- restore and rescue, again, and of several


@pytest.mark.parametrize(
    "words",
    [
        ("clone", "copy", "db", "web", "--isolated", "night"),
        ("rescue", "copy", "data", "--vm", "helper"),
        ("restore", "copy", "web"),
        ("restore", "copy", "web", "--shutdown"),
    ],
)
def test_a_copy_that_another_client_discards_during_the_question_is_told(halted, pool_command, monkeypatch, words):
    halted.helper("Halted")

    def asked(*_):
        assert pool_command("discard", "copy", "--yes").status == 0
        asked.before = halted.state()

    monkeypatch.setattr(f"relvmoiscsi.pool.commands.{words[0]}_command.ask", asked)
    if "--shutdown" in words:
        halted.pool.api.vms.vm_start("", halted.web)
    ran = pool_command(*words, "--yes")
    said = f"Another client has discarded the copy {halted.copy.sr_uuid}. Nothing was changed. "
    assert ran.status == 4 and said in ran.err
    assert halted.state() == asked.before, "without a network for the clones"


def test_nobody_is_asked_to_restore_or_lend_what_is(restored, pool_command, type_in):
    helper = restored.helper(domain_type="hvm")
    lending = ["rescue", "copy", "data", "--vm", "helper", "--rw"]  # a running HVM VM takes no read-only disk
    ran = pool_command(*lending, "--yes")
    assert ran.status == 0 and "read-only" not in ran.out
    for words, said in ((RESTORE[:3], "VM 'web': already restored"), (lending, "already lent, VM 'helper'")):
        assert said in pool_command(*words, "--dry-run").out
        type_in("")
        ran = pool_command(*words)
        assert ran.status == 0 and said in ran.out and "[y/N]" not in ran.err

    (vbd,) = restored.pool.db.refs("VBD", VM=helper, userdevice="1")
    restored.pool.api.vms.vbd_unplug("", vbd)
    assert "would be lent" in pool_command(*lending, "--dry-run").out
    assert ": lent, VM 'helper'" in pool_command(*lending, "--yes").out


def test_of_several_that_are_taken_back_one_fails(office, pool_command):
    helper = office.helper()
    for name in ("root disk", "data"):
        ran = pool_command("rescue", "copy", name, "--vm", "helper", "--yes")
        assert re.search("  later: `relvmoiscsi pool rescue --done .*", ran.out) and "next: " not in ran.out
    (held,) = office.pool.db.refs("VBD", VM=helper, userdevice="1")
    vms = office.pool.api.vms

    def unplug(session, vbd):
        if vbd == held:
            raise XenError("DEVICE_DETACH_REJECTED", "VBD", vbd, "busy")
        vms.vbd_unplug(session, vbd)

    office.pool.api._methods["VBD.unplug"] = unplug
    assert pool_command("rescue", "copy", "--done", "--dry-run").out.count("would be taken back") == 2
    ran = pool_command("rescue", "copy", "--done", "--yes")
    assert ran.status == 9 and ran.out.count("taken back") == ran.out.count(": failed, VM 'helper'") == 1
    assert "Unmount the disk in the guest of 'helper', then repeat the command." in ran.out
    assert pool_command("rescue", "copy", "--done", "--yes").status == 6
