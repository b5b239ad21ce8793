# SPDX-License-Identifier: LGPL-2.1-only
"""Each value that an import takes from an export is that of the pool's record, and each object is one of the VM."""

import copy
import math
import xml.etree.ElementTree as ET

import pytest

from kit.pool import transfer
from relvmoiscsi.pool import records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, ova_compare, ova_fields
from relvmoiscsi.pool.vms.inventory import NULL
from relvmoiscsi.pool.vms.ova_file import Ova, members_of, put, text_of

OTHERS = ("VGPU", "VGPU_type", "GPU_group", "VTPM")  #: that the simulated pool has
#: what `ova.edited` overwrites, or the import drops; and references of the pool that no import finds
OVERWRITTEN = {
    "VM": "is_default_template suspend_VDI resident_on scheduled_to_be_resident_on PCI_bus is_control_domain metrics "
    "guest_metrics last_boot_CPU_flags last_booted_record ha_always_run ha_restart_priority snapshot_time "
    "transportable_snapshot_id snapshot_info snapshot_metadata tags protection_policy appliance",
    "VBD": "currently_attached",
    "VIF": "currently_attached",
    "VDI": "uuid sm_config snapshot_of parent",
    "SR": "uuid content_type",
}
PVS = {
    "PVS_site": {"OpaqueRef:site": {"uuid": "a site", "PVS_uuid": "its uuid"}},
    "PVS_proxy": {"OpaqueRef:proxy": {"uuid": "a proxy", "site": "OpaqueRef:site", "VIF": "?"}},
}


class Pair:
    """An export of "web", which has all that a VM can have, and the pool's records."""

    def __init__(self, day):
        db, self.vm = day.db, day.web
        db.create("VTPM", VM=day.web, contents="a secret")
        group, kind = db.create("GPU_group", GPU_types=["10de/1"]), db.create("VGPU_type", identifier="x")
        db.create("VGPU", VM=day.web, type=kind, GPU_group=group)
        iso = db.create("SR", name_label="ISOs", content_type="iso", type="iso")
        disc = db.create("VDI", SR=iso, location="x.iso")
        db.create("VBD", VM=day.web, VDI=disc, userdevice="3", type="CD", mode="RO")
        db.create("VBD", VM=day.web, VDI=NULL, empty=True, userdevice="4", type="CD", mode="RO")
        db.set("VM", day.web, "affinity", day.lab.pool.master)
        db.set("VM", day.web, "resident_on", day.lab.pool.master)
        db.set("VM", day.web, "name_description", 'a line\r\nand "more" <of> it &c\r \uffff')
        db.set("VM", day.web, "xenstore_data", {"vm-data/a": " 1 ", "b": ""})
        db.set("VIF", db.refs("VIF", VM=day.web)[0], "ipv4_allowed", ["10.0.0.1", "10.0.0.2"])
        day.snapshot()
        with connect(day.lab.where()) as calls:
            self.pool, self.found = records.read(calls), inventory.read(calls)
            self.others = {cls: calls.records(cls) for cls in OTHERS}
        self.others.update(copy.deepcopy(PVS))
        self.ova = Ova(transfer.export(db, day.web, True))
        vif = self.ova.of("VIF")[0]
        self.others["PVS_proxy"]["OpaqueRef:proxy"]["VIF"] = db.by_uuid("VIF", vif.text("uuid"))
        self.add("PVS_site", "Ref:901", uuid="a site", PVS_uuid="its uuid")
        self.add("PVS_proxy", "Ref:902", uuid="a proxy", site="Ref:901", VIF=vif.id)

    def add(self, cls, number, **fields):
        """One more object in the export."""
        value = ET.Element("value")
        put(value, {"class": cls, "id": number, "snapshot": ""})
        put(members_of(value)["snapshot"], fields)
        self.ova._data.append(value)
        self.ova = Ova(self.ova.document())

    def difference(self, snapshots=True):
        known = ova_compare.of_vm(self.found, self.pool.srs, lambda cls: self.others[cls], self.vm, snapshots)
        return ova_compare.difference(self.ova, known, self.pool.hosts)

    def main(self, cls):
        """The object of a class in the export that has most to compare: for a VM, a drive and so on with a disk."""
        if cls == "VM":
            return self.ova.main()
        disks = [each for each in self.ova.of(cls) if each.text("userdevice") == "0"]
        return (disks or self.ova.of(cls))[0]


@pytest.fixture
def pair(day):
    return Pair(day)


def changed(value, ids):
    """Another value of the type that a value of an export has."""
    inside = value[0].tag if len(value) else ""
    if inside == "boolean":
        return text_of(value) == "0"
    if inside == "array":
        return ["forged"]
    return {"forged": "x"} if inside == "struct" else next(each for each in ids if each != text_of(value))


def test_an_export_of_xapi_is_no_difference(pair):
    assert pair.difference() == ""


def test_an_export_without_snapshots_is_no_difference(day):
    pair = Pair(day)
    pair.ova = Ova(transfer.export(day.db, day.web, False))
    pair.others["PVS_proxy"] = {}
    assert pair.difference(snapshots=False) == ""


@pytest.mark.parametrize("cls", [cls for cls in ova_compare.COMPARED if cls != "host"])
def test_each_compared_value_counts(pair, cls):
    thing, ids = pair.main(cls), [each.id for each in pair.ova.things]
    there = ova_compare.COMPARED[cls] & set(thing.fields)
    assert there
    for name in there:
        value = thing.fields[name]
        before = copy.deepcopy(value)
        thing.set(name, changed(value, ids))
        assert pair.difference() == f"the {cls} {thing.text('uuid')!r} has another {name}"
        value.text, value[:] = before.text, before[:]
    assert pair.difference() == ""


