# SPDX-License-Identifier: LGPL-2.1-only
"""Whole calls of the driver against a target on loopback: what xapi, xe and CloudStack are answered."""

import re
import socket
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest

from kit import cuts, golden
from kit.builder import build_sr, many_vdis, raw, vhd
from kit.driver_calls import SUCCESS_TEXT
from kit.examples import WHOLE
from kit.forged_record import NO_SR, UNKNOWN_SR, forge_record, forge_run
from kit.iscsi import acts, scsi
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.options import Chap
from kit.iscsi.quirks import Quirk, quirk
from kit.outcome import resignatured
from kit.pool import wire
from kit.sparse import SparseDisk
from kit.sr_states import ATTACHED, INTRODUCED, OTHER, SAME, STATES, UNPLUGGED, State, name_of
from relvmoiscsi import engine
from relvmoiscsi.deadline import NOT_BEGUN, Deadline
from relvmoiscsi.errors import DeviceError, Refused
from relvmoiscsi.host import iscsi_sessions
from relvmoiscsi.host.locks.lun_lock import lun_lock, user_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import Initiator, Portal, lun_opening, open_lun
from relvmoiscsi.iscsi.target_sessions import TargetSessions
from relvmoiscsi.lun import call as call_module
from relvmoiscsi.lun import guard, users
from relvmoiscsi.lun.gate import GatedDevice
from relvmoiscsi.resignature.planning import identity_check

USER, TARGET = Chap("alice", "sesamesesame"), Chap("array", "emasesemases")
SUCCESS = wire.Fault(1, SUCCESS_TEXT)
LIST_START = '<?xml version="1.0" ?>\n'


def test_a_clone_gets_new_identities_and_the_same_call_again_writes_nothing_and_answers_the_same(driver, clone):
    before = engine.inspect(clone.disk).lun.sr_uuid
    with HostileTarget([clone]) as target:
        first = driver.create(target)
        writes, sr_uuid = clone.writes, engine.inspect(clone.disk).lun.sr_uuid
        assert target.count("logout") == 1 and not clone.unflushed and sr_uuid != before
        target.new_call()

        again = driver.create(target)
    assert first.result == again.result == SUCCESS and first.stderr == b""
    assert (clone.writes, engine.inspect(clone.disk).lun.sr_uuid) == (writes, sr_uuid)


def test_a_run_to_an_sr_that_is_not_on_the_lun_is_no_success(driver, clone):
    """Its writer knows that the pool has the SR of the LUN, and names another SR in the journal."""
    original = engine.inspect(clone.disk).lun.sr_uuid
    forge_run(clone.disk, clone.scsi_id, engine.SWITCHED)
    State(ATTACHED, OTHER).put(driver.pool.db, driver.pool.hosts, original, "")
    with HostileTarget([clone]) as target:
        found = driver.create(target)
    assert f"the LUN holds the SR {original}, not the SR {UNKNOWN_SR}" in found.result.text and not clone.writes


@pytest.mark.parametrize(
    "count, others", [(1, 0), (6, 0), (6, 1), (50, 0), *([(1, 1), (50, 1), (500, 0), (500, 1)] if WHOLE else [])]
)
def test_the_round_trips_of_a_call_and_of_one_that_settles_a_call_before(
    driver, count, others, round_trips, monkeypatch
):
    """A read of 500 VDIs has one more."""
    clone = Lun(7, disk=many_vdis(count).disk)
    before = clone.disk.copy()
    with HostileTarget([clone, *[Lun(8, disk=SparseDisk(1 << 20))] * others], ignore=("isid kept",)) as target:
        assert driver.create(target).result == SUCCESS
        of_a_call = len(round_trips)

        clone.disk.poke(0, before.peek(0, before.size_bytes))
        with monkeypatch.context() as cut:
            cut.setattr(GatedDevice, "write", cut_behind_the_mark(GatedDevice.write))
            assert driver.create(target).result != SUCCESS
        target.new_call()
        del round_trips[:]
        assert driver.create(target).result == SUCCESS

    of_both = {50: (33, 54), 500: (34, 57)}.get(count, (33, 56))
    assert (of_a_call - others, len(round_trips) - others) == of_both


