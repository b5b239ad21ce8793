# SPDX-License-Identifier: LGPL-2.1-only
"""When a call scans, what it takes away afterwards and what it leaves; the rest is tested on real ports in VMs."""

from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kit import golden
from kit.clock import Clock
from kit.hba_world import SCSI_ID, WWPNS, HbaWorld
from kit.outcome import resignatured
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.disk import cleanup_journal, hiding, paths, udev
from relvmoiscsi.host.disk import scsi_id as scsi_id_module
from relvmoiscsi.host.disk.paths import Face
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_address
from relvmoiscsi.host.hba import adapters as hba
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.xapi import lun_users
from relvmoiscsi.sr_driver.hba import discovery, missing, other_luns
from relvmoiscsi.sr_driver.hba.config import parse_config

CLONE = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
OTHER = "36001405bbbbbbbbbbbbbbbbbbbbbbbbb"

pytestmark = pytest.mark.processes  # a disk is read in one of its own


class Host:
    """The recorded host; what a scan brings is `mapped`, and what was done is in `done`."""

    def __init__(self, root):
        self.world = HbaWorld(root)
        self.done, self.mapped, self.dead, self.ids, self.failures = [], [], set(), {}, []
        self.stays, self.noted, self.asked, self.settled, self.hides = {}, None, [], [], {}
        self.locked = set()  #: LUNs that other calls are at
        self.meanwhile = lambda: None  #: what happens at the moment of a scan
        self.pool = lun_users.Pool({}, {}, {})

    def scan(self, places, _deadline):
        self.done.append("scan " + ", ".join(sorted({str(place) for place in places})))
        self.hides = self.switches()
        self.meanwhile()
        for address, disk, *scsi_id in self.mapped:
            self.world.lun(address, disk, scsi_id=(scsi_id or [CLONE])[0])
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
        ids = {disk: self.ids.get(disk) or scsi_id_module.scsi_id_of_disk(disk, self.world.host) for disk in disks}
        return {disk: Face(ids[disk], "", 1, "") for disk in disks if disk not in self.dead}

    @contextmanager
    def lock(self, **_):
        self.done.append("lock")
        try:
            yield []
        finally:
            self.done.append("unlock")

    def lun(self, scsi_id=CLONE, **config):
        deadline = Deadline(50, Clock())
        return discovery.Discovery(scsi_id, parse_config(config), deadline, 0.0, self.read_pool, "here")

    def read_pool(self):
        return self.pool

    def note(self, addresses, scsi_id=CLONE):
        cleanup_journal.note(scsi_id, addresses)

    def noted_of(self, scsi_id=CLONE):
        """What was there before the scan for the LUN, as it is noted."""
        entry = cleanup_journal.read(scsi_id)
        return entry and entry.there

    def hold(self, lun, is_new=False):
        """The steps of a session that are about the disks; gives the disks."""
        with ExitStack() as stack:
            lun.bring(stack)
            disks = lun.disks()
            if is_new:
                lun.is_new = True
        return disks


def with_lun(scsi_id, sr_type="lvmohba"):
    """A pool that has an SR on the LUN."""
    return lun_users.Pool({"pbd": {"SR": "sr", "device_config": {"SCSIid": scsi_id}}}, {"sr": {"type": sr_type}}, {})


def here(function, host):
    """The function, of that host where it is not told of which."""

    def of(*given, **named):
        told = named or any(isinstance(one, type(host)) for one in given)
        return function(*given, **named) if told else function(*given, host=host)

    return of


