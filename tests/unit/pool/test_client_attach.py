# SPDX-License-Identifier: LGPL-2.1-only
"""From clones to attached copies: what is there then, in which order it came, and that every step may be repeated."""

import json
import os
import threading

import pytest

from kit.builder import SMALL_BAT, build_sr, raw, vhd
from kit.examples import of_each_kind
from kit.lun_world import Session
from kit.pool.api import GoneAway
from kit.pool.errors import XenError
from kit.pool_fakes import until
from kit.pool_lab import IQN, TARGET, Lab, only_reads, sr_disk
from kit.reader import identities
from relvmoiscsi import engine
from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import derived_uuid
from relvmoiscsi.pool import attach, attach_plan, hosts, jobs, luns, records
from relvmoiscsi.pool.attach import ALREADY, DONE, FAILED, PARTIAL
from relvmoiscsi.pool.calls import PoolFailure
from relvmoiscsi.pool.connection import connect


def test_a_clone_becomes_an_sr_on_every_host(lab, world):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)

    assert (done.status, done.hosts) == (DONE, {"xs1": "plugged", "xs2": "plugged", "xs3": "plugged"})
    ref, sr = lab.sr(done.sr_uuid)
    assert (sr["type"], sr["shared"], sr["name_label"]) == ("lvmoiscsi", True, "Production 2026-11-22")
    assert sr["other_config"] == {
        "relvmoiscsi:run": "a run",
        "relvmoiscsi:original-sr": world.sr_uuid(lab.originals["Production"][0]),
        "relvmoiscsi:scsi-id": clone,
        "gc": "false",
        "indestructible": "true",
    }
    pbds = [lab.pool.db.record("PBD", pbd) for pbd in sr["PBDs"]]
    assert [pbd["host"] for pbd in pbds] == lab.pool.hosts
    config = {"target": TARGET, "targetIQN": IQN, "SCSIid": clone}
    assert all(pbd["device_config"] == config for pbd in pbds)
    assert done.sr_uuid == world.sr_uuid(clone)
    assert lab.attach(clone) == [done._replace(status=ALREADY)]
    assert not identities(world.lun(clone).disk) & identities(world.lun(lab.originals["Production"][0]).disk)


def test_the_master_is_plugged_first(lab, world):
    clone = lab.clone("Production")
    world.log.clear()
    plugged = []
    plug = lab.pool.storage.pbd_plug
    lab.pool.api._methods["PBD.plug"] = lambda session, pbd: (
        plugged.append(lab.pool.db.get("PBD", pbd, "host")), plug(session, pbd)
    )[1]  # fmt: skip
    lab.attach(clone)

    assert plugged[0] == lab.pool.master and sorted(plugged) == sorted(lab.pool.hosts)


def test_tags_and_other_config_come_along_but_not_what_is_true_of_the_original_alone(lab):
    ref, record = lab.vdi("Production", "root disk")
    lab.pool.db.set("VDI", ref, "tags", ["gold"])
    lab.pool.db.set("VDI", ref, "other_config", {"owner": "alice", "xo:backup:job": "x", "content_id": "y"})
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)

    new = lab.pool.db.record("VDI", lab.pool.db.by_uuid("VDI", derived_uuid(done.sr_uuid, record["uuid"])))
    assert new["tags"] == ["gold"] and new["name_label"] == "root disk"
    assert new["other_config"] == {"owner": "alice", "relvmoiscsi:old": record["uuid"]}
    assert {(pair.old, pair.new) for pair in done.vdis} == {
        (old["uuid"], derived_uuid(done.sr_uuid, old["uuid"]))
        for old in lab.pool.db.records("VDI", SR=lab.originals["Production"][1]).values()
    }


def test_a_vdi_that_the_pool_has_lost_since_has_its_old_one_from_the_lun(lab, world):
    clone = lab.clone("Production")
    ref, record = lab.vdi("Production", "data")
    lab.pool.db.destroy("VDI", ref)
    (done,) = lab.attach(clone)

    assert [pair.old for pair in done.vdis if pair.name_label == "data"] == [record["uuid"]]


