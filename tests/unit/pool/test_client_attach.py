# SPDX-License-Identifier: LGPL-2.1-only
"""From clones to attached copies: what is there then, in which order it came, and that every step may be repeated."""

import os
import threading

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.damage import DAMAGES
from kit.forged_record import forge_record
from kit.lun_world import FABRIC, Session
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_lab import IQN, TARGET, VOLUMES, sr_disk
from kit.reader import identities
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.errors import FormatError, NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import attach, attach_plan, hosts, lun_search, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, FAILED, PARTIAL
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect

PLUGGED = {"xs1": "plugged", "xs2": "plugged", "xs3": "plugged"}


def statuses(results):
    return [result.status for result in results]


def plugs(lab):
    """The hosts that plug from now on, in order."""
    found = []

    def plug(session, pbd):
        found.append(lab.pool.db.get("PBD", pbd, "host"))
        return real(session, pbd)

    real = lab.answer("PBD.plug", plug)
    return found


def test_a_clone_becomes_an_sr_on_every_host(lab, world):
    clone, plugged = lab.clone("Production"), plugs(lab)
    (done,) = lab.attach(clone)

    assert (done.status, done.hosts, done.sr_uuid) == (DONE, PLUGGED, world.sr_uuid(clone))
    ref, sr = lab.sr(done.sr_uuid)
    assert (sr["type"], sr["shared"], sr["name_label"]) == ("lvmoiscsi", True, "Production changed 2026-11-21")
    assert sr["other_config"] == {
        "relvmoiscsi:run": "a run",
        "relvmoiscsi:original-sr": world.sr_uuid(lab.originals["Production"][0]),
        "relvmoiscsi:scsi-id": clone,
        "relvmoiscsi:changed": "2026-11-21T00:11:06Z",
        "gc": "false",
        "indestructible": "true",
    }
    pbds = [lab.pool.db.record("PBD", pbd) for pbd in sr["PBDs"]]
    assert [pbd["host"] for pbd in pbds] == lab.pool.hosts and all(pbd["currently_attached"] for pbd in pbds)
    config = {"target": TARGET, "targetIQN": IQN, "SCSIid": clone}
    assert all(pbd["device_config"] == config for pbd in pbds)
    assert not identities(world.lun(clone).disk) & identities(world.lun(lab.originals["Production"][0]).disk)
    assert plugged[0] == lab.pool.master and len(plugged) == 3
    starts = [index for index, call in enumerate(lab.pool.api.calls) if call == "Async.PBD.plug"]
    assert "event.from" not in lab.pool.api.calls[starts[1] : starts[2]], "the third host waits for the second one"
    assert lab.attach(clone) == [done._replace(status=ALREADY)]


def forgotten(lab, done):
    lab.discard(done.sr_uuid)


def unplugged(lab, done):
    lab.unplug(lab.sr(done.sr_uuid)[0])


@pytest.mark.states("what", few=2)
@pytest.mark.parametrize("target", [TARGET, FABRIC])
@pytest.mark.parametrize("left", [forgotten, unplugged])
@pytest.mark.parametrize("what", sorted(set(DAMAGES) - {"QCOW2 header"}))
def test_a_lun_that_was_damaged_after_its_resignature_is_damaged_for_luns_and_attach(lab, world, target, left, what):
    """Also where the pool has the SR still, which no host has plugged."""
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    lab.original("Another", target=target)
    clone = lab.clone("Another")
    with connect(lab.where()) as calls:

        def seen():
            pool = records.read(calls)
            if not target:
                return pool, lun_search.find_on_master(calls, pool)
            return pool, lun_search.find(calls, pool, pool.portals(), 1)

        def attached(pool, found):
            chosen = attach.choose(found, [clone], [])
            return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run"), found=found)[0]

        left(lab, attached(*seen()))
        pool, before = seen()
        DAMAGES[what](world.lun(clone).disk)
        disk, srs = world.lun(clone).disk.copy(), lab.pool.db.refs("SR")

        (lun,) = [lun for lun in seen()[1] if lun.scsi_id == clone]
        assert (lun.kind, lun.state) == ("damaged", "damaged") and lun.problem.strip() == lun.problem != ""
        with pytest.raises(FormatError, match=f"The LUN {clone} holds no SR to attach. Its state is damaged: "):
            attached(*seen())
        failed = attached(pool, before)  # it was damaged while a person was asked

    assert failed.status == FAILED and (left is unplugged or "its probe reports damaged" in str(failed.error))
    assert world.lun(clone).disk == disk and lab.pool.db.refs("SR") == srs