def test_smlog_says_for_what_a_call_waits_before_it_waits(driver, clone, smlog, monkeypatch):
    said_before = []

    def wait(_sessions, _seconds):
        said_before.extend(text for _priority, text in smlog)

    monkeypatch.setattr(TargetSessions, "wait", wait)
    with HostileTarget([clone]) as target:
        with monkeypatch.context() as cut:
            cut.setattr(GatedDevice, "write", cut_behind_the_mark(GatedDevice.write))
            driver.create(target)
        target.new_call()
        assert driver.create(target, localIQN="iqn.2026-01.test:another").result == SUCCESS

    assert [text for text in said_before if "Another host may have begun the run on iscsi://" in text]


def cut_behind_the_mark(real):
    left = [2]

    def write(device, chunks):
        if not left[0]:
            raise DeviceError(device.name, "write", chunks[0].offset, len(chunks[0].data), "the test ends the call")
        left[0] -= 1
        real(device, chunks)

    return write


@pytest.mark.parametrize(
    "name, source",
    [("iqn.2026-01.test:mine", "config"), ("iqn.2026-01.test:xs1", "host"), ("iqn.2026-01.test:new", "field")],
)
def test_it_logs_in_by_the_name_of_the_call_else_of_the_host(driver, clone, monkeypatch, name, source):
    if source == "field":
        driver.pool.db.set("host", driver.pool.master, "iscsi_iqn", name)
    names = []
    with HostileTarget([clone]) as target:
        session_of = target.session_of
        monkeypatch.setattr(
            target, "session_of", lambda one, *more: names.append(one.initiator) or session_of(one, *more)
        )
        driver.probe(target, localIQN=name if source == "config" else "")

    assert names == [name]


# --- a LUN that this host sees


@pytest.fixture
def host_has(monkeypatch):
    """What the host is found to have of the LUN, and what is done there, in order."""
    done = []

    def context(name, found):
        @contextmanager
        def of(*_, **__):
            done.append(name)
            yield found
            done.append("end of " + name)

        return of

    def has(*devices):
        monkeypatch.setattr(call_module, "exclusive_open", context("exclusive open", devices))
        monkeypatch.setattr(iscsi_sessions, "add_lun", lambda *what: done.append(("add", *what[:3])) or ["told"])
        monkeypatch.setattr(guard.sm_locks, "lvm_lock", context("SM's lock", []))
        monkeypatch.setattr(guard, "lvm_locks", context("LVM's locks", None))
        return done

    return has


@pytest.mark.parametrize(
    "devices, command, expected",
    [
        ([], "create", ["exclusive open", "end of exclusive open", "add"]),
        (["/dev/sdb"], "create", ["exclusive open", "SM's lock", "LVM's locks", "end of LVM's locks",
                                  "end of SM's lock", "end of exclusive open", "add"]),
        (["/dev/sdb"], "probe", []),
    ],
)  # fmt: skip
def test_a_lun_that_lvm_sees_is_written_under_the_locks_of_sm_and_lvm_and_then_added(
    driver, clone, host_has, smlog, devices, command, expected
):
    done = host_has(*devices)
    with HostileTarget([clone]) as target:
        getattr(driver, command)(target)

    assert done == [("add", target.iqn, clone.scsi_id, 7) if step == "add" else step for step in expected]
    assert any("told" in text for _, text in smlog) == ("add" in expected), "a failure to add the LUN is in the log"


