# SPDX-License-Identifier: LGPL-2.1-only
"""The records of a VM become those of its copy: what is not known stays, and what leads elsewhere is refused."""

import copy
import re
import xml.etree.ElementTree as ET

import pytest

from kit.pool import transfer
from kit.pool.datamodel import FIELDS
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool.vms import ova, ova_file

NEW_SR = "99999999-0000-4000-8000-000000000000"
SCSI_ID = "<name>sm_config</name><value><struct><member><name>SCSIid</name><value>3600</value></member></struct>"


@pytest.fixture
def document(day):
    return transfer.export(day.db, day.web)


@pytest.fixture
def edit(day):
    """Every VDI has its UUID turned round on the copy."""
    uuids = [vdi["uuid"] for vdi in day.db.records("VDI").values()]
    return ova.RecordEdit(
        NEW_SR,
        lambda old: ova.NewDisk(old[::-1], old[::-1]) if old in uuids else None,
        {uuid[::-1] for uuid in uuids},
        lambda uuid: "OpaqueRef:lab",
        "a copy",
        "Copy of it.",
        {"relvmoiscsi:sr": NEW_SR},
        ["tag"],
    )


def things(document, cls):
    return ova_file.Ova(document).of(cls)


def test_what_nobody_knows_here_stays_as_it_was(document, edit):
    """Fields of other releases, typed values, text in any language."""
    strange = (
        "<member><name>new_in_27</name><value><double>0.5</double></value></member>"
        "<member><name>also</name><value><string> blank &amp; \N{SNOWMAN} </string></value></member>"
        "<member><name>at</name><value><dateTime.iso8601>20261122T12:00:00Z</dateTime.iso8601></value></member>"
        "<member><name>nothing</name><value><nil/></value></member>"
    )
    text = document.decode().replace("<name>name_label</name>", "<name>name_label</name>", 1)
    marked = re.sub(r"(<name>snapshot</name><value><struct>)", lambda found: found.group() + strange, text)
    done = ova.edited(marked.encode(), edit)

    kept = done.document.decode()
    count = kept.count("<name>class</name>")
    for part in strange.replace("<nil/>", "<nil />").split("<member>")[1:]:
        assert kept.count(part.replace("<name>", "<name>")) == count, part
    assert things(done.document, "VM")[0].text("name_label") == "a copy"


def test_what_leads_to_nothing_in_the_file_leads_nowhere(document, edit, day):
    """An export gives a number also to the reference of nothing; an import would keep it."""
    before, after = ova_file.Ova(document), ova_file.Ova(ova.edited(document, edit).document)
    assert re.match("Ref:[0-9]+", before.main().text("parent"))
    there = {thing.id for thing in after.things}
    for thing in after.things:
        for name, field in FIELDS[thing.cls].items():
            if field.type.startswith("ref ") and thing.text(name).startswith("Ref:"):
                assert thing.text(name) in there, (thing.cls, name)
    assert after.main().text("parent") == after.main().text("affinity") == "OpaqueRef:NULL"


@pytest.mark.parametrize("cls", sorted(ova.REFERENCES))
def test_the_references_of_a_file_are_those_that_an_export_makes(cls):
    made = [name for name in transfer._TRANSLATED[cls] if FIELDS[cls][name].type.startswith("ref ")]
    assert sorted(ova.REFERENCES[cls]) == sorted(made)


def test_it_leads_to_the_new_sr_and_to_nothing_of_the_old(document, edit, day):
    done = ova.edited(document, edit)
    old = [day.db.get("VDI", vdi, "uuid") for vdi in (day.root, day.data)]
    old.append(day.db.get("SR", day.lab.originals["Production"][1], "uuid"))

    assert all(uuid in document.decode() and uuid not in done.document.decode() for uuid in old)
    assert [disk.old for disk in done.disks] == old[:2] and [disk.new for disk in done.disks] == [
        u[::-1] for u in old[:2]
    ]
    assert {sr.text("uuid") for sr in things(done.document, "SR")} == {NEW_SR}
    assert things(done.document, "network") == [] and done.nics["0"].network == "OpaqueRef:lab"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text, old: text.replace(NEW_SR, old),
        lambda text, old: re.sub(r"(<name>location</name><value>)[^<]*", r"\1elsewhere", text),
        lambda text, old: text.replace("<name>sm_config</name><value><struct />", SCSI_ID),
        lambda text, old: text.replace("<value>Halted</value>", "<value>Suspended</value>"),
        lambda text, old: re.sub(r"(<name>ha_always_run</name><value><boolean>)0", r"\g<1>1", text),
        lambda text, old: re.sub(r"(<name>currently_attached</name><value><boolean>)0", r"\g<1>1", text),
        lambda text, old: re.sub(r"(<name>VDI</name><value>)Ref:\d+", r"\1Ref:4711", text, count=1),
        lambda text, old: re.sub(r"(<name>suspend_VDI</name><value>)OpaqueRef:NULL", r"\1Ref:1", text, count=1),
        lambda text, old: text.replace("<name>content_type</name><value>user", "<name>content_type</name><value>iso"),
    ],
    ids=["old SR", "location", "SCSIid", "suspended", "HA", "attached", "no VDI", "suspend VDI", "an ISO"],
)
def test_whatever_would_lead_away_is_found_before_it_is_sent(document, edit, day, spoil):
    """`verify` knows nothing of the edit: it is the second look."""
    day.db.set("SR", day.lab.originals["Production"][1], "content_type", "user")
    good = ova.edited(transfer.export(day.db, day.web), edit).document
    ova.verify(good, edit)
    bad = spoil(good.decode(), day.db.get("SR", day.lab.originals["Production"][1], "uuid")).encode()
    assert bad != good
    with pytest.raises(Refused, match="would refer to a disk outside the copy"):
        ova.verify(bad, edit)