def test_tags_and_other_config_come_along_but_not_what_is_true_of_the_original_alone(lab):
    """A VDI that the pool has lost since the snapshot has its old UUID from the LUN."""
    ref, record = lab.vdi("Production", "root disk")
    lab.pool.db.set("VDI", ref, "tags", ["gold"])
    lab.pool.db.set("VDI", ref, "other_config", {"owner": "alice", "xo:backup:job": "x", "content_id": "y"})
    clone = lab.clone("Production")
    old = {row["uuid"] for row in lab.pool.db.records("VDI", SR=lab.originals["Production"][1]).values()}
    lab.pool.db.destroy("VDI", lab.vdi("Production", "data")[0])
    (done,) = lab.attach(clone)

    new = lab.pool.db.record("VDI", lab.pool.db.by_uuid("VDI", derived_uuid(done.sr_uuid, record["uuid"])))
    assert new["tags"] == ["gold"] and new["name_label"] == "root disk"
    assert new["other_config"] == {"owner": "alice", "relvmoiscsi:old": record["uuid"]}
    assert {(pair.old, pair.new) for pair in done.vdis} == {(uuid, derived_uuid(done.sr_uuid, uuid)) for uuid in old}


def test_a_lun_that_gets_the_data_of_another_sr_during_the_run_is_not_attached(lab):
    """Else its SR would have the name of the one original, and the VMs of the other."""
    clone = lab.clone("Testing")
    lab.before("Async.SR.create", lambda: lab.overwrite(clone, "Production"))
    (done,) = lab.attach(clone)
    assert done.status == FAILED and "another client has written to the LUN" in str(done.error)
    assert lab.pool.db.refs("SR", uuid=lab.world.sr_uuid(clone)) == []
    (again,) = lab.attach(everything=True)
    assert (again.status, again.name) == (DONE, "Production changed 2026-11-21")


def test_a_driver_that_makes_an_sr_is_told_as_what_must_never_happen(lab):
    lab.answer("SR.create", lambda *_: lab.originals["Production"][1])
    (done,) = lab.attach(lab.clone("Production"))
    assert done.status == FAILED and "made an SR, which must never happen" in str(done.error)


def test_a_target_does_not_wait_for_another(lab, world):
    """A host that logs in to one sees none of the other's LUNs: while a LUN there takes long, these are attached."""
    lab.original("Elsewhere", iqn="iqn.2026-01.test:elsewhere")
    slow, quick = lab.clone("Elsewhere"), lab.clone("Production")
    until_plugged, create = threading.Event(), world._relvmoiscsi_sr_create

    def slowly(members, config):
        if config["SCSIid"] == slow:
            assert until_plugged.wait(60), "the other target waits"
        create(members, config)

    world._relvmoiscsi_sr_create = slowly
    plug = lab.answer("PBD.plug", lambda session, pbd: (plug(session, pbd), until_plugged.set())[0])
    assert statuses(lab.attach(slow, quick, jobs_at_once=2)) == [DONE, DONE]


def test_what_somebody_changed_since_stays_and_what_others_write_meanwhile(lab):
    clone, db = lab.clone("Production"), lab.pool.db
    ref, _ = lab.sr(lab.attach(clone)[0].sr_uuid)
    (vdi,) = db.refs("VDI", SR=ref, name_label="data")
    db.set("VDI", vdi, "tags", ["mine"])
    db.set("SR", ref, "name_label", "my copy")
    db.remove_from("SR", ref, "other_config", "gc")
    lab.before("SR.add_to_other_config", lambda: db.add_to("SR", ref, "other_config", "owner", "alice"))
    (again,) = lab.attach(clone)
    assert again.name == "my copy" and db.get("VDI", vdi, "tags") == ["mine"]
    config = db.get("SR", ref, "other_config")
    assert (config["gc"], config["owner"]) == ("false", "alice")