def test_a_failure_to_add_it_is_none_of_the_call(driver, clone, host_has, monkeypatch, smlog):
    host_has()
    monkeypatch.setattr(iscsi_sessions, "add_lun", lambda *_: {}["flowers"])
    with HostileTarget([clone]) as target:
        assert driver.create(target).result == SUCCESS
    assert [text for _, text in smlog if "adding the LUN to a session" in text]


def test_a_lun_that_is_in_use_on_this_host_is_refused(driver, clone, host_has, monkeypatch):
    host_has()

    @contextmanager
    def in_use(*_):
        raise Refused("/dev/sdb is in use by the file system mounted at /srv.")
        yield

    monkeypatch.setattr(call_module, "exclusive_open", in_use)
    with HostileTarget([clone]) as target:
        found = driver.create(target)

        assert target.count("connected") == 0
    assert found.result == wire.Fault(
        202, "/dev/sdb is in use by the file system mounted at /srv. Nothing was written. [SRInUse]"
    )


# --- what only the command does again

#: the options of the command alone, outside of a command to copy
OPTIONS = re.compile("--[a-z]")


def made_for(clone, **options):
    clone.disk = resignatured(clone.disk, **options).after


def of_a_pool(clone):
    database = raw("database", vdi_type="metadata")
    database = database._replace(record=database.record._replace(metadata_of_pool="OpaqueRef:a-pool"))
    clone.disk = build_sr([vhd("disk"), database]).disk


@pytest.mark.parametrize(
    "before, scsi_id, config, again",
    [
        (None, None, {}, "--again"),
        (of_a_pool, "its own", {"clear-metadata-vdi": "true"}, "--again --clear-metadata-vdi"),
    ],
)
def test_a_call_names_the_whole_command_where_it_has_no_word_for_it(driver, clone, before, scsi_id, config, again):
    """A clone of a LUN that was resignatured without a SCSIid, or a database of a pool that was kept then."""
    if before is not None:
        before(clone)
    made_for(clone, scsi_id=scsi_id and clone.scsi_id)
    with HostileTarget([clone]) as target:
        result = driver.create(target, **config).result
        (command,) = re.findall("run `(.*?)` on a host that has the LUN", result.text)

        assert command == f"relvmoiscsi resignature {again} iscsi://127.0.0.1:{target.port}/{target.iqn}/7"
    assert not OPTIONS.search(result.text.replace(command, "")) and "Give the SCSIid" not in result.text
    assert clone.writes == 0 and "Nothing was written." in result.text


# --- the lists


def test_without_an_iqn_it_is_96_with_the_targets_byte_for_byte(driver):
    with HostileTarget(other_targets=("iqn.2026-01.test:other",)) as target:
        found = driver("sr_create", target, targetIQN="")
        iqns = [target.iqn, "iqn.2026-01.test:other", "*"]

    assert found.result.code == 96
    assert found.result.text == (
        "The target's IQN (device-config:targetIQN) is missing or incorrect. [ConfigTargetIQNMissing]"
    )
    rows = [
        f"\t<TGT>\n\t\t<Index>\n\t\t\t{number}\n\t\t</Index>\n\t\t<IPAddress>\n\t\t\t127.0.0.1\n\t\t</IPAddress>\n"
        f"\t\t<Port>\n\t\t\t{target.port}\n\t\t</Port>\n\t\t<TargetIQN>\n\t\t\t{iqn}\n\t\t</TargetIQN>\n\t</TGT>\n"
        for number, iqn in enumerate(iqns)
    ]
    document = LIST_START + "<iscsi-target-iqns>\n" + "".join(rows) + "</iscsi-target-iqns>\n"
    assert found.stderr.decode() == document


