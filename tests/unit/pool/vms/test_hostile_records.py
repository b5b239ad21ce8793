# SPDX-License-Identifier: LGPL-2.1-only
"""Records of a pool in which a stranger, or whoever has a host, has written any value: names, UUIDs, marks, references
that lead nowhere or in a circle, objects of a shape that no tool makes; and answers with such a value.

Each command on VMs ends with a sentence and a known status. It changes nothing that it was not told of.
"""

import json

import pytest

from kit.examples import dice, seeds
from kit.lun_world import World
from kit.pool.database import NULL, TABLES
from kit.pool.hostile import forged_answer
from kit.pool_lab import Image, lab_of_three
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool import lock_keys, marks, orphans, records
from relvmoiscsi.pool.connection import connect
from relvmoiscsi.pool.vms import inventory, save_vms, transfer
from unit.pool.vms.conftest import Day

UUID = "99999999-0000-4000-8000-000000000000"
TEXTS = ["", "x", "--yes", "-x", "0", "9" * 30, "\u202e\x1b[2J", "a'b\"c", "..", NULL, UUID, "a" * 5000, "\u0661"]
MARKS = [
    *("relvmoiscsi:original-sr", "relvmoiscsi:scsi-id", "relvmoiscsi:run", "relvmoiscsi:old", "relvmoiscsi:sr"),
    *("relvmoiscsi:clone-of", "relvmoiscsi:done", "relvmoiscsi:rescue", "relvmoiscsi:restored0", "relvmoiscsi:sr:x"),
    *("relvmoiscsi:saved-vms", "relvmoiscsi:records-key", "relvmoiscsi:restore:0", "relvmoiscsi:restore-ha:x"),
    *("relvmoiscsi:lock:x:1", "XenCenter.CustomFields.relvmoiscsi:lock:--yes:1", "relvmoiscsi:at-work:x"),
    "is_host_internal_management_network",
]
#: the classes in which others write; an object that the commands read at many places is there more often
CLASSES = ["SR", "SR", "VDI", "VDI", "VDI", "VM", "VM", "VBD", "VBD", "VIF", "PBD", "network", "secret", "pool", "host"]
#: fields that the simulated pool finds in other records
FOUND = ("VDIs", "PBDs", "VBDs", "VIFs", "VTPMs", "VGPUs", "PIFs", "snapshots", "children")
WORK = [
    ("clone", "copy", "--all", "--isolated", "lab", "--yes"),
    ("clone", "copy", "web", "--same-networks", "--omit-disks", "--snapshots", "--yes"),
    ("clone", "copy", "--all", "--isolated", "lab", "--from-snapshot", "--yes"),
    ("rescue", "copy", "data", "--vm", "helper", "--yes"),
    ("rescue", "copy", "--done", "--yes"),
    ("restore", "copy", "web", "--shutdown", "--yes"),
    ("restore", "--undo", "web", "--shutdown", "--yes"),
    ("restore", "--home", "web", "--yes"),
    ("restore", "--keep", "web", "--yes", "--on-copy"),
    ("save-vms", "Production", "--yes"),
    ("secrets",),
    ("secrets", "--remove", "--yes"),
    ("unlock", "copy", "--yes"),
    ("discard", "copy", "--yes"),
    ("map", "copy"),
]


def every_class_of(cls):
    for each in cls.__subclasses__():
        yield each
        yield from every_class_of(each)


STATUSES = {0, *(each.exit_status for each in every_class_of(RelvmoiscsiError))} - {RelvmoiscsiError.exit_status}


@pytest.fixture(scope="session")
def image_of_pool(image_of_day):
    """ "web" and "helper", a copy with saved records, and "other", whose disk is on an SR that no command names."""
    with lab_of_three(World()) as lab:
        day = Day(lab, **image_of_day.put(lab))
        db = day.db
        other = lab.vm("other", day.elsewhere(), networks=[day.net])
        lab.vm("helper", lab.vdi("Testing", "before")[0])
        day.snapshot()
        with connect(lab.where()) as calls:
            pool, found = records.read(calls), inventory.read(calls)
            save_vms.save(calls, pool, found, records.find_sr(pool, "Production"), "2026-11-22T12:00:00Z")
        (copy,) = lab.attach(lab.clone("Production"))
        sr = lab.sr(copy.sr_uuid)[0]
        db.set("SR", sr, "name_label", "copy")
        more = {"other": other, "secret": db.create("secret", value="a secret word"), "copy": copy, "sr": sr}
        return Image(lab, **{name: getattr(day, name) for name in ("net", "root", "data", "web")}, **more)