def test_a_resignatured_original_is_no_longer_in_the_pool(lab):
    """A LUN whose original the pool has forgotten is attached all the same, under the name that it bears itself."""
    stranger = lab.world.add(TARGET, IQN, sr_disk("elsewhere"))
    old = set(engine.inspect(lab.world.lun(stranger).disk).lun.disks())
    with pytest.raises(Refused, match="which this pool does not know. Another pool may use the LUN"):
        lab.attach(stranger)
    (done,) = lab.attach(stranger, are_clones=True)
    assert done.status == DONE and done.name == "test SR changed 2026-11-21"
    assert {(pair.old, pair.new) for pair in done.vdis} == {(uuid, derived_uuid(done.sr_uuid, uuid)) for uuid in old}
    vdis = lab.pool.db.records("VDI", SR=lab.sr(done.sr_uuid)[0]).values()
    marks = {vdi["other_config"]["relvmoiscsi:old"] for vdi in vdis}
    assert marks == old, "so that the map knows it when LVM has taken the place of the journal"


def test_clones_are_resignatured_and_no_more(lab, world):
    """And a clone that cannot be stops no other."""
    clones, srs = [lab.clone("Production"), lab.clone("Testing")], lab.pool.db.refs("SR")

    def resignature():
        with connect(lab.where()) as calls:
            pool = records.read(calls)
            chosen = attach.choose(lun_search.find(calls, pool, pool.portals()), [], [], everything=True)
            return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run", attaches=False))

    lab.fail(clones[0])
    bad, good = resignature()
    assert (bad.status, good.status) == (FAILED, attach.NEW_IDS) and "did not appear" in str(bad.error)
    world.fail.clear()
    first = resignature()
    assert statuses(first) == [attach.NEW_IDS, attach.HAD_IDS] and statuses(resignature()) == [attach.HAD_IDS] * 2
    assert [done.sr_uuid for done in first] == [world.sr_uuid(clone) for clone in clones]
    assert lab.pool.db.refs("SR") == srs
    assert statuses(lab.attach(everything=True)) == [DONE] * 2
    assert not lab.pool.db.record("pool", lab.pool.pool)["other_config"]


@pytest.mark.parametrize(("role", "may"), [("vm-admin", False), ("pool-operator", True)])
def test_a_role_that_may_not_is_told_what_it_lacks(lab, world, role, may):
    lab.pool.api.users["bob"] = ("a word", role)
    clone, bob = lab.clone("Production"), lab.where()._replace(user="bob", password="a word")
    if may:
        assert statuses(lab.attach(clone, where=bob)) == [DONE]
        return
    with pytest.raises(PoolFailure, match="may not call SR.probe. Use the role pool-operator"):
        lab.attach(clone, where=bob)
    assert world.state(clone) == "clean"


# --- hosts that are down, or hang, or come later


def test_of_two_hosts_with_one_name_each_has_its_own_result(lab):
    clone, (_, xs2, xs3) = lab.clone("Production"), lab.pool.hosts
    lab.pool.db.set("host", xs3, "name_label", "xs2")
    lab.pool.go_down(xs2)
    (done,) = lab.attach(clone)
    names = [f"xs2 ({lab.pool.db.get('host', host, 'uuid')})" for host in (xs2, xs3)]
    assert done.status == PARTIAL and done.hosts == {"xs1": "plugged", names[0]: "down", names[1]: "plugged"}


def test_a_host_that_goes_down_without_xapi_knowing_is_down(lab):
    clone = lab.clone("Production")
    lab.pool.storage.offline.add(lab.pool.hosts[1])
    (done,) = lab.attach(clone)
    assert done.status == PARTIAL and done.hosts == {**PLUGGED, "xs2": "down"}


def test_a_member_that_hangs_is_told_and_holds_up_nobody_for_ever(lab, monkeypatch):
    monkeypatch.setattr(hosts, "MEMBER_SECONDS", 0.2)
    clone, release, start = lab.clone("Production"), threading.Event(), lab.pool.api._start

    def is_hanging(pbd):
        return lab.pool.db.get("PBD", pbd, "host") == lab.pool.hosts[2]

    def started(method, function, params):
        lab.pool.api.tasks_end_at_once = not (method == "Async.PBD.plug" and is_hanging(params[1]))
        return start(method, function, params)

    def hanging(session, pbd):
        if is_hanging(pbd):
            release.wait(60)
        plug(session, pbd)

    lab.pool.api._start, plug = started, lab.answer("PBD.plug", hanging)
    (done,) = lab.attach(clone)
    release.set()
    assert done.status == PARTIAL and done.hosts["xs2"] == "plugged"
    assert "did not end within 0 s and continues in the pool" in done.hosts["xs3"]
    until(lambda: all(task["status"] != "pending" for task in lab.pool.db.records("task").values()))