@pytest.mark.parametrize("command", ["sr_create", "sr_probe"])
def test_without_a_scsi_id_it_is_107_with_the_luns_byte_for_byte(driver, command):
    luns = [Lun(12, 2 << 20, vendor="A&B"), Lun(1), Lun(300, 4 << 20)]
    with HostileTarget(luns) as target:
        found = driver(command, target)

    assert found.result == wire.Fault(107, "The SCSIid (device-config:SCSIid) is missing. [ConfigSCSIid]")
    rows = [
        f"\t<LUN>\n\t\t<vendor>\n\t\t\t{vendor}\n\t\t</vendor>\n\t\t<serial>\n\t\t\t{lun.serial}\n\t\t</serial>\n"
        f"\t\t<LUNid>\n\t\t\t{number}\n\t\t</LUNid>\n\t\t<size>\n\t\t\t{lun.size_bytes}\n\t\t</size>\n"
        f"\t\t<SCSIid>\n\t\t\t{lun.scsi_id}\n\t\t</SCSIid>\n\t</LUN>\n"
        for number, vendor, lun in [(1, "HOSTILE", luns[1]), (12, "A&amp;B", luns[0]), (16684, "HOSTILE", luns[2])]
    ]  # 300 with flat addressing, as Linux has it
    assert found.stderr.decode() == LIST_START + "<iscsi-target>\n" + "".join(rows) + "</iscsi-target>\n"


# --- each error, by its cause


def refusing(status, unlisted=False):
    """A target that gives this status to who logs in, and says in a discovery which targets it has."""

    def act(connection, request, status):
        is_discovery = connection.phase.discovery or b"SessionType=Discovery" in bytes(request.data)
        return None if is_discovery else acts.refuse(connection, request, status)

    sessions = quirk("status_" + status)._replace(act=act)
    return {"quirks": [sessions], "unlisted": unlisted, "other_targets": ("iqn.2026-01.test:other",)}


@pytest.mark.parametrize(
    "options, config, code, words",
    [
        ({"quirks": ["silent_in_login"]}, {}, 141, "for 10 seconds in each of 2 logins. It takes connections"),
        ({"quirks": ["status_0206"]}, {}, 68, "log in with iscsiadm and give the block device to the command"),
        (refusing("0301", unlisted=True), {}, 83, "has no target"),  # LIO, of a target that it does not have
        (refusing("0202", unlisted=True), {}, 83, "for this host. "),
        (refusing("0202"), {}, 68, "does not allow this initiator name"),
        ({"chap": USER}, {}, 68, "CHAP"),
        ({"chap": USER}, {"chapuser": "alice", "chappassword": "wrongwrongwrong"}, 68, "CHAP"),
        ({}, {"SCSIid": "3600deadbeef"}, 67, "No LUN 3600deadbeef"),
        ({}, {"target": "nothing.invalid"}, 140, "has no address"),
        ({}, {"port": "1"}, 141, "Nothing listens at the portal 127.0.0.1:1. "),
        ({}, {"port": "70000"}, 142, "is no port"),
        ({}, {"target": ""}, 95, "target (device-config:target) is missing"),
    ],
)
def test_each_cause_has_its_number(driver, clone, options, config, code, words):
    with HostileTarget([clone], ignore=("isid kept",), **options) as target:
        found = driver.create(target, **config)

    assert (found.result.code, clone.writes) == (code, 0)
    assert words in found.result.text


def test_a_lun_that_the_pool_uses_is_refused_before_anybody_logs_in(driver, clone):
    db = driver.pool.db
    with HostileTarget([clone]) as target:
        name = db.get("host", driver.pool.master, "other_config")
        db.set("host", driver.pool.master, "other_config", {})
        db.set("host", driver.pool.master, "iscsi_iqn", "")
        assert driver.create(target).result.code == 97

        db.set("host", driver.pool.master, "other_config", name)
        sr = db.create("SR", name_label="production")
        db.create("PBD", SR=sr, host=driver.pool.master, device_config={"SCSIid": clone.scsi_id})
        found = driver.create(target)

        assert target.count("connected") == 0
    assert found.result.code == 202 and "in use in this pool" in found.result.text