def test_all_are_resignatured_before_the_first_is_attached(lab, world):
    clones = [lab.clone(name) for name in ("Production", "Testing", "Production")]
    world.log.clear()
    done = lab.attach(everything=True, jobs_at_once=3)

    assert [result.status for result in done] == [DONE] * 3 and {result.scsi_id for result in done} == set(clones)
    commands = [command for command, _, _ in world.log]
    assert max(index for index, command in enumerate(commands) if command == "sr_create") < commands.index("sr_attach")


def test_a_target_does_not_wait_for_another(lab, world):
    """A host that logs in to one sees none of the other's LUNs: while a LUN there takes long, these are attached."""
    lab.original("Elsewhere", iqn="iqn.2026-01.test:elsewhere")
    slow, quick = lab.clone("Elsewhere"), lab.clone("Production")
    until_plugged, create = threading.Event(), world._relvmoiscsi_sr_create
    plug = lab.pool.storage.pbd_plug

    def slowly(members, config):
        if config["SCSIid"] == slow:
            assert until_plugged.wait(60), "the other target waits"
        create(members, config)

    def told(session, pbd):
        plug(session, pbd)
        until_plugged.set()

    world._relvmoiscsi_sr_create = slowly
    lab.pool.api._methods["PBD.plug"] = told
    done = lab.attach(slow, quick, jobs_at_once=2)

    assert [result.status for result in done] == [DONE, DONE]


def test_what_somebody_changed_since_stays(lab):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    ref, _ = lab.sr(done.sr_uuid)
    vdi = next(ref for ref, vdi in lab.pool.db.records("VDI", SR=ref).items() if vdi["name_label"] == "data")
    lab.pool.db.set("VDI", vdi, "tags", ["mine"])
    lab.pool.db.set("SR", ref, "name_label", "my copy")
    (again,) = lab.attach(clone)

    assert again.name == "my copy" and lab.pool.db.get("VDI", vdi, "tags") == ["mine"]


def test_a_host_that_goes_down_without_xapi_knowing_is_down(lab):
    clone = lab.clone("Production")
    lab.pool.storage.offline.add(lab.pool.hosts[1])
    (done,) = lab.attach(clone)

    assert done.status == PARTIAL and done.hosts["xs2"] == "down" and done.hosts["xs3"] == "plugged"


def test_members_are_plugged_at_the_same_time(lab, world):
    clone = lab.clone("Production")
    lab.attach(clone)
    pbds = [lab.pool.db.record("PBD", ref) for ref in lab.sr(world.sr_uuid(clone))[1]["PBDs"]]

    assert all(pbd["currently_attached"] for pbd in pbds)
    starts = [index for index, call in enumerate(lab.pool.api.calls) if call == "Async.PBD.plug"]
    between = lab.pool.api.calls[starts[1] : starts[2]]
    assert "event.from" not in between, "the third host waits for the second one"


def test_a_member_that_hangs_is_told_and_holds_up_nobody_for_ever(lab, monkeypatch):
    monkeypatch.setattr(hosts, "MEMBER_SECONDS", 0.2)
    clone, release = lab.clone("Production"), threading.Event()
    plug, start = lab.pool.storage.pbd_plug, lab.pool.api._start

    def is_hanging(pbd):
        return lab.pool.db.get("PBD", pbd, "host") == lab.pool.hosts[2]

    def started(method, function, params):
        lab.pool.api.tasks_end_at_once = not (method == "Async.PBD.plug" and is_hanging(params[1]))
        return start(method, function, params)

    def hanging(session, pbd):
        if is_hanging(pbd):
            release.wait(60)
        plug(session, pbd)

    lab.pool.api._start = started

    lab.pool.api._methods["PBD.plug"] = hanging
    (done,) = lab.attach(clone)
    release.set()

    assert done.status == PARTIAL and done.hosts["xs2"] == "plugged"
    assert "did not end within 0 seconds and continues in the pool" in done.hosts["xs3"]
    settled(lab)