def test_a_host_that_comes_later_has_the_device_config_of_the_others(lab, world):
    clone = lab.clone("Production")
    sr, last = lab.sr(lab.attach(clone)[0].sr_uuid)[0], lab.pool.hosts[2]
    lab.pool.db.destroy("PBD", lab.pool.db.refs("PBD", SR=sr, host=last)[0])
    world.luns[:] = [lun._replace(target="10.0.0.99") for lun in world.luns]
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = lun_search.find(calls, pool, [records.ProbePortal("10.0.0.99")], 1)
        attach.attach(calls, pool, attach.choose(found, [clone], []), attach.AttachRequest())
    assert {pbd["device_config"]["target"] for pbd in lab.pool.db.records("PBD", SR=sr).values()} == {TARGET}


# --- hosts that have a session already


def stock_lists(lab, without=""):
    """The hosts of which the stock list is asked from now on; the one `without` gives none."""
    asked = []

    def listening(session, host, config, type_, sm_config=None):
        if type_ == "lvmoiscsi" and "SCSIid" not in config:
            asked.append(lab.pool.db.get("host", host, "name_label"))
            if asked[-1] == without:
                raise XenError("HOST_OFFLINE", host)
        return probe(session, host, config, type_, sm_config)

    probe = lab.answer("SR.probe", listening)
    return asked


class Plugin:
    """The host plugin of each host, and how often it was called; `failing` is what hosts (by name) answer instead."""

    def __init__(self, lab, world):
        self.world, self.names = world, {ref: lab.pool.db.get("host", ref, "name_label") for ref in lab.pool.hosts}
        self.calls, self.failing = [], {}
        lab.pool.api.host_plugins.functions["relvmoiscsi"] = self

    def __call__(self, host, function, arguments):
        self.calls.append((self.names[host], arguments["scsi_id"]))
        answer = self.failing.get(self.names[host])
        if isinstance(answer, XenError):
            raise answer
        return self.world.plugin(host, function, arguments) if answer is None else answer


def test_each_host_with_a_session_is_asked_for_the_list_once_for_all_luns_of_a_target(lab, world):
    """Without it the storage manager does not find a LUN that was mapped since the login."""
    lab.clone("Production")
    lab.clone("Testing")
    world.log.clear()
    assert statuses(lab.attach(everything=True, jobs_at_once=2)) == [DONE, DONE]
    calls = [(command, scsi_id) for command, _, scsi_id in world.log]
    lists = [index for index, call in enumerate(calls) if call == ("sr_probe", "")][1:]  # the first is our own driver's
    assert len(lists) == len(lab.pool.hosts)
    assert lists[-1] < min(index for index, (command, _) in enumerate(calls) if command == "sr_attach")


def test_the_plugin_of_each_host_adds_the_one_lun_and_no_other(lab, world):
    clone, beside = lab.clone("Production"), lab.clone("Testing")
    plugin, lists = Plugin(lab, world), stock_lists(lab)
    (done,) = lab.attach(clone, leave_others=True)
    assert done.status == DONE and done.hosts == PLUGGED
    assert plugin.calls == [("xs1", clone), ("xs2", clone), ("xs3", clone)] and lists == []
    assert all(clone in session.luns and beside not in session.luns for session in world.sessions.values())


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (XenError("XENAPI_MISSING_PLUGIN", "relvmoiscsi"), 1),
        ("0.1.0", 1),
        ('{"problems": 7}', 1),
        ('{"problems": ["The host has another LUN at this number."]}', 2),
    ],
)
def test_a_host_whose_plugin_does_not_add_the_lun_is_asked_for_the_list(lab, world, answer, times):
    """And never again for a plugin that cannot."""
    clones = [lab.clone("Production"), lab.clone("Testing")]
    plugin, lists = Plugin(lab, world), stock_lists(lab)
    plugin.failing["xs2"] = answer
    assert statuses(lab.attach(everything=True, jobs_at_once=1)) == [DONE, DONE]
    assert [host for host, _ in plugin.calls].count("xs2") == times and lists == ["xs2"]
    assert {scsi_id for _, scsi_id in plugin.calls} == set(clones)