@pytest.mark.states("state", few=4)
@pytest.mark.parametrize("state", STATES, ids=name_of)
def test_the_original_under_a_new_scsi_id_is_refused_before_the_first_write(driver, clone, state):
    """Its PBD holds the SCSIid of before. The UUID of the SR is on the LUN, so the pool is asked after the read."""
    uuid = engine.inspect(clone.disk).lun.sr_uuid
    state.put(driver.pool.db, driver.pool.hosts, uuid, clone.scsi_id)
    with HostileTarget([clone]) as target:
        found = driver.create(target)
        if state.is_written:
            assert found.result == SUCCESS and clone.writes
            return
        target.new_call()
        says = f"say device-config:clone-of={uuid}, or --unplugged of `relvmoiscsi pool attach`."
        is_same = state.lun == SAME
        assert (found.result.code, clone.writes) == (202, 0)
        text = found.result.text
        assert is_same or " Nothing was written. " in text and text.endswith(says + " [SRInUse]")

        again = driver.create(target, **{"clone-of": uuid.upper()})
    assert (again.result == SUCCESS) is not is_same


def test_a_word_that_names_no_sr_is_refused(driver, clone):
    with HostileTarget([clone]) as target:
        found = driver.create(target, **{"clone-of": "production"})
    assert "'production' is no UUID of an SR (device-config:clone-of)." in found.result.text


def test_a_finished_lun_whose_new_sr_is_not_plugged_yet_is_answered_as_before(driver, clone):
    """t0 SR.create, t1 SR.introduce, t2 a client repeats SR.create: nothing is to be written."""
    with HostileTarget([clone]) as target:
        assert driver.create(target).result == SUCCESS
        writes = clone.writes
        State(INTRODUCED).put(driver.pool.db, driver.pool.hosts, engine.inspect(clone.disk).lun.sr_uuid, "")
        target.new_call()
        assert driver.create(target).result == SUCCESS
    assert clone.writes == writes


@pytest.mark.parametrize("state", [State(UNPLUGGED, OTHER), State(ATTACHED, OTHER)], ids=name_of)
def test_a_label_that_says_resignatured_is_no_success_where_the_pool_has_its_sr_on_another_lun(driver, clone, state):
    """The array has copied a resignatured LUN, and a stranger has written the SCSIid of the copy into its label."""
    cuts.resignature(clone.disk, scsi_id="another")
    forge_record(clone.disk, clone.scsi_id)
    before = clone.disk.copy()
    state.put(driver.pool.db, driver.pool.hosts, engine.inspect(clone.disk).lun.sr_uuid, "")
    with HostileTarget([clone]) as target:
        found = driver.create(target)
    assert "says that the LUN was resignatured. But the LUN holds the SR" in found.result.text
    assert " Nothing was written. " in found.result.text and clone.disk == before


def test_a_forged_label_on_the_identities_of_an_original_is_no_success_without_new_identities(driver):
    """A writer of the raw clone renames the SR alone, and writes the commit record."""
    original, clone = sr_with(UNKNOWN_SR), Lun(7, disk=sr_with(NO_SR).disk)
    forge_record(clone.disk, clone.scsi_id)
    State(ATTACHED, OTHER).put(driver.pool.db, driver.pool.hosts, original.truth.sr_uuid, "")
    with HostileTarget([clone]) as target:
        assert driver.create(target).result == SUCCESS
        writes = clone.writes
        target.new_call()
        assert driver.create(target).result == SUCCESS
    assert clone.writes == writes > 0
    assert identity_check.shared_identities(*(engine.inspect(disk).lun for disk in (original.disk, clone.disk))) == []


def sr_with(sr_uuid):
    """An SR whose ids are all equal for any UUID of the SR."""
    return build_sr([vhd("base", hidden=True), vhd("disk", "base"), raw("data")], seed=5, sr_uuid=sr_uuid)


