# SPDX-License-Identifier: LGPL-2.1-only
"""The original of a clone was deleted: the clone is the last copy of that VM, and no run destroys it by the way."""

import json
import shlex
import uuid

import pytest

from kit.advised import commands_in, problem_of
from kit.pool_verbs import VBD
from kit.xe import xe
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import lock, lock_keys, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vdis import Origin
from relvmoiscsi.pool.vms import discard, inventory, owners
from relvmoiscsi.pool.vms.restore_entries import Swap

pytestmark = pytest.mark.states
ALL = ("discard", "--all", "--with-vms", "--yes")


@pytest.fixture
def gone(lab, copy, pool_command):
    """The only copy (its reference) of the VM "mail", which is deleted; "web" has a copy as well."""
    for name, disk in (("mail", "data"), ("web", "root disk")):
        lab.vm(name, lab.vdi("Production", disk)[0])
    assert (
        pool_command("clone", "a copy", "mail", "web", "--isolated", "night", "--name", "{vm} copy", "--yes").status
        == 0
    )
    lab.pool.api.vms.vm_destroy("", lab.pool.db.refs("VM", name_label="mail")[0])
    (made,) = lab.pool.db.refs("VM", name_label="mail copy")
    return made


def vms(lab):
    return sorted(vm["name_label"] for vm in lab.pool.db.records("VM").values())


def test_the_last_copy_of_a_vm_is_destroyed_after_a_word_of_its_own(lab, gone, pool_command):
    uuid_of = lab.pool.db.get("VM", gone, "uuid")
    for words in (ALL, (*ALL, "--dry-run"), ("discard", "a copy", "--with-vms", "--dry-run")):
        before = vms(lab)
        ran = pool_command(*words)
        said = " ".join(ran.err.split())
        assert ran.status == 4 and vms(lab) == before
        assert f"with the LUN of the copy, 'mail copy' ({uuid_of}) would be lost for ever. Nothing was" in said
        assert "'web copy'" not in said and "add --last-copies" in said
    plan = pool_command(*ALL, "--last-copies", "--dry-run").out
    assert "with the VMs 'mail copy', whose original is gone, 'web copy'" in " ".join(plan.split())
    for words in (("--dry-run",), ()):
        (row,) = pool_command(*ALL, "--last-copies", *words, "--json").json["discard_results"]
        assert row["last_copy_vm_names"] == ["mail copy"], "the text says it, and a program reads no text"
    assert vms(lab) == ["web"]


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
def test_who_may_not_unplug_the_copy_destroys_no_vm_before(lab, gone, pool_command, monkeypatch, how):
    """VM.destroy takes a lower role."""
    lab.pool.api.users["eve"] = ("pw", "vm-power-admin")
    monkeypatch.setenv("XENSERVER_USER", "eve")
    monkeypatch.setenv("XENSERVER_PASSWORD", "pw")
    there = vms(lab)
    ran = pool_command("discard", "--all", "--with-vms", "--last-copies", how)
    told = " ".join((ran.out + ran.err).split())
    assert ran.status == 6 and "may not call PBD.unplug. Nothing was changed. Use the role pool-operator" in told
    assert vms(lab) == there


def test_a_clone_whose_disks_were_made_cd_drives_is_the_last_copy_still(lab, gone, pool_command):
    """A vm-admin changes the type (VBD.set_type), and not the mode. What is in a CD drive that xapi made is no disk."""
    for vbd in lab.pool.db.refs("VBD", VM=gone):
        lab.pool.db.set("VBD", vbd, "type", "CD")
    before = lab.pool.db.get("VM", gone, "uuid")
    ran = pool_command(*ALL)
    assert ran.status == 4 and f"'mail copy' ({before})" in ran.err and "mail copy" in vms(lab)
    for vbd in lab.pool.db.refs("VBD", VM=gone):
        lab.pool.db.set("VBD", vbd, "mode", "RO")
    assert pool_command(*ALL).status == 0


def forged(lab, vm, **keys):
    """A vm-admin writes these marks."""
    config = {**lab.pool.db.get("VM", vm, "other_config"), **{f"relvmoiscsi:{key}": keys[key] for key in keys}}
    lab.pool.db.set("VM", vm, "other_config", config)