def no_session(lab):
    """On xs3. The list would log out of a session that no SR uses, and the plug of such a host logs in by itself."""
    for pbd in lab.pool.db.refs("PBD", host=lab.pool.hosts[2]):
        lab.pool.storage.pbd_unplug("", pbd)


def session_by_hand(lab):
    """An administrator has logged in, and the pool knows nothing of it: the storage manager logs out when its plug
    fails.
    """
    no_session(lab)
    lab.world.sessions[lab.pool.hosts[2], IQN] = Session()


def wildcard(*iqns):
    """An SR has the wildcard for IQN on xs3, and the storage manager has noted sessions to these there. On the target
    of another array it has none: somebody's own session to this IQN would end with the list.
    """

    def happens(lab):
        db, (first, *others) = lab.pool.db, lab.pool.db.refs("PBD", host=lab.pool.hosts[2])
        for pbd in others:
            lab.pool.storage.pbd_unplug("", pbd)
        noted = "".join(f"10.0.0.{number},3260,{iqn}|" for number, iqn in enumerate(iqns))
        config = {**db.get("PBD", first, "device_config"), "targetIQN": "*", "multiSession": noted}
        db.set("PBD", first, "device_config", config)

    return happens


@pytest.mark.parametrize(
    ("happens", "without", "asked", "left"),
    [
        (no_session, "", ["xs1", "xs2"], ""),
        (session_by_hand, "", ["xs1", "xs2"], "xs3"),
        (lambda lab: (session_by_hand(lab), Plugin(lab, lab.world)), "", [], ""),
        (wildcard(IQN, "iqn.2026-01.test:b"), "", ["xs1", "xs2", "xs3"], ""),
        (wildcard("iqn.2026-01.test:b"), "", ["xs1", "xs2"], "xs3"),
        (lambda lab: None, "xs2", ["xs1", "xs2", "xs3"], "xs2"),
    ],
    ids=["no session", "by hand", "by hand, with a plugin", "wildcard", "wildcard elsewhere", "no list"],
)
def test_hosts_with_a_session_that_the_pool_knows_are_asked_for_the_list(lab, happens, without, asked, left):
    """A host that does not see the LUN is told, keeps no other from it, and has it after the same again."""
    clone, lists = lab.clone("Production"), stock_lists(lab, without)
    happens(lab)
    (done,) = lab.attach(clone)
    assert sorted(lists) == asked and done.status == (PARTIAL if left else DONE)
    assert {name for name, state in done.hosts.items() if state != "plugged"} == {left} - {""}
    if left:
        assert f"the host does not see the LUN {clone} behind {IQN}" in done.hosts[left]
        assert "iscsiadm -m session --rescan" in done.hosts[left]
    if happens is session_by_hand:
        assert statuses(lab.attach(clone)) == [DONE]


@pytest.mark.parametrize(("is_added", "status"), [(False, FAILED), (True, PARTIAL)])
def test_without_a_scan_a_host_needs_the_lun_from_the_driver_and_the_same_again_finishes_it(
    lab, world, monkeypatch, is_added, status
):
    """The driver adds the LUN on the master, after its success. An SR that is plugged on no host is none that stays
    so.
    """
    clone = lab.clone("Production")
    monkeypatch.setattr(hosts.Sessions, "scan", lambda *_: None)
    if not is_added:
        monkeypatch.setattr(world, "_add_lun", lambda *_: "")
    (done,) = lab.attach(clone)
    assert done.status == status
    if is_added:
        assert done.hosts["xs1"] == "plugged" and "the host does not see the LUN" in done.hosts["xs2"]
    else:
        assert "Then repeat the command." in str(done.error)
    monkeypatch.undo()
    (done,) = lab.attach(clone)
    assert done.status == DONE and done.hosts == PLUGGED


# --- other clients, and answers that are lost


def test_a_lun_that_another_client_has_attached_meanwhile_is_left_and_the_same_again_finds_it(lab):
    clone = lab.clone("Production")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        chosen = attach.choose(lun_search.find(calls, pool, pool.portals(), 1), [clone], [])
        lab.attach(clone)
        before = lab.summary()
        (left,) = attach.attach(calls, pool, chosen, attach.AttachRequest(run="the slower one"))
    assert left.status == FAILED and "Another client has just attached or discarded the LUN" in str(left.error)
    assert lab.summary() == before and statuses(lab.attach(clone)) == [ALREADY]


