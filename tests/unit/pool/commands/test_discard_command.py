# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool discard`: what it prints, how it ends, whom it asks.

What a run without a question and without a mishap prints, docs/pool-vms.rst shows (test_documented.py). What happens to
the pool: tests/unit/pool/vms.
"""

import re
from contextlib import contextmanager

import pytest

from kit.office import CLONE_ALL, fail, made
from kit.pool.errors import XenError
from relvmoiscsi.errors import Refused
from relvmoiscsi.formats.saved_vms import MOST_VDI_BYTES, NAME_LABEL
from relvmoiscsi.pool.commands import discard_command

pytestmark = pytest.mark.states


def test_with_its_vms_the_question_and_the_answer_name_them(office, pool_command, type_in):
    pool_command(*CLONE_ALL)
    snap = office.snapshot(made(office)[0], "before the upgrade")
    office.pool.db.set("VM", snap, "power_state", "Suspended")
    (row,) = pool_command("discard", "copy", "--with-vms", "--dry-run", "--json").json["discard_results"]
    assert (
        len(row["destroyed_vm_names"]) == 2
        and row["destroyed_snapshot_names"] == ["before the upgrade"]
        and len(made(office)) == 2
    )
    type_in("yes\n")
    ran = pool_command("discard", "copy", "--with-vms")

    assert (
        ran.status == 0 and "and destroy 2 VMs ('db " in ran.err and "with 1 snapshot ('before the upgrade')" in ran.err
    )
    assert "  with their snapshots 'before the upgrade'" in ran.out and made(office) == []
    assert not office.pool.db.refs("SR", name_label="copy") and snap not in office.pool.db.refs("VM")


def test_disks_without_a_vm_that_only_the_copy_has_are_named_before_and_after(restored, pool_command, type_in):
    """The last state of a VM from before a restore went without a word: the restore was from a copy of the copy."""
    db = restored.pool.db
    sr = db.by_uuid("SR", restored.copy.sr_uuid)
    keep = ("restore", "--keep", "web", "--on-copy", "--yes")
    assert pool_command(*keep).status == 0
    (second,) = restored.attach(restored.world.clone(restored.copy.scsi_id))
    assert pool_command("restore", second.sr_uuid, "web", "--yes").status == 0
    refused = pool_command("discard", "copy", "--yes")
    assert refused.status == 4 and "has the disks from before a restore of VMs: 'web'. " in refused.err
    assert pool_command(*keep).status == 0
    db.create("VDI", SR=sr, location="x", uuid="11111111-0000-4000-8000-000000000000", name_label="new", managed=True)
    snapshot = {"location": "y", "name_label": "of a backup", "managed": True, "is_a_snapshot": True}
    db.create("VDI", SR=sr, uuid="22222222-0000-4000-8000-000000000000", **snapshot)
    (before,) = [vdi for vdi in db.records("VDI", SR=sr).values() if " before restore " in vdi["name_label"]]
    named = f"'new' (11111111-0000-4000-8000-000000000000), '{before['name_label']}' ({before['uuid']})"
    dry = pool_command("discard", "copy", "--dry-run")
    assert f"disks without a VM that only this LUN has: {named}" in " ".join(dry.out.split())
    type_in("n\n")
    asked = pool_command("discard", "copy").err
    assert f"Disks without a VM that go with the copy: {named}. Discard 'copy'? [y/N]" in " ".join(asked.split())
    (row,) = pool_command("discard", "copy", "--yes", "--json").json["discard_results"]
    assert row["lost_vdis"] == ["11111111-0000-4000-8000-000000000000", before["uuid"]]


@pytest.mark.parametrize(
    ("size_bytes", "kind", "is_named"),
    [(MOST_VDI_BYTES, "aio", False), (MOST_VDI_BYTES + 1, "aio", True), (1 << 40, "aio", True), (8 << 20, "vhd", True)],
)
def test_the_name_of_records_hides_no_disk_that_cannot_have_records(office, pool_command, size_bytes, kind, is_named):
    """A disk of 1 TiB with that name went without a word."""
    sr, uuid = office.pool.db.by_uuid("SR", office.copy.sr_uuid), "11111111-0000-4000-8000-000000000000"
    fields = {"name_label": NAME_LABEL, "virtual_size": size_bytes, "sm_config": {"vdi_type": kind}, "managed": True}
    office.pool.db.create("VDI", SR=sr, location="x", uuid=uuid, **fields)
    ran = pool_command("discard", "copy", "--dry-run")
    assert ran.status == 0 and (uuid in ran.out) == is_named


def test_who_is_refused_for_a_running_vm_is_told_how_it_stays_in_use(restored, pool_command):
    """A VM in production may have its disks on a copy, as after `restore --keep`: the only way was its shutdown."""
    assert pool_command("restore", "--keep", "web", "--on-copy", "--yes").status == 0
    restored.pool.api.vms.vm_start("", restored.web)
    ran = pool_command("discard", "copy", "--yes")
    assert ran.status == 4 and ran.err.endswith("To keep a VM in use, move its disks to another SR instead.\n")


def test_a_discard_that_fails_whole_ends_as_its_error_and_the_advice_has_no_option_that_was_given(
    office, pool_command, refused, monkeypatch
):
    """It ended with 9, "done in part", where another client had the lock."""
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    office.vm("alone", office.on_copy("root disk"))
    ran = refused(4, "'alone'", "discard", "copy", "--with-vms", "--yes")
    assert "add --leave-vms" in ran.err and "--with-vms" not in ran.err
    before = made(office)

    def other_client(*_):
        raise Refused("Another client has locked the copy.")

    @contextmanager
    def carrying_out(*_):
        yield other_client

    monkeypatch.setattr(discard_command.made_vms, "carrying_out", carrying_out)
    refused(4, "failed: Another client", "discard", "copy", "--leave-vms", "--yes")
    assert made(office) == before


NO_VMS_OF_A_PERSON = {
    "template": {"is_a_template": True},
    "snapshot": {"is_a_snapshot": True, "power_state": "Suspended"},  # a snapshot with memory
    "control domain": {"is_control_domain": True},
    "no UUID": {"uuid": "not-a-uuid"},
}


@pytest.mark.parametrize("kind", NO_VMS_OF_A_PERSON)
def test_marks_in_what_no_command_finds_stop_no_discard(office, pool_command, kind):
    """Each vm-admin can write such marks. `restore` and `rescue --done` could end neither."""
    db, vdi = office.pool.db, office.on_copy("data")
    vm = office.vm("evil", vdi if kind != "control domain" else office.vdi("Testing", "data")[0])
    fields = {"other_config": {"relvmoiscsi:restore:0": "x " + office.copy.sr_uuid}, **NO_VMS_OF_A_PERSON[kind]}
    for name, value in fields.items():
        db.set("VM", vm, name, value)
    for vbd in db.refs("VBD", VM=vm):
        mark = f"{db.get('VM', vm, 'uuid')} {db.get('VDI', vdi, 'uuid')}"
        db.set("VBD", vbd, "other_config", {"relvmoiscsi:rescue": mark})
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0, ran.err


@pytest.mark.parametrize("end", ["--keep", "--done"])
def test_marks_in_a_vm_of_a_person_stop_a_discard_until_the_command_that_is_told(office, pool_command, refused, end):
    """The twin of the test above."""
    db, vdi = office.pool.db, office.on_copy("data")
    vm = office.vm("own", vdi)
    uuid, (vbd,) = db.get("VM", vm, "uuid"), db.refs("VBD", VM=vm)
    if end == "--keep":
        db.set("VM", vm, "other_config", {"relvmoiscsi:restore:0": "x " + office.copy.sr_uuid})
        words = ("restore", "--keep", uuid, "--on-copy")
    else:
        db.set("VBD", vbd, "other_config", {"relvmoiscsi:rescue": f"{uuid} {db.get('VDI', vdi, 'uuid')}"})
        words = ("rescue", "copy", "--done")
    assert end in refused(4, "", "discard", "copy", "--yes", "--leave-vms").err
    assert pool_command(*words, "--yes").status == 0
    assert pool_command("discard", "copy", "--yes", "--leave-vms").status == 0


def test_who_would_stay_without_disks_is_told_before_and_one_of_two_words_is_said(office, pool_command, refused):
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    told = "on the copy: 'db too'\n  with --yes alone, the run would be refused: add --with-vms or --leave-vms"
    refused(0, told, "discard", "copy", "--dry-run")  # the run asks, and ends so after a yes
    refused(4, told, "discard", "copy", "--dry-run", "--yes")
    promised = refused(4, "", "discard", "copy", "--dry-run", "--yes", "--json").json["error"]
    ran = refused(4, "Add --with-vms, which destroys", "discard", "copy", "--yes", "--json").json["error"]
    assert promised == ran, "a script has the refusal of the run"
    assert told.split("\n")[1] in refused(4, "", "discard", "copy", "--dry-run", "--yes", "-q").err
    assert "alone" not in refused(0, "", "discard", "copy", "--dry-run", "--yes", "--leave-vms").out
    (row,) = pool_command("discard", "copy", "--dry-run", "--json").json["discard_results"]
    assert row["vms_left_without_disks"] == ["db too"] and row["yes_needs"] == ["--with-vms", "--leave-vms"]
    (row,) = pool_command("discard", "copy", "--dry-run", "--json", "--leave-vms").json["discard_results"]
    assert row["yes_needs"] == []
    ran = refused(
        4, "would lose their disks: 'db too' (on the copy 'copy'). Nothing was changed.", "discard", "copy", "--yes"
    )
    assert "--with-vms" in ran.err and "--leave-vms" in ran.err

    uuid = office.pool.db.get("VM", office.pool.db.refs("VM", name_label="db too")[0], "uuid")
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    assert ran.status == 0 and "halted VMs that had disks on the copy: 'db too'" in ran.out
    destroy = f"`xe vm-destroy uuid={uuid}` (never vm-uninstall or template-uninstall)"
    remove, give = ran.out.splitlines()[-2:]
    assert remove == f"  Remove the LUN {office.copy.scsi_id} on the array."
    assert give == f"Give the VM 'db too' other disks, or destroy it: {destroy}."


def test_a_copy_that_another_client_forgets_at_that_moment_is_not_in_the_pool(office, pool_command):
    (sr,) = office.pool.db.refs("SR", name_label="copy")
    uuid = office.pool.db.get("SR", sr, "uuid")
    office.before("SR.get_all_records", lambda: (office.unplug(sr), office.pool.storage.sr_forget("", sr)), 2)
    ran = pool_command("discard", "copy", "--yes")
    assert ran.status == 0 and ran.out.strip() == f"{uuid}: not in the pool"


def test_a_vm_with_a_disk_of_its_own_is_not_to_be_destroyed_for_the_disk_that_it_has_lost(office, pool_command):
    """A person's VM, and a copy that has got a disk of its own."""
    pool_command("clone", "copy", "db", "--name", "{vm} too", "--same-networks", "--yes")
    own = office.pool.db.create("VDI", SR=office.originals["Production"][1], name_label="mail store", location="mail")
    office.pool.db.create("VBD", VM=made(office)[0], VDI=own, userdevice="7")
    office.vm("payroll", own, office.on_copy("data"))

    ran = pool_command("discard", "copy", "--yes", "--leave-vms")

    assert ran.status == 0 and "vm-destroy" not in ran.out
    assert sorted(ran.out.splitlines()[-2:]) == [f"Give the VM {name!r} other disks." for name in ("db too", "payroll")]