def test_a_disk_without_a_vdi_is_refused(document, edit):
    text = re.sub(r"(<name>VDI</name><value>)Ref:\d+", r"\1OpaqueRef:NULL", document.decode(), count=1)
    with pytest.raises(Refused, match="has no VDI in its records"):
        ova.edited(text.encode(), edit)


NO_VM = (
    b"<value><struct><member><name>version</name><value /></member><member><name>objects</name>"
    b"<value><array><data /></array></value></member></struct></value>"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"no XML", "cannot be read"),
        (b"<value><struct /></value>", "cannot be read"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><value>&a;</value>', "a markup declaration"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><value>&a;</value>'.encode("utf-16"), "cannot be read"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><value>&a;</value>'.encode("utf-16-le"), "a markup declaration, or a zero"),
        (b"<value>\xe4</value>", "cannot be read"),
        (NO_VM, "describe 0 VMs"),
    ],
)
def test_what_is_no_such_file_is_refused(edit, text, words):
    with pytest.raises(Refused, match=words):
        ova.edited(text, edit)


def with_snapshots(document, count):
    """The records with so many snapshots of the VM, each a child of the one before, with a copy of its VBD.

    The first is the child of an object that the file lacks.
    """
    root = ET.fromstring(document)
    data = ova_file.members_of(root)["objects"].find("array/data")
    known = {cls: [each for each in data if thing_of(each).cls == cls][0] for cls in ("VM", "VBD")}
    main = thing_of(known["VM"]).id
    for number in range(count):
        for cls, value in known.items():
            made = copy.deepcopy(value)
            thing = thing_of(made)
            ova_file.put(ova_file.members_of(made)["id"], f"Ref:{number + (10000 if cls == 'VM' else 20000)}")
            thing.set("is_a_snapshot", True)
            thing.set("parent", f"Ref:{9999 + number}")
            thing.set("VM", f"Ref:{10000 + number}")
            data.append(made)
    (newest,) = [each for each in data if thing_of(each).id == main]
    thing_of(newest).set("parent", f"Ref:{9999 + count}")
    return ET.tostring(root)


thing_of = ova_file.Thing


def test_unwanted_snapshots_cost_as_much_as_they_are_many(document, edit, monkeypatch):
    """Four times as many fields are read for four times as many snapshots, and not sixteen times."""
    read = []
    monkeypatch.setattr(
        ova_file.Thing, "text", lambda self, name, text=ova_file.Thing.text: read.append(name) or text(self, name)
    )

    def reads(count):
        del read[:]
        ova.edited(with_snapshots(document, count), edit)
        return len(read)

    few, many = reads(50), reads(200)
    assert many < few * 5


def test_the_children_of_unwanted_snapshots_get_what_stays(document, edit):
    done = ova.edited(with_snapshots(document, 3), edit)
    assert [vm.text("parent") for vm in things(done.document, "VM")] == ["OpaqueRef:NULL"]


def test_a_file_with_more_objects_than_any_vm_has_is_refused(document, edit, monkeypatch):
    monkeypatch.setattr(ova_file, "_MOST_OBJECTS", 50)
    with pytest.raises(Refused, match="they have 1[0-9]{2} objects"):
        ova.edited(with_snapshots(document, 60), edit)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: re.sub(r"(<name>is_control_domain</name><value><boolean>)0", r"\g<1>1", text),
        lambda text: re.sub(
            r"(<name>platform</name><value><struct)( />|>)",
            r"\1><member><name>hvm_serial</name><value>x</value></member></struct>",
            text,
            count=1,
        ),
    ],
    ids=["control domain", "platform"],
)
def test_the_second_look_finds_what_only_a_pool_admin_may_set(document, edit, spoil):
    good = ova.edited(document, edit).document
    bad = spoil(good.decode()).encode()
    assert bad != good
    with pytest.raises(Refused):
        ova.verify(bad, edit)


def test_a_record_that_makes_a_control_domain_makes_a_vm(document, edit):
    text = re.sub(r"(<name>is_control_domain</name><value><boolean>)0", r"\g<1>1", document.decode())
    assert text.encode() != document
    done = ova.edited(text.encode(), edit).document
    assert [vm.text("is_control_domain") for vm in things(done, "VM")] == ["0"]


def test_fields_that_a_release_does_not_have_are_not_made(document, edit):
    root = ET.fromstring(document)
    for struct in root.iter("struct"):
        for member in list(struct):
            if member.findtext("name") in ("PCI_bus", "appliance", "tags", "ha_always_run", "parent"):
                struct.remove(member)
    done = ova.edited(ET.tostring(root), edit)
    fields = things(done.document, "VM")[0].fields
    assert not {"PCI_bus", "appliance", "tags", "ha_always_run"} & set(fields)
