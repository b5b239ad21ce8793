# SPDX-License-Identifier: LGPL-2.1-only
"""The records of a VM become those of its copy: what is not known stays, and what leads elsewhere is refused."""

import copy
import re
import xml.etree.ElementTree as ET

import pytest

from kit.pool import transfer
from kit.pool.datamodel import FIELDS, find
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import records
from relvmoiscsi.pool.vms import ova, ova_fields, ova_file
from relvmoiscsi.pool.vms.inventory import NULL

NEW_SR = "99999999-0000-4000-8000-000000000000"
SCSI_ID = "<name>sm_config</name><value><struct><member><name>SCSIid</name><value>3600</value></member></struct>"


@pytest.fixture
def document(day):
    return transfer.export(day.db, day.web)


@pytest.fixture
def edit(day):
    """Every VDI has its UUID turned round on the copy."""
    uuids, disk = [vdi["uuid"] for vdi in day.db.records("VDI").values()], day.db.record("VDI", day.root)
    return ova.RecordEdit(
        NEW_SR,
        lambda old: {**disk, "uuid": old[::-1], "location": old[::-1]} if old in uuids else None,
        {uuid[::-1] for uuid in uuids},
        {sr["uuid"] for sr in day.db.records("SR", content_type="iso").values() if sr["type"] != "udev"},
        lambda uuid: "OpaqueRef:lab",
        "a copy",
        "Copy of it.",
        {"relvmoiscsi:sr": NEW_SR},
        True,
        ["tag"],
    )


@pytest.fixture
def rich(day):
    """The records with objects of all classes, and with a snapshot."""
    db = day.db
    db.create("VTPM", VM=day.web, contents="a secret")
    group, kind = db.create("GPU_group", GPU_types=["10de/1"]), db.create("VGPU_type", identifier="x")
    db.create("VGPU", VM=day.web, type=kind, GPU_group=group)
    db.set("VM", day.web, "affinity", day.lab.pool.master)
    db.set("VM", day.web, "guest_metrics", db.create("VM_guest_metrics"))
    day.snapshot()
    return transfer.export(db, day.web)


def things(document, cls):
    return ova_file.Ova(document).of(cls)


def test_each_field_of_xapi_has_one_rule():
    """A field that xapi has gained since needs a decision: until then it is left out."""
    for cls, rules in ova_fields.FIELDS.items():
        parts = [rules.passes, set(rules.of_known), rules.edited, rules.unread]
        assert sum(map(len, parts)) == len(rules.names()), cls
        assert rules.names() == set(FIELDS[cls]), cls


#: a vm-admin gives these to a VM or a VIF that it makes, and no VM is without
AT_THE_MAKING = {
    "VM": {"memory_target", "memory_static_max", "memory_dynamic_max", "memory_dynamic_min", "memory_static_min",
           "HVM_shadow_multiplier", "reference_label"},
    "VBD": {"userdevice", "type"}, "VIF": {"device", "MAC", "MTU"}, "VDI": {"type"},
}  # fmt: skip


@pytest.mark.parametrize("cls", sorted(ova_fields.FIELDS))
def test_a_stranger_sets_no_field_that_takes_more_than_a_vm_admin(cls):
    """By xapi's data model: the role of the field's own call, or that of a field that is written directly."""
    for name in ova_fields.FIELDS[cls].passes - AT_THE_MAKING.get(cls, set()):
        setter = find(f"{cls}.set_{name}")
        assert setter is not None and setter.role in ("vm-admin", "vm-operator"), name


def test_a_field_without_a_rule_goes_and_is_told(document, edit):
    """One of a later release has a default there; what the import would do with it, nobody has looked at."""
    strange = "<member><name>new_in_27</name><value><double>0.5</double></value></member>"
    marked = re.sub(r"(<name>snapshot</name><value><struct>)", lambda found: found.group() + strange, document.decode())
    done = ova.edited(marked.encode(), edit)
    left = {thing.cls for thing in ova_file.Ova(done.document).things if "new_in_27" in thing.fields}
    assert left and not left & set(ova_fields.FIELDS)
    (note,) = [note for note in done.notes if "new_in_27" in note]
    assert note.startswith("without the values of these fields in the records: ") and "VM.new_in_27" in note


