# SPDX-License-Identifier: LGPL-2.1-only
"""What the host plugin answers: the LUNs of a host, a map, what is at work, a resignature; pages that fit."""

import json
import math
import os
import shutil
import signal
import tempfile
import time
import uuid
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kit import golden, shell
from kit.builder import SMALL_BAT, build_sr, many_vdis, vhd
from kit.cuts import SCSI_ID, done
from kit.forged_record import forge_run
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.options import Chap
from kit.iscsi_world import IQN, put, put_session
from kit.outcome import run_on
from kit.pool.client import connected_locally
from kit.pool.simulator import Pool, sm_directory
from kit.sparse import SparseDisk
from relvmoiscsi import engine, plugin
from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.errors import DeviceError, NotFound, Refused, UsageError
from relvmoiscsi.formats.identity import IdMap
from relvmoiscsi.host.disk.block_device import ImageFile
from relvmoiscsi.host.hba import adapters
from relvmoiscsi.host.locks.lun_lock import lun_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import disk_source
from relvmoiscsi.sr_driver.iscsi import target_access

TIME = Deadline(math.inf)  #: made long before the test that takes it
FIRST = "360014050000000000000000000000000"
OTHER, SILENT = "360014050000000000000000000000002", "360014050000000000000000000000003"
BUGGY = "360014050000000000000000000000004"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with the disks that a test puts into it: {kernel name: SCSIid}."""
    names = {}
    monkeypatch.setattr(plugin, "scsi_id_of_disk", lambda name, host: names.get(name))

    def with_disks(**disks):
        for name, scsi_id in disks.items():
            name = name.replace("_", "-")  # noqa: PLW2901
            names[name] = scsi_id
            (tmp_path / "sys/block" / name).mkdir(parents=True)
        return Host(str(tmp_path))

    return with_disks


def answered(function, arguments, *more):
    """The JSON that the plugin answers with."""
    found = json.loads(function(arguments, TIME, *more))
    assert found.pop("command").startswith("plugin ") and found.pop("json_version") == 1
    return found


def pages(function, arguments, key, *more):
    """The rows of all pages, and how many pages there are."""
    rows, start, count = [], "", 0
    while start is not None:
        text = function({**arguments, "from": start}, TIME, *more)
        assert len(text) < 65536
        page = json.loads(text)
        rows, start, count = rows + page[key], page["next"], count + 1
    return rows, count


ONE, CHAIN = golden.load("one").disk, golden.load("chain").disk
DONE = done(CHAIN)


def sr_of(disk):
    return engine.inspect(disk).lun.sr_uuid


def seen(**devices):
    """Looks at these disks, by kernel name, in place of devices."""

    def look(path, told, _deadline):
        disk = devices[os.path.basename(path).replace("-", "_")]
        if disk is None:
            raise DeviceError(path, "read", 0, 512, "it does not answer")
        return json.loads(json.dumps(told(engine.inspect(disk))))

    return look


def test_every_lun_of_the_host_by_what_is_on_it(host):
    this = host(sda=None, sdb=SCSI_ID, sdc=OTHER, sdd=OTHER, dm_0=OTHER, sde=SILENT, loop0="x")
    found = answered(plugin.classify, {}, this, seen(sdb=ONE, dm_0=DONE, sde=None))

    rows = {row["scsi_id"]: row for row in found["host_luns"]}
    assert list(rows) == sorted(rows) and found["next"] is None
    assert (rows[SCSI_ID]["state"], rows[SCSI_ID]["sr"]) == ("clean", sr_of(ONE))
    assert rows[OTHER]["device"].endswith("dm-0")
    assert (rows[OTHER]["state"], rows[OTHER]["old_sr"]) == ("resignatured", sr_of(CHAIN))
    assert rows[OTHER]["new_sr"] == rows[OTHER]["sr"]
    assert rows[SILENT]["state"] is None and "does not answer" in rows[SILENT]["problem"]


@pytest.mark.processes
def test_a_lun_whose_content_finds_a_bug_hides_no_other(host, tmp_path, monkeypatch):
    """Each is read as a device of the host is, in a process of its own."""
    path = tmp_path / "lun"
    ONE.to_file(str(path))
    monkeypatch.setattr(disk_source, "open_device", lambda path, writable, **_: ImageFile(path, writable))

    def see(disk, told, deadline):
        return plugin.look(str(path), told if disk.endswith("sdb") else lambda _seen: {}["flowers"], deadline)

    buggy, whole = answered(plugin.classify, {}, host(sdb=SCSI_ID, sdc=OTHER), see)["host_luns"]

    assert (buggy["scsi_id"], buggy["state"]) == (OTHER, None) and whole["state"] == "clean"
    assert f"{path} was not read, because of a bug in relvmoiscsi " in buggy["problem"]


def test_those_behind_adapters_alone(host, monkeypatch):
    """What came with an iSCSI session is none of them."""
    this = host(sdb=SCSI_ID, sdc=OTHER)
    behind = adapters.Disk("sdc", "1:0:0:1", "qla2xxx", OTHER, "", "", 1 << 20)
    monkeypatch.setattr(adapters, "disks", lambda found, host: [behind])
    see = seen(sdb=ONE, sdc=ONE)
    assert [row["scsi_id"] for row in answered(plugin.classify, {"hba": "true"}, this, see)["host_luns"]] == [OTHER]
    assert len(answered(plugin.classify, {}, this, see)["host_luns"]) == 2


def test_a_direct_lun_is_neither_listed_nor_read_for_a_guest_writes_what_it_holds(host):
    """With the SR of an original on it, it would be a clone of the pool, and `pool attach` would ask about it."""
    this = host(sdb=SCSI_ID, sdc=OTHER)
    put(this.root, "etc/relvmoiscsi.conf", f"[direct]\ndisk = {OTHER}\n")
    assert [row["scsi_id"] for row in answered(plugin.classify, {}, this, seen(sdb=ONE))["host_luns"]] == [SCSI_ID]


def test_what_does_not_fit_and_what_takes_too_long_is_on_the_next_page(host, monkeypatch):
    """A LUN that does not answer takes its seconds, and whoever has called gives up a call that takes minutes."""
    ids = {f"sd{number}": f"3600140500000000000000{number:011d}" for number in range(300)}
    this, see = host(**ids), seen(**dict.fromkeys(ids, SparseDisk(1 << 20)))
    rows, count = pages(plugin.classify, {}, "host_luns", this, see)
    assert [row["scsi_id"] for row in rows] == sorted(ids.values()) and 1 < count < 300

    monkeypatch.setattr(plugin, "PAGE_SECONDS", -1.0)
    rows, count = pages(plugin.classify, {}, "host_luns", this, see)
    assert [row["scsi_id"] for row in rows] == sorted(ids.values()) and count == 300


# --- behind the iSCSI targets of the host's SRs


CHAP = Chap("cinder", "sesamesesame")


@pytest.fixture
def member(host, tmp_path):
    """A host of a simulated pool, whose SR is on the original at LUN 0 of a target with CHAP; its session at xapi."""
    this = Host(tempfile.mkdtemp(prefix="host", dir="/tmp"))  # short: a unix socket is to be in it
    for name in ("var/lib/xcp", "etc", "sys/block"):
        os.makedirs(this.at(name))
    with Pool(sm_directory(tmp_path / "sm"), this.xapi_socket) as pool:
        with open(this.at("etc/xensource-inventory"), "w", encoding="ascii") as file:
            file.write(f"INSTALLATION_UUID='{pool.db.get('host', pool.master, 'uuid')}'\n")
        with connected_locally(pool) as session:
            yield this, pool, session.handle
    shutil.rmtree(this.root)


def plug(pool, target, **config):
    """An SR of the host on the first LUN of a target."""
    secret = pool.db.create("secret", value=CHAP.secret)
    where = {"target": "127.0.0.1", "port": str(target.port), "targetIQN": target.iqn, "SCSIid": target.luns[0].scsi_id}
    chap = {"chapuser": CHAP.user, "chappassword_secret": pool.db.get("secret", secret, "uuid")}
    sr = pool.db.create("SR", type="lvmoiscsi", name_label="original")
    pool.db.create("PBD", host=pool.master, SR=sr, device_config={**where, **chap, **config})


def most_at_once(target):
    """Sessions."""
    now = most = 0
    for event in target.events:
        now += {"session": 1, "logout": -1}.get(event.name, 0)
        most = max(most, now)
    return most


def target_of(*disks):
    luns = [Lun(number, disk=disk) for number, disk in enumerate(disks or [ONE])]
    return HostileTarget(luns, chap=CHAP, ignore=("isid kept",))


@pytest.mark.processes
def test_a_clone_behind_a_target_of_an_sr_is_found_that_no_host_sees(member, caplog):
    caplog.set_level(0)
    this, pool, session_ref = member
    with target_of(ONE, DONE, *[SparseDisk(1 << 20)] * 6) as target:
        plug(pool, target)
        found = answered(plugin.classify, {"session_ref": session_ref}, this, seen())
        most = most_at_once(target)
        assert not target.written()

    ids, rows = [lun.scsi_id for lun in target.luns], {row["scsi_id"]: row for row in found["host_luns"]}
    assert list(rows) == sorted(ids) and (found["problems"], found["next"]) == ([], None)
    first, second = rows[ids[0]], rows[ids[1]]
    assert (first["state"], first["sr"]) == ("clean", sr_of(ONE))
    assert (second["state"], second["device"]) == ("resignatured", f"iscsi://{target.portal}/{target.iqn}/1")
    assert {name for row in found["host_luns"] for name in row} == {
        "scsi_id", "device", "state", "size_bytes", "sr", "old_sr", "new_sr", "copied", "metadata_of", "changed_at",
        "sr_name_label", "problem",
    }  # fmt: skip
    assert 1 < most <= 4 and CHAP.secret not in caplog.text + json.dumps(found)


@pytest.mark.processes
def test_a_target_is_asked_as_sm_asks_it(member, monkeypatch):
    """With the initiator name of the PBD, and through the interfaces that are set aside for iSCSI and are there."""
    this, pool, session_ref = member
    put(this.root, "etc/iscsi/ifaces/c_a", "iface.ipaddress = 192.0.2.1\n")
    put(this.root, "etc/iscsi/ifaces/c_b", "iface.ipaddress = 127.0.0.1\n")
    monkeypatch.setattr(target_access, "THIS_HOST", this)
    names = []
    with target_of(SparseDisk(1 << 20)) as target:
        real = target.session_of
        monkeypatch.setattr(target, "session_of", lambda one, *more: names.append(one.initiator) or real(one, *more))
        plug(pool, target, localIQN="iqn.2026-01.test:own")
        found = answered(plugin.classify, {"session_ref": session_ref}, this, seen())

    assert [row["state"] for row in found["host_luns"]] == ["empty"] and found["problems"] == []
    assert set(names) == {"iqn.2026-01.test:own"}


@pytest.mark.processes
def test_what_is_on_a_lun_is_read_from_the_target_and_not_from_the_kernel(member, host):
    """The array may have written another clone to it since the kernel has read it."""
    this, pool, session_ref = member
    os.makedirs(this.at("sys/block/sdb"))
    with target_of() as target:
        host(sdb=target.luns[0].scsi_id)
        plug(pool, target)
        see = seen(sdb=SparseDisk(1 << 20))
        (row,) = answered(plugin.classify, {"session_ref": session_ref}, this, see)["host_luns"]
    assert (row["state"], row["device"]) == ("clean", this.node("sdb"))


def test_a_target_that_cannot_be_reached_is_named_and_the_kernel_asked(member, host):
    this, pool, session_ref = member
    host(sdb=SCSI_ID)
    os.makedirs(this.at("sys/block/sdb"))
    with target_of() as target:
        plug(pool, target, chappassword_secret=str(uuid.uuid4()))
        plug(pool, target, chapuser="nobody", targetIQN=target.iqn + "2")
        found = answered(plugin.classify, {"session_ref": session_ref}, this, seen(sdb=ONE))
    assert [(row["scsi_id"], row["state"]) for row in found["host_luns"]] == [(SCSI_ID, "clean")]
    assert len(found["problems"]) == 2 and all(f"behind '{target.iqn}" in problem for problem in found["problems"])
    assert [problem for problem in found["problems"] if "Check the IQN" in problem], "what to do is said as well"


def test_the_problems_of_many_targets_fit_on_a_page(host, monkeypatch):
    problems = [f"The LUNs behind {number} are not known: {'x' * 3000}" for number in range(500)]
    monkeypatch.setattr("relvmoiscsi.plugin_targets.luns_of_srs", lambda *_: ({}, problems))
    text = plugin.classify({"session_ref": "OpaqueRef:x"}, TIME, host(sdb=SCSI_ID), seen(sdb=ONE))
    assert len(text) < 65536 and json.loads(text)["problems"][-1] == "480 more targets have problems."


def test_xapi_that_does_not_answer_is_told_and_the_kernel_asked(host):
    found = answered(plugin.classify, {"session_ref": "OpaqueRef:x"}, host(sdb=SCSI_ID), seen(sdb=ONE))
    assert [row["state"] for row in found["host_luns"]] == ["clean"]
    assert found["problems"][0].startswith("Which targets this host uses is not known: ")


def test_a_list_for_which_nothing_could_be_looked_at_is_a_failure(host):
    with pytest.raises(NotFound, match="^No LUN could be looked at. Which targets this host uses is not known: "):
        plugin.classify({"session_ref": "OpaqueRef:x"}, TIME, host())
    assert answered(plugin.classify, {}, host())["host_luns"] == []


class Behind:
    """A LUN behind a target, which a stranger has written: opening it does what a read of that content does."""

    access = SimpleNamespace(portals=["192.0.2.1:3260"], config=SimpleNamespace(target_iqn=IQN))
    info = SimpleNamespace(number=0)

    def __init__(self, does):
        self.does = does

    @contextmanager
    def opened(self, _deadline):
        yield SimpleNamespace(device=self.does())


def no_memory():
    raise MemoryError


def process():
    raise Refused(f"Process {os.getpid()}.")


@pytest.mark.processes
def test_each_lun_behind_a_target_is_read_in_a_process_of_its_own_and_fails_alone(host, monkeypatch):
    luns = {FIRST: Behind(no_memory), SCSI_ID: Behind(lambda: ONE), OTHER: Behind(process), SILENT: Behind(process)}
    luns[BUGGY] = Behind(lambda: {}["flowers"])
    monkeypatch.setattr("relvmoiscsi.plugin_targets.luns_of_srs", lambda *_: (luns, []))

    rows = answered(plugin.classify, {"session_ref": "OpaqueRef:x"}, host(), seen())["host_luns"]

    by_id = {row["scsi_id"]: row for row in rows}
    assert by_id[SCSI_ID]["state"] == "clean"
    assert "needs more memory" in by_id[FIRST]["problem"]
    assert f"The LUN {BUGGY} was not read, because of a bug in relvmoiscsi " in by_id[BUGGY]["problem"]
    assert "KeyError('flowers'" in by_id[BUGGY]["problem"] and by_id[BUGGY]["state"] is None
    processes = {by_id[scsi_id]["problem"] for scsi_id in (OTHER, SILENT)}
    assert len(processes) == 2 and f"Process {os.getpid()}." not in processes


@pytest.mark.processes
def test_a_look_behind_a_target_is_given_up_after_its_seconds_whatever_it_computes(host, monkeypatch):
    monkeypatch.setattr(plugin, "LUN_SECONDS", 0.1)
    luns = {FIRST: Behind(lambda: time.sleep(5) or ONE)}
    monkeypatch.setattr("relvmoiscsi.plugin_targets.luns_of_srs", lambda *_: (luns, []))

    (row,) = answered(plugin.classify, {"session_ref": "OpaqueRef:x"}, host(), seen())["host_luns"]

    assert (
        row["state"] is None and "The 0.1 seconds of this call were over before the LUN had been read" in row["problem"]
    )


# --- the map, and what is at work


@pytest.fixture
def copy_on(member, host):
    """Makes the SR of DONE in the pool, on this SCSIid, and gives {kernel name: SCSIid} to its host."""
    this, pool, session_ref = member

    def made(scsi_id, disk=DONE, **disks):
        for name in disks:
            os.makedirs(this.at("sys/block/" + name))
        host(**disks)
        sr = pool.db.create("SR", type="lvmoiscsi", name_label="a copy", uuid=sr_of(disk))
        pool.db.create("PBD", host=pool.master, SR=sr, device_config={"SCSIid": scsi_id})
        return {"session_ref": session_ref, "sr": sr_of(disk)}, this

    return made


def test_the_map_of_a_resignatured_lun(copy_on):
    asked, this = copy_on(SCSI_ID, sdb=SCSI_ID, sdc=SILENT)
    see = seen(sdb=DONE, sdc=None)
    found = answered(plugin.map_of, {**asked, "sr": sr_of(DONE).upper()}, this, see)

    ids = engine.inspect(DONE).run.ids
    assert (found["old_sr"], found["new_sr"]) == (ids.sr, sr_of(DONE))
    old = engine.inspect(CHAIN).lun.disks()
    assert {vdi["old_vdi"]: vdi["new_vdi"] for vdi in found["vdi_pairs"]} == {uuid: ids.uuids[uuid] for uuid in old}
    with pytest.raises(NotFound, match="together with a journal of its old ids"):
        plugin.map_of({**asked, "sr": ids.sr}, TIME, this, see)
    with pytest.raises(UsageError, match="UUID of an SR"):
        plugin.map_of({}, TIME, this, see)
    with pytest.raises(DeviceError, match="does not answer"):
        plugin.map_of(asked, TIME, this, seen(sdb=None))


def test_another_lun_that_says_it_holds_the_sr_is_not_asked(copy_on):
    """Its SCSIid sorts before that of the copy, and its run is whole."""
    forged, chosen = CHAIN.copy(), IdMap("", {min(engine.inspect(CHAIN).lun.disks()): str(uuid.uuid4())}, {})
    run_on(forged, os.urandom, engine.ResignatureRequest(sr_uuid=sr_of(DONE), scsi_id=FIRST, chosen=chosen))
    asked, this = copy_on(SCSI_ID, sda=FIRST, sdb=SCSI_ID)

    found = answered(plugin.map_of, asked, this, seen(sda=forged, sdb=DONE))
    ids = engine.inspect(DONE).run.ids
    assert {vdi["old_vdi"]: vdi["new_vdi"] for vdi in found["vdi_pairs"]}.items() <= ids.uuids.items()
    with pytest.raises(NotFound, match="a PBD of this SR names was asked"):
        plugin.map_of(asked, TIME, this, seen(sda=forged, sdb=ONE))


@pytest.mark.parametrize("of", ["another SR", "a derived id"])
def test_a_journal_that_contradicts_the_lun_or_the_derived_ids_is_no_map(copy_on, of):
    new_sr, derived = sr_of(DONE), min(engine.inspect(DONE).lun.disks())
    forged = forge_run(DONE.copy(), SCSI_ID, engine.DONE, shell.SR if of == "another SR" else new_sr)
    if of == "a derived id":
        forged = forge_run(DONE.copy(), SCSI_ID, engine.DONE, new_sr, **{str(uuid.uuid4()): derived})
    asked, this = copy_on(SCSI_ID, sdb=SCSI_ID)
    with pytest.raises(NotFound, match="together with a journal of its old ids"):
        plugin.map_of(asked, TIME, this, seen(sdb=forged))


def test_an_old_vdi_that_the_pool_has_on_another_sr_is_in_no_pair(copy_on, member):
    """As in `pool map`: a tenant's journal would name the copy of another tenant's disk."""
    asked, this = copy_on(SCSI_ID, sdb=SCSI_ID)
    _, pool, _ = member
    own, strange, *rest = sorted(engine.inspect(CHAIN).lun.disks())
    for old, old_sr in ((own, engine.inspect(DONE).run.ids.sr), (strange, str(uuid.uuid4()))):
        sr = pool.db.create("SR", type="lvmoiscsi", name_label="an SR", uuid=old_sr)
        pool.db.create("VDI", SR=sr, uuid=old, name_label="payroll")

    pairs = answered(plugin.map_of, asked, this, seen(sdb=DONE))["vdi_pairs"]

    assert sorted(pair["old_vdi"] for pair in pairs) == [own, *rest]


def test_ids_that_a_person_has_chosen_are_in_the_map(copy_on):
    old, chosen = min(engine.inspect(CHAIN).lun.disks()), str(uuid.UUID(int=7, version=4))
    disk = CHAIN.copy()
    ids = IdMap("", {old: chosen}, {})
    run_on(disk, os.urandom, engine.ResignatureRequest(sr_uuid=shell.SR, scsi_id=SCSI_ID, chosen=ids))
    asked, this = copy_on(SCSI_ID, disk, sdb=SCSI_ID)
    pairs = answered(plugin.map_of, asked, this, seen(sdb=disk))["vdi_pairs"]
    assert {vdi["old_vdi"]: vdi["new_vdi"] for vdi in pairs}[old] == chosen


def test_the_journal_of_the_lun_that_the_array_has_copied_is_not_that_of_the_copy(copy_on):
    asked, this = copy_on(OTHER, sdb=OTHER)
    with pytest.raises(NotFound):
        plugin.map_of(asked, TIME, this, seen(sdb=DONE))


def test_a_large_map_has_pages(copy_on, monkeypatch):
    after = done(many_vdis(40).disk)
    monkeypatch.setattr(plugin, "MOST_BYTES", 2000)
    asked, this = copy_on(SCSI_ID, after, sdb=SCSI_ID)
    rows, count = pages(plugin.map_of, asked, "vdi_pairs", this, seen(sdb=after))
    assert len({row["new_vdi"] for row in rows}) == len(rows) == 40 and count > 1


@pytest.mark.processes
def test_a_call_whose_time_is_over_waits_for_no_lun(monkeypatch):
    monkeypatch.setattr(disk_source, "DiskSource", lambda *_: signal.pause())
    with pytest.raises(OutOfTime, match="were over before the LUN had been read"):
        plugin.look("/dev/of-a-lun", lambda _found: {}, Deadline(0))


def test_what_is_at_work_is_told_by_its_lock_and_its_mark(host):
    this, see = host(sdb=SCSI_ID), seen(sdb=ONE)
    assert answered(plugin.status, {}, this, see) == {"runs": []}

    os.makedirs(this.at("proc"), exist_ok=True)
    os.symlink("/proc/locks", this.at("proc/locks"))
    with lun_lock(SCSI_ID, this):
        (run,) = answered(plugin.status, {}, this, see)["runs"]
    assert (run["scsi_id"], run["phase"], run["percent"]) == (SCSI_ID, "reading and planning", 0)
    assert run["by"] == ["this very process"]


# --- resignature


@pytest.fixture
def image(tmp_path, monkeypatch):
    """A LUN that the host has under SCSI_ID, as an image file."""
    path = tmp_path / "lun.img"
    build_sr([vhd("disk", bat_entries=SMALL_BAT)]).disk.to_file(str(path))
    monkeypatch.setattr(plugin, "luns", lambda host: {SCSI_ID: str(path)})
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    return path


@pytest.fixture
def xapi_less(tmp_path):
    """A host without xapi and without SM."""
    return Host(str(tmp_path / "no host"))


def test_success_is_success_and_the_same_call_again_is_as_well(image, xapi_less):
    before = image.read_bytes()
    assert answered(plugin.resignature, {"scsi_id": SCSI_ID, "dry_run": "true"}, xapi_less)["state"] == "clean"
    assert image.read_bytes() == before
    for arguments, is_again in (({"sr_uuid": shell.SR}, False), ({}, True)):
        found = answered(plugin.resignature, {"scsi_id": SCSI_ID, **arguments}, xapi_less)
        assert (found["state"], found["new_sr"], found["already_done"]) == ("resignatured", shell.SR, is_again)


def test_a_refusal_is_an_error_in_the_words_of_the_command(image, xapi_less):
    image.write_bytes(bytes(1 << 20))
    with pytest.raises(NotFound, match="Nothing was written"):
        plugin.resignature({"scsi_id": SCSI_ID}, TIME, xapi_less)
    for text in (OTHER, "naa." + OTHER[1:].upper()):
        with pytest.raises(NotFound, match=f"sees no LUN with the SCSIid {OTHER}"):
            plugin.resignature({"scsi_id": text}, TIME, xapi_less)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"scsi_id": "../x"},
        {"scsi_id": SCSI_ID, "dry_run": "perhaps"},
        {"scsi_id": SCSI_ID, "vdis": "two"},
        {"scsi_id": SCSI_ID, "sr_uuid": "x"},
    ],
)
def test_what_cannot_be_meant(image, xapi_less, arguments):
    with pytest.raises(UsageError):
        plugin.resignature(arguments, TIME, xapi_less)


def test_options_become_those_of_the_command():
    arguments = {"clear_metadata_vdi": "true", "later_copy": "true", "vdis": "one", "dry_run": "false", "ignored": "x"}

    wanted = plugin.Wanted("/dev/x", arguments)
    assert wanted.request.words == (
        "relvmoiscsi", "resignature", "/dev/x", "--json", "--yes", "--clear-metadata-vdi", "--later-copy",
        "--vdis", "one",
    )  # fmt: skip
    assert wanted.request.clear_databases and wanted.request.one == engine.OneVdiRequest()
    assert wanted.is_later_copy and not wanted.is_dry_run


def test_a_long_answer_leaves_out_what_can_be_asked_for():
    pool = {"asked": False, "pool_uuid": None, "pool_name": None, "overridden": False, "sentence": ""}
    lun = {
        "device_kind": "block device",
        "scsi_id": None,
        "vendor": None,
        "model": None,
        "serial": None,
        "size_bytes": 0,
        "sr": None,
        "sr_name_label": None,
        "vdi_count": 0,
        "storage_manager_at_work": False,
        "pool": pool,
    }
    counts = {"already_done": False, "writes": 0, "bytes_written": 0, "flushes": 0}
    facts = {"state": "resignatured", "device": "/dev/sdx", "run_scsi_id": None, **counts, "lun": lun}
    vdi = {"old_vdi": "", "new_vdi": "", "vdi_name": "y" * 400, "old_lv": "x" * 250, "new_lv": "x" * 250}
    lv = dict.fromkeys(("old_lv", "new_lv", "old_lv_id", "new_lv_id"), "x" * 250)
    facts.update(old_sr="", new_sr="", lv_pairs=[lv] * 40, vdi_pairs=[vdi] * 59, notes=[])
    text = plugin.fitted(facts)

    assert len(text) <= plugin.MOST_BYTES and json.loads(text)["left_out"] == ["lv_pairs"]
    del facts["lv_pairs"]
    assert json.loads(plugin.fitted({**facts, "vdi_pairs": [vdi] * 70}))["left_out"] == ["vdi_pairs"]


# --- one LUN for SM


def test_a_host_without_a_session_to_the_target_has_nothing_to_add(tmp_path):
    arguments = {"iqn": IQN, "scsi_id": SCSI_ID, "number": "12"}

    assert answered(plugin.add_lun, arguments, Host(str(tmp_path))) == {"problems": []}


@pytest.mark.processes
def test_what_keeps_a_session_from_showing_the_lun_is_told(tmp_path):
    put_session(str(tmp_path))
    put(str(tmp_path), "sys/class/scsi_host/host6/scan", "")
    answer = json.loads(plugin.add_lun({"iqn": IQN, "scsi_id": SCSI_ID, "number": "300"}, TIME, Host(str(tmp_path))))

    assert (tmp_path / "sys/class/scsi_host/host6/scan").read_text() == "0 0 300"
    (problem,) = answer["problems"]
    assert "the target has no LUN 300 for this host" in problem


@pytest.mark.parametrize(
    "change, problem",
    [({"iqn": ""}, "iqn and scsi_id"), ({"scsi_id": "/"}, "iqn and scsi_id"), ({"number": "-"}, "number")],
)
def test_arguments_that_name_no_lun_are_refused(tmp_path, change, problem):
    with pytest.raises(UsageError, match=problem):
        plugin.add_lun({"iqn": IQN, "scsi_id": SCSI_ID, "number": "1", **change}, TIME, Host(str(tmp_path)))
