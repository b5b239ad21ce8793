# SPDX-License-Identifier: LGPL-2.1-only
"""The simulated pool writes each field of a record in JSON as xapi 25.33.1 has written it: a number, a text, a map."""

import json
from pathlib import Path

import pytest

from kit.pool import datamodel, jsonrpc

DATA = Path(__file__).resolve().parents[2] / "data/xapi"
RECORDS = json.loads((DATA / "records.json").read_text(encoding="utf-8"))
CLASSES = [cls for cls in RECORDS if cls != "vm" and RECORDS[cls]]
KINDS = {str: "text", bool: "truth", int: "number", float: "fraction", list: "list", dict: "map"}


def kind_of(type_):
    """What xapi writes for a type of the data model, as far as the simulated pool knows."""
    begin = type_.partition("(")[0]
    return {"set": "list", "map": "map", "int": "number", "float": "fraction", "bool": "truth"}.get(begin, "text")


@pytest.mark.parametrize("cls", CLASSES)
def test_each_field_has_the_kind_of_its_type(cls):
    fields = datamodel.FIELDS[cls]
    for record in RECORDS[cls].values():
        for name, value in record.items():
            assert KINDS[type(value)] == kind_of(fields[name].type), name


@pytest.mark.parametrize("cls", CLASSES)
def test_the_simulated_pool_changes_nothing_in_a_recorded_record(cls):
    for record in RECORDS[cls].values():
        as_stored = {name: str(value) if type(value) is int else value for name, value in record.items()}
        assert jsonrpc._record(cls, as_stored) == record