@pytest.mark.parametrize("done", ["x", None])
def test_no_key_makes_another_vm_a_copy_of_the_vm_that_is_gone(lab, gone, pool_command, done):
    (web,) = lab.pool.db.refs("VM", name_label="web")
    original = lab.pool.db.get("VM", gone, "other_config")["relvmoiscsi:clone-of"]
    forged(lab, web, **{"clone-of": original, "done": done or lab.pool.db.get("VM", web, "uuid")})
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'mail copy'" in ran.err and "mail copy" in vms(lab)


@pytest.mark.parametrize("name", ["web", "mail copy", "web copy", "another", "a template"])
def test_no_key_makes_another_vm_the_original(lab, gone, pool_command, name):
    """It has no disk of that VM, or goes with the copy, or is no VM."""
    lab.vm("another", lab.vdi("Production", "before")[0])
    lab.vm("a template", is_a_template=True)
    (vm,) = lab.pool.db.refs("VM", name_label=name)
    forged(lab, gone, **{"clone-of": lab.pool.db.get("VM", vm, "uuid")})
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'mail copy'" in ran.err and "mail copy" in vms(lab)


def test_no_vm_whose_disk_was_beside_the_lost_one_is_its_original(lab, gone, pool_command):
    """The pool lacks the disk of "mail", which another tool may have moved. The LUN has a copy of the disk of "web"."""
    disk, _ = lab.vdi("Production", "data")
    lab.pool.db.destroy("VDI", disk)
    (web,) = lab.pool.db.refs("VM", name_label="web")
    forged(lab, gone, **{"clone-of": lab.pool.db.get("VM", web, "uuid")})
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'mail copy'" in ran.err and "mail copy" in vms(lab)


def test_no_journal_gives_the_original_a_disk_that_it_has_lost(lab, copy, pool_command):
    """A vm-admin writes an entry of a restore into the original, which has lost its disk: the clone was destroyed."""
    disk, _ = lab.vdi("Production", "root disk")
    web, old = lab.vm("web", disk), lab.pool.db.get("VDI", disk, "uuid")
    assert pool_command("clone", "a copy", "web", "--isolated", "night", "--name", "{vm} copy", "--yes").status == 0
    (vbd,) = lab.pool.db.refs("VBD", VM=web)
    lab.pool.db.destroy("VBD", vbd)
    sr = str(uuid.uuid4())
    home = lab.pool.db.get("SR", lab.originals["Production"][1], "uuid")
    new = Origin(sr, None, {}).new_of(old)
    swap = Swap(lab.pool.db.get("VM", web, "uuid"), "0", old, new, old, "x", sr, home, VBD)
    forged(lab, web, **{"restore:0": json.dumps(swap._asdict())})
    with connect(lab.where()) as calls:
        assert web in owners.whose(records.read(calls), inventory.read(calls), old), "the entry can be read"
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'web copy'" in ran.err and vms(lab) == ["web", "web copy"]


@pytest.mark.parametrize("fate", ["moved", "moved by another tool", "restored"])
def test_an_original_counts_that_has_other_disks_since(lab, gone, pool_command, fate):
    lab.pool.api.vms.vm_destroy("", gone)
    (web,) = lab.pool.db.refs("VM", name_label="web")
    (vbd,) = lab.pool.db.refs("VBD", VM=web)
    if fate != "moved by another tool":
        (second,) = lab.attach(lab.clone("Production"))
        assert pool_command("restore", second.sr_uuid, "web", "--yes").status == 0
        if fate == "moved":
            assert pool_command("restore", "--home", "web", "--yes").status == 0
    else:
        disk, to = lab.pool.db.get("VBD", vbd, "VDI"), lab.originals["Testing"][1]
        lab.pool.api.vms.vdi_pool_migrate("", disk, to, {})
    assert pool_command("discard", "a copy", "--with-vms", "--yes").status == 0 and vms(lab) == ["web"]


def test_the_question_names_the_vm_whose_original_is_gone(lab, gone, pool_command, type_in):
    type_in("n\n")
    ran = pool_command("discard", "a copy", "--with-vms", "--last-copies")
    assert "destroy 2 VMs ('mail copy', whose original is gone, 'web copy')?" in " ".join(ran.err.split())