# --- hosts that have a session already


def test_each_host_with_a_session_is_asked_for_the_list_once_for_all_luns_of_a_target(lab, world):
    """Without it the storage manager does not find a LUN that was mapped since the login."""
    lab.clone("Production")
    lab.clone("Testing")
    world.log.clear()
    done = lab.attach(everything=True, jobs_at_once=2)

    assert [result.status for result in done] == [DONE, DONE]
    calls = [(command, scsi_id) for command, _, scsi_id in world.log]
    lists = [index for index, call in enumerate(calls) if call == ("sr_probe", "")][1:]  # the first is our own driver's
    assert len(lists) == len(lab.pool.hosts)
    assert lists[-1] < min(index for index, (command, _) in enumerate(calls) if command == "sr_attach")


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
        if answer is not None:
            return answer
        return self.world.plugin(host, function, arguments)


def stock_lists(lab):
    """The hosts of which the stock list is asked from now on."""
    asked, probe = [], lab.pool.api._methods["SR.probe"]

    def listening(session, host, config, type_, sm_config=None):
        if type_ == "lvmoiscsi" and "SCSIid" not in config:
            asked.append(lab.pool.db.get("host", host, "name_label"))
        return probe(session, host, config, type_, sm_config)

    lab.pool.api._methods["SR.probe"] = listening
    return asked


def test_the_plugin_of_each_host_adds_the_one_lun_and_no_other(lab, world):
    clone, beside = lab.clone("Production"), lab.clone("Testing")
    plugin, lists = Plugin(lab, world), stock_lists(lab)
    (done,) = lab.attach(clone, leave_others=True)

    assert done.status == DONE and set(done.hosts.values()) == {"plugged"}
    assert plugin.calls == [("xs1", clone), ("xs2", clone), ("xs3", clone)] and lists == []
    assert all(clone in session.luns and beside not in session.luns for session in world.sessions.values())


@pytest.mark.parametrize(
    "answer",
    [
        XenError("XENAPI_MISSING_PLUGIN", "relvmoiscsi"),
        XenError("UNKNOWN_XENAPI_PLUGIN_FUNCTION", "add_lun"),
        XenError("RBAC_PERMISSION_DENIED", "host.call_plugin", "No permission in user session"),
        "0.1.0",
        '{"problems": 7}',
    ],
)
def test_a_host_whose_plugin_does_not_add_luns_is_asked_for_the_list_and_never_again_for_the_plugin(lab, world, answer):
    clones = [lab.clone("Production"), lab.clone("Testing")]
    plugin, lists = Plugin(lab, world), stock_lists(lab)
    plugin.failing["xs2"] = answer
    done = lab.attach(everything=True, jobs_at_once=1)

    assert [result.status for result in done] == [DONE, DONE]
    assert [host for host, _ in plugin.calls if host == "xs2"] == ["xs2"] and lists == ["xs2"]
    assert {scsi_id for _, scsi_id in plugin.calls} == set(clones)


def test_a_host_that_has_another_lun_at_the_number_is_asked_for_the_list(lab, world, monkeypatch):
    clone = lab.clone("Production")
    plugin, lists = Plugin(lab, world), stock_lists(lab)
    monkeypatch.setattr(world, "_add_lun", lambda host, arguments: json.dumps({"problems": ["It is another one."]}))
    (done,) = lab.attach(clone)

    assert done.status == DONE and sorted(lists) == ["xs1", "xs2", "xs3"] and len(plugin.calls) == 3


def test_a_host_without_a_session_is_not_asked_for_the_list(lab, world):
    """The list would log out of a session that no SR uses, and the plug of such a host logs in by itself."""
    lab.clone("Production")
    xs3 = lab.pool.hosts[2]
    for pbd in lab.pool.db.refs("PBD", host=xs3):
        lab.pool.storage.pbd_unplug("", pbd)
    world.log.clear()
    (done,) = lab.attach(everything=True)

    assert done.hosts == {"xs1": "plugged", "xs2": "plugged", "xs3": "plugged"}
    assert sum((command, scsi_id) == ("sr_probe", "") for command, _, scsi_id in world.log) == 1 + 2