def test_the_pool_is_asked_before_the_first_byte_of_a_copy_as_well(driver, clone, monkeypatch):
    """One VDI of several images: guest data is copied to where nobody sees it before the locks are taken."""
    asked = []
    verify = users.verify_unused

    def verify_unused(lun, xapi):
        asked.append((tuple(lun.replaced), clone.writes))
        verify(lun, xapi)

    monkeypatch.setattr(users, "verify_unused", verify_unused)
    uuid = engine.inspect(clone.disk).lun.sr_uuid
    with HostileTarget([clone]) as target:
        text = driver.create(target, vdis="one").result.text
        target.new_call()
        asked.clear()
        found = driver.create(target, vdis="one", vdi=text.partition(" wanted: ")[2][:36])
    assert found.result == SUCCESS, found.result
    assert asked[:2] == [((), 0), ((uuid,), 0)] and asked[-1][0] == (uuid,) and asked[-1][1] > 0


# --- keys


@pytest.mark.parametrize("key", ["multihomelist", "multiSession", "target"])
def test_portals_are_tried_in_turn_also_those_that_sm_has_found_before(driver, clone, key):
    with HostileTarget([clone]) as target:
        values = {"multihomelist": target.portal, "multiSession": f"127.0.0.1,{target.port},{target.iqn}|"}
        values["target"] = "127.0.0.9,127.0.0.1"
        found = driver.probe(target, **{"target": "127.0.0.9", key: values[key]})

    assert "<UUID>" in wire.as_string(found.result)


@pytest.mark.parametrize("is_secret", [False, True])
@pytest.mark.parametrize("mutual", [None, TARGET])
def test_chap_of_both_sides_and_no_secret_gets_out(driver, clone, smlog, is_secret, mutual):
    def word(name, chap):
        if not is_secret:
            return {name + "chappassword": chap.secret}
        ref = driver.pool.db.create("secret", value=chap.secret)
        return {name + "chapsecret": driver.pool.db.get("secret", ref, "uuid")}

    config = {"chapuser": USER.user, **word("", USER)}
    if mutual:
        config.update({"incoming_chapuser": mutual.user, **word("incoming_", mutual)})
    with HostileTarget([clone], chap=USER, mutual=mutual) as target:
        found = driver.create(target, **config)

    assert found.result == SUCCESS
    said = "\n".join(text for _, text in smlog)
    assert USER.secret not in said and TARGET.secret not in said and "logged in to" in said


@pytest.mark.parametrize(
    "config, words",
    [
        ({"incoming_chapuser": TARGET.user}, f"The incoming CHAP user '{TARGET.user}' has no password"),
        ({"incoming_chappassword": TARGET.secret}, "The incoming CHAP password has no user"),
        ({"incoming_chapuser": TARGET.user, "incoming_chapsecret": ""}, "has no password, or an empty password"),
        ({"chapuser": ""}, "The CHAP password has no user"),
        ({"chappassword": ""}, f"The CHAP user '{USER.user}' has no password"),
        ({"incoming_chapuser": TARGET.user, "incoming_chappassword": USER.secret + "!"}, "begins with it"),
    ],
    ids=["user alone", "password alone", "empty Secret", "own password alone", "own user alone", "begins with it"],
)
def test_half_of_chap_is_refused_before_a_login(driver, clone, config, words):
    """A login without the incoming pair would be one-way, and the target would prove nothing."""
    given = {"chapuser": USER.user, "chappassword": USER.secret, **config}
    if "incoming_chapsecret" in given:
        ref = driver.pool.db.create("secret", value="")
        given["incoming_chapsecret"] = driver.pool.db.get("secret", ref, "uuid")
    with HostileTarget([clone], chap=USER, mutual=TARGET) as target:
        found = driver.create(target, **given)

        assert target.count("connected") == 0
    assert words in found.result.text
    assert USER.secret not in found.result.text and TARGET.secret not in found.result.text


# --- a probe