@pytest.fixture
def pool(lab, image_of_pool, name_pool, monkeypatch):
    monkeypatch.setattr(orphans, "CALL_SECONDS", 0)
    monkeypatch.setattr(transfer, "VERDICT_SECONDS", 0)  # a handler that refuses ends no task
    name_pool(lab.pool)
    yield Day(lab, **image_of_pool.put(lab))
    lab.pool.api.mistakes.clear()  # a forged reference is one that no real xapi has
    for server in lab.pool._servers:
        server.errors.clear()  # of a transfer from a VDI that the simulated SR does not have


@pytest.fixture
def run(pool, command):
    """Run a command, which must end with a sentence and a known status."""
    key = lock_keys.OPEN_KEY + lock_keys.name_of(pool.db.record("SR", pool.sr)) + ":1"

    def run(told, *words):
        if words[0] == "unlock":
            config = pool.db.get("pool", pool.lab.pool.pool, "other_config")
            pool.db.set("pool", pool.lab.pool.pool, "other_config", {**config, key: marks.text_of({"token": "x"})})
        ran = command("pool", *words)
        about = (told, words, ran.out[-1000:], ran.err[-3000:])
        assert ran.status in STATUSES, about
        assert ran.status == 0 or ran.err.strip() or ran.out.strip(), about

    return run


def forge(day, chance):
    """Put an odd value into one field of a record, and tell."""
    db, table = day.db, chance.choice(CLASSES)
    ref = chance.choice(db.refs(table))
    name = chance.choice(["uuid", "uuid", *(each for each in TABLES[table] if each not in FOUND)])
    value = db.get(table, ref, name)
    if isinstance(value, dict):
        key = chance.choice([*value, *MARKS])
        known = [value.get(key, ""), json.dumps({"vm": UUID}), day.uuid(day.root), day.copy.sr_uuid]
        odd = {**value, key: chance.choice([*TEXTS, *known])}
    elif isinstance(value, bool):
        odd = not value
    elif isinstance(value, str):
        others = [str(row[name]) for row in db.records(table).values()]
        refs = [each for kind in ("VM", "VDI", "SR", "network") for each in db.refs(kind)]
        odd = chance.choice([*TEXTS, *others, *(refs if value.startswith("OpaqueRef") else ())])
    else:
        return forge(day, chance)
    db.forge(table, ref, name, odd)
    return table, ref, name, odd


def others(day):
    """What no command is told of: "other", the SR "Testing", and a Secret that no PBD names."""
    db, testing = day.db, day.lab.originals["Testing"][1]
    return {
        "VM": db.records("VM").get(day.other),
        "VBD": {ref: row for ref, row in db.records("VBD").items() if row["VM"] == day.other},
        "SR": db.records("SR").get(testing),
        "PBD": {ref: row for ref, row in db.records("PBD").items() if row["SR"] == testing},
        "secret": db.records("secret").get(day.secret),
    }


@pytest.mark.parametrize("number", seeds(range(1, 601), 40))
def test_forged_records_end_no_command_with_a_bug_and_change_nothing_else(pool, run, number):
    chance = dice(f"records {number}")
    told = [forge(pool, chance) for _ in range(chance.choice([1, 1, 2, 3]))]
    for words in chance.sample(WORK, 6):
        before = others(pool)
        run(told, *words)
        assert others(pool) == before, (told, words)


@pytest.mark.parametrize("number", seeds(range(1, 301), 30))
def test_a_forged_answer_ends_no_command_with_a_bug(pool, run, number):
    chance = dice(f"answers about VMs {number}")
    for words in chance.sample(WORK, 4):
        with forged_answer(pool.lab.pool.api, chance, 40) as told:
            run(told, *words)


#: references that others change, by destroying an object at the right moment: nothing is there
DANGLING = ["VBD.VM", "VBD.VDI", "VIF.VM", "VIF.network", "PBD.host", "PBD.SR", "VDI.SR", "host.metrics"]


@pytest.mark.states("place")
@pytest.mark.parametrize("place", DANGLING)
def test_a_reference_that_leads_nowhere_ends_no_command_with_a_bug(pool, run, place):
    table, name = place.split(".")
    for ref in pool.db.refs(table):
        pool.db.forge(table, ref, name, f"OpaqueRef:{UUID}")
    for words in WORK:
        run(place, *words)