@pytest.mark.parametrize("iqns, lists", [((IQN, "iqn.2026-01.test:b"), 1), (("iqn.2026-01.test:b",), 0)])
def test_an_sr_with_the_wildcard_for_iqn_has_the_sessions_that_the_storage_manager_has_noted(lab, world, iqns, lists):
    """On the target of another array it has none: somebody's own session to this IQN would end with the list."""
    lab.clone("Production")
    db, xs3 = lab.pool.db, lab.pool.hosts[2]
    first, *others = db.refs("PBD", host=xs3)
    for pbd in others:
        lab.pool.storage.pbd_unplug("", pbd)
    noted = "".join(f"10.0.0.{number},3260,{iqn}|" for number, iqn in enumerate(iqns))
    db.set("PBD", first, "device_config", {
        **db.get("PBD", first, "device_config"), "targetIQN": "*", "multiSession": noted,
    })  # fmt: skip
    asked = stock_lists(lab)
    lab.attach(everything=True)
    assert asked.count("xs3") == lists


def test_the_list_leaves_no_secret_with_a_password(world):
    with world.pool(hosts=("xs1", "xs2")) as pool:
        lab = Lab(world, pool)
        lab.original("Production", chap=("user", "chap password"))
        lab.clone("Production")
        before = len(pool.db.refs("secret"))
        (done,) = lab.attach(everything=True)

        assert done.status == DONE
        assert len(pool.db.refs("secret")) - before == 2, "one for the new PBD of each host"


@pytest.mark.parametrize("has_plugin", [False, True])
def test_a_session_of_which_the_pool_knows_nothing_is_told_and_the_same_again_finishes_it(lab, world, has_plugin):
    """An administrator has logged in by hand: the storage manager logs out when its plug fails. The plugin knows it."""
    clone, xs3 = lab.clone("Production"), lab.pool.hosts[2]
    for pbd in lab.pool.db.refs("PBD", host=xs3):
        lab.pool.storage.pbd_unplug("", pbd)
    world.sessions[xs3, IQN] = Session()
    if has_plugin:
        Plugin(lab, world)
    (done,) = lab.attach(clone)

    assert done.hosts["xs2"] == "plugged" and done.status == (DONE if has_plugin else PARTIAL)
    if has_plugin:
        return
    assert f"the host does not see the LUN {clone} behind {IQN}" in done.hosts["xs3"]
    assert "iscsiadm -m session --rescan" in done.hosts["xs3"]
    (again,) = lab.attach(clone)
    assert again.status == DONE and again.hosts["xs3"] == "plugged"


def test_what_failed_before_for_want_of_a_scan_is_finished_by_the_same_again(lab, world, monkeypatch):
    """An SR that is introduced, and plugged on no host, is none that stays so."""
    clone = lab.clone("Production")
    monkeypatch.setattr(hosts.Sessions, "scan", lambda *_: None)
    monkeypatch.setattr(world, "_add_lun", lambda *_: "")  # by the driver, after its success
    (failed,) = lab.attach(clone)
    assert failed.status == FAILED and "Then repeat the command." in str(failed.error)
    monkeypatch.undo()

    (done,) = lab.attach(clone)
    assert done.status == DONE and set(done.hosts.values()) == {"plugged"}


def test_the_master_whose_driver_has_added_the_lun_needs_neither_list_nor_plugin(lab, world, monkeypatch):
    clone = lab.clone("Production")
    monkeypatch.setattr(hosts.Sessions, "scan", lambda *_: None)
    (done,) = lab.attach(clone)

    assert done.status == PARTIAL and done.hosts["xs1"] == "plugged"
    assert "the host does not see the LUN" in done.hosts["xs2"]