def test_with_vms_is_offered_for_the_clones_alone(halted, pool_command, refused, type_in):
    """A production VM that keeps the disks of a copy was listed before "--with-vms destroys the VMs of `clone`"."""
    assert pool_command("restore", "copy", "db", "--yes").status == 0
    assert pool_command("restore", "--keep", "db", "--yes", "--on-copy").status == 0
    assert "--with-vms" not in refused(4, "lose their disks: 'db'", "discard", "copy", "--yes").err
    assert "add --leave-vms\n" in refused(0, "copy: 'db'", "discard", "copy", "--dry-run").out
    pool_command("clone", "copy", "web", "--name", "{vm} too", "--same-networks", "--yes")
    type_in("n\n")
    told = " ".join(refused(4, "lose their disks on the copy: 'db', 'web too'.", "discard", "copy").err.split())
    assert "--with-vms destroys the VMs that `clone` has made: 'web too'. Discard 'copy'?" in told


def test_after_a_discard_ten_vms_without_disks_have_a_sentence_and_the_others_are_counted(office, pool_command):
    for number in range(12):
        office.vm(f"test {number:02}", office.on_copy("data"))
    ran = pool_command("discard", "copy", "--yes", "--leave-vms")
    *_, tenth, rest = ran.out.splitlines()
    assert ran.out.count("Give the VM") == 10 and "'test 09'" in tenth
    assert rest == "Do the same for 2 more VMs, named above."