def test_a_probe_says_what_is_there_and_writes_nothing(driver, clone):
    with HostileTarget([clone]) as target:
        found = driver.probe(target)

        assert target.count("task management") == 0
    (row,) = ElementTree.fromstring(wire.as_string(found.result)).findall("SR")
    assert row.findtext("Devlist") == clone.scsi_id and row.findtext("state") == "clean"
    assert row.findtext("UUID") == engine.inspect(clone.disk).lun.sr_uuid
    assert clone.writes == clone.flushes == 0


def test_while_a_call_is_at_work_a_probe_is_busy_at_once(driver, clone):
    with lun_lock(clone.scsi_id, Host(str(driver.root))), HostileTarget([clone]) as target:
        found = driver.probe(target)

        assert target.count("connected") == 0
    assert "<state>busy</state>" in wire.as_string(found.result)


def test_a_command_of_root_keeps_the_call_away_and_an_ordinary_user_does_not(driver, clone, monkeypatch):
    """Any user can take the lock of users, whether or not that user can reach the LUN."""
    monkeypatch.setattr("relvmoiscsi.host.settings.deadline_seconds", lambda: 1.0)
    host = Host(str(driver.root))
    with lun_lock(clone.scsi_id, host), HostileTarget([clone]) as target:
        found = driver.create(target)
        assert target.count("connected") == 0
    assert f"locks/{clone.scsi_id} is held by" in found.result.text
    assert "Nothing was" in found.result.text or NOT_BEGUN in found.result.text

    with user_lock(clone.scsi_id, host), HostileTarget([clone]) as target:
        driver.create(target)
        assert target.count("connected") >= 1


def test_a_probe_beside_a_writer_does_not_end_its_session(driver, clone, monkeypatch):
    """One of another host, where the lock of the LUN says nothing of this one."""
    write, seen = GatedDevice.write, []

    def write_beside_a_probe(device, chunks):
        monkeypatch.setattr(GatedDevice, "write", write)
        write(device, chunks)
        me = Initiator("iqn.2026-01.test:xs1", "0a0b0c0d-0000-4000-8000-000000000002")
        where = [Portal("127.0.0.1", target.port)]
        with open_lun(where, target.iqn, me, clone.scsi_id, False, Deadline(5)) as beside:
            seen.append(beside.info.scsi_id)

    monkeypatch.setattr(GatedDevice, "write", write_beside_a_probe)
    with HostileTarget([clone], ignore=("isid kept",)) as target:
        found = driver.create(target)

        assert (target.count("session"), target.count("reinstated")) == (2, 0)
    assert found.result == SUCCESS and seen == [clone.scsi_id]


# --- ends


def at_first(clone, what, act):
    """Have `act` done before the first read, or write, of the LUN."""
    name = {"read": "peek", "write": "write"}[what]
    place = clone.disk if what == "read" else clone
    real = getattr(place, name)

    def once(*arguments):
        setattr(place, name, real)
        act()
        return real(*arguments)

    setattr(place, name, once)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_lun_that_is_mapped_in_its_place_without_a_word_gets_no_write(driver, clone, monkeypatch, number):
    """LIO makes no unit attention for a LUN that comes where another one was."""
    neighbour, scsi_id = Lun(7, disk=clone.disk.copy(), naa="6001405" + 25 * "e"), clone.scsi_id
    batches, write = [], GatedDevice.write

    def remap_and_write(device, chunks):
        batches.append(chunks)
        if len(batches) == number:
            target.luns[:] = [neighbour]
        write(device, chunks)

    monkeypatch.setattr(GatedDevice, "write", remap_and_write)
    with HostileTarget([clone]) as target:
        found = driver("sr_create", target, scsi_id)

    assert found.result.code == 67 and "mapped another LUN in its place" in found.result.text
    assert neighbour.writes == 0