@pytest.mark.parametrize("ends", [("\n", "\r"), ("\n", "\r\n"), ("?", "\uffff"), ("\ufffe", "\uffff"), (" ", " ")])
def test_keys_that_read_as_one_are_told_as_such(document, ends):
    """A vm-operator makes a custom field with any name, and xapi writes the name without escaping it.

    A vm-admin sets a map with one key twice, which xapi 25.33.1 keeps and exports so.
    """
    keys = "".join(
        f"<member><name>XenCenter.CustomFields.cost{end}centre</name><value>7</value></member>" for end in ends
    )
    marked = re.sub(r"<name>other_config</name><value><struct>", lambda found: found.group() + keys, document.decode())

    with pytest.raises(Refused, match="two keys that differ only in the kind of their line ends") as caught:
        ova_file.Ova(marked.encode())

    read = "\\n" if "\n" in ends else " " if ends == (" ", " ") else "?"
    assert (
        f"'XenCenter.CustomFields.cost{read}centre'" in caught.value.message and "Remove one of" in caught.value.advice
    )


def test_what_a_rule_lets_pass_stays_as_it_was(document, edit):
    """Typed values, and text in any language."""
    strange = (
        "<member><name>PV_args</name><value><string> blank &amp; \N{SNOWMAN} </string></value></member>"
        "<member><name>HVM_shadow_multiplier</name><value><double>0.5</double></value></member>"
    )
    marked = re.sub(r"(<name>snapshot</name><value><struct>)", lambda found: found.group() + strange, document.decode())
    done = ova.edited(marked.encode(), edit)
    assert strange in done.document.decode()
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


@pytest.mark.parametrize("cls", sorted({*ova_fields.REFERENCES} - {"PVS_proxy"}))  # the simulated pool has no PVS
def test_the_references_of_a_file_are_those_that_an_export_makes(cls):
    made = {name: FIELDS[cls][name].type for name in transfer._TRANSLATED[cls]}
    single = {name: kind[4:] for name, kind in made.items() if kind.startswith("ref ")}
    assert ova_fields.REFERENCES[cls] == single


def test_a_reference_that_no_export_makes_is_overwritten_or_unread():
    """An import would take it as it is: of a VM of the pool, or of an object of another class."""
    for cls, rules in ova_fields.FIELDS.items():
        for name in rules.passes | set(rules.of_known):
            leads = FIELDS[cls][name].type.startswith("ref ")
            assert not leads or name in ova_fields.REFERENCES[cls] or (cls, name) == ("VM", "suspend_SR")


def every_reference(document):
    """(Class, field, the class of an object in the file where the field must not lead)."""
    classes = {thing.cls for thing in ova_file.Ova(document).things}
    for cls in classes & {*ova_fields.REFERENCES}:
        for name, there in ova_fields.REFERENCES[cls].items():
            yield from ((cls, name, other) for other in sorted(classes - {there}))


def test_a_reference_to_an_object_of_another_class_is_refused(rich, edit):
    """An import asks for no class: the clean-up of xapi cannot destroy a VM whose metrics are an SR."""
    cases = list(every_reference(rich))
    assert {("VM", "metrics", "SR"), ("VM", "guest_metrics", "VDI"), ("VBD", "VM", "SR")} <= set(cases)
    for cls, name, other in cases:
        file = ova_file.Ova(rich)
        lead = file.of(other)[0].id
        for thing in file.of(cls)[-1:]:  # of a snapshot, where a snapshot has one
            thing.set(name, lead)
        for one in (edit, edit._replace(is_known=False, snapshots=True)):
            with pytest.raises(Refused, match=f"the field {name} of a {cls} leads to an object of the class '{other}'"):
                ova.edited(file.document(), one)