def test_with_multipathing_a_plug_scans_by_itself(lab, world, monkeypatch):
    """The storage manager's multipath code does, before it looks for the map."""
    monkeypatch.setattr(hosts.Sessions, "scan", lambda *_: None)
    clone = lab.clone("Production")
    for host in lab.pool.hosts:
        lab.pool.db.set("host", host, "multipathing", True)
    (done,) = lab.attach(clone)

    assert done.status == DONE


def test_a_host_that_gives_no_list_keeps_no_other_from_it(lab, world):
    clone = lab.clone("Production")
    probe = lab.pool.storage.sr_probe

    def failing(session, host, config, type_, sm_config=None):
        if type_ == "lvmoiscsi" and host == lab.pool.hosts[1]:
            raise XenError("HOST_OFFLINE", host)
        return probe(session, host, config, type_, sm_config)

    lab.pool.api._methods["SR.probe"] = failing
    (done,) = lab.attach(clone)

    assert done.status == PARTIAL and "does not see the LUN" in done.hosts["xs2"]
    assert done.hosts["xs1"] == done.hosts["xs3"] == "plugged"


def test_a_lun_that_another_client_has_attached_meanwhile_is_left_and_the_same_again_finds_it(lab, world):
    clone = lab.clone("Production")
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        chosen = attach.choose(luns.find(calls, pool, pool.portals(), 1), [clone], [])
        lab.attach(clone)
        before = lab.summary()
        with pytest.raises(Refused, match="Another client has just attached or discarded the LUN"):
            attach.attach(calls, pool, chosen, attach.AttachRequest(run="the slower one"))

    assert lab.summary() == before
    assert [each.status for each in lab.attach(clone)] == [ALREADY]


def test_records_are_read_once_however_many_luns_there_are(lab):
    def reads(count):
        for _ in range(count):
            lab.clone("Production")
        before = len(lab.pool.api.calls)
        lab.attach(everything=True)
        calls = lab.pool.api.calls[before:]
        reads = [call for call in calls if call.endswith(".get_all_records")]
        return {call: calls.count(call) for call in reads if call != "pool.get_all_records"}  # the lock is there

    assert reads(1) == reads(4)


def test_a_resignatured_original_is_no_longer_in_the_pool(lab):
    """A LUN whose original the pool has forgotten is attached all the same, under the name that it bears itself."""
    stranger = lab.world.add(TARGET, IQN, sr_disk("elsewhere"))
    old = set(engine.inspect(lab.world.lun(stranger).disk).lun.disks())
    with pytest.raises(Refused, match="which this pool does not know. Another pool may use the LUN"):
        lab.attach(stranger)
    (done,) = lab.attach(stranger, are_clones=True)

    assert done.status == DONE and done.name == "test SR 2026-11-22"
    assert {pair.old for pair in done.vdis} == old and all(
        pair.new == derived_uuid(done.sr_uuid, pair.old) for pair in done.vdis
    )
    marks = {
        vdi["other_config"]["relvmoiscsi:old"]
        for vdi in lab.pool.db.records("VDI", SR=lab.sr(done.sr_uuid)[0]).values()
    }
    assert marks == old, "so that the map knows it when LVM has taken the place of the journal"


# --- cut


def test_an_answer_to_a_call_of_each_kind_may_be_lost(lab):
    """The pool has done it, and the connection ends: xmlrpc.client makes the call once more."""
    real, seen, lost = lab.pool.api.call, [], None

    def lose(method, *words):
        answer = real(method, *words)
        seen.append(method)
        if len(seen) == lost:
            raise GoneAway()
        return answer

    def attached():
        seen.clear()
        clone = lab.clone("Production")
        (done,) = lab.attach(clone)
        assert (done.status, done.error, len(done.vdis)) == (DONE, None, 4), lost
        lab.drop(clone)
        return list(seen)

    lab.pool.api.call = lose
    kinds = ["a call that reads" if only_reads(method) else method for method in attached()]
    for lost in of_each_kind(kinds, 40, "lost"):
        assert len(attached()) >= lost


def settled(lab):
    """The tasks of whoever was killed go on to their end."""
    until(lambda: all(task["status"] != "pending" for task in lab.pool.db.records("task").values()))


# --- which