def test_a_twin_is_not_written_while_the_clone_does_not_tell_its_id(driver, clone, monkeypatch):
    """Two LUNs of one SCSIid, of which one is busy."""
    monkeypatch.setattr(lun_opening, "_TELLING_TRIES", 1)
    twin = Lun(8, disk=clone.disk.copy(), naa=clone.naa)

    def busy(_connection, task):
        if task.lun is clone:
            task.result = scsi.Result(scsi.BUSY)

    with HostileTarget([clone, twin], quirks=[Quirk("busy", "arrived", busy, times=None, name="busy")]) as target:
        found = driver.create(target)

    assert found.result.code == 67 and "does not tell its SCSIid" in found.result.text
    assert (twin.writes, clone.writes) == (0, 0)


def test_a_first_write_that_a_lost_session_keeps_back_is_not_written_behind_the_deadline(driver, clone, clock):
    def cut(connection, task):
        clock.now += 60
        return acts.reset(connection, task)

    with HostileTarget([clone], quirks=[Quirk("lost", "arrived", cut, kinds=scsi.WRITES, name="lost")]) as target:
        found = driver.create(target)

    assert (found.result.code, clone.writes) == (47, 0)


def later(clock, seconds=51):
    return lambda: setattr(clock, "now", clock.now + seconds)


def test_no_write_begins_after_the_deadline(driver, clone, clock):
    at_first(clone, "read", later(clock))
    with HostileTarget([clone]) as target:
        found = driver.create(target)

    assert (found.result.code, clone.writes) == (47, 0)
    assert "The 50 seconds of this call were over before " in found.result.text
    assert NOT_BEGUN in found.result.text


@pytest.mark.parametrize("what", ["the deadline", "a loss after the deadline"])
def test_what_has_begun_goes_on_after_the_deadline(driver, clone, clock, what):
    def happen():
        later(clock)()
        if what == "a loss after the deadline":
            target.drop()

    at_first(clone, "write", happen)
    with HostileTarget([clone]) as target:
        assert driver.create(target).result == SUCCESS
        assert target.count("session") == (2 if what == "a loss after the deadline" else 1)


def test_a_target_that_is_gone_for_good_leaves_a_journal_for_the_next_call(driver, clone):
    write, written = clone.write, []

    def write_some(offset, data):
        write(offset, data)
        written.append(offset)
        if len(written) == 12:
            for listener in target._listeners:  # at once: its threads need the lock that this write is under
                listener.shutdown(socket.SHUT_RDWR)
            target.drop()

    clone.write = write_some
    with HostileTarget([clone], ignore=("isid kept",)) as target:
        failed = driver.create(target)
        clone.write = write
        target.stop_listening()
        target.listen_again()
        target.new_call()
        again = driver.create(target)

    assert failed.result.code == 47 and "Call SR.create again" not in failed.result.text
    assert "The 120 seconds for this step were over before a new session could be made" in failed.result.text
    assert again.result == SUCCESS
    assert engine.inspect(clone.disk).state == "resignatured"


# --- what the LUN is like


COPIED = "245c4417-fca9-4004-a680-107c048a8b04"  #: of a LUN of which 4 MiB of guest data get another place


def test_one_vdi_is_refused_where_digests_would_make_it_take_hours(driver, monkeypatch):
    clone = Lun(7, disk=golden.load_live("coalescing_VHD_data").disk)
    with HostileTarget([clone], quirks=["digests"]) as target, monkeypatch.context() as slow:
        slow.setattr(lun_opening, "kernel_crc32c", lambda: None)
        slow.setattr(lun_opening, "_SLOW_COPY_BYTES", 1 << 20)
        found = driver.create(target, vdis="one", vdi=COPIED)
    assert "The target demands digests" in found.result.text and "Nothing was written." in found.result.text
    assert clone.writes == 0

    with HostileTarget([clone]) as target:
        assert driver.create(target, vdis="one", vdi=COPIED).result == SUCCESS
    assert len(engine.inspect(clone.disk).lun.disks()) == 1
