# SPDX-License-Identifier: LGPL-2.1-only
"""Journals of a restore that anybody who may write a VM's other_config can make, with any values.

A command on such a VM ends in an error of the program, never in a bug, and a dry run changes nothing.
"""

import copy
import json

import pytest

from kit.examples import WHOLE, dice
from kit.pool_verbs import VBD, bring_back, keep, lend, run, take_home, undo
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import lock_keys, marks, records
from relvmoiscsi.pool.vms import choice, forget, move_home, restore_entries, restore_journal
from relvmoiscsi.pool.vms.inventory import Inventory
from relvmoiscsi.pool.vms.restore_entries import ARRIVED, LEAVING, RESTORED
from relvmoiscsi.pool.vms.run_states import only_in_journal

JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    10**17,
    "",
    "x",
    "two words",
    "0",
    "\u202e\x1b[2J",
    "OpaqueRef:NULL",
    [],
    [None],
    ["a"],
    {},
    {"a": 1},
]
#: the whole value of a key
TEXTS = [*map(json.dumps, JUNK), "{", "nonsense", '{"vm":1,"vm":2}', '"\\ud800"', "[" * 100000, "9" * 5000, "NaN"]
KEYS = [RESTORED + "0", RESTORED + "1", LEAVING + "0", ARRIVED + "0", RESTORED + "xvda"]
#: ends of keys that no run writes. A call to the pool makes a line feed of CR
NO_DEVICES = ["", "x", "0\r", "0\n", "0 of the VM: run `halt`", "\u00b2"]
COMMANDS = [undo, take_home, keep]


@pytest.fixture
def restored(halted):
    """The journal has a readable key of each kind."""
    bring_back(halted)
    vm = halted.db.record("VM", halted.web)
    (first, _), _ = restore_entries.read(vm)
    way = {"vm": vm["uuid"], "new": first.new}
    more = {LEAVING + "0": way, ARRIVED + "0": {**way, "arrived": halted.uuid(halted.elsewhere())}}
    halted.set_journal(lambda keys: {**keys, **{key: json.dumps(values) for key, values in more.items()}})
    return halted


def places_of(value, way=()):
    yield way
    for key, one in value.items() if isinstance(value, dict) else ():
        yield from places_of(one, (*way, key))


def with_junk(values, way, junk):
    found = copy.deepcopy(values)
    at = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = junk
    return found


def forgeries(keys):
    """(A key, its forged text): junk for each value, a value that no run writes, a value less, and for all of it."""
    for key in KEYS:
        for text in TEXTS:
            yield key, text
        values = json.loads(keys.get(key, "{}"))
        for way in [way for way in places_of(values) if way]:
            for junk in JUNK:
                yield key, json.dumps(with_junk(values, way, junk))
        yield key, json.dumps({**values, "more": "x"})
        for name in values:
            yield key, json.dumps({other: value for other, value in values.items() if other != name})


def sample(keys, count, which=lambda forgery: True):
    every = sorted(filter(which, set(forgeries(keys))))
    return every if WHOLE else dice("journals of a restore").sample(every, count)


def uses_of(vm, sr_uuid):
    return forget.uses_of(Inventory({"vm": vm}, {}, {}, {}, {}), "the SR", sr_uuid)


def reads_as_it_may(vm, whole):
    """Raises what is a bug: an exception that is none of the program's own."""
    swaps, spoiled = restore_entries.read(vm)
    assert all(why for _, why in spoiled)
    for work in (restore_entries.journal_of, restore_journal.is_restored, restore_entries.all_arrived,
                 lambda vm: restore_journal.verify_journal(vm, whole)):  # fmt: skip
        try:
            work(vm)
        except RelvmoiscsiError:
            pass
    for swap in [*swaps, *whole]:
        assert isinstance(restore_entries.arrived_as(vm, swap), str)
        restore_journal.is_leaving(vm, swap)
    if uses_of(vm, whole[0].sr).restored:
        assert restore_journal.is_restored(vm), "discard refuses the copy, and nothing ends the restore"


def test_of_any_number_of_forged_entries_few_are_parsed(restored, monkeypatch):
    """A vm-admin may write 290000 of them, and each command reads the journals of all VMs."""
    parsed, real = [], restore_entries._swap_of
    monkeypatch.setattr(restore_entries, "_swap_of", lambda text: parsed.append(text) or real(text))
    restored.set_journal(lambda config: {**config, **{f"{RESTORED}{number}": "{}" for number in range(1000, 4000)}})
    swaps, spoiled = restore_entries.read(restored.db.record("VM", restored.web))
    assert len(parsed) == restore_entries.MOST and len(swaps) + len(spoiled) >= 3000