@pytest.mark.parametrize("words", [[], ["--with-vms"]])
def test_of_several_copies_none_goes_while_a_vm_would_stay_without_disks(office, pool_command, refused, type_in, words):
    """The VM is a person's, although it is called as a copy is: --with-vms does not destroy it."""
    pool_command("clone", "copy", "web", "--name", "experiment", "--same-networks", "--yes")
    office.attach(office.clone("Production"))
    office.vm("experiment", office.on_copy("data"))
    refused(4, "would lose their disks: 'experiment' (on the copy 'copy')", "discard", "--all", "--yes", *words)
    type_in("n\n")
    ran = refused(4, "These halted VMs will lose their disks on the copy: ", "discard", "copy", *words)
    assert "Discard 'copy'" in ran.err and ("'experiment'. --with-vms destroys" in ran.err) == (not words)
    assert pool_command("discard", "--all", "--yes", "--leave-vms", *words).status == 0


@pytest.mark.parametrize("way", ["--yes", "--dry-run"])
def test_of_several_copies_the_users_of_each_are_named_at_once(office, refused, way):
    (other,) = office.attach(office.clone("Production"))
    of_other = office.pool.db.refs("VDI", SR=office.pool.db.by_uuid("SR", other.sr_uuid), name_label="data")[0]
    one, two = office.vm("one", office.on_copy("data"), state="Running"), office.vm("two", of_other, state="Running")
    ran = refused(4, "have disks on the SR 'copy': 'one'. ", "discard", "--all", way)
    assert ": 'two'. " in ran.err and ran.err.count("Shut each VM down: ") == 1
    assert all(f"`xe vm-shutdown uuid={office.pool.db.get('VM', vm, 'uuid')}`" in ran.err for vm in (one, two))
    assert " Nothing was changed." in ran.err