@pytest.mark.parametrize("lead", ["Ref:4711", NULL, "", "OpaqueRef:of-another", "DummyRef:|x|y"])
@pytest.mark.parametrize("cls", ["VBD", "VIF", "VTPM"])
def test_an_object_of_no_vm_is_refused(rich, edit, cls, lead):
    file = ova_file.Ova(rich)
    file.of(cls)[0].set("VM", lead)
    with pytest.raises(Refused, match=f"the field VM of a {cls} leads to no object"):
        ova.edited(file.document(), edit)


@pytest.mark.parametrize("lead", ["Ref:4711", NULL, "", "OpaqueRef:of-another", "DummyRef:|x|y"])
@pytest.mark.parametrize("name", sorted(ova_fields.REFERENCES["VM"]))
def test_a_field_that_leads_to_nothing_leads_nowhere_in_any_spelling(rich, edit, name, lead):
    file = ova_file.Ova(rich)
    for vm in file.of("VM"):
        if name != "snapshot_of" or not vm.truth("is_a_snapshot"):
            vm.set(name, lead)
    for one in (edit, edit._replace(is_known=False, snapshots=True)):
        assert {vm.text(name) for vm in things(ova.edited(file.document(), one).document, "VM")} <= {NULL} | (
            {things(rich, "VM")[0].id} if name == "snapshot_of" else set()
        )