def test_keep_asks_the_pool_for_no_key_of_any_number(restored):
    """A vm-admin writes thousands of them, and `keep` is the command that removes them."""
    asked, way = [], json.dumps({"vm": restored.db.get("VM", restored.web, "uuid"), "new": "x", "arrived": "y"})
    forged = {f"{kind}{number}": way for kind in (RESTORED, LEAVING, ARRIVED) for number in range(1000, 1400)}
    restored.set_journal(lambda keys: {**keys, **forged})
    restored.lab.pool.api.before = lambda method, _params: asked.append(method)
    told = keep(restored, dry_run=True)
    assert len(asked) < 40 and len(told.notes) < restore_entries.MOST + 10
    for work in (undo, take_home):
        with pytest.raises(Refused, match="cannot be read: a VM has no device for so many disks. .*--keep"):
            work(restored)
    asked.clear()
    keep(restored)
    removals = asked.count("VM.remove_from_other_config")
    assert removals > 1200 and not restored.journal()
    assert len(asked) < 1.1 * removals + 60, "the lock is looked at before some removals, and nothing else is asked"


@pytest.mark.parametrize("work", [bring_back, *COMMANDS])
def test_one_reading_of_the_pool_serves_all_entries(halted, work):
    """A vm-admin writes entries of 250 devices, each of which a run could have written."""
    bring_back(halted)
    swap, forged = json.loads(halted.db.get("VM", halted.web, "other_config")[RESTORED + "0"]), {}
    for number in range(1000, 1250):
        vdi = halted.db.create("VDI", SR=halted.lab.originals["Production"][1], location=str(number), managed=True)
        old = halted.uuid(vdi)
        uuids = {"old": old, "of": old, "new": derived_uuid(swap["sr"], old)}
        forged[f"{RESTORED}{number}"] = json.dumps({**swap, **uuids, "userdevice": str(number)})
    halted.set_journal(lambda keys: {**keys, **forged})
    asked = []
    halted.lab.pool.api.before = lambda method, _params: asked.append(method)
    if work is undo:
        assert len(undo(halted, dry_run=True).disks) == 252
    else:
        told(work, halted, dry_run=True)
    assert asked.count("VBD.get_all_records") <= 2 and len(asked) < 60


@pytest.mark.parametrize("work", [bring_back, undo])
@pytest.mark.parametrize("number", ["1000", "7"])
def test_an_entry_of_a_second_device_stops_a_run_before_its_first_change(halted, work, number):
    """A run had swapped the first disk, and told to repeat the command."""
    bring_back(halted)
    swap = json.loads(halted.db.get("VM", halted.web, "other_config")[RESTORED + "0"])
    forged = {RESTORED + number: json.dumps({**swap, "userdevice": number})}
    halted.set_journal(lambda keys: {**keys, **forged})
    said = rf"one VDI in its restore, {swap['old']}: (0 and {number}|{number} and 0)\. Nothing was changed\. .*--keep"
    halted.refuses(work, said)
    keep(halted)
    assert not halted.journal()


@pytest.mark.parametrize("work", [bring_back, undo])
def test_an_entry_of_another_vdi_that_would_become_the_same_stops_a_run_before_its_first_change(halted, work):
    bring_back(halted)
    swap = json.loads(halted.db.get("VM", halted.web, "other_config")[RESTORED + "0"])
    old = halted.uuid(halted.lab.vdi("Production", "before")[0])
    halted.set_journal(lambda keys: {**keys, RESTORED + "7": json.dumps({**swap, "userdevice": "7", "old": old})})
    halted.refuses(work, rf"one VDI in its restore, {swap['new']}: 0 and 7\. Nothing was changed\. .*--keep")


def test_a_vm_that_has_one_disk_twice_is_not_restored_in_part(halted):
    halted.db.create("VBD", VM=halted.web, VDI=halted.root, userdevice="7")
    halted.refuses(bring_back, "one VDI in its restore, .*: 0 and 7. Nothing was changed. Remove the disk from one of")


@pytest.mark.parametrize("begin", [LEAVING, ARRIVED])
def test_more_keys_of_any_kind_than_a_vm_has_devices_are_no_journal(restored, begin):
    restored.set_journal(lambda keys: {**keys, **{f"{begin}{n}": "x" for n in range(1000, 1300)}})
    with pytest.raises(Refused, match=f"{begin}1.* cannot be read: a VM has no device for so many disks"):
        undo(restored)