def test_records_are_read_once_however_many_luns_there_are(lab):
    def reads(count):
        for _ in range(count):
            lab.clone("Production")
        before = len(lab.pool.api.calls)
        lab.attach(everything=True)
        calls = lab.pool.api.calls[before:]
        reads = [call for call in calls if call.endswith(".get_all_records")]
        return {call: calls.count(call) for call in reads if call != "pool.get_all_records"}  # the lock is there

    reads(1)  # from now on there is an attached copy, whose VDIs a plan reads
    assert reads(1) == reads(4)


# --- which


IN_USE = "in use by the SR 'Production' .*which is an original or was attached by hand"


@pytest.mark.parametrize(
    ("scsi_ids", "of", "everything", "said"),
    [
        (["Production"], [], False, IN_USE),
        (["36001"], [], False, "sees no LUN with the SCSIid 36001"),
        (["empty"], [], False, "holds no SR to attach. Its state is empty: "),
        ([], [], True, "no LUN that can be attached"),
        ([], [], False, "is selected"),
        ([], ["Production"], False, "no clone of the SR"),
    ],
)
def test_what_is_not_attached(lab, world, scsi_ids, of, everything, said):
    known = {"Production": lab.originals["Production"][0], "empty": world.add(TARGET, IQN, SparseDisk(1 << 24))}
    named = [known.get(name, name) for name in scsi_ids]
    uuids = [world.sr_uuid(lab.originals[name][0]) for name in of]
    with pytest.raises((Refused, NotFound, UsageError), match=said):
        attach.choose(lab.look(), named, uuids, everything)


def with_new_ids(lab, clone):
    """Somebody has resignatured it and does not say so to the pool."""
    disk = lab.world.lun(clone).disk
    engine.resignature(disk, engine.prepare(disk, os.urandom, engine.ResignatureRequest(scsi_id=clone)))
    return clone


@pytest.mark.parametrize("template", ["{nonsense}", "{", "{0}", "{sr:d}", "{sr!r}", "{sr.x}"])
def test_a_template_that_cannot_be_a_name(lab, template):
    with connect(lab.where()) as calls, pytest.raises(UsageError, match="--name"):
        attach_plan.names(records.read(calls), [lab.lun(lab.clone("Production"))], attach.AttachRequest(template))


# --- the database of this pool on a clone


@pytest.fixture
def disaster(lab):
    """A clone with a VDI that is to hold this pool's database, as its original has."""
    database = raw("database", vdi_type="metadata", extents=1)
    record = database.record._replace(metadata_of_pool=lab.pool.pool)
    disk = build_sr([vhd("disk", blocks=0, bat_entries=SMALL_BAT), database._replace(record=record)], seed="d").disk
    scsi_id = lab.world.add(TARGET, IQN, disk)
    lab.originals["Disaster"] = (scsi_id, lab.world.attach_original(lab.pool, scsi_id, "Disaster"))
    return lab.clone("Disaster")


def test_the_pool_does_not_begin_to_write_its_database_into_a_clone(lab, world, disaster):
    assert [uuid for uuid, _ in world.redo_logs] == [world.sr_uuid(lab.originals["Disaster"][0])]
    assert lab.lun(disaster).metadata_of == (lab.pool.pool,)
    assert statuses(lab.attach(disaster)) == [DONE] and len(world.redo_logs) == 1, "of the original alone"


def test_one_that_was_resignatured_with_it_is_refused(lab, world, disaster):
    (done,) = lab.attach(with_new_ids(lab, disaster))
    assert done.status == FAILED and "would write its database to this VDI" in str(done.error)
    assert len(world.redo_logs) == 1 and lab.pool.db.refs("SR", uuid=world.sr_uuid(disaster)) == []


# --- Fibre Channel: the master's plugin lists, relvmohba resignatures


@pytest.fixture
def fabric(lab, world):
    """Gives what attaches LUNs of adapters, all or those named."""
    lab.original("Fabric", target=FABRIC)
    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin

    def attach_them(*scsi_ids, are_clones=False):
        with connect(lab.where()) as calls:
            pool = records.read(calls)
            found = lun_search.find_on_master(calls, pool)
            chosen = attach.choose(found, scsi_ids, [], not scsi_ids, are_clones)
            attach.verify_none_left(found, chosen)
            return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run", jobs=2))

    return attach_them