def chosen(lab, *scsi_ids, of=(), everything=False):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        return luns.find(calls, pool, pool.portals(), 1), pool


def test_an_original_is_refused(lab):
    found, _ = chosen(lab)

    with pytest.raises(Refused, match="in use by the SR 'Production' .*which is an original or was attached by hand"):
        attach.choose(found, [lab.originals["Production"][0]], [])


def test_a_copy_that_was_attached_by_hand_is_not_called_the_original(lab, world):
    clone, storage = lab.clone("Production"), lab.pool.storage
    disk = world.lun(clone).disk
    engine.resignature(disk, engine.prepare(disk, os.urandom, engine.ResignatureRequest(scsi_id=clone)))
    sr = storage.sr_introduce("", world.sr_uuid(clone), "by hand", "", "lvmoiscsi", "user", True)
    config = {"target": TARGET, "targetIQN": IQN, "SCSIid": clone}
    world.ask_for_list(lab.pool.master, IQN)
    storage.pbd_plug("", storage.pbd_create("", {"host": lab.pool.master, "SR": sr, "device_config": config}))
    found, _ = chosen(lab)

    with pytest.raises(Refused, match="'by hand' .* an original or was attached by hand"):
        attach.choose(found, [clone], [])


def test_what_is_not_there_and_what_is_nothing_are_refused(lab):
    found, _ = chosen(lab)

    with pytest.raises(NotFound, match="sees no LUN with the SCSIid 36001"):
        attach.choose(found, ["36001"], [])
    with pytest.raises(NotFound, match="no LUN that can be attached"):
        attach.choose(found, [], [], everything=True)
    with pytest.raises(UsageError, match="is selected"):
        attach.choose(found, [], [])


def test_clones_that_hosts_would_see_must_be_named(lab):
    first, second = lab.clone("Production"), lab.clone("Testing")
    found, _ = chosen(lab)
    meant = attach.choose(found, [first], [])

    with pytest.raises(Refused, match=second):
        attach.verify_none_left(found, meant)
    attach.verify_none_left(found, attach.choose(found, [first, second], []))


def test_what_others_write_to_the_srs_other_config_meanwhile_stays(lab, world):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    lab.pool.db.remove_from("SR", lab.sr(done.sr_uuid)[0], "other_config", "gc")

    def before(method, params):
        if method == "SR.add_to_other_config":
            lab.pool.db.add_to("SR", params[1], "other_config", "owner", "alice")

    lab.pool.api.before = before
    lab.attach(clone)
    assert lab.sr(done.sr_uuid)[1]["other_config"]["gc"] == "false"

    assert lab.sr(done.sr_uuid)[1]["other_config"]["owner"] == "alice"


def test_a_host_that_comes_later_has_the_device_config_of_the_others(lab, world):
    clone = lab.clone("Production")
    (done,) = lab.attach(clone)
    sr, last = lab.sr(done.sr_uuid)[0], lab.pool.hosts[2]
    lab.pool.db.destroy("PBD", lab.pool.db.refs("PBD", SR=sr, host=last)[0])
    world.luns[:] = [lun._replace(target="10.0.0.99") for lun in world.luns]
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = luns.find(calls, pool, [records.Portal("10.0.0.99")], 1)
        attach.attach(calls, pool, attach.choose(found, [clone], []), attach.AttachRequest())

    assert {pbd["device_config"]["target"] for pbd in lab.pool.db.records("PBD", SR=sr).values()} == {TARGET}


@pytest.mark.parametrize("template", ["{nonsense}", "{", "{0}", "{sr", "{sr:d}", "{sr:>9}", "{sr!r}", "{sr.x}"])
def test_a_template_that_cannot_be_a_name(lab, template):
    lab.clone("Production")
    found, pool = chosen(lab)

    with pytest.raises(UsageError, match="--name"):
        attach_plan.names(pool, attach.choose(found, [], [], True), attach.AttachRequest(template))