@pytest.mark.parametrize(
    "vbd", [{"other_config": {"k": "x" * 70000}}, {"other_config": dict.fromkeys(map(str, range(999)), "")}]
)
def test_a_disk_with_a_text_that_no_journal_has_room_for_is_not_restored(restored, vbd):
    """Else no later run could read the entry."""
    vm = restored.db.record("VM", restored.web)
    swap = restore_entries.journal_of(vm)[0]
    restore_entries.verify_readable(vm, swap)
    with pytest.raises(Refused, match="A restore cannot note the disk .* more than"):
        restore_entries.verify_readable(vm, swap._replace(vbd={**swap.vbd, **vbd}))


@pytest.mark.parametrize(
    "vbd",
    [{}, {**VBD, "type": "CD"}, {**VBD, "type": "CD", "mode": "RO"}, {**VBD, "type": "Floppy"}, {**VBD, "mode": "bad"}]
    + [{name: value for name, value in VBD.items() if name != left_out} for left_out in VBD],
)
def test_an_entry_with_a_vbd_that_no_run_writes_stops_a_run_before_its_first_change(halted, vbd):
    """A run destroyed the VBD, and xapi refused the next one. Or the disk came back as a drive of another type."""
    bring_back(halted)
    swap = json.loads(halted.db.get("VM", halted.web, "other_config")[RESTORED + "0"])
    halted.set_journal(lambda keys: {**keys, RESTORED + "0": json.dumps({**swap, "vbd": vbd})})
    for work in (undo, take_home, bring_back):
        halted.refuses(work, "cannot be read: .*--keep")


@pytest.mark.parametrize("text", ["no journal of {}", '{{"sr": "{}"}}'])
def test_a_key_that_keeps_discard_from_the_copy_is_one_that_a_command_removes(restored, text):
    """It names no VM."""
    sr = restored.copy.sr_uuid
    restored.set_journal(lambda config: {"relvmoiscsi:restore:0": text.format(sr)})
    vm = restored.db.record("VM", restored.web)
    assert uses_of(vm, sr).restored and restore_journal.is_restored(vm)


def test_any_journal_reads_or_is_refused(restored):
    vm = restored.db.record("VM", restored.web)
    whole, _ = restore_entries.read(vm)
    for key, text in sample(vm["other_config"], 400):
        reads_as_it_may({**vm, "other_config": {**vm["other_config"], key: text}}, whole)


def test_no_command_fails_for_any_journal(restored):
    keys = restored.db.get("VM", restored.web, "other_config")
    for key, text in sample(keys, 12):
        restored.set_journal(lambda _, key=key, text=text: {**keys, key: text})
        before = restored.rows()
        for work in COMMANDS:
            try:
                work(restored, dry_run=True)
            except RelvmoiscsiError:
                pass
            assert restored.rows() == before, (work, key, text)


def test_keep_ends_any_journal(restored):
    """The way out that each error names."""
    keys = restored.db.get("VM", restored.web, "other_config")
    for key, text in sample(keys, 6):
        restored.set_journal(lambda _, key=key, text=text: {**keys, key: text})
        keep(restored)
        assert not restored.journal(), (key, text)


@pytest.mark.parametrize("text", ["spoiled", "of another copy"])
def test_a_disk_on_a_copy_stays_there_only_on_request_whatever_the_journal_says(restored, text):
    """A person with --yes would lose the way home, and then the disks with the copy."""
    keys = restored.db.get("VM", restored.web, "other_config")
    if text == "of another copy":
        swap, other = json.loads(keys[RESTORED + "0"]), "99999999-0000-4000-8000-000000000000"
        text = json.dumps({**swap, "sr": other, "new": derived_uuid(other, swap["of"])})
    restored.set_journal(lambda _: {RESTORED + "0": text})
    before = restored.rows()
    with pytest.raises(Refused, match="still has disks of the copy, and keeps them only as long as the copy.*on-copy"):
        keep(restored, may_stay=[])
    assert restored.rows() == before
    done = keep(restored)
    assert not restored.journal() and restored.copy.sr_uuid not in done.unused_copies
    assert any(note.startswith("disk 0: ") and "disappears when that copy is discarded" in note for note in done.notes)