@pytest.mark.states("words", few=2)
@pytest.mark.parametrize("words", [["--yes"], ["--yes", "--leave-vms"], ["--yes", "--with-vms"], ["--dry-run"]])
@pytest.mark.parametrize("state", ["Halted", "Running"])
def test_a_disk_that_is_lent_keeps_it_and_the_message_has_the_command_that_gives_it_back(
    office, pool_command, refused, command, state, words
):
    helper = office.helper(state, "hvm")
    mode = ["--rw"] if state == "Running" else []  # a running HVM VM takes no read-only disk
    assert pool_command("rescue", "copy", "data", "--vm", "helper", "--yes", *mode).status == 0
    before = office.pool.db.records("PBD")
    says = "Disks of the SR 'copy' are lent to VMs: 'helper'."
    ran = refused(4, says, "discard", "copy", *words)
    assert office.pool.db.records("PBD") == before and " Nothing was changed." in ran.err

    (said,) = re.findall(r"`relvmoiscsi (pool rescue .*)`", ran.err)
    assert command(*said.split(), "--yes").status == 0 and len(office.disks_of(helper)) == 1
    assert pool_command("discard", "copy", "--yes").status == 0


def test_what_is_gone_is_told_where_the_sr_stays(office, pool_command):
    pool_command("clone", "copy", "web", "--name", "gone", "--same-networks", "--yes")
    office.pool.api.before = lambda method, _: method == "Async.PBD.unplug" and fail()
    ran = pool_command("discard", "copy", "--with-vms", "--yes")
    assert ran.status == 9 and "  destroyed: the VMs 'gone'" in ran.out and made(office) == []
    assert re.search(r": failed: .*The VDI is not available", ran.out)


