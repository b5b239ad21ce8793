# SPDX-License-Identifier: LGPL-2.1-only
"""Records of a VM that anybody who writes a file can make: any value, class or reference at any place.

An edit of such records ends in records that the second look takes, or in an error of the program, never in a bug:
neither in an exception of another kind, nor in an error that asks the person to report a bug.
"""

import copy
import itertools
import xml.etree.ElementTree as ET

import pytest

from kit.examples import WHOLE, dice
from kit.pool import transfer
from kit.pool.datamodel import FIELDS
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool.vms import ova, ova_fields, ova_file

#: content of a value
JUNK = [
    "", "x", "-1", "\u202e", "Ref:0", "Ref:4711", "OpaqueRef:NULL", "OpaqueRef:of-another", "<string>x</string>",
    "<boolean>1</boolean>", "<boolean>0</boolean>", "<boolean>yes</boolean>", "<boolean />", "<int>x</int>",
    "<double>nan</double>", "<nil />", "<array />", "<array><data /></array>", "<array><value /></array>",
    "<array><data><value /><value>x</value></data></array>", "<array><data><struct /></data></array>", "<struct />",
    "<struct><member><name>a</name><value>x</value></member></struct>",
    "<struct><member><name>a</name><value><array><data /></array></value></member></struct>",
    "<struct><member><name /><value /></member></struct>", "<struct><member /></struct>", "<struct>x</struct>",
    "<struct><member><value /><name>a</name></member></struct>", "<other>x</other>", "x<string>y</string>",
    "<int>1</int><int>2</int>",
    "<array><data><value>" * 13 + "</value></data></array>" * 13,
]  # fmt: skip
CLASSES = ["VM", "VBD", "VDI", "VIF", "SR", "network", "VGPU", "VTPM", "host", "pool", "x", "", "vm"]


@pytest.fixture
def document(day):
    day.snapshot()
    return transfer.export(day.db, day.web)


@pytest.fixture
def edit(day):
    """Every VDI has its UUID turned round on the copy."""
    uuids, disk = [vdi["uuid"] for vdi in day.db.records("VDI").values()], day.db.record("VDI", day.root)
    return ova.RecordEdit(
        "99999999-0000-4000-8000-000000000000",
        lambda old: {**disk, "uuid": old[::-1], "location": old[::-1]} if old in uuids else None,
        {uuid[::-1] for uuid in uuids},
        {sr["uuid"] for sr in day.db.records("SR", content_type="iso").values() if sr["type"] != "udev"},
        lambda uuid: "OpaqueRef:lab" if uuid else None,
        "a copy",
        "Copy of it.",
        {"relvmoiscsi:sr": "x"},
        True,
    )


def put(value, xml):
    """Give a value this content."""
    made = ET.fromstring(f"<value>{xml}</value>")
    value[:], value.text = list(made), made.text


def forgeries(document):
    """(The number of a value or member in the file, what is done to it)."""
    ids = [thing.id for thing in ova_file.Ova(document).things]
    for number, element in enumerate(ET.fromstring(document).iter()):
        if element.tag == "value":
            for xml in JUNK if len(element) else [*JUNK, *CLASSES, *ids]:
                yield number, xml
        if element.tag in ("member", "data"):
            for what in ("without", "twice"):
                yield number, what


def forged(document, number, what):
    root = ET.fromstring(document)
    element = list(root.iter())[number]
    if element.tag == "value":
        put(element, what)
    else:
        (parent,) = [each for each in root.iter() if element in list(each)]
        parent.remove(element) if what == "without" else parent.append(copy.deepcopy(element))
    return ET.tostring(root)


def sample(document, count):
    return dice("records of a VM").sample(list(forgeries(document)), count)


def ends_as_it_may(document, edit):
    """Raises what is a bug: an exception that is none of the program's own, or a disk of somebody else."""
    for work in (ova.networks, ova.disks_of):
        try:
            work(document)
        except RelvmoiscsiError:
            pass
    try:
        done = ova_file.Ova(ova.edited(document, edit).document)
    except RelvmoiscsiError as error:
        assert "bug" not in str(error)
        return
    vdis, srs = done.by_id("VDI"), done.by_id("SR")
    for vbd in done.of("VBD"):
        if vbd.text("type") == "Disk" and not vbd.truth("empty"):
            vdi = vdis[vbd.text("VDI")]
            assert vdi.text("location") in edit.locations and srs[vdi.text("SR")].text("uuid") == edit.sr_uuid
    assert {sr.text("uuid") for sr in srs.values()} <= {edit.sr_uuid, *edit.iso_srs}
    classes = {thing.id: thing.cls for thing in done.things}
    for thing in done.things:
        leads = {name: field.type[4:] for name, field in FIELDS[thing.cls].items() if field.type.startswith("ref ")}
        fields = set(leads) & set(thing.fields)
        if thing.cls in ova_fields.FIELDS:  # an import does not use the one, and looks for the other in the pool alone
            fields -= {*ova_fields.FIELDS[thing.cls].unread, "suspend_SR"}
        for name in fields:
            assert classes.get(thing.text(name)) in (leads[name], None), (thing.cls, name)


def edits(edit):
    """Of a known and an unknown writer, with and without snapshots."""
    for is_known in (True, False):
        yield edit._replace(is_known=is_known, snapshots=True)
        yield edit._replace(is_known=is_known, without=("VGPU", "VTPM"))


def test_a_forgery_in_any_place_is_edited_or_refused(document, edit):
    every = list(forgeries(document)) if WHOLE else sample(document, 100)
    for (number, what), one in zip(every, itertools.cycle(edits(edit))):
        ends_as_it_may(forged(document, number, what), one)


def test_two_forgeries_at_once_are_edited_or_refused(document, edit):
    some = sample(document, 2000 if WHOLE else 100)
    for first, second, one in zip(some[::2], some[1::2], itertools.cycle(edits(edit))):
        low, high = sorted([first, second])
        if low[0] != high[0]:  # the later place first: the numbers of the places before it stay
            ends_as_it_may(forged(forged(document, *high), *low), one)


def without(name):
    """No record has a field of this name."""
    return lambda thing: thing.remove([name])


def elsewhere(thing):
    """An SR that is not in the file."""
    if thing.cls == "VDI":
        thing.set("SR", "Ref:4711")


#: (what is done to the records, what is said)
BROKEN = {
    **{
        f"no {name}": (without(name), f"a record of a {cls} has no field {name}. xapi writes no such records")
        for name, cls in {
            "is_a_template": "VM", "power_state": "VM", "other_config": "VM", "location": "VDI", "SR": "VDI",
            "content_type": "SR", "uuid": "(VDI|SR)",
        }.items()
    },
    "disks in no SR": (elsewhere, "the disk 0 is in no SR that has disks. xapi writes no such records"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_records_that_no_xapi_writes_are_refused_and_no_bug(document, edit, name):
    spoil, says = BROKEN[name]
    file = ova_file.Ova(document)
    for thing in file.things:
        spoil(thing)
    for one in edits(edit):
        with pytest.raises(Refused, match=says):
            ova.edited(file.document(), one)