@pytest.mark.parametrize("member", ["old", "new", "sr", "home"])
def test_a_member_that_is_no_uuid_is_refused_and_keep_takes_no_lock_of_that_name(restored, member):
    """A run would add the lock and never find it again: each end of the restore would stop, for ever."""
    keys = restored.db.get("VM", restored.web, "other_config")
    swap = {**json.loads(keys[RESTORED + "0"]), member: "no lock of any client"}
    restored.set_journal(lambda _: {**keys, RESTORED + "0": json.dumps(swap)})
    for work in (undo, take_home):
        with pytest.raises(Refused, match=f"its member '{member}' is no UUID.*--keep"):
            work(restored)
    keep(restored)
    config = restored.db.get("pool", restored.lab.pool.pool, "other_config")
    assert not restored.journal() and not [key for key in config if key.startswith(lock_keys.KEY)]


@pytest.mark.parametrize("end", NO_DEVICES)
def test_a_key_that_no_run_can_have_written_counts_for_nothing(halted, end):
    """XenAPI cannot remove each of them: `keep` would say that it did, and the copy would never be discarded."""
    vm, text = halted.db.get("VM", halted.web, "uuid"), "x " + halted.copy.sr_uuid
    way = {"vm": vm, "new": "x", "arrived": halted.uuid(halted.lab.vdi("Testing", "data")[0])}
    keys = {RESTORED + end: f"{vm} {text}", LEAVING + end: json.dumps(way), ARRIVED + end: json.dumps(way)}
    halted.set_journal(lambda _: keys)
    for work in COMMANDS:
        before = halted.rows()
        assert work(halted).status == "not restored" and halted.rows() == before
    assert not run(halted, lambda calls, *_: forget.read_uses(calls, [halted.sr]))[halted.sr].restored
    assert bring_back(halted).status == "restored"
    assert undo(halted).notes == [] and sorted(halted.journal()) == sorted(keys)


# --- keys that name a VDI of somebody else


def test_an_undo_names_no_vdi_as_no_longer_needed_that_it_has_not_taken_from_the_vm(halted):
    bring_back(halted)
    theirs = halted.uuid(halted.lab.vdi("Testing", "data")[0])
    way = json.dumps({"vm": halted.db.get("VM", halted.web, "uuid"), "new": "x", "arrived": theirs})
    halted.set_journal(lambda keys: {**keys, ARRIVED + "77": way})
    done = undo(halted)
    assert (done.waiting, done.notes) == ([], [only_in_journal(theirs)])


def test_an_undo_names_no_vdi_as_no_longer_needed_that_is_not_on_the_sr_of_the_old_disk(halted):
    bring_back(halted)
    theirs = halted.lab.vdi("Testing", "data")[0]
    halted.db.set("VBD", halted.vbd("0"), "VDI", theirs)
    swap = json.loads(halted.db.get("VM", halted.web, "other_config")[RESTORED + "0"])
    way = json.dumps({"vm": swap["vm"], "new": swap["new"], "arrived": halted.uuid(theirs)})
    halted.set_journal(lambda keys: {**keys, ARRIVED + "0": way})
    done = undo(halted)
    assert (done.waiting, done.notes) == ([], [only_in_journal(halted.uuid(theirs))])


def test_without_a_move_no_vdi_is_no_longer_needed(halted):
    """No restore was made: two keys say that a disk of another SR was the disk of this VM."""
    vm, theirs = halted.db.get("VM", halted.web, "uuid"), halted.uuid(halted.lab.vdi("Testing", "data")[0])
    has, sr = halted.uuid(halted.root), "11111111-2222-4333-8444-555555555555"
    swap = {
        **{"vm": vm, "userdevice": "0", "old": theirs, "new": derived_uuid(sr, theirs), "of": theirs},
        **{"date": "x", "sr": sr, "home": halted.copy.of_sr, "vbd": VBD},
    }
    way = {"vm": vm, "new": swap["new"], "arrived": has}
    halted.set_journal(lambda keys: {**keys, RESTORED + "0": json.dumps(swap), ARRIVED + "0": json.dumps(way)})
    done = take_home(halted)
    assert (done.status, done.waiting, done.notes) == ("home", [], [only_in_journal(theirs)])


@pytest.fixture
def memory(day):
    """The memory of a suspended VM: no VBD has this VDI, and the journal of the VM "evil" calls it the disk 0."""
    db, copied = day.db, day.copy
    vdi = day.lab.vdi("Production", "before")[0]
    db.set("VDI", vdi, "type", "suspend")
    day.lab.vm("victim", state="Suspended", suspend_VDI=vdi)
    day.evil = day.lab.vm("evil")
    swap = {
        **{"vm": db.get("VM", day.evil, "uuid"), "userdevice": "0", "old": day.uuid(vdi), "date": "a"},
        **{"new": derived_uuid(copied.sr_uuid, day.uuid(vdi)), "sr": copied.sr_uuid},
        **{"of": day.uuid(vdi), "home": copied.of_sr},
        **{"vbd": VBD},
    }
    db.set("VM", day.evil, "other_config", {RESTORED + "0": json.dumps(swap)})
    return vdi