@pytest.mark.parametrize("lead", [NULL, "itself"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_snapshot_of_another_vm_is_left_out(rich, edit, lead, is_known):
    """The clone would get no such snapshot: a template without marks stayed after the clone was destroyed."""
    file = ova_file.Ova(rich)
    (snapshot,) = [vm for vm in file.of("VM") if vm.truth("is_a_snapshot")]
    snapshot.set("snapshot_of", snapshot.id if lead == "itself" else lead)
    file.main().set("parent", snapshot.id)
    done = ova.edited(file.document(), edit._replace(snapshots=True, is_known=is_known))
    (vm,) = things(done.document, "VM")
    assert vm.text("parent") == NULL and not done.snapshots
    assert f"without {snapshot.text('name_label')!r}, a snapshot of another VM" in done.notes


def test_a_vm_is_a_snapshot_of_no_vm(rich, edit):
    file = ova_file.Ova(rich)
    file.main().set("snapshot_of", file.main().id)
    done = ova.edited(file.document(), edit)
    assert ova_file.Ova(done.document).main().text("snapshot_of") == NULL


def test_what_is_said_of_a_snapshot_for_no_reader_is_left_out(document, edit):
    told = forged(document, transportable_snapshot_id="x", snapshot_info=mapped(a="b"))
    (vm,) = things(ova.edited(told, edit).document, "VM")
    assert (vm.text("transportable_snapshot_id"), vm.map("snapshot_info")) == ("", {})


@pytest.mark.parametrize("snapshots", [False, True])
def test_the_proxy_of_a_snapshot_goes_with_the_snapshot(rich, edit, snapshots):
    """xapi copies a PVS proxy with a VIF, and makes no proxy without its VIF."""
    snapshot = next(vm.id for vm in things(rich, "VM") if vm.truth("is_a_snapshot"))
    (vif,) = [vif.id for vif in things(rich, "VIF") if vif.text("VM") == snapshot]
    root = ET.fromstring(rich)
    data = ova_file.members_of(root)["objects"].find("array/data")
    made = {"PVS_site": {}, "PVS_proxy": {"site": "Ref:9000", "VIF": vif}}
    for number, (cls, fields) in enumerate(made.items(), 9000):
        data.append(copy.deepcopy(data[0]))
        for name, value in (("class", cls), ("id", f"Ref:{number}"), ("snapshot", fields)):
            ova_file.put(ova_file.members_of(data[-1])[name], value)
    done = ova.edited(ET.tostring(root), edit._replace(snapshots=snapshots))
    assert [proxy.text("VIF") for proxy in things(done.document, "PVS_proxy")] == [vif] * snapshots


@pytest.mark.parametrize("text", [NULL, "", "OpaqueRef:x", " Ref:1", "Ref:1 ", "Ref:", "ref:1"])
def test_an_object_with_an_id_that_no_export_makes_is_refused(document, edit, text):
    """Of an object with the id of NULL, an import takes each NULL for that object."""
    file = ova_file.Ova(document)
    ova_file.put(ova_file.members_of(file.of("SR")[0].value)["id"], text)
    with pytest.raises(Refused, match="ambiguous"):
        ova.edited(file.document(), edit)


def test_a_stranger_of_whose_affinity_nothing_is_lost_gets_no_note(document, edit):
    """An export gives a number to NULL."""
    assert re.match("Ref:[0-9]+", ova_file.Ova(document).main().text("affinity"))
    notes = ova.edited(document, edit._replace(is_known=False)).notes
    assert not [note for note in notes if "affinity" in note]


def test_it_leads_to_the_new_sr_and_to_nothing_of_the_old(document, edit, day):
    done = ova.edited(document, edit)
    old = [day.db.get("VDI", vdi, "uuid") for vdi in (day.root, day.data)]
    old.append(day.db.get("SR", day.lab.originals["Production"][1], "uuid"))

    assert all(uuid in document.decode() and uuid not in done.document.decode() for uuid in old)
    assert [disk.old for disk in done.disks] == old[:2] and [disk.new for disk in done.disks] == [
        u[::-1] for u in old[:2]
    ]
    assert {sr.text("uuid") for sr in things(done.document, "SR")} == {NEW_SR}
    assert things(done.document, "network") == [] and done.vifs["0"]["network"] == "OpaqueRef:lab"


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


# --- what a stranger may set


def vm_and_vif(document, edit):
    done = ova.edited(document, edit)
    (vm,), (vif,) = things(done.document, "VM"), things(done.document, "VIF")[:1]
    return done, vm, vif


def forged(document, **fields):
    """The records in which each object has these fields (values as XML)."""
    root = ET.fromstring(document)
    for each in ova_file.members_of(root)["objects"].find("array/data"):
        struct = ova_file.members_of(each)["snapshot"].find("struct")
        struct[:] = [member for member in struct if member.findtext("name") not in fields]
        for name, value in fields.items():
            struct.append(ET.fromstring(f"<member><name>{name}</name><value>{value}</value></member>"))
    return ET.tostring(root)


def mapped(**pairs):
    members = "".join(
        f"<member><name>{name.replace('_', '-')}</name><value>{value}</value></member>" for name, value in pairs.items()
    )
    return f"<struct>{members}</struct>"


LIST = "<array><data><value>10.0.0.1</value></data></array>"
OF_MORE = {"affinity": "Ref:4711", "suspend_SR": "OpaqueRef:sr", "order": "3", "start_delay": "9",
           "locking_mode": "unlocked", "ipv4_allowed": LIST, "ipv6_allowed": LIST}  # fmt: skip
OF_BOOT = {"HVM_boot_params": mapped(firmware="uefi"), "NVRAM": mapped(EFI_variables="QUJD"), "domain_type": "hvm",
           "xenstore_data": mapped(vm_data="1")}  # fmt: skip


def with_host(document):
    """The records with one more host."""
    root = ET.fromstring(document)
    data = ova_file.members_of(root)["objects"].find("array/data")
    data.append(copy.deepcopy(data[0]))
    for name, text in (("class", "host"), ("id", "Ref:4711")):
        ova_file.put(ova_file.members_of(data[-1])[name], text)
    return ET.tostring(root)


def test_a_stranger_sets_what_a_boot_needs_and_nothing_that_takes_more_than_a_vm_admin(document, edit):
    bios = mapped(bios_vendor="x", hp_rombios="y", system_version="\N{SNOWMAN}", oem_1="z")
    document = forged(with_host(document), **OF_MORE, **OF_BOOT, bios_strings=bios)
    done, vm, vif = vm_and_vif(document, edit._replace(is_known=False))
    assert vm.map("HVM_boot_params") == {"firmware": "uefi"} and vm.map("NVRAM") == {"EFI-variables": "QUJD"}
    assert vm.text("domain_type") == "hvm" and vm.map("xenstore_data") == {"vm-data": "1"}
    assert vm.map("bios_strings") == {"bios-vendor": "x"}
    assert [vm.text(name) for name in ("affinity", "suspend_SR", "order", "start_delay")] == [NULL, NULL, "0", "0"]
    assert (vif.text("locking_mode"), vif.texts("ipv4_allowed"), vif.texts("ipv6_allowed")) == (
        "network_default", [], []
    )  # fmt: skip
    assert done.vifs["0"]["locking_mode"] == "network_default" and not done.vifs["0"]["ipv4_allowed"]
    (note,) = [note for note in done.notes if note.startswith("without the values of these fields")]
    for name in ("VM.affinity", "VM.order", "VM.bios_strings", "VIF.locking_mode", "VIF.ipv4_allowed"):
        assert name in note


def test_the_lock_of_a_network_card_stays_where_xapi_or_save_vms_has_written_it(document, edit):
    """A clone without it could take any address."""
    document = forged(document, locking_mode="locked", ipv4_allowed=LIST, order="3")
    _, vm, vif = vm_and_vif(document, edit)
    assert (vif.text("locking_mode"), vif.texts("ipv4_allowed"), vm.text("order")) == ("locked", ["10.0.0.1"], "3")


@pytest.mark.parametrize("cls", ["VGPU", "VTPM", "PVS_proxy", "VGPU_type", "host", "VM_metrics", "pool"])
def test_a_stranger_makes_no_object_that_takes_more_than_a_vm_admin(document, edit, cls):
    root = ET.fromstring(document)
    data = ova_file.members_of(root)["objects"].find("array/data")

    def made(cls):
        """The id of one more object of this class, with the objects that it needs."""
        data.append(copy.deepcopy(data[0]))
        members, number = ova_file.members_of(data[-1]), f"Ref:{4711 + len(data)}"
        ova_file.put(members["class"], cls)
        ova_file.put(members["id"], number)
        main = ova_file.Ova(document).main().id
        needs = {name: ova_fields.REFERENCES[cls][name] for name in ova_fields.NEEDED_REFERENCES.get(cls, ())}
        ova_file.put(members["snapshot"], {name: main if of == "VM" else made(of) for name, of in needs.items()})
        return number

    made(cls)
    done = ova.edited(ET.tostring(root), edit._replace(is_known=False))
    assert {thing.cls for thing in ova_file.Ova(done.document).things} <= set(ova_fields.FIELDS)
    assert (f"it has no {cls}" in done.notes) == (cls in ("VGPU", "VTPM", "PVS_proxy", "pool"))
    is_there = cls in {thing.cls for thing in ova_file.Ova(ova.edited(ET.tostring(root), edit).document).things}
    assert is_there == (cls != "pool")


@pytest.mark.parametrize("name", ["parent", "snapshot_of"])
def test_no_reference_of_the_pool_gets_into_a_vm(document, edit, name):
    """With `snapshot_of`, the clone would be a snapshot of any VM, and go with it."""
    for is_known in (True, False):
        done = ova.edited(forged(document, **{name: "OpaqueRef:of-another"}), edit._replace(is_known=is_known))
        assert [thing.text(name) for thing in things(done.document, "VM")] == [NULL]


@pytest.mark.parametrize(
    "spoil",
    [{"locking_mode": "unlocked"}, {"order": "1"}, {"new_in_27": "x"}, {"bios_strings": mapped(hp_rombios="x")}],
    ids=["locking mode", "order", "unknown", "BIOS"],
)
def test_the_second_look_finds_what_a_stranger_may_not_set(document, edit, spoil):
    edit = edit._replace(is_known=False)
    good = ova.edited(document, edit).document
    ova.verify(good, edit)
    with pytest.raises(Refused, match="This is a bug"):
        ova.verify(forged(good, **spoil), edit)


@pytest.mark.parametrize("text", ["disk", "DISK"])
def test_a_disk_is_one_in_any_case_of_its_type_as_xapi_reads_it(document, edit, text):
    """Source: ocaml-rpc ppx/ppx_deriving_rpc.ml; a variant is compared in lower case."""
    written = document.replace(b"<value>Disk</value>", f"<value>{text}</value>".encode())
    assert written != document and ova.disks_of(written) == ova.disks_of(document)
    assert ova.edited(written, edit).disks == ova.edited(document, edit).disks


# --- what the pool says of an SR, and not the record


def with_cd(document, vdi, sr, **claims):
    """The records with a drive that holds this VDI, in an SR of which they claim something."""
    root = ET.fromstring(document)
    data = ova_file.members_of(root)["objects"].find("array/data")
    known = {cls: [each for each in data if thing_of(each).cls == cls][0] for cls in ("VBD", "VDI", "SR")}
    fields = {
        "VBD": {"type": "CD", "mode": "RO", "VDI": "Ref:8001", "userdevice": "7"},
        "VDI": {"SR": "Ref:8002", **vdi},
        "SR": {"uuid": sr, **claims},
    }
    for number, (cls, values) in enumerate(fields.items()):
        made = copy.deepcopy(known[cls])
        ova_file.put(ova_file.members_of(made)["id"], f"Ref:{8000 + number}")
        for name, value in values.items():
            thing_of(made).set(name, value)
        data.append(made)
    return ET.tostring(root)


def test_a_drive_holds_a_vdi_of_an_sr_that_is_one_of_isos_by_the_pool(document, edit, day):
    """An SR that calls itself one with ISOs gives no disk of another VM to a drive."""
    sr = day.db.get("SR", day.lab.originals["Production"][1], "uuid")
    disk = {name: day.db.get("VDI", day.root, name) for name in ("uuid", "location")}
    done = ova.edited(with_cd(document, disk, sr, content_type="iso", type="iso"), edit)
    (drive,) = [vbd for vbd in things(done.document, "VBD") if vbd.text("userdevice") == "7"]
    assert drive.text("VDI") == NULL and drive.truth("empty")
    assert disk["uuid"] not in done.document.decode() and sr not in done.document.decode()
    assert "its drive 7 is empty: the pool has no such SR with ISOs" in done.notes


def test_a_drive_that_is_left_out_is_not_said_to_be_empty(document, edit, day):
    sr = day.db.get("SR", day.lab.originals["Production"][1], "uuid")
    forged = with_cd(document, {"uuid": day.uuid(day.root), "location": "x"}, sr).replace(b">7<", b">xvda<")
    notes = [note for note in ova.edited(forged, edit).notes if "its drive" in note]
    assert notes == ["without its drive xvda of the type 'CD'"]


def test_an_sr_with_isos_that_calls_itself_otherwise_is_one_with_isos(document, edit):
    """By the record's word, xapi would take it for one with disks, and look for a SCSIid."""
    edit = edit._replace(iso_srs={"iso-sr"})
    made = with_cd(
        document, {"uuid": "x", "location": "a.iso", "sm_config": {"SCSIid": "1"}}, "iso-sr", content_type=""
    )
    done = ova.edited(made, edit)
    (sr,) = [sr for sr in things(done.document, "SR") if sr.text("uuid") == "iso-sr"]
    (vdi,) = [vdi for vdi in things(done.document, "VDI") if vdi.text("SR") == sr.id]
    assert (sr.text("content_type"), vdi.text("location"), vdi.map("sm_config")) == ("iso", "a.iso", {})


# --- drives as VBD.set_mode, VBD.set_type and VBD.set_userdevice leave them, and VBD.create makes none


def drive(document, device, vdi="", **fields):
    """The records with a drive like that of the first disk: with the VDI of this label, or empty."""
    root = ET.fromstring(document)
    data = ova_file.members_of(root)["objects"].find("array/data")
    made = copy.deepcopy(next(each for each in data if thing_of(each).cls == "VBD"))
    ova_file.put(ova_file.members_of(made)["id"], "Ref:8000")
    lead = next((each.id for each in things(document, "VDI") if each.text("name_label") == vdi), NULL)
    for name, value in {"userdevice": device, "VDI": lead, "empty": not vdi, **fields}.items():
        thing_of(made).set(name, value)
    data.append(made)
    return ET.tostring(root)


def drives(document):
    """(Device, type, mode, empty) of the drives that are no disks."""
    vbds = [vbd for vbd in things(document, "VBD") if vbd.text("type") != "Disk" or vbd.truth("empty")]
    return [(vbd.text("userdevice"), vbd.text("type"), vbd.text("mode"), vbd.truth("empty")) for vbd in vbds]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("device", "kind", "mode", "is_there"),
    [
        ("3", "CD", "RO", True), ("3", "CD", "RW", True), ("xvdd", "cd", "rw", True), ("0", "CD", "RO", False),
        ("xvda", "CD", "RO", False), ("x", "CD", "RO", False), ("3", "Floppy", "RO", False),
        ("fda", "Floppy", "RW", False), ("3", "Disk", "RW", False), ("hdzzz", "CD", "RO", False),
    ],
)  # fmt: skip
def test_an_empty_drive_is_one_that_xapi_makes_or_left_out(document, edit, device, kind, mode, is_there, is_known):
    done = ova.edited(drive(document, device, type=kind, mode=mode), edit._replace(is_known=is_known))
    assert drives(done.document) == ([(device, kind, "RO", True)] if is_there else [])
    assert [note for note in done.notes if "its drive" in note] == (
        [] if is_there else [f"without its drive {records.shown_device(device)} of the type {kind!r}"]
    )


@pytest.mark.parametrize("kind", ["CD", "Floppy"])
def test_a_disk_whose_drive_says_that_it_is_none_is_refused_by_its_name(document, edit, kind, day):
    label = day.db.get("VDI", day.data, "name_label")
    forged = drive(document, "5", label, type=kind, mode="RW")
    with pytest.raises(Refused, match=f"The drive 5 of the VM may write to '{label}' .* has the type '{kind}'") as told:
        ova.edited(forged, edit)
    assert "--omit-disks" in told.value.advice
    done = ova.edited(forged, edit._replace(omits_disks=True))
    assert [row[1:] for row in drives(done.document)] == ([("CD", "RO", True)] if kind == "CD" else [])
    assert [note for note in done.notes if note.startswith(f"without '{label}'")]


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("xvda", "takes the disks 0 and xvda of the VM for one device"),
        ("hda", "0 and hda"),
        ("hdzzz", "no disk of a bus"),
    ],
)
def test_a_disk_that_xapi_would_not_attach_is_refused(document, edit, device, says):
    label = next(vdi.text("name_label") for vdi in things(document, "VDI"))
    with pytest.raises(Refused, match=says):
        ova.edited(drive(document, device, label), edit)


def test_a_disk_that_is_for_reading_alone_is_refused(document, edit):
    def new_disk(old, known=edit.new_disk):
        return known(old) and {**known(old), "read_only": True}

    edit = edit._replace(new_disk=new_disk)
    with pytest.raises(Refused, match="for the disk 0 of the VM, is for reading alone"):
        ova.edited(document, edit)
    ova.edited(document.replace(b"<value>RW</value>", b"<value>RO</value>"), edit)


def test_the_second_look_finds_a_cd_drive_for_writing(document, edit):
    good = ova.edited(drive(document, "3", type="CD", mode="RO"), edit).document
    with pytest.raises(Refused, match="This is a bug"):
        ova.verify(good.replace(b"<value>RO</value>", b"<value>RW</value>"), edit)