@pytest.mark.parametrize("cls", [cls for cls in ova_compare.COMPARED if cls != "host"])
def test_no_other_value_counts(pair, cls):
    """xapi empties or rewrites some of them; for the rest nobody asks the export."""
    thing, ids = pair.main(cls), [each.id for each in pair.ova.things]
    for name in set(thing.fields) - ova_compare.COMPARED[cls] - {"uuid", "metrics", "guest_metrics"}:
        thing.set(name, changed(thing.fields[name], ids))
    assert pair.difference() == ""


def test_each_field_is_compared_or_overwritten():
    for cls, rules in ova_fields.FIELDS.items():
        overwritten = set(OVERWRITTEN[cls].split())
        assert rules.edited - ova_compare.COMPARED[cls] == overwritten, cls
        assert not ova_compare.COMPARED[cls] & (rules.unread - {"type"}), cls


@pytest.mark.parametrize("name", ["locking_mode", "ipv4_allowed", "MAC"])
def test_a_field_that_is_missing_is_a_difference(pair, name):
    """An import would take the default of xapi."""
    pair.main("VIF").remove([name])
    assert pair.difference().endswith(f"has another {name}")


def test_a_field_that_the_pool_does_not_have_is_a_difference(pair):
    del pair.found.vms[pair.vm]["bios_strings"]
    assert pair.difference().endswith("has another bios_strings")


@pytest.mark.parametrize("cls", [*ova_compare.COMPARED, "VM_metrics", "VM_guest_metrics"])
def test_no_object_is_missing_or_too_many(pair, cls):
    thing = pair.main(cls)
    pair.add(cls, "Ref:999", uuid="forged")
    forged = f"a {cls} belongs to no VM" if cls.endswith("_metrics") else f"only the export has the {cls} 'forged'"
    assert pair.difference() == forged
    pair.ova.drop([each for each in pair.ova.things if each.id == "Ref:999"])
    assert pair.difference() == ""
    if cls not in ("host", "VM_metrics", "VM_guest_metrics"):
        pair.ova.drop([each for each in pair.ova.things if each.id == thing.id])
        assert pair.difference() == f"only the pool has the {cls} {thing.text('uuid')!r}"


@pytest.mark.parametrize("cls", ["VBD", "VTPM"])
def test_no_object_is_there_twice(pair, cls):
    pair.add(cls, "Ref:999", uuid=pair.main(cls).text("uuid"))
    assert pair.difference() == f"two objects of the class {cls} have the same UUID"


def test_two_records_with_one_uuid_are_no_certain_objects(pair):
    for vbd in pair.found.vbds_of(pair.vm).values():
        vbd["uuid"] = "one"
    pair.ova.drop(pair.ova.of("VBD"))
    assert pair.difference() == "two objects of the class VBD have the same UUID"


@pytest.mark.parametrize(
    ("text", "is_same"), [("1.5", True), ("1.5000000000000002", True), ("1.6", False), ("x", False), ("", False)]
)
def test_a_fraction_is_compared_as_a_number(pair, text, is_same):
    """xapi writes 16 digits into an export, and 17 as JSON."""
    thing = pair.ova.main()
    thing.fields["HVM_shadow_multiplier"] = ET.fromstring(f"<value><double>{text}</double></value>")
    pair.found.vms[pair.vm]["HVM_shadow_multiplier"] = 1.5
    assert (pair.difference() == "") == is_same


@pytest.mark.parametrize(
    ("text", "own", "is_same"),
    [
        ("nan", math.nan, True), ("-nan", math.nan, True), ("inf", math.inf, True), ("-inf", math.inf, False),
        ("nan", 1.5, False), ("1.5", math.nan, False), ("x", math.nan, False),
    ],
)  # fmt: skip
def test_what_is_no_number_is_equal_to_itself(pair, text, own, is_same):
    """VM.set_HVM_shadow_multiplier takes it: xapi asks whether it is less than 1."""
    thing = pair.ova.main()
    thing.fields["HVM_shadow_multiplier"] = ET.fromstring(f"<value><double>{text}</double></value>")
    pair.found.vms[pair.vm]["HVM_shadow_multiplier"] = own
    assert (pair.difference() == "") == is_same


def test_a_character_that_xml_forbids_hides_no_other_difference(pair):
    """Two of these characters are one for a reader of XML, and an export has neither."""
    record = pair.found.vms[pair.vm]
    own = record.get("name_description")
    assert own.endswith("\uffff")
    for end, is_same in [("\ufffe", True), ("\uffff\uffff", False), ("x", False), ("", False)]:
        record["name_description"] = own[:-1] + end
        assert (pair.difference() == "") == is_same


def test_a_reference_to_nothing_leads_to_no_object(pair):
    """The export has a number for NULL. A forged reference leads to an object, or the other way round."""
    empty = next(each for each in pair.ova.of("VBD") if each.text("userdevice") == "4")
    empty.set("VDI", pair.main("VDI").id)
    assert pair.difference().endswith("has another VDI")
    empty.set("VDI", "Ref:12345")
    assert pair.difference() == ""
    pair.main("VBD").set("VDI", "Ref:12345")
    assert pair.difference().endswith("has another VDI")


def test_a_vtpm_of_two_kinds_of_fields_is_not_read(pair):
    """xapi's import reads the fields with the prefix, and another reader the fields without."""
    document = pair.ova.document().decode()
    assert "vTPM'_VM" in document
    forged = document.replace(
        "<member><name>vTPM'_VM", "<member><name>VM</name><value>Ref:0</value></member><member><name>vTPM'_VM"
    )
    with pytest.raises(Exception, match="ambiguous"):
        Ova(forged.encode())
