# SPDX-License-Identifier: LGPL-2.1-only
"""An export of xapi 25.33.1, and its records of the same VM in JSON: tests/data/xapi/HOW.rst says how they came."""

import copy
import json
from pathlib import Path

import pytest

from relvmoiscsi.pool import answer_forms
from relvmoiscsi.pool.vms import ova_compare
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.ova_file import Ova
from unit.pool.vms.test_ova_compare import changed

DATA = Path(__file__).resolve().parents[3] / "data/xapi"


class Sample:
    def __init__(self):
        self.records = json.loads((DATA / "records.json").read_text(encoding="utf-8"))
        self.ova = Ova((DATA / "export.xml").read_bytes())

    def difference(self):
        there = self.records
        found = Inventory(there["VM"], there["VBD"], there["VIF"], there["network"], there["VDI"])
        known = ova_compare.of_vm(found, there["SR"], there.__getitem__, there["vm"], True)
        return ova_compare.difference(self.ova, known, there["host"])


@pytest.fixture
def sample():
    return Sample()


def test_the_export_is_no_difference(sample):
    assert sample.difference() == ""


def test_each_compared_value_of_each_object_counts(sample):
    ids = [thing.id for thing in sample.ova.things]
    count = 0
    for thing in sample.ova.things:
        for name in sorted(ova_compare.COMPARED.get(thing.cls, frozenset()) & set(thing.fields)):
            value = thing.fields[name]
            before = copy.deepcopy(value)
            thing.set(name, changed(value, ids))
            assert sample.difference() == f"the {thing.cls} {thing.text('uuid')!r} has another {name}"
            value.text, value[:] = before.text, before[:]
            count += 1
    assert count == 240
    assert sample.difference() == ""


def test_the_export_has_each_compared_field(sample):
    classes = {thing.cls for thing in sample.ova.things}
    assert classes == set(ova_compare.COMPARED) - {"PVS_proxy", "PVS_site"} | {"VM_metrics"}
    for thing in sample.ova.things:
        missing = ova_compare.COMPARED.get(thing.cls, frozenset()) - set(thing.fields)
        assert missing <= {"trunks"}, thing.cls  # of a later release


def test_each_record_has_the_form_that_the_client_expects(sample):
    for cls, records in sample.records.items():
        for record in records.values() if cls != "vm" else ():
            answer_forms.verify(f"{cls}.get_record", record)