def test_no_discard_without_the_vms_takes_the_last_copy_either(lab, gone, pool_command, type_in):
    """A discard that left the VM without its disks passed the guard, and told to remove the LUN on the array."""
    for words in (("--leave-vms", "--yes"), ("--dry-run",), ()):
        type_in("y\n")
        ran = pool_command("discard", "a copy", *words)
        assert ran.status == 4 and len(lab.disks_of(gone)) == 1
        told = " ".join(ran.err.split())
        assert "with the LUN of the copy, 'mail copy' (" in told and "add --last-copies" in told
    lab.pool.api.vms.vm_destroy("", lab.pool.db.refs("VM", name_label="web copy")[0])
    (row,) = pool_command("discard", "a copy", "--last-copies", "--dry-run", "--json").json["discard_results"]
    assert row["last_copy_vm_names"] == row["vms_left_without_disks"] == ["mail copy"]
    type_in("y\n")
    ran = pool_command("discard", "a copy", "--last-copies")
    told = " ".join(ran.err.split())
    assert ran.status == 0 and "lose their disks on the copy: 'mail copy', whose original is gone. " in told


def test_what_a_discard_has_left_of_a_clone_is_no_last_copy(lab, gone, pool_command):
    """The VM without a disk was refused as a last copy, with the advice to copy it."""
    (vbd,) = lab.pool.db.refs("VBD", VM=gone)
    lab.pool.db.destroy("VBD", vbd)
    assert pool_command(*ALL).status == 0 and vms(lab) == ["web"]


def test_an_original_that_is_deleted_after_the_plan_keeps_its_copy(lab, gone, pool_command):
    (web,) = lab.pool.db.refs("VM", name_label="web")
    lab.pool.api.vms.vm_destroy("", gone)
    lab.before("VM.get_all_records", lambda: lab.pool.api.vms.vm_destroy("", web), 2)
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'web copy'" in ran.err and "web copy" in vms(lab)


def test_an_sr_that_stays_in_the_pool_is_unplugged_by_the_same_rule(lab, gone):
    """Only a discard had the guard: behind an unplugged SR, nothing holds a person from removing the LUN."""
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    (web,) = lab.pool.db.refs("VM", name_label="web")
    with connect(lab.where()) as calls:
        with pytest.raises(Refused, match="'mail copy' .* would be lost for ever[.]"):
            discard.plan(calls, [sr], False, forgets=False)
        lab.pool.api.vms.vm_destroy("", gone)
        told = discard.plan(calls, [sr], False, forgets=False)
        lab.pool.api.vms.vm_destroy("", web)
        with pytest.raises(Refused, match="'web copy'"), discard.carrying_out(calls, told) as carry_out:
            carry_out(calls, sr, [])
        assert len(lab.pool.db.get("SR", sr, "PBDs")) == len(lab.pool.hosts)
        told = discard.plan(calls, [sr], False, last_copies=True, forgets=False)
        with discard.carrying_out(calls, told) as carry_out:
            carry_out(calls, sr, [])
    assert lab.pool.db.get("SR", sr, "PBDs") == [] and len(lab.pool.db.get("SR", sr, "VDIs")) == 4


@pytest.mark.parametrize("reading", [1, 2])
def test_who_gives_one_last_copy_up_gives_up_no_other(lab, gone, reading):
    """The copy of "mail" is a last copy, and was told so. The original of another clone is deleted meanwhile."""
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    (web,) = lab.pool.db.refs("VM", name_label="web")
    with connect(lab.where()) as calls:
        told = discard.plan(calls, [sr], True, last_copies=True)
        lab.before("VM.get_all_records", lambda: lab.pool.api.vms.vm_destroy("", web), reading)
        with pytest.raises(Refused, match="'web copy' .* lost"), discard.carrying_out(calls, told) as carry_out:
            carry_out(calls, sr, [])
    assert {"mail copy", "web copy"} <= set(vms(lab))


def test_no_run_destroys_the_last_copy_of_a_vm_that_was_deleted_meanwhile(lab, gone):
    (sr,) = lab.pool.db.refs("SR", name_label="a copy")
    with connect(lab.where()) as calls:
        pool, found = records.read(calls), inventory.read(calls)
        made = discard.made_on(found, pool, sr)
        with lock.held(calls, [lock_keys.name_of(pool.srs[sr])], "x") as held:
            with pytest.raises(Refused, match="'mail copy'"):
                discard.destroy_made(calls, held, pool, sr, made)
            assert "mail copy" in vms(lab)
            discard.destroy_made(calls, held, pool, sr, made, may_go=made)
    assert vms(lab) == ["web"]