def test_a_clone_becomes_an_sr_of_type_lvmohba_on_every_host(lab, fabric):
    clone = lab.clone("Fabric")
    (done,) = fabric(clone)
    assert (done.status, done.hosts) == (DONE, PLUGGED)
    _, sr = lab.sr(done.sr_uuid)
    assert (sr["type"], sr["shared"], sr["other_config"]["relvmoiscsi:scsi-id"]) == ("lvmohba", True, clone)
    pbds = [lab.pool.db.record("PBD", pbd) for pbd in sr["PBDs"]]
    assert [pbd["device_config"] for pbd in pbds] == [{"SCSIid": clone}] * 3
    assert [pair.name_label for pair in done.vdis] == ["base copy", "before", "data", "root disk"]
    assert statuses(fabric(clone)) == [ALREADY]


def test_a_host_to_which_it_is_not_mapped_yet_is_told_and_finished_later(lab, world, fabric):
    """As docs/fibre-channel.rst advises: to the master alone at first."""
    clone = lab.clone("Fabric")
    world.unmapped.update((host, clone) for host in lab.pool.hosts[1:])
    (done,) = fabric(clone)
    assert done.status == PARTIAL and done.hosts["xs1"] == "plugged"
    assert all("No adapter sees a LUN" in done.hosts[name] for name in ("xs2", "xs3"))
    world.unmapped.clear()
    (again,) = fabric(clone)
    assert again.status == DONE and again.hosts == PLUGGED


def test_an_sr_whose_name_no_call_to_the_pool_can_carry_gets_another_name(lab, world, fabric):
    """A LUN of another pool. The answer of the plugin is JSON, whose escapes have each character."""
    built = build_sr(VOLUMES, seed="other", sr_label="a\x01\x1bb")
    (done,) = fabric(world.add(FABRIC, "", built.disk), are_clones=True)
    assert done.status == DONE, done
    assert lab.sr(done.sr_uuid)[1]["name_label"] == "a??b changed 2026-11-21"


# --- a record that each writer of the raw LUN can write


def test_an_untouched_clone_that_says_resignatured_gets_new_identities_and_its_original_gets_no_mark(lab, world):
    clone, (original, ref) = lab.clone("Production"), lab.originals["Production"]
    forge_record(world.lun(clone).disk, clone)
    before, old_sr = lab.pool.db.record("SR", ref), world.sr_uuid(clone)

    (done,) = lab.attach(clone)

    assert done.status == DONE and done.sr_uuid == world.sr_uuid(clone) != old_sr
    assert lab.pool.db.record("SR", ref) == before and lab.lun(original).kind == luns.ORIGINAL


def test_an_untouched_clone_that_the_driver_says_was_resignatured_is_not_attached(lab, world):
    clone, (original, ref) = lab.clone("Production"), lab.originals["Production"]
    forge_record(world.lun(clone).disk, clone)
    before, bytes_before = lab.pool.db.record("SR", ref), world.lun(clone).disk.copy()
    lab.refuse("SR.create", "SR_BACKEND_FAILURE_1", "", "The SR has been successfully resigned", "")

    (done,) = lab.attach(clone)

    assert done.status == FAILED and "its probe reports clean" in str(done.error), done
    assert lab.pool.db.record("SR", ref) == before and world.lun(clone).disk == bytes_before
    assert lab.lun(original).kind == luns.ORIGINAL


def test_an_original_that_was_introduced_alone_gets_no_mark_for_a_clone_that_says_resignatured(lab, world):
    """Disaster recovery: the SR is introduced first, its PBD comes after."""
    clone = lab.clone("Production")
    disk = world.lun(clone).disk
    uuid = engine.resignature(disk, engine.prepare(disk, os.urandom, engine.ResignatureRequest("another"))).ids.new_sr
    forge_record(disk, clone)
    lab.forget_original("Production")
    sr = lab.pool.storage.sr_introduce("", uuid, "Recovered", "", "lvmoiscsi", "user", True)

    (done,) = lab.attach(clone)

    assert done.status == FAILED and "which `relvmoiscsi pool attach` has not introduced" in str(done.error), done
    assert lab.pool.db.get("SR", sr, "other_config") == {}


