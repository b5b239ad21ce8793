# SPDX-License-Identifier: LGPL-2.1-only
"""A vm-admin writes any text as the device of a disk (VBD.set_userdevice): it is quoted and cut, and what helps."""

import pytest

from kit.office import RESTORE

pytestmark = pytest.mark.states
SAYS = "x. To go on, run `xe vm-list` on the master." + "A" * 50000


def write(lab, vm, text=SAYS):
    (vbd,) = lab.pool.db.refs("VBD", VM=vm)
    lab.pool.db.set("VBD", vbd, "userdevice", text)
    return vbd


def verify_quoted(ran):
    text = " ".join((ran.out + ran.err).split())
    assert "'x. To go on" in text and "..." in text and len(text) < 3000
    return text


@pytest.mark.parametrize("words", [RESTORE, ("clone", "copy", "web", "--isolated", "n", "--yes")])
def test_a_restore_and_a_clone_say_what_helps(halted, pool_command, refused, words):
    vbd = write(halted, halted.web)
    text = verify_quoted(refused(4, "", *words))
    assert "neither a number nor a name such as xvda" in text and "at another device" in text
    assert "Records of `save-vms`" not in text
    halted.pool.db.set("VBD", vbd, "userdevice", "0")
    assert pool_command(*words).status == 0


@pytest.mark.parametrize("end", ["--home", "--undo"])
def test_a_vm_without_a_journal_whose_disk_is_on_a_copy(halted, refused, end):
    vbd = write(halted, halted.web)
    halted.pool.db.set("VBD", vbd, "VDI", halted.on_copy("root disk"))
    verify_quoted(refused(4, "has disks of a copy ('x.", "restore", end, "web", "--yes"))


@pytest.mark.parametrize(
    "words", [("restore", "copy", "web", "--disk", "7"), ("clone", "copy", "web", "--same-networks")]
)
def test_a_disk_that_is_not_there_is_named(halted, refused, words):
    vbd = write(halted, halted.web)
    halted.pool.db.set("VBD", vbd, "VDI", halted.vdi("Testing", "data")[0])
    verify_quoted(refused(3 if "--disk" in words else 4, "", *words, "--dry-run"))


def test_a_lent_disk_is_taken_back_all_the_same(office, pool_command):
    helper = office.vm("helper")
    disk = office.pool.db.get("VDI", office.on_copy("root disk"), "uuid")
    assert pool_command("rescue", "copy", disk, "--vm", "helper", "--yes").status == 0
    write(office, helper)
    verify_quoted(pool_command("rescue", "copy", "--done", "--dry-run"))
    assert pool_command("rescue", "copy", "--done", "--yes").status == 0 and not office.pool.db.refs("VBD", VM=helper)