def test_several_jobs_give_their_results_in_order(lab):
    with connect(lab.where()) as calls:

        def job(one, number):
            if number == 3:
                raise NotFound("three")
            assert one.call("pool.get_all")
            return number * 10

        found = jobs.at_once(calls, range(8), job, 4)

    assert [each if isinstance(each, int) else str(each) for each in found] == [0, 10, 20, "three", 40, 50, 60, 70]


# --- the database of this pool on a clone


def with_database(lab, name):
    """An original with a VDI that is to hold this pool's database; gives a clone of it."""
    database = raw("database", vdi_type="metadata", extents=1)
    record = database.record._replace(metadata_of_pool=lab.pool.pool)
    disk = build_sr([vhd("disk", blocks=0, bat_entries=SMALL_BAT), database._replace(record=record)], seed=name).disk
    scsi_id = lab.world.add(TARGET, IQN, disk)
    lab.originals[name] = (scsi_id, lab.world.attach_original(lab.pool, scsi_id, name))
    return lab.clone(name)


def test_the_pool_does_not_begin_to_write_its_database_into_a_clone(lab, world):
    clone = with_database(lab, "Disaster")
    assert [uuid for uuid, _ in world.redo_logs] == [world.sr_uuid(lab.originals["Disaster"][0])]
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        (found,) = [lun for lun in luns.find(calls, pool, pool.portals(), 1) if lun.scsi_id == clone]
        assert found.metadata_of == (pool.ref,)
    (done,) = lab.attach(clone)

    assert done.status == DONE
    assert len(world.redo_logs) == 1, "of the original alone"


def test_one_that_was_resignatured_with_it_is_refused(lab, world):
    clone = with_database(lab, "Disaster")
    lun = world.lun(clone)
    engine.resignature(lun.disk, engine.prepare(lun.disk, os.urandom, engine.ResignatureRequest(scsi_id=clone)))
    (done,) = lab.attach(clone)

    assert done.status == FAILED and "would write its database to this VDI" in str(done.error)
    assert len(world.redo_logs) == 1 and lab.pool.db.refs("SR", uuid=world.sr_uuid(clone)) == []


@pytest.mark.parametrize("role, may", [("vm-admin", False), ("pool-operator", True)])
def test_a_role_that_may_not_is_told_what_it_lacks(lab, world, role, may):
    lab.pool.api.users["bob"] = ("a word", role)
    clone, bob = lab.clone("Production"), lab.where()._replace(user="bob", password="a word")
    if may:
        assert [done.status for done in lab.attach(clone, where=bob)] == [DONE]
        return
    with pytest.raises(PoolFailure, match="may not call SR.probe. Use the role pool-operator"):
        lab.attach(clone, where=bob)
    assert world.state(clone) == "clean"


def resignature(lab, **more):
    with connect(lab.where()) as calls:
        pool = records.read(calls)
        found = luns.find(calls, pool, pool.portals())
        chosen = attach.choose(found, **{"scsi_ids": [], "of": [], **more})
        return attach.attach(calls, pool, chosen, attach.AttachRequest(run="a run", attaches=False))


def test_clones_are_resignatured_and_no_more(lab, world):
    """And a clone that cannot be stops no other."""
    clones = [lab.clone("Production"), lab.clone("Testing")]
    srs = lab.pool.db.refs("SR")
    world.fail["sr_create", clones[0]] = Refused("It is in use.")
    bad, good = resignature(lab, everything=True)
    assert (bad.status, good.status) == (FAILED, attach.NEW_IDS) and "It is in use." in str(bad.error)
    world.fail.clear()
    first, second = resignature(lab, everything=True), resignature(lab, everything=True)

    assert [done.status for done in first] == [attach.NEW_IDS, attach.HAD_IDS]
    assert [done.status for done in second] == [attach.HAD_IDS] * 2
    assert [done.sr_uuid for done in first] == [world.sr_uuid(clone) for clone in clones]
    assert lab.pool.db.refs("SR") == srs
    assert [done.status for done in lab.attach(everything=True)] == [DONE] * 2
    assert not lab.pool.db.record("pool", lab.pool.pool)["other_config"]