def test_a_network_of_clones_that_a_person_has_destroyed_goes_with_their_copy(office, pool_command):
    """Without --with-vms it stayed, and no later discard found it: its SR was gone."""
    pool_command("clone", "copy", "web", "--isolated", "gone", "--yes")
    db = office.pool.db
    (clone,) = made(office)
    uuid = db.get("VM", clone, "uuid")
    office.pool.api.vms.vm_destroy("", clone)
    stays = db.create("network", name_label="of a person", other_config={})
    assert pool_command("discard", "copy", "--yes").status == 0
    assert not db.refs("VM", uuid=uuid) and not db.refs("network", name_label="gone") and db.exists("network", stays)


def test_a_network_that_an_earlier_discard_has_left_goes_with_the_next(office, pool_command):
    """A VIF held it, or a kill behind SR.forget."""
    pool_command("clone", "copy", "db", "--isolated", "left", "--yes")
    assert pool_command("discard", "copy", "--leave-vms", "--yes").status == 0
    assert office.pool.db.refs("network", name_label="left")
    office.pool.api.vms.vm_destroy("", made(office)[0])
    assert pool_command("discard", "12345678-1234-4234-8234-123456789abc", "--yes").status == 0
    assert not office.pool.db.refs("network", name_label="left")


@pytest.mark.parametrize("moment", ["pool.add_to_other_config", "Async.PBD.unplug"])
def test_a_disk_that_is_made_on_the_copy_during_a_discard_is_named_and_kept(lab, copy, pool_command, type_in, moment):
    """During the question, and as late as the pool makes one: on an SR without a plugged PBD it makes none."""
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")

    def create():
        lab.pool.storage.require_plugged(sr)
        more = {"managed": True, "name_label": "precious", "virtual_size": 8 << 20, "type": "user"}
        lab.pool.db.create("VDI", SR=sr, location="new", **more)

    type_in("y\n")
    lab.before(moment, create)
    ran = pool_command("discard", "a copy")
    assert ran.status == 4 and "got disks without a VM since the run began: 'precious' (" in ran.out
    assert ("Nothing was changed." in ran.out) == (moment == "pool.add_to_other_config")
    assert lab.pool.db.refs("SR", name_label="a copy") == [sr]
    assert all(pbd["currently_attached"] for pbd in lab.pool.db.records("PBD", SR=sr).values())
    lab.unplug(sr)
    with pytest.raises(XenError, match="SR_HAS_NO_PBDS"):
        create()


def test_the_disk_of_a_clone_that_is_no_copy_goes_with_the_clone(office, pool_command):
    """After its VM is destroyed, it has no VM: that is told by the name of the VM."""
    pool_command("clone", "copy", "web", "--name", "gone", "--same-networks", "--yes")
    sr = office.pool.db.by_uuid("SR", office.copy.sr_uuid)
    vdi = office.pool.db.create("VDI", SR=sr, location="new", managed=True, name_label="new", type="user")
    office.pool.db.create("VBD", VM=made(office)[0], VDI=vdi, userdevice="9", type="Disk")
    assert pool_command("discard", "copy", "--with-vms", "--yes").status == 0 and made(office) == []


def test_a_long_name_hides_nothing_in_the_question(lab, copy, pool_command, type_in):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    vdi = next(ref for ref, vdi in lab.pool.db.records("VDI", SR=sr).items() if vdi["managed"])
    for name in ("A" * 250000, "zvictim"):
        lab.vm(name, vdi)
    type_in("n\n")
    ran = pool_command("discard", "a copy")
    assert "'zvictim'" in ran.err and len(ran.err) < 2000