@pytest.mark.parametrize("is_attached", [False, True])
def test_an_sr_that_came_during_the_run_and_is_no_lost_answer_gets_no_mark(lab, world, is_attached):
    clone, made = lab.clone("Production"), []

    def introduce():
        sr = lab.pool.storage.sr_introduce("", world.sr_uuid(clone), "of another", "", "lvmoiscsi", "user", True)
        config = {"SCSIid": lab.originals["Testing"][0]}
        lab.pool.db.create("PBD", SR=sr, host=lab.pool.master, device_config=config, currently_attached=is_attached)
        made.append(sr)

    lab.before("SR.introduce", introduce)
    (done,) = lab.attach(clone)

    assert done.status == FAILED and "on another LUN than" in str(done.error), done
    assert ("`xe sr-forget uuid=" in str(done.error)) is not is_attached, "nobody forgets an SR that a host uses"
    assert lab.pool.db.get("SR", made[0], "other_config") == {}


def test_an_sr_that_the_pool_had_before_the_run_is_no_lost_answer_and_gets_no_mark(lab, world):
    clone, uuid = lab.clone("Production"), "11111111-2222-4333-8444-555555555555"
    sr = lab.pool.storage.sr_introduce("", uuid, "of another", "", "lvmoiscsi", "user", True)

    def create(*_words):
        disk, request = world.lun(clone).disk, engine.ResignatureRequest(scsi_id=clone, sr_uuid=uuid)
        engine.resignature(disk, engine.prepare(disk, os.urandom, request))
        raise XenError("SR_BACKEND_FAILURE_1", "", "The SR has been successfully resigned", "")

    lab.answer("SR.create", create)
    (done,) = lab.attach(clone)

    assert done.status == FAILED and "which `relvmoiscsi pool attach` has not introduced" in str(done.error), done
    assert lab.pool.db.get("SR", sr, "other_config") == {}


@pytest.mark.parametrize("kind", [luns.CLONE, luns.UNKNOWN_SR, luns.UNFINISHED])
def test_the_new_sr_is_another_than_before_and_on_no_other_lun_of_the_pool(lab, kind):
    """A LUN whose run was interrupted behind its commit holds its new SR before that run is finished."""
    clone, ref = lab.clone("Production"), lab.originals["Production"][1]
    old, unknown, new = (f"{digit}1111111-2222-4333-8444-555555555555" for digit in "123")
    lab.pool.db.create("SR", unknown, name_label="introduced", type="lvmoiscsi")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
    lun = luns.PoolLun(clone, kind, records.HBA, sr_uuid=old)

    attach_plan.verify_new(pool, lun, new)
    attach_plan.verify_new(pool, lun, unknown)
    if kind == luns.UNFINISHED:
        attach_plan.verify_new(pool, lun, old)
    else:
        with pytest.raises(Refused, match=f"holds the old SR {old}. Nothing was attached. Resignature .*--again"):
            attach_plan.verify_new(pool, lun, old)
    of_original = lab.pool.db.get("SR", ref, "uuid")
    with pytest.raises(Refused, match=f"holds the old SR {of_original}. Nothing was attached."):
        attach_plan.verify_new(pool, lun, of_original)


def test_an_original_with_the_marks_of_a_copy_on_another_lun_stays_in_the_pool(lab):
    clone, (original, ref) = lab.clone("Production"), lab.originals["Production"]
    uuid = lab.pool.db.get("SR", ref, "uuid")
    marks = {"relvmoiscsi:scsi-id": clone, "relvmoiscsi:original-sr": uuid, "relvmoiscsi:run": "a run"}
    lab.pool.db.set("SR", ref, "other_config", marks)
    for work in (lab.discard, lab.detach):
        with pytest.raises(Refused, match="but its PBDs name the LUN " + original):
            work(uuid)
    assert all(lab.pool.db.get("PBD", pbd, "currently_attached") for pbd in lab.sr(uuid)[1]["PBDs"])


def test_where_the_driver_writes_no_name_the_error_says_so_and_the_next_run_goes_on(lab, world):
    """xapi takes each error of that call for a VDI that is not there."""
    clone = lab.clone("Production")
    lab.pool.db.set("VDI", lab.vdi("Production", "data")[0], "name_description", "the data of web")
    world.fail["vdi_update", clone] = FormatError("MGT cannot be written.")
    (failed,) = lab.attach(clone)
    assert failed.status == FAILED
    assert str(failed.error) == (
        "The driver of the SR did not write the name of a VDI to its LUN (VDI.set_name_description). /var/log/SMlog of "
        "the master has the reason."
    )
    world.fail.clear()
    assert statuses(lab.attach(clone)) == [DONE]