def test_the_command_of_the_refusal_makes_the_vm_on_the_sr_of_its_original(lab, gone, pool_command):
    for words in (ALL, ("restore", "--home", "mail copy", "--yes")):
        ran = pool_command(*words)
        (copy,) = [command for command in commands_in(" ".join(ran.err.split())) if "vm-copy" in command]
        assert ran.status == 4 and not problem_of(copy)
        later = "stays on the network of the clone, and its tag xo:no-bak keeps it out of backups. Move its VIFs ("
        assert later in " ".join(ran.err.split()), "a kept VM had neither a network nor backups"
        assert f"sr-uuid={lab.pool.db.get('SR', lab.originals['Production'][1], 'uuid')}" in copy
    status, made, _err = xe(lab.pool, shlex.split(copy)[1:])
    ((sr, _disk),) = lab.disks_of(lab.pool.db.by_uuid("VM", made.strip())).values()
    assert (status, sr) == (0, lab.originals["Production"][1])
    assert pool_command(*ALL).status == 4, "nothing but keys says that the VM was copied"
    assert pool_command(*ALL, "--last-copies").status == 0 and vms(lab) == ["mail copy", "web"]


@pytest.mark.parametrize("template", [inventory.NAME, "{vm} of {sr}"])
def test_a_kept_vm_gets_the_name_of_its_original_back(lab, gone, pool_command, monkeypatch, template):
    """The VM to keep had the name of the copy, and the next question named just that for destruction."""
    monkeypatch.setattr(inventory, "NAME", template)
    name = template.format(vm="mail", sr="a copy")  # as `clone` names it without --name
    lab.pool.db.set("VM", gone, "name_label", name)
    for words in (ALL, ("restore", "--home", name, "--yes")):
        ran = pool_command(*words)
        (copy,) = [command for command in commands_in(" ".join(ran.err.split())) if "vm-copy" in command]
        assert copy.endswith(" new-name-label=mail")


def test_the_copy_of_another_pool_is_not_the_last_one(lab, gone, pool_command):
    """A test of disaster recovery: the pool has neither the original SR nor its VMs."""
    (web,) = lab.pool.db.refs("VM", name_label="web")
    lab.pool.api.vms.vm_destroy("", web)
    lab.forget_original("Production")
    assert pool_command(*ALL).status == 0 and vms(lab) == []


@pytest.mark.parametrize("fate", ["detached", "in a CD drive", "a disk", "in the place of the root disk", "moved"])
def test_no_disk_of_the_original_stands_for_another_disk(lab, copy, pool_command, fate):
    """The root disk of "mail" is destroyed: the clone has the only copy of it, whatever became of the other disk."""
    db = lab.pool.db
    root, data = (lab.vdi("Production", name)[0] for name in ("root disk", "data"))
    mail = lab.vm("mail", root, data)
    assert pool_command("clone", "a copy", "mail", "--isolated", "night", "--name", "{vm} copy", "--yes").status == 0
    if fate == "moved":
        lab.pool.api.vms.vdi_pool_migrate("", root, lab.originals["Testing"][1], {})
        assert pool_command(*ALL).status == 0 and vms(lab) == ["mail"]
        return
    for vbd in db.refs("VBD", VM=mail):
        db.destroy("VBD", vbd)
    db.destroy("VDI", root)
    if fate != "detached":
        kind, device = ("CD", "3") if fate == "in a CD drive" else ("Disk", "1" if fate == "a disk" else "0")
        db.create("VBD", VM=mail, VDI=data, userdevice=device, type=kind, empty=False)
    ran = pool_command(*ALL)
    assert ran.status == 4 and "'mail copy'" in ran.err and vms(lab) == ["mail", "mail copy"]


@pytest.mark.parametrize(("fate", "is_last"), [("detached", False), ("given to another", False), ("destroyed", True)])
def test_a_disk_that_was_taken_from_the_original_is_lost_only_if_the_pool_no_longer_has_it(
    lab, copy, pool_command, fate, is_last
):
    """The original exists, and the refusal said that it was gone."""
    root, data = (lab.vdi("Production", name)[0] for name in ("root disk", "data"))
    web = lab.vm("web", root)
    vbd = lab.pool.db.create("VBD", VM=web, VDI=data, userdevice="1", type="Disk", mode="RW", empty=False)
    assert pool_command("clone", "a copy", "web", "--isolated", "night", "--name", "{vm} copy", "--yes").status == 0
    lab.pool.db.destroy("VBD", vbd)
    if fate == "given to another":
        lab.vm("another", data)
    elif fate == "destroyed":
        lab.pool.db.destroy("VDI", data)
    ran = pool_command(*ALL)
    assert ran.status == (4 if is_last else 0)
    assert ("or of their disks: with the LUN of the copy, 'web copy'" in " ".join(ran.err.split())) == is_last