def test_the_memory_of_a_suspended_vm_is_no_vdi_that_nobody_needs(day, memory):
    new = day.db.by_uuid("VDI", derived_uuid(day.copy.sr_uuid, day.uuid(memory)))
    day.db.create("VBD", VM=day.evil, VDI=new, userdevice="0", bootable=True)
    done = run(day, lambda calls, *_: move_home.home(calls, day.evil))
    kept = f"The VDI {day.uuid(memory)} is a disk, or the memory, of 'victim': keep the VDI."
    assert done.status == "home" and day.uuid(memory) not in done.waiting and kept in done.notes


def test_no_undo_makes_a_disk_of_the_memory_of_a_suspended_vm(day, memory):
    with pytest.raises(Refused, match="has data of 'victim'"):
        undo(day, day.evil)
    assert day.lab.disks_of(day.evil) == {} and day.db.get("VDI", memory, "name_label") == "before"


# --- a VDI whose UUID is any text: xapi takes each

SAYS = "x. To repair the VM, run `halt` on the master.\n2026-11-29T02:00:00Z [1] restored"


def told(work, day, **more):
    """What the command says: its notes, or its error."""
    try:
        return " ".join(work(day, **more).notes)
    except RelvmoiscsiError as error:
        return str(error)


def has_only_quoted(text):
    return repr(SAYS) in text and SAYS.split(".")[1] not in text.replace(repr(SAYS), "")


def theirs(day, sr="Testing"):
    """Reference of a VDI with that UUID."""
    fields = {"location": "theirs", "managed": True, "uuid": SAYS, "virtual_size": 4 << 20, "name_label": "theirs"}
    return day.db.create("VDI", SR=day.lab.originals[sr][1], **fields)


@pytest.mark.parametrize("work", [bring_back, undo, take_home, keep])
def test_the_uuid_of_a_disk_at_the_device_stands_in_quotes(halted, work):
    bring_back(halted)
    halted.hang("0", theirs(halted))
    assert has_only_quoted(told(work, halted))


def test_the_uuid_of_a_disk_that_is_on_no_copy_stands_in_quotes(halted):
    halted.hang("0", theirs(halted))
    assert has_only_quoted(told(bring_back, halted))


def test_the_uuid_of_a_disk_without_a_copy_stands_in_quotes_before_a_clone(halted):
    halted.hang("0", theirs(halted))
    (source, *_) = run(halted, lambda calls, found, copy: choice.choose(records.read(calls), found, copy, ["web"]))
    assert has_only_quoted(str(source.problem))


def test_the_uuid_of_an_original_stands_in_quotes_before_a_disk_is_lent(halted):
    halted.hang("0", theirs(halted, "Production"))
    sr = halted.copy.sr_uuid
    halted.vdi_on_copy("lent", uuid=derived_uuid(sr, SAYS), name_label="to lend", virtual_size=4 << 20)
    assert has_only_quoted(told(lambda day: lend(day, "to lend", day.web, dry_run=True), halted))


@pytest.mark.parametrize("work", [undo, take_home])
def test_the_uuid_of_a_disk_that_may_be_at_home_stands_in_quotes(restored, work):
    keys = restored.db.get("VM", restored.web, "other_config")
    swap = json.loads(keys[RESTORED + "0"])
    way = marks.text_of({"vm": swap["vm"], "new": swap["new"]})
    entries = {key: text for key, text in keys.items() if key.startswith(RESTORED)}
    restored.set_journal(lambda _: {**entries, LEAVING + "0": way})
    restored.hang("0", theirs(restored, "Production"))
    text = told(work, restored)
    assert text.startswith("The pool was moving the VDI") and has_only_quoted(text)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_uuid_of_a_moved_disk_stands_in_quotes(restored, is_there):
    """A vm-admin writes it in the journal, with or without a VDI of that UUID."""
    values = json.loads(restored.db.get("VM", restored.web, "other_config")[ARRIVED + "0"])
    restored.set_journal(lambda keys: {**keys, ARRIVED + "0": json.dumps({**values, "arrived": SAYS})})
    if is_there:
        theirs(restored)
        for work in (keep, undo):
            assert has_only_quoted(told(work, restored, **({"dry_run": True} if work is keep else {})))
    else:
        restored.db.destroy("VBD", restored.vbd("0"))
        assert has_only_quoted(told(bring_back, restored))
