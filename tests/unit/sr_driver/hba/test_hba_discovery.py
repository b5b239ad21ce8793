# SPDX-License-Identifier: LGPL-2.1-only
"""When a call scans, what it takes away afterwards and what it leaves; the rest is tested on real ports in VMs."""

from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kit import golden
from kit.clock import Clock
from kit.forged_record import forge_record
from kit.hba_world import SCSI_ID, WWPNS, HbaWorld
from kit.outcome import resignatured
from kit.pool.database import Database
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.direct import direct_config
from relvmoiscsi.errors import Busy, NotFound, Refused
from relvmoiscsi.host.disk import cleanup_journal, paths, scsi_id, udev
from relvmoiscsi.host.disk.paths import Face
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.lun import pool_records
from relvmoiscsi.sr_driver.hba import discovery, missing, other_luns
from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.hba.lun import named_lun
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import MissingKey

CLONE, OTHER = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa", "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"
MINE, THEIRS = ("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)
THERE = ("1:0:0:0", "3:0:0:0")  #: the addresses that the recorded host has from the start
SCAN, GOES, OTHER_GOES = "scan - - -", "take away 1:0:0:7", "take away 1:0:0:8"
HANGS = ["host3 (fcoe): It hangs."]

pytestmark = pytest.mark.processes  # a disk is read in one of its own


class World:
    """The recorded host; what a scan brings is `mapped`, and what was done is in `done`."""

    def __init__(self, root, patch):
        self.world, self.patch = HbaWorld(root), patch
        self.done, self.mapped, self.dead, self.ids, self.failures = [], [], set(), {}, []
        self.stays, self.noted, self.asked, self.settled, self.hides = {}, None, [], [], {}
        self.locked = set()  #: LUNs that other calls are at
        self.meanwhile = lambda: None  #: what happens at the moment of a scan
        self.pool = pool_records.PoolRecords({}, {}, {})  #: an error: xapi does not answer

    def has(self, address, disk, scsi_id=CLONE):
        self.world.lun(address, disk, scsi_id=scsi_id)

    def scan(self, places, _deadline):
        self.done.append("scan " + ", ".join(sorted({place.where for place in places})))
        self.hides = self.switches()
        self.meanwhile()
        for lun in self.mapped:
            self.has(*lun)
        return self.failures

    def switches(self):
        """What hides adapters now: the SCSIids that it does not hide, by the adapter."""
        found = {}
        for path in Path(self.world.host.at("run/relvmoiscsi")).glob("hide/scan-*"):
            ids = [line[3:] for line in path.read_text(encoding="ascii").splitlines() if line.startswith("id=")]
            found[path.name.rpartition("-")[2]] = ids
        return found

    def is_hidden(self, disk):
        """It came while it was hidden, and has been so since."""
        number = f"8:{16 * (ord(disk[-1]) - ord('a'))}"
        self.world.put(f"block/{disk}/dev", number + "\n")
        self.world.put(f"../run/udev/data/b{number}", "I:186177866\nE:RELVMOISCSI_HIDDEN=all\n")
        self.world.put(f"block/{disk}/uevent", "")

    def take_away(self, addresses, _deadline):
        if not addresses:
            return {}
        self.done.append("take away " + ", ".join(addresses))
        self.noted = self.noted_of()
        return self.stays

    def look(self, disks, _deadline):
        self.asked += disks
        ids = {disk: self.ids.get(disk) or scsi_id.scsi_id_of_disk(disk, self.world.host) for disk in disks}
        return {disk: Face(ids[disk], "", 1, "") for disk in disks if disk not in self.dead}

    @contextmanager
    def lock(self, **_):
        self.done.append("lock")
        try:
            yield []
        finally:
            self.done.append("unlock")

    @contextmanager
    def lun_locked(self, scsi_id, _host, timeout):
        if scsi_id in self.locked:
            raise Refused("Another call is at work on it.")
        yield

    def read_pool(self, _xapi=None):
        if isinstance(self.pool, Exception):
            raise self.pool
        return self.pool

    def lun(self, **config):
        return discovery.Discovery(CLONE, HbaConfig(config), Deadline(50, Clock()), 0.0, self.read_pool, "here")

    def noted_of(self, scsi_id=CLONE):
        """What was there before the scan for the LUN, as it is noted."""
        return cleanup_journal.read(scsi_id)

    def hold(self, is_new=False, problem=None, **config):
        """The steps of a session that are about the disks, up to a problem of its work; gives the disks."""
        lun = self.lun(**config)
        with ExitStack() as stack:
            lun.bring(stack)
            disks = lun.disks()
            if problem:
                raise problem
            lun.is_new = is_new
        return disks

    def list(self, **config):
        """A call without SCSIid, in a pool that has one LUN: the answer, and the SCSIids in it."""
        answer = missing.missing_scsi_id(HbaConfig(config), None, Deadline(50, Clock()), 0.0, "here")
        return answer, fields(answer, "SCSIid")

    def was_killed(self, disk):
        """A call that scanned was killed; the disk shows what it has left of the LUN."""
        cleanup_journal.note(CLONE, THERE)
        self.has(*MINE)
        disk.to_file(self.world.host.node("sdc"))


def fields(answer, name):
    return [element.text.strip() for element in ElementTree.fromstring(answer.xml).iter(name)]


def with_lun(scsi_id, sr_type="lvmohba"):
    """A pool that has an SR on the LUN."""
    return pool_records.PoolRecords(
        {"pbd": {"SR": "sr", "device_config": {"SCSIid": scsi_id}}}, {"sr": {"type": sr_type}}, {}
    )


@pytest.fixture
def host(tmp_path, monkeypatch, on_host):
    made = World(tmp_path, monkeypatch)
    on_host(made.world.host)
    monkeypatch.setattr(hba, "remote_ports", lambda _: list(WWPNS))
    monkeypatch.setattr(paths, "look", made.look)
    monkeypatch.setattr(sm_locks, "lvm_lock", made.lock)
    monkeypatch.setattr(udev, "settle", lambda disks, _: made.settled.extend(disks))
    monkeypatch.setattr(other_luns, "lun_locked", made.lun_locked)
    for module, name in ((discovery, "scan"), (missing, "scan"), (discovery, "take_away"), (other_luns, "take_away")):
        monkeypatch.setattr(module, name, getattr(made, name))
    return made


def locked(*what):
    """What is done under the lock of LVM."""
    return ["lock", *what, "unlock"]


def test_a_lun_that_is_there_is_left_as_it_is(host):
    host.has(*MINE)

    assert (host.hold(), host.done) == (["sdc"], [])


@pytest.mark.parametrize("is_new, goes", [(False, ["take away 1:0:0:7, 3:0:0:7"]), (True, [])])
def test_one_that_is_not_is_scanned_for_under_the_lock_of_lvm_and_goes_again_but_with_new_identities(
    host, is_new, goes
):
    host.mapped = [MINE, ("3:0:0:7", "sdd")]

    assert host.hold(is_new) == ["sdc", "sdd"]
    assert (host.done, host.noted_of()) == (locked(SCAN, *goes), None)


def test_a_dead_path_counts_as_if_it_were_not_there(host):
    host.has(*MINE)
    host.dead, host.mapped = {"sdc"}, [("3:0:0:9", "sdd")]

    assert host.hold() == ["sdd"]
    assert host.asked == ["sdc", "sdc", "sdd"], "it is waited for once before the scan, and once afterwards"
    assert host.done == locked(SCAN, "take away 3:0:0:9")


@pytest.mark.parametrize("config", [{}, {"type": "qla2xxx"}], ids=["all", "no adapter is of the type that is meant"])
@pytest.mark.parametrize(
    "made_for, pool, goes",
    [
        ("", pool_records.PoolRecords({}, {}, {}), True),
        (SCSI_ID, pool_records.PoolRecords({}, {}, {}), True),  # it is a clone of a LUN that had been resignatured
        (CLONE, pool_records.PoolRecords({}, {}, {}), False),
        ("", with_lun(CLONE), False),
    ],
)
def test_what_a_killed_call_has_brought_goes_but_with_new_identities_of_its_own_or_an_sr(
    host, config, made_for, pool, goes
):
    original = golden.load("one").disk
    host.was_killed(resignatured(original, scsi_id=made_for).after if made_for else original)
    host.pool = pool

    assert host.hold(**config) == ["sdc"]
    assert (host.done, host.switches(), host.noted_of()) == (locked(*[GOES] * goes), {}, None)


@pytest.mark.parametrize("phase", [engine.SWITCHED, engine.DONE])
def test_a_clone_goes_though_its_label_says_resignatured_where_the_pool_has_its_sr_elsewhere(host, phase):
    """A host that sees the clone could not plug the original again."""
    clone = resignatured(golden.load("one").disk, scsi_id=OTHER).after
    sr = {"uuid": engine.inspect(clone).lun.sr_uuid, "type": "lvmohba"}
    forge_record(clone, CLONE, phase)
    pbd = {"SR": "sr", "device_config": {"SCSIid": OTHER}, "currently_attached": True}
    host.was_killed(clone)
    host.pool = pool_records.PoolRecords({"pbd": pbd}, {"sr": sr}, {})

    assert host.hold() == ["sdc"]
    assert host.done == locked(GOES)


def test_a_disk_that_could_not_be_removed_is_named_to_the_caller_and_the_next_call_removes_it(host):
    stays = "The disk sdc at 1:0:0:7 stays: it is in use by multipath map /dev/mapper/clone."
    host.mapped, host.stays = [MINE], {"1:0:0:7": stays}

    with pytest.raises(Refused) as raised:
        host.hold(problem=Refused("It is no clone.").in_state("Nothing was written."))

    way_out = "End that use of the disks. Then repeat the call, which removes the disks."
    assert str(raised.value) == f"It is no clone. {stays} Nothing was written. {way_out}"
    assert (host.done[-2:], host.noted_of()) == ([GOES, "unlock"], THERE)

    host.done, host.stays = [], {}
    host.hold()

    assert (host.done, host.noted_of()) == (locked(GOES), None)


def test_what_came_then_and_does_not_answer_now_stays_and_the_next_call_knows(host):
    host.was_killed(golden.load("one").disk)
    host.dead = {"sdc"}

    with pytest.raises(NotFound):
        host.hold()

    assert (host.done, host.noted_of()) == (locked(SCAN), THERE)


def test_the_note_is_of_all_adapters_whichever_are_scanned(host):
    host.world.adapter(9, proc_name="mpt3sas", scan="")
    host.has("9:0:0:7", "sdz")
    host.dead, host.mapped = {"sdz"}, [MINE]

    with ExitStack() as call:
        host.lun(type="fcoe").bring(call)
        call.pop_all()  # killed: nothing is undone
    assert "9:0:0:7" in host.noted_of()

    host.dead = set()
    host.hold()
    assert host.done[-2:] == [GOES, "unlock"]


def test_what_a_scan_brings_after_it_was_given_up_goes_with_the_next_call(host):
    host.failures = HANGS
    with pytest.raises(NotFound):
        host.hold()
    assert host.noted_of() == THERE

    host.has("3:0:0:7", "sdd")  # the kernel gets there now
    host.hold()

    assert (host.done[-2:], host.noted_of()) == (["take away 3:0:0:7", "unlock"], None)


@pytest.mark.parametrize(
    "is_mute, words", [(True, "xapi does not answer"), (False, "LUN behind host0, .*cannot be hidden")]
)
def test_while_xapi_does_not_answer_or_other_luns_cannot_be_hidden_nothing_comes_or_goes(host, is_mute, words):
    if is_mute:
        host.pool = Refused("xapi does not answer.")
    else:
        host.world.put("../run/udev/control", "")  # udev runs, without our rules

    with pytest.raises(Refused, match=words):
        host.hold()

    assert host.done == locked()


def test_what_the_holder_of_the_lock_has_brought_is_not_scanned_for(host):
    @contextmanager
    def lock(**_):
        host.has(*MINE)
        yield []

    host.patch.setattr(sm_locks, "lvm_lock", lock)

    assert (host.hold(), host.done) == (["sdc"], [])


@pytest.mark.parametrize(
    "config, place",
    [({"lun": "7", "targetWWPN": WWPNS[0]}, "0 0 7"), ({"lun": "300"}, "- - 16684"), ({"lun": "16684"}, "- - 16684")],
)
def test_a_number_above_255_is_looked_for_as_arrays_count_and_as_the_kernel_does(host, config, place):
    """And only where the caller says."""
    host.mapped = [MINE]

    assert host.hold(**config) == ["sdc"]
    places = host.done[1].replace("scan ", "").split(", ")
    assert place in places and (place != "0 0 7" or len(places) == 1)


@pytest.mark.parametrize(
    "config, more, error, words",
    [
        ({"lun": "300"}, {}, NotFound, "after a scan of host.*, host3 for the number 300 or 16684; there are"),
        ({}, {"failures": HANGS}, NotFound, f"{CLONE} answers .*host1, .*there are {SCSI_ID}.*host3 .fcoe.: It hangs"),
        ({}, {"ids": {"sdb": CLONE}}, Refused, f"sdb was the LUN {SCSI_ID} .* and is {CLONE} now"),
        ({"type": "qla2xx"}, {}, NotFound, "no adapter of the type qla2xx; its adapters have the types fcoe"),
        ({"targetWWPN": 16 * "5"}, {}, NotFound, f"port {16 * '5'}; .* see the ports {', '.join(WWPNS)}"),
    ],
)
def test_a_lun_that_does_not_come_is_told_with_what_is_there(host, config, more, error, words):
    vars(host).update(more)

    with pytest.raises(error, match=words):
        host.hold(**config)

    assert (host.done[0], host.done[-1]) == ("lock", "unlock")


@pytest.mark.parametrize("state", ["standby", ""])
def test_a_lun_whose_only_path_does_not_answer_is_not_to_be_mapped(host, state):
    host.has(*MINE)
    host.dead = {"sdc"}
    if state:
        host.world.put(f"bus/scsi/devices/{MINE[0]}/access_state", state + "\n")

    with pytest.raises(NotFound) as raised:
        host.hold()

    named = "sdc (standby)" if state else "sdc"
    assert f"The LUN {CLONE} is mapped to this host, but its disks do not answer: {named}. " in str(raised.value)
    assert "Map the LUN" not in str(raised.value)


# --- the other LUNs that a scan brings


def test_they_are_hidden_and_gone_before_the_lun_is_looked_at(host):
    host.mapped = [MINE, THEIRS]

    host.hold(is_new=True)

    assert host.done == locked(SCAN, OTHER_GOES)
    assert host.settled == ["sdd"], "the LUN itself is waited for later, beside other work"
    assert set(host.hides) == {"host0", "host1", "host2", "host3"} and host.switches() == {}


@pytest.mark.parametrize("sr_type, is_known", [("lvmohba", True), ("ext", True), ("relvmohba", False)])
def test_what_this_host_has_or_the_pool_names_is_not_hidden_and_stays(host, sr_type, is_known):
    """A path of the original that was down may come back at that moment, and multipath is to have it at once.

    What a call of ours names is a clone, and hidden; it stays, too, as that call is at it, or was and has left a note.
    """
    host.pool = with_lun(OTHER, sr_type)
    host.mapped = [MINE, ("3:0:1:0", "sdd", SCSI_ID), ("1:0:0:8", "sde", OTHER)]

    host.hold()

    assert [SCSI_ID in host.hides["host3"], OTHER in host.hides["host3"]] == [True, is_known]
    assert host.done == locked(SCAN, GOES)


class Xapi(Database):
    """A pool with a VDI whose two fields name a LUN. A vm-admin can write both fields."""

    def __init__(self, sr_type, scsi_id):
        super().__init__()
        sr = self.create("SR", type=sr_type)
        self.create("VDI", SR=sr, sm_config={"SCSIid": scsi_id}, location=f"/dev/disk/by-id/scsi-{scsi_id}")

    def call(self, _host_get_record, ref):
        return self.records("host")[ref]


@pytest.mark.parametrize("named", [CLONE, ""], ids=["a call for the clone", "a list"])
@pytest.mark.parametrize("sr_type", ["lvmohba", "hba", "udev"])
@pytest.mark.parametrize("scsi_id", [CLONE, OTHER])
def test_no_vdi_has_an_untouched_clone_stay_visible(host, monkeypatch, named, sr_type, scsi_id):
    xapi = Xapi(sr_type, scsi_id)
    monkeypatch.setattr(missing, "_description", lambda driver: "")
    host.mapped = [MINE, THEIRS]
    call = Call("sr_create", {"SCSIid": named}, host_ref=xapi.create("host"))

    with ExitStack() as stack, suppress(MissingKey):
        named_lun(call, HbaConfig(call.device_config), xapi, Deadline(50, Clock()), 0.0).discovery.bring(stack)

    assert host.done == locked(SCAN, *([OTHER_GOES, GOES] if named else [f"{GOES}, 1:0:0:8"]))
    assert not {CLONE, OTHER} & set(host.hides["host3"])


def of_a_map_whose_paths_were_all_down(host):
    host.world.put("block/dm-0/dm/uuid", f"mpath-{OTHER}\n")


def at_which_another_call_is(host):
    host.locked = {OTHER}


def of_an_sr_by_a_name_of_the_kernel(owner, host):
    pbd = {"SR": "sr", "host": owner, "device_config": {"device": "/dev/sdd"}}
    host.pool = pool_records.PoolRecords({"pbd": pbd}, {"sr": {"type": "ext"}}, {})
    host.patch.setattr(pool_records, "users_of", partial(pool_records.users_of, look={"/dev/sdd": OTHER}.get))


def that_the_pool_comes_to_name_during_the_scan(host):
    """An administrator has it mapped and makes an SR on it, or plugs one, at that very moment."""
    host.meanwhile = lambda: setattr(host, "pool", with_lun(OTHER))


def that_it_comes_to_name_while_an_adapter_hangs(host):
    host.failures = HANGS
    that_the_pool_comes_to_name_during_the_scan(host)


def of_which_xapi_does_not_tell(host):
    host.meanwhile = lambda: setattr(host, "pool", Refused("xapi does not answer."))


@pytest.mark.parametrize(
    "kind, is_hidden, goes",
    [
        (of_a_map_whose_paths_were_all_down, False, []),
        (at_which_another_call_is, True, []),
        (partial(of_an_sr_by_a_name_of_the_kernel, "here"), True, []),
        (partial(of_an_sr_by_a_name_of_the_kernel, "there"), True, [OTHER_GOES]),  # there it is another disk
        (that_the_pool_comes_to_name_during_the_scan, True, []),
        (that_it_comes_to_name_while_an_adapter_hangs, True, []),
        (of_which_xapi_does_not_tell, True, []),
    ],
)
def test_one_like_this_stays(host, caplog, kind, is_hidden, goes):
    kind(host)
    host.mapped = [MINE, THEIRS]

    host.hold()

    assert host.done == locked(SCAN, *goes, GOES)
    assert (OTHER not in host.hides["host1"]) is is_hidden
    assert kind is not at_which_another_call_is or host.settled == [], "that call waits for it"
    assert kind is not of_which_xapi_does_not_tell or "xapi does not answer" in caplog.text


@pytest.mark.parametrize("is_new, state", [(True, "Online"), (False, "Not Present"), (False, "Blocked")])
def test_one_behind_a_port_that_logs_in_during_the_scan_stays(host, is_new, state):
    """The kernel has brought it: a link that was down for a moment, or an array that is being zoned in."""
    target = "5" if is_new else "0"
    rport = "class/fc_remote_ports/rport-1:0-" + target
    if not is_new:
        host.world.put(rport + "/port_state", state + "\n")
    host.mapped = [("3:0:0:7", "sdc"), (f"1:0:{target}:8", "sdd", OTHER)]

    def log_in():
        for name, text in (("port_name", "0x2000020000000c00"), ("scsi_target_id", target), ("port_state", "Online")):
            host.world.put(f"{rport}/{name}", text + "\n")

    host.meanwhile = log_in
    host.hold()

    assert host.done == locked(SCAN, "take away 3:0:0:7")


def test_one_that_stays_is_noted_for_its_next_call_and_shown(host):
    host.mapped = [MINE, THEIRS]
    host.stays = {"1:0:0:8": "The disk sdd at 1:0:0:8 stays: it is in use."}

    def take_away(addresses, deadline):
        if addresses == ["1:0:0:8"]:
            host.is_hidden("sdd")
        return host.take_away(addresses, deadline)

    host.patch.setattr(other_luns, "take_away", take_away)
    host.hold()

    assert host.noted_of(OTHER) == THERE
    assert Path(host.world.at("block/sdd/uevent")).read_text(encoding="ascii") == "add"


def test_while_the_kernel_goes_on_with_a_scan_they_are_hidden_to_the_end_of_the_call(host):
    host.failures, host.mapped = HANGS, [MINE]

    with ExitStack() as call:
        host.lun().bring(call)
        assert set(host.switches()) == {"host0", "host1", "host2", "host3"}
        host.has("3:0:0:8", "sdd", OTHER)

    assert host.done == locked(SCAN, "take away 3:0:0:8", GOES)
    assert host.switches() == {}


def direct(host):
    """The administrator has given the other LUN to a VM as it is."""
    config = Path(host.world.host.config)
    config.parent.mkdir(exist_ok=True)
    config.write_text(f"[direct]\ndatabase-log = {OTHER}\n", encoding="ascii")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_direct_lun_is_not_hidden_and_stays_also_where_its_line_is_new(host, is_late):
    """Its paths were away. A VM could not start without the LUN."""
    if is_late:
        host.meanwhile = lambda: direct(host)
    else:
        direct(host)
    host.mapped = [MINE, THEIRS]
    host.hold(is_new=True)
    assert host.done == locked(SCAN) and all((OTHER in ids) is not is_late for ids in host.hides.values())


def test_a_call_for_a_direct_lun_is_refused_though_the_pool_has_no_vdi_of_it_yet(host):
    direct(host)
    host.has(*THEIRS)
    xapi = Xapi("lvmohba", CLONE)
    call = Call("sr_create", {"SCSIid": OTHER}, host_ref=xapi.create("host"))
    with pytest.raises(Refused, match="the direct LUN database-log .*`relvmoiscsi direct remove database-log`"):
        named_lun(call, HbaConfig(call.device_config), xapi, Deadline(50, Clock()), 0.0)
    assert host.done == host.asked == []


def test_the_search_for_a_lun_at_another_number_reads_no_direct_lun(host):
    direct(host)
    host.has(*THEIRS)
    with pytest.raises(NotFound):
        host.hold()
    assert {"sda", "sdb"} <= set(host.asked) and "sdd" not in host.asked


# --- the list


@pytest.fixture
def lister(host, monkeypatch):
    """The host in a pool that has one LUN."""
    host.pool = with_lun(SCSI_ID)
    monkeypatch.setattr(pool_records, "read_srs", host.read_pool)
    monkeypatch.setattr(missing, "_description", lambda driver: "")
    return host


@pytest.mark.parametrize(
    "device, said, is_late",
    [("", "is missing", False), ("/dev/nothing", "/dev/nothing leads to no LUN", False), ("", "is missing", True)],
)
def test_the_list_has_what_a_scan_brings_and_that_goes_again_also_where_udev_is_late(lister, device, said, is_late):
    settled = []

    def settle(disks, _seconds):
        settled.extend(disks)
        if is_late:
            raise Refused("udev did not handle sdc within 8 seconds.")

    lister.patch.setattr(udev, "settle", settle)
    lister.mapped = [MINE]

    answer, ids = lister.list(device=device)

    assert answer.sm_key == "ConfigSCSIid" and said in str(answer)
    assert is_late or ids == [CLONE], "the LUN of an SR of the pool is left out"
    assert (lister.done, settled) == (locked(SCAN, GOES), ["sdc"])


def test_a_direct_lun_is_neither_listed_nor_read_nor_removed(lister):
    direct(lister)
    lister.mapped = [MINE, THEIRS]

    assert lister.list()[1] == [CLONE]
    assert "sdc" in lister.asked and "sdd" not in lister.asked
    assert lister.done == locked(SCAN, GOES)


def test_the_configuration_is_read_as_often_for_a_list_of_many_luns_as_for_an_empty_list(lister):
    """A host has up to 4096 LUNs."""
    reads, real = [], direct_config.read_config
    lister.patch.setattr(direct_config, "read_config", lambda path: [reads.append(path), real(path)][1])
    assert lister.list()[1] == []
    of_empty_list = len(reads)

    lister.has(*THEIRS)

    assert lister.list()[1] == [OTHER]
    assert len(reads) == 2 * of_empty_list


def test_a_lun_in_the_place_of_one_of_the_pool_is_in_the_list_and_a_disk_that_is_dead_is_as_it_was(lister):
    lister.has(*THEIRS)
    lister.ids, lister.dead = {"sda": CLONE, "sdb": CLONE}, {"sdd"}

    answer, ids = lister.list()

    assert (ids, fields(answer, "path")) == ([CLONE, OTHER], ["/dev/sda [sdb]", "/dev/sdd"])


@pytest.mark.parametrize("there, came", [([], SCSI_ID), ([("3:0:0:7", "sdd", OTHER)], OTHER), ([], OTHER)])
def test_a_path_of_a_lun_of_the_pool_or_of_one_that_was_there_stays(lister, there, came):
    """Its port was down for a moment, say, and nobody would look for it again. Or the pool names it meanwhile."""
    for lun in there:
        lister.has(*lun)
    lister.mapped = [MINE, ("3:0:1:0", "sde", came)]
    if came == OTHER and not there:
        lister.meanwhile = lambda: setattr(lister, "pool", with_lun(OTHER))

    lister.list()

    assert lister.done == locked(SCAN, GOES)


@pytest.mark.parametrize("earlier", [(), ("1:0:0:0",)])
@pytest.mark.parametrize("stays", [False, True])
def test_what_a_list_has_brought_is_noted_until_it_is_gone_but_what_an_earlier_call_has_noted(lister, stays, earlier):
    """The next call for that LUN takes it away, as with one that was killed."""
    lister.world.adapter(9, proc_name="mpt3sas", scan="")
    lister.has("9:0:0:7", "sdz", OTHER)
    lister.mapped = [MINE]
    lister.stays = {"1:0:0:7": "The disk sdc at 1:0:0:7 stays: it is in use."} if stays else {}
    if earlier:
        cleanup_journal.note(CLONE, earlier)

    lister.list(type="fcoe")

    there = earlier or (*THERE, "9:0:0:7")
    assert (lister.noted, lister.noted_of()) == (there, there if stays or earlier else None)


@pytest.mark.parametrize("is_busy, words", [(True, "process 12"), (False, "cannot be hidden")])
def test_while_sm_is_at_an_lvm_command_or_no_lun_can_be_hidden_the_list_is_of_what_is_there(lister, is_busy, words):
    @contextmanager
    def taken(timeout):
        assert timeout == missing.BUSY_SECONDS
        raise Busy("The lock is held by process 12.")
        yield []

    if is_busy:
        lister.patch.setattr(sm_locks, "lvm_lock", taken)
    else:
        lister.world.put("../run/udev/control", "")
    lister.has(*THEIRS)
    lister.mapped = [MINE]

    answer, ids = lister.list()

    assert "were not scanned" in str(answer) and words in str(answer)
    assert (ids, lister.done) == ([OTHER], [] if is_busy else locked())