@pytest.fixture
def host(tmp_path, monkeypatch):
    made = Host(tmp_path)
    made.patch = monkeypatch
    for name in ("adapters", "addresses", "addresses_of", "disk_at", "disks", "places", "ports_online"):
        monkeypatch.setattr(hba, name, here(getattr(hba, name), made.world.host))
    monkeypatch.setattr(hba, "remote_ports", lambda _: list(WWPNS))
    monkeypatch.setattr(paths, "look", made.look)
    monkeypatch.setattr(sm_locks, "lvm_lock", made.lock)
    for name in ("read", "note", "forget"):
        monkeypatch.setattr(cleanup_journal, name, here(getattr(cleanup_journal, name), made.world.host))
    monkeypatch.setattr(udev, "disks_of", here(udev.disks_of, made.world.host))
    for name in ("hidden_adapters", "ids_here", "is_stale_hidden"):
        monkeypatch.setattr(hiding, name, here(getattr(hiding, name), made.world.host))
    monkeypatch.setattr(udev, "settle", lambda disks, _: made.settled.extend(disks))
    monkeypatch.setattr(other_luns, "_take_lock", lambda scsi_id, locks: scsi_id not in made.locked)
    seconds_off = made.world.host._replace(wait_for=lambda condition, _: condition())
    for module in (discovery, missing, other_luns):
        monkeypatch.setattr(module, "THIS_HOST", seconds_off)
    for module in (discovery, missing):
        monkeypatch.setattr(module, "scan", made.scan)
    for module in (discovery, other_luns):
        monkeypatch.setattr(module, "take_away", made.take_away)
        monkeypatch.setattr(module, "scsi_id_of_address", lambda one: scsi_id_of_address(one, made.world.host))
    return made


def locked(*what):
    """What is done under the lock of LVM."""
    return ["lock", *what, "unlock"]


SCAN, GOES = "scan - - -", "take away 1:0:0:7"


def test_a_lun_that_is_there_is_left_as_it_is(host):
    host.world.lun("1:0:0:7", "sdc", scsi_id=CLONE)

    assert host.hold(host.lun()) == ["sdc"]
    assert host.done == []


@pytest.mark.parametrize("is_new, goes", [(False, ["take away 1:0:0:7, 3:0:0:7"]), (True, [])])
def test_one_that_is_not_is_scanned_for_under_the_lock_of_lvm_and_goes_again_but_with_new_identities(
    host, is_new, goes
):
    host.mapped = [("1:0:0:7", "sdc"), ("3:0:0:7", "sdd")]

    assert host.hold(host.lun(), is_new) == ["sdc", "sdd"]
    assert host.done == locked(SCAN, *goes)
    assert host.noted_of() is None


def test_a_dead_path_counts_as_if_it_were_not_there(host):
    host.world.lun("1:0:0:7", "sdc", scsi_id=CLONE)
    host.dead, host.mapped = {"sdc"}, [("3:0:0:9", "sdd")]

    assert host.hold(host.lun()) == ["sdd"]
    assert host.asked == ["sdc", "sdc", "sdd"], "it is waited for once before the scan, and once afterwards"
    assert host.done == ["lock", "scan - - -", "take away 3:0:0:9", "unlock"]


@pytest.mark.parametrize("config", [{}, {"type": "qla2xxx"}], ids=["all", "no adapter is of the type that is meant"])
def test_what_a_killed_call_has_brought_goes_with_the_next_one(host, config):
    host.note(["1:0:0:0", "3:0:0:0"])
    host.world.lun("1:0:0:7", "sdc", scsi_id=CLONE)

    assert host.hold(host.lun(**config)) == ["sdc"]
    assert (host.done, host.switches()) == (locked(GOES), {})
    assert host.noted_of() is None


@pytest.fixture
def killed(host):
    """A call that scanned was killed; the disk shows what it has left of the LUN."""

    def after(disk):
        host.note(["1:0:0:0", "3:0:0:0"])
        host.world.lun("1:0:0:7", "sdc", scsi_id=CLONE)
        disk.to_file(host.world.host.node("sdc"))

    return after


@pytest.mark.parametrize("made_for, goes", [("", True), (SCSI_ID, True), (CLONE, False)])
def test_what_a_killed_call_has_brought_stays_with_new_identities_of_its_own(host, killed, made_for, goes):
    """SCSI_ID: it is a clone of a LUN that had been resignatured."""
    original = golden.load("one").disk
    killed(resignatured(original, scsi_id=made_for).after if made_for else original)

    assert host.hold(host.lun()) == ["sdc"]
    assert host.done == ["lock", *(["take away 1:0:0:7"] if goes else []), "unlock"]
    assert host.noted_of() is None


