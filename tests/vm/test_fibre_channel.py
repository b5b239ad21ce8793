# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create type=relvmohba on real Fibre Channel remote ports: two fabrics, no login that would keep a clone hidden.

A call takes seconds in the emulated machine, so each test goes through several things. A call is a fork of a process
that has imported the driver (kit.lab.warm), but for one of the executable itself (`executed`).
"""

import contextlib
import os
import subprocess
from xml.etree import ElementTree

import pytest
import XenAPI

from kit.lab import initiator, luns, prober
from kit.lab.command import read, settle, until
from kit.lab.fcoe import Fabrics
from kit.lab.guest import event_activation, multipathed, sg3_rules
from kit.lab.xapi import TOP, Call, chosen
from kit.pool import client
from kit.pool.simulator import DRIVERS, sm_directory
from relvmoiscsi.host.disk import hiding
from relvmoiscsi.host.disk.scsi_id import live_scsi_id, opened

SUCCESS = [
    "SR_BACKEND_FAILURE_1",
    "",
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmohba type to attach it",
    "",
]
ONE, TWO = (0,), (1,)  #: fabrics
#: of several disks with one PV id udev links one, and of a LUN that stays there are links
LINKS = ["links:*"]
STAYS = [*LINKS, "block:*", "names:*", "udev:*"]


@pytest.fixture(scope="session")
def fabrics(guest):
    fabrics = Fabrics().setup()
    yield fabrics
    fabrics.teardown()


@pytest.fixture(scope="session")
def hba_directory(tmp_path_factory):
    return sm_directory(tmp_path_factory.mktemp("hba"), os.path.join(TOP, "drivers/ReLVMoHBASR"), DRIVERS / "LVMoHBASR")


def answer_of(path):
    with opened(path) as disk:
        return live_scsi_id(disk)


@pytest.fixture
def fc(fabrics, lab):
    yield fabrics
    fabrics.clear()


@pytest.fixture
def pool_with(make_pool, hba_directory):
    """Makes a pool whose hosts have multipathing, "true" or not, and only drivers for adapters."""
    return lambda multipathing: make_pool(multipathing, hba_directory, ask_again=False)


@pytest.fixture
def pool(pool_with):
    return pool_with("false")


@pytest.fixture
def pair(lab, image, fc):
    """The original, mapped by number 0, and its clone, which is not."""
    return fc.map(lab.lun(image), 0, ONE), lab.lun(image.clone("clone.img"))


def call(pool, method, config, sr_type="relvmohba"):
    """What XenAPI says: an answer, or the strings of its failure."""
    config = {key: value for key, value in config.items() if value is not None}
    with client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        try:
            if method == "probe":
                return session.xenapi.SR.probe(host, config, sr_type, {})
            session.xenapi.SR.create(host, config, "0", "name", "", sr_type, "user", True, {})
        except XenAPI.Failure as failure:
            return failure.details
    raise AssertionError("SR.create has made an SR, and must never do so")


def created(pool, named, **more):
    return call(pool, "create", dict({"SCSIid": named.scsi_id, "resign": "true"}, **more))


def executed(pool, lun):
    """As `created`, by the executable."""
    pool.runner.start = subprocess.Popen
    return created(pool, lun)


def state_of(pool, lun):
    """What sr_probe of ours says."""
    (row,) = ElementTree.fromstring(call(pool, "probe", {"SCSIid": lun.scsi_id})).findall("SR")
    return {field.tag: field.text for field in row}


def stock_probe(pool, lun):
    """The UUIDs that lvmohba finds on the LUN, at once."""
    answer = call(pool, "probe", {"SCSIid": lun.scsi_id}, "lvmohba")
    assert isinstance(answer, str), answer
    return [element.text for element in ElementTree.fromstring(answer).iter("UUID")]


def is_failure(answer, code, *words):
    ours = isinstance(answer, list) and answer[0] == f"SR_BACKEND_FAILURE_{code}"
    return ours and "successfully resigned" not in str(answer) and all(word in answer[2] for word in words)


@contextlib.contextmanager
def in_use(lun, sr_uuid):
    """The SR is attached through the first of its disks, as a stock plug would have it."""
    device = initiator.devices_of(lun.scsi_id)[0]
    vg = "VG_XenStorage-" + sr_uuid
    initiator.lvm("vgchange", "-ay", vg, device=device)
    try:
        yield vg
    finally:
        initiator.lvm("vgchange", "-an", vg, device=device)


# -- what it is for -------------------------------------------------------------------------------------------------


def test_clones_are_resignatured_at_once_beside_their_original_in_use_and_stay(lab, fc, pool, image):
    original = fc.map(lab.lun(image), 0, ONE)
    fc.scan()
    heartbeat = "hb-6f0e6ba1-0000-4000-8000-00000000000a"  # CloudStack's, in an SR that an administrator has made
    device, vg = initiator.device_of(original.scsi_id), "VG_XenStorage-" + image.sr.uuid
    initiator.lvm("lvcreate", "-an", "-Zn", "-Wn", "-l", "1", "-n", heartbeat, vg, device=device)
    clone, second = (fc.map(lab.lun(image.clone(f"clone{number}.img")), number, ONE) for number in (7, 8))
    digest = luns.digest(image)

    with in_use(original, image.sr.uuid) as vg:
        assert initiator.devices_of(clone.scsi_id) == []
        with lab.untouched(except_for=STAYS):
            running = [(lun, Call(lab, created, pool, lun)) for lun in (clone, second, clone)]
            answers = [(lun, one.end()) for lun, one in running]
            # On a slow machine a call waits for the other call of its LUN in vain; the call is repeated.
            busy = [lun for lun, answer in answers if is_failure(answer, 202, "did not become free in time")]
            assert [answer for _lun, answer in answers].count(SUCCESS) == 3 - len(busy), answers
            assert [created(pool, lun) for lun in busy] == [SUCCESS] * len(busy)

        assert len(chosen(lab)) == 2
        seen = prober.probe_device(initiator.device_of(clone.scsi_id))
        assert seen.problems == () and heartbeat in seen.lvs and seen.sr_uuid in chosen(lab)
        assert stock_probe(pool, clone) == [seen.sr_uuid]
        assert "MGT" in initiator.active_lvs(vg)
        with lab.untouched():
            assert created(pool, clone) == SUCCESS
            assert state_of(pool, original)["UUID"] == image.sr.uuid
    assert any("was resignatured already" in line for line in lab.smlog())
    assert luns.digest(image) == digest


def test_what_a_call_has_brought_is_hidden_and_goes_unless_it_was_resignatured(lab, fc, pool, image, pair):
    original, clone = pair
    other = fc.map(lab.lun(image.clone("other.img")), 8, ONE)
    for disk in fc.disks():
        fc.delete(disk)
    fc.map(clone, 7, ONE)
    digest = luns.digest(clone)

    listed = multipathed(clone.scsi_id, other.scsi_id)
    with sg3_rules(), event_activation(), listed, lab.multipathing(), lab.untouched():
        found = state_of(pool, clone)
        assert (found["UUID"], found["state"]) == (image.sr.uuid, "clean")
        answer = created(pool, clone, resign=None)
        assert is_failure(answer, 202, image.sr.uuid, "The pool has no such SR", "device-config:resign=true"), answer
        answer = call(pool, "probe", {"type": "fcoe"})
        assert is_failure(answer, 107), answer
    document = ElementTree.fromstring(answer[3])
    listed = {device.findtext("SCSIid").strip(): device for device in document.iter("BlockDevice")}
    assert set(listed) == {original.scsi_id, clone.scsi_id, other.scsi_id}
    facts = {field.tag: field.text.strip() for field in listed[clone.scsi_id]}
    assert (facts["numpaths"], facts["lun"], facts["hba"]) == ("1", "7", "fcoe")
    assert int(facts["size"]) == os.path.getsize(clone.path)
    names = [adapter.findtext("fc_host/port_name").strip() for adapter in document.iter("Adapter")]
    assert "0x" + read(f"/sys/class/fc_host/{fc.host(0)}/port_name")[2:] in names
    assert luns.digest(clone) == digest

    # What somebody else has brought in stays; of what was not named nothing is even looked for.
    fc.map(original, 0, TWO)
    fc.scan(TWO)
    assert is_failure(created(pool, clone, lun="7", targetWWPN="5000000000000001"), 67, fc.wwpn(0))
    with multipathed(clone.scsi_id), lab.multipathing():
        assert created(pool, clone, lun="7", targetWWPN=fc.wwpn(0) + "," + fc.wwpn(1)) == SUCCESS
        until(lambda: initiator.multipath_map(clone.scsi_id), "multipathd has a map of the LUN that is shown")
    assert [len(initiator.devices_of(lun.scsi_id)) for lun in (original, clone, other)] == [1, 1, 0]
    assert not any(hiding.is_hidden(os.path.basename(device)) for device in initiator.devices_of(original.scsi_id))


# -- several paths --------------------------------------------------------------------------------------------------


def test_two_paths_are_refused_or_one_of_them_may_fail(lab, fc, pool_with, image):
    clone = fc.map(lab.lun(image.clone("slow.img"), breakable=True), 7)
    pool = pool_with("false")
    with lab.untouched():
        assert is_failure(created(pool, clone), 431, "has 2 paths", "multipathing is off")
    pool.stop()

    pool = pool_with("true")
    with lab.multipathing():
        clone.slow(60)
        running = Call(lab, created, pool, clone)
        with running.stopped("step 2 of 6"):
            # A cable that is pulled while it is written is more than the kernel's FCoE bears.
            fc.unmap(7, TWO)
        clone.heal()
        answer = running.end()
        # The call goes on if the other path was lost. If the path of the writes was lost, the same call again finishes.
        assert answer == SUCCESS or is_failure(answer, 200) and created(pool, clone) == SUCCESS, answer
        assert initiator.multipath_map(clone.scsi_id) is None
        fc.map(clone, 7, TWO)
        fc.scan()  # a call that lost the path of its writes has taken away both disks, and the next call has found one
        for device in initiator.devices_of(clone.scsi_id):  # the size of a disk that was looked at meanwhile is 0
            with open(f"/sys/block/{os.path.basename(device)}/device/rescan", "w", encoding="ascii") as file:
                file.write("1")

    (new,) = chosen(lab)
    until(lambda: all(map(prober.probe_device, initiator.devices_of(clone.scsi_id))), "both paths answer")
    assert [prober.probe_device(device).sr_uuid for device in initiator.devices_of(clone.scsi_id)] == [new, new]


# -- what is not the LUN --------------------------------------------------------------------------------------------


def test_a_lun_in_the_place_of_another_and_two_of_one_id_are_refused(lab, fc, pool, image, pair):
    original, clone = pair
    fc.map(clone, 7, ONE)
    fc.scan()
    digest = luns.digest(clone)
    for disk in initiator.devices_of(original.scsi_id):
        fc.delete(os.path.basename(disk))
    fc.unmap(7, ONE)
    other = fc.map(lab.lun(image.clone("other.img")), 7, ONE)
    # The disk of the clone leads to another LUN, and the one of that LUN is known by the clone's id.
    for lun in (clone, other):
        assert is_failure(created(pool, lun), 67, clone.scsi_id, other.scsi_id, "mapped another LUN in its place")

    # Behind a dead path nothing is verified, and it counts for nothing.
    fc.unmap(7, ONE)
    fc.map(clone, 9, ONE)
    twin = fc.map(lab.lun(image.clone("twin.img"), serial=clone.serial), 10, TWO)
    write_something(twin)
    answer = created(pool, clone)
    assert is_failure(answer, 67, "have the SCSIid", "first sectors differ"), answer
    fc.unmap(10, TWO)
    assert luns.digest(clone) == digest == luns.digest(other)
    assert created(pool, clone) == SUCCESS


def write_something(lun):
    """It is no byte for byte the same LUN any more."""
    with open(lun.path, "r+b") as file:
        file.seek(100)
        file.write(b"different")


# -- cuts -----------------------------------------------------------------------------------------------------------


def test_what_is_cut_is_taken_away_or_finished_by_the_next_call(lab, fc, pool, image):
    clone = fc.map(lab.lun(image.clone("slow.img"), breakable=True), 7, ONE)
    clone.slow(40)

    Call(lab, created, pool, clone).kill("it has brought")
    settle()
    assert len(initiator.devices_of(clone.scsi_id)) == 1
    assert state_of(pool, clone)["state"] == "clean"
    assert initiator.devices_of(clone.scsi_id) == []

    Call(lab, created, pool, clone).kill("step 3 of 6")
    running = Call(lab, created, pool, clone)
    with running.stopped("sr_create: LUN"):
        fc.unmap(7, ONE)
    assert running.end()[0].startswith("SR_BACKEND_FAILURE_")

    fc.map(clone, 7, ONE)
    fc.cable_out(0)
    until(lambda: not fc.is_logged_in(0), "the link is down")
    fc.cable_in(0)
    until(lambda: any(map(answer_of, initiator.devices_of(clone.scsi_id))), "the link has brought the disk back")
    clone.heal()
    answer = executed(pool, clone)
    assert answer == SUCCESS, answer
    (new,) = chosen(lab)
    assert prober.probe_device(initiator.device_of(clone.scsi_id)).sr_uuid == new
    for name in os.listdir("/run/lock/lvm"):
        if os.path.getsize("/run/lock/lvm/" + name) == 0:
            os.unlink("/run/lock/lvm/" + name)