def test_the_note_is_of_all_adapters_whichever_are_scanned(host):
    host.world.adapter(9, proc_name="mpt3sas", scan="")
    host.world.lun("9:0:0:7", "sdz", scsi_id=CLONE)
    host.dead, host.mapped = {"sdz"}, [("1:0:0:7", "sdc")]

    with ExitStack() as call:
        lun = host.lun(type="fcoe")
        lun.bring(call)
        call.pop_all()  # killed: nothing is undone
    assert "9:0:0:7" in host.noted_of()

    host.dead = set()
    host.hold(host.lun())
    assert host.done[-2:] == ["take away 1:0:0:7", "unlock"]


def test_what_a_scan_brings_after_it_was_given_up_goes_with_the_next_call(host):
    host.failures = ["host3 (fcoe): It hangs."]
    with pytest.raises(NotFound):
        host.hold(host.lun())
    assert host.noted_of() == ("1:0:0:0", "3:0:0:0")

    host.world.lun("3:0:0:7", "sdd", scsi_id=CLONE)  # the kernel gets there now
    host.hold(host.lun())

    assert host.done[-2:] == ["take away 3:0:0:7", "unlock"]
    assert host.noted_of() is None


def test_so_does_what_the_pool_knows(host, killed):
    killed(golden.load("one").disk)

    host.pool = with_lun(CLONE)
    host.hold(host.lun())

    assert (host.done, host.noted_of()) == (["lock", "unlock"], None)


def test_so_does_what_came_then_and_does_not_answer_now_and_the_next_call_knows(host, killed):
    killed(golden.load("one").disk)
    host.dead = {"sdc"}

    with pytest.raises(NotFound):
        host.hold(host.lun())

    assert host.done == ["lock", "scan - - -", "unlock"]
    assert host.noted_of() == ("1:0:0:0", "3:0:0:0")


def test_while_xapi_does_not_answer_nothing_comes_or_goes(host):
    def read_pool():
        raise Refused("xapi does not answer.")

    host.read_pool = read_pool

    with pytest.raises(Refused, match="xapi does not answer"):
        host.hold(host.lun())

    assert host.done == ["lock", "unlock"]


def test_what_the_holder_of_the_lock_has_brought_is_not_scanned_for(host, monkeypatch):
    @contextmanager
    def lock(**_):
        host.world.lun("1:0:0:7", "sdc", scsi_id=CLONE)
        yield []

    monkeypatch.setattr(sm_locks, "lvm_lock", lock)

    assert host.hold(host.lun()) == ["sdc"]
    assert host.done == []


def test_only_where_the_caller_says_is_looked(host):
    host.mapped = [("1:0:0:7", "sdc")]

    host.hold(host.lun(lun="7", targetWWPN=WWPNS[0]))

    assert host.done[1] == "scan 0 0 7"


@pytest.mark.parametrize("number", [300, 16684])
def test_a_number_above_255_is_looked_for_as_arrays_count_and_as_the_kernel_does(host, monkeypatch, number):
    def scan(places, _deadline):
        if "- - 16684" in map(str, places):
            host.world.lun("1:0:0:16684", "sdc", scsi_id=CLONE)
        return []

    monkeypatch.setattr(discovery, "scan", scan)

    assert host.hold(host.lun(lun=str(number))) == ["sdc"]


def test_a_lun_that_does_not_come_is_told_with_the_numbers_it_was_looked_for(host):
    with pytest.raises(NotFound, match="after a scan of host.*, host3 for the number 300 or 16684; there are"):
        host.hold(host.lun(lun="300"))


def test_a_lun_that_does_not_come_is_told_with_those_that_are_there_and_what_could_not_be_scanned(host):
    host.failures = ["host3 (fcoe): It hangs."]

    with pytest.raises(NotFound, match=f"{CLONE} answers .*host1, .*there are {SCSI_ID}.*host3 .fcoe.: It hangs"):
        host.hold(host.lun())

    assert host.done == ["lock", "scan - - -", "unlock"]


def test_a_lun_in_the_place_of_a_known_one_is_told_by_the_disk(host):
    host.ids["sdb"] = CLONE

    with pytest.raises(Refused, match=f"sdb was the LUN {SCSI_ID} .* and is {CLONE} now"):
        host.hold(host.lun())


def test_an_adapter_that_is_not_there_is_told_with_those_that_are(host):
    with pytest.raises(NotFound, match="no adapter of the type qla2xx; its adapters have the types fcoe"):
        host.hold(host.lun(type="qla2xx"))


def test_a_port_that_nobody_sees_is_told_with_those_that_are_seen(host):
    with pytest.raises(NotFound, match=f"port 5000000000000001; .* see the ports {', '.join(WWPNS)}"):
        host.hold(host.lun(targetWWPN="5000000000000001"))


# --- the other LUNs that a scan brings


def test_they_are_hidden_and_gone_before_the_lun_is_looked_at(host):
    host.mapped = [("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)]

    host.hold(host.lun(), is_new=True)

    assert host.done == ["lock", "scan - - -", "take away 1:0:0:8", "unlock"]
    assert host.settled == ["sdd"], "the LUN itself is waited for later, beside other work"
    assert set(host.hides) == {"host0", "host1", "host2", "host3"} and host.switches() == {}


@pytest.mark.parametrize("sr_type, is_known", [("lvmohba", True), ("ext", True), ("relvmohba", False)])
def test_what_this_host_has_or_the_pool_names_is_not_hidden_and_stays(host, sr_type, is_known):
    """A path of the original that was down may come back at that moment, and multipath is to have it at once.

    What a call of ours names is a clone, and hidden; it stays, too, as that call is at it, or was and has left a note.
    """
    host.pool = with_lun(OTHER, sr_type)
    host.mapped = [("1:0:0:7", "sdc"), ("3:0:1:0", "sdd", SCSI_ID), ("1:0:0:8", "sde", OTHER)]

    host.hold(host.lun())

    assert [SCSI_ID in host.hides["host3"], OTHER in host.hides["host3"]] == [True, is_known]
    assert host.done == ["lock", "scan - - -", "take away 1:0:0:7", "unlock"]


def of_a_map_whose_paths_were_all_down(host):
    host.world.put("block/dm-0/dm/uuid", f"mpath-{OTHER}\n")


def at_which_another_call_is(host):
    host.locked = {OTHER}


def of_an_sr_of_this_host_by_a_name_of_the_kernel(host, owner="here"):
    pbd = {"SR": "sr", "host": owner, "device_config": {"device": "/dev/sdd"}}
    host.pool = lun_users.Pool({"pbd": pbd}, {"sr": {"type": "ext"}}, {})
    host.patch.setattr(lun_users, "users_of", partial(lun_users.users_of, look={"/dev/sdd": OTHER}.get))


def that_the_pool_comes_to_name_during_the_scan(host):
    """An administrator has it mapped and makes an SR on it, or plugs one, at that very moment."""
    host.meanwhile = lambda: setattr(host, "pool", with_lun(OTHER))


def that_it_comes_to_name_while_an_adapter_hangs(host):
    host.failures = ["host3 (fcoe): It hangs."]
    that_the_pool_comes_to_name_during_the_scan(host)


def of_which_xapi_does_not_tell(host):
    def read_pool():
        if host.pool is None:
            raise Refused("xapi does not answer.")
        return host.pool

    host.read_pool, host.meanwhile = read_pool, lambda: setattr(host, "pool", None)


@pytest.mark.parametrize(
    "kind, is_hidden",
    [
        (of_a_map_whose_paths_were_all_down, False),
        (at_which_another_call_is, True),
        (of_an_sr_of_this_host_by_a_name_of_the_kernel, True),
        (that_the_pool_comes_to_name_during_the_scan, True),
        (that_it_comes_to_name_while_an_adapter_hangs, True),
        (of_which_xapi_does_not_tell, True),
    ],
)
def test_one_like_this_stays(host, caplog, kind, is_hidden):
    kind(host)
    host.mapped = [("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)]

    host.hold(host.lun())

    assert host.done == locked(SCAN, GOES)
    assert (OTHER not in host.hides["host1"]) is is_hidden
    assert kind is not at_which_another_call_is or host.settled == [], "that call waits for it"
    assert kind is not of_which_xapi_does_not_tell or "xapi does not answer" in caplog.text


def test_one_that_another_host_has_by_such_a_name_goes(host):
    """There it is another disk."""
    of_an_sr_of_this_host_by_a_name_of_the_kernel(host, "there")
    host.mapped = [("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)]

    host.hold(host.lun())

    assert "take away 1:0:0:8" in host.done


@pytest.mark.parametrize("is_new, state", [(True, "Online"), (False, "Not Present"), (False, "Blocked")])
def test_one_behind_a_port_that_logs_in_during_the_scan_stays(host, is_new, state):
    """The kernel has brought it: a link that was down for a moment, or an array that is being zoned in."""
    rport = "class/fc_remote_ports/rport-1:0-" + ("5" if is_new else "0")
    target = "5" if is_new else "0"
    if not is_new:
        host.world.put(rport + "/port_state", state + "\n")
    host.mapped = [("3:0:0:7", "sdc"), (f"1:0:{target}:8", "sdd", OTHER)]

    def log_in():
        for name, text in (("port_name", "0x2000020000000c00"), ("scsi_target_id", target), ("port_state", "Online")):
            host.world.put(f"{rport}/{name}", text + "\n")

    host.meanwhile = log_in
    host.hold(host.lun())

    assert host.done == ["lock", "scan - - -", "take away 3:0:0:7", "unlock"]


def test_one_that_stays_is_noted_for_its_next_call_and_shown(host):
    host.mapped = [("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)]
    host.stays = {"1:0:0:8": "The disk sdd at 1:0:0:8 stays: it is in use."}
    came = host.take_away

    def take_away(addresses, deadline):
        if addresses == ["1:0:0:8"]:
            host.is_hidden("sdd")
        return came(addresses, deadline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other_luns, "take_away", take_away)
        host.hold(host.lun())

    assert host.noted_of(OTHER) == ("1:0:0:0", "3:0:0:0")
    assert Path(host.world.at("block/sdd/uevent")).read_text(encoding="ascii") == "add"


def test_what_a_killed_scan_has_brought_is_hidden_still_and_goes_with_the_next_scan(host):
    host.world.lun("1:0:0:8", "sdd", scsi_id=OTHER)
    host.is_hidden("sdd")
    host.mapped = [("1:0:0:7", "sdc")]

    host.hold(host.lun())

    assert host.done == ["lock", "scan - - -", "take away 1:0:0:8", "take away 1:0:0:7", "unlock"]
    assert OTHER not in host.hides["host1"]


def test_while_the_kernel_goes_on_with_a_scan_they_are_hidden_to_the_end_of_the_call(host):
    host.failures = ["host3 (fcoe): It hangs."]
    host.mapped = [("1:0:0:7", "sdc")]

    with ExitStack() as call:
        lun = host.lun()
        lun.bring(call)
        assert set(host.switches()) == {"host0", "host1", "host2", "host3"}
        host.world.lun("3:0:0:8", "sdd", scsi_id=OTHER)

    assert host.done == ["lock", "scan - - -", "take away 3:0:0:8", "take away 1:0:0:7", "unlock"]
    assert host.switches() == {}


def test_where_they_cannot_be_hidden_nothing_is_scanned(host):
    host.world.put("../run/udev/control", "")  # udev runs, without our rules

    with pytest.raises(Refused, match="LUN behind host0, .*cannot be hidden from LVM and multipath"):
        host.hold(host.lun())

    assert host.done == ["lock", "unlock"]


# --- the list


@pytest.fixture
def listing(host, monkeypatch):
    """The call without SCSIid, in a pool that has one LUN."""
    host.pool = with_lun(SCSI_ID)
    monkeypatch.setattr(lun_users, "read_pool", lambda _: host.pool)
    monkeypatch.setattr(missing, "_description", lambda driver: "")

    def ask(**config):
        return missing.missing_scsi_id(parse_config(config), None, Deadline(50, Clock()), 0.0, "here")

    return ask


def ids_in(answer):
    return [element.text.strip() for element in ElementTree.fromstring(answer.xml).iter("SCSIid")]


@pytest.mark.parametrize("device, said", [("", "is missing"), ("/dev/nothing", "/dev/nothing leads to no LUN")])
def test_the_list_has_what_a_scan_brings_and_that_goes_again(host, listing, device, said):
    host.mapped = [("1:0:0:7", "sdc")]

    answer = listing(device=device)

    assert answer.sm_key == "ConfigSCSIid" and said in str(answer)
    assert ids_in(answer) == [CLONE], "the LUN of an SR of the pool is left out"
    assert host.done == ["lock", "scan - - -", "take away 1:0:0:7", "unlock"]
    assert host.settled == ["sdc"]


def test_a_lun_in_the_place_of_one_of_the_pool_is_in_the_list_and_a_disk_that_is_dead_is_as_it_was(host, listing):
    host.world.lun("1:0:0:8", "sdd", scsi_id=OTHER)
    host.ids, host.dead = {"sda": CLONE, "sdb": CLONE}, {"sdd"}

    answer = listing()

    assert ids_in(answer) == [CLONE, OTHER]
    devices = [element.text.strip() for element in ElementTree.fromstring(answer.xml).iter("path")]
    assert devices == ["/dev/sda [sdb]", "/dev/sdd"]


@pytest.mark.parametrize("was_there", [False, True])
def test_a_path_of_a_lun_of_the_pool_or_of_one_that_was_there_stays(host, listing, was_there):
    """Its port was down for a moment, say, and nobody would look for it again."""
    if was_there:
        host.world.lun("3:0:0:7", "sdd", scsi_id=OTHER)
    host.mapped = [("1:0:0:7", "sdc"), ("3:0:1:0", "sde", OTHER if was_there else SCSI_ID)]

    listing()

    assert host.done[-2:] == ["take away 1:0:0:7", "unlock"]


@pytest.mark.parametrize("stays", [False, True])
def test_what_a_list_has_brought_is_noted_until_it_is_gone(host, listing, stays):
    """The next call for that LUN takes it away, as with one that was killed."""
    host.world.adapter(9, proc_name="mpt3sas", scan="")
    host.world.lun("9:0:0:7", "sdz", scsi_id=OTHER)
    host.mapped = [("1:0:0:7", "sdc")]
    host.stays = {"1:0:0:7": "The disk sdc at 1:0:0:7 stays: it is in use."} if stays else {}

    listing(type="fcoe")

    there = ("1:0:0:0", "3:0:0:0", "9:0:0:7")
    assert (host.noted, host.noted_of()) == (there, there if stays else None)


def test_what_the_pool_comes_to_name_during_a_list_stays(host, listing):
    host.mapped = [("1:0:0:7", "sdc"), ("1:0:0:8", "sdd", OTHER)]
    host.meanwhile = lambda: setattr(host, "pool", with_lun(OTHER))

    listing()

    assert host.done == ["lock", "scan - - -", "take away 1:0:0:7", "unlock"]


def test_what_an_earlier_call_has_noted_stays_noted(host, listing):
    host.note(["1:0:0:0"])
    host.mapped = [("1:0:0:7", "sdc")]

    listing()

    assert host.noted_of() == ("1:0:0:0",)


def test_while_sm_is_at_an_lvm_command_the_list_is_of_what_is_there(host, listing, monkeypatch):
    waits = []

    @contextmanager
    def taken(timeout):
        waits.append(timeout)
        raise sm_locks.Busy("The lock is held by process 12.")
        yield []

    monkeypatch.setattr(sm_locks, "lvm_lock", taken)
    host.world.lun("1:0:0:8", "sdd", scsi_id=OTHER)
    host.mapped = [("1:0:0:7", "sdc")]

    answer = listing()

    assert "were not scanned" in str(answer) and "process 12" in str(answer)
    assert (ids_in(answer), host.done, waits) == ([OTHER], [], [missing.BUSY_SECONDS])


def test_where_luns_cannot_be_hidden_the_list_is_of_what_is_there(host, listing):
    host.world.put("../run/udev/control", "")
    host.world.lun("1:0:0:8", "sdd", scsi_id=OTHER)

    answer = listing()

    assert "were not scanned" in str(answer) and "cannot be hidden" in str(answer)
    assert (ids_in(answer), host.done) == ([OTHER], ["lock", "unlock"])


def test_what_a_scan_has_brought_for_the_list_goes_also_where_udev_is_late(host, listing, monkeypatch):
    def late(disks, _seconds):
        raise Refused("udev did not handle sdc within 8 seconds.")

    monkeypatch.setattr(udev, "settle", late)
    host.mapped = [("1:0:0:7", "sdc")]

    listing()

    assert host.done[-2:] == ["take away 1:0:0:7", "unlock"]
