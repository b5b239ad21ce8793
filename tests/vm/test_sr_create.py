# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create type=relvmoiscsi as xapi executes it, against the kernel's target, beside open-iscsi's own session.

That session has the same initiator name, an SR in use and I/O under way (kit.lab.neighbour). No test may disturb that
session.
"""

import contextlib
import os
import random
import re
import time
from pathlib import Path

import pytest

from kit import builder
from kit.lab import initiator, luns, prober
from kit.lab.bench import cleared
from kit.lab.command import HANGS, read, run, settle, until
from kit.lab.lio import Chap
from kit.lab.neighbour import Neighbour
from kit.lab.secrets import Watcher
from kit.lab.world import World
from kit.lab.xapi import SUCCESS, Call, chosen, configure, created
from kit.reader import read_sr
from kit.sparse import SparseDisk

STEPS = [f"step {number} of 6" for number in range(1, 7)]
#: empty files that nobody holds
LOCKS_OF_A_KILLED_CALL = ["files:/run/lock/lvm/*", "files:/run/lock/sm/*", "files:/run/relvmoiscsi/*"]
#: programs by which a LUN comes to a host, or is kept from it
OF_THE_HOST = {"iscsiadm", "iscsid", "multipath", "udevadm", "lvm", "pvs", "vgs", "dmsetup", "blkid"}


@pytest.fixture(scope="module")
def neighbour(guest, host_with_sm):
    with cleared(guest) as lab, contextlib.closing(Neighbour(lab)) as neighbour:
        yield neighbour


@pytest.fixture(autouse=True)
def unnoticed(neighbour, lab):
    yield
    neighbour.verify()


@pytest.fixture
def mapped(neighbour, lab):
    """Maps a LUN behind the target on which the neighbour has its session; the session does not look by itself."""
    added = []

    def add(image, number, **options):
        added.append(neighbour.array.add_lun(lab.lun(image, number=number, **options)))
        return added[-1]

    yield add
    lab.end_calls()
    for lun in added:
        neighbour.forget(lun)
    settle()


@pytest.fixture
def slow_clone(lab, neighbour):
    return lab.lun(neighbour.image.clone("slow.img"), breakable=True)


def is_failure(answer, code, *words):
    """A failure that nobody takes for success."""
    ours = answer[0] == f"SR_BACKEND_FAILURE_{code}" and "successfully resigned" not in str(answer)
    return ours and all(word in answer[2] for word in words)


def sr_of(lun):
    """The SR on a LUN, by the tests' own reader."""
    return read_sr(SparseDisk.from_file(lun.path))


def assert_new(lun, image):
    sr = sr_of(lun)
    assert sr.problems == () and sr.uuid != image.sr.uuid
    return sr.uuid


# -- what it is for -----------------------------------------------------------------------------------------------


def test_a_clone_on_the_iqn_of_its_original_is_found_by_the_storage_manager_afterwards(lab, pool, neighbour, mapped):
    """With a session there SM does not scan, so the driver adds the one LUN to it, and no other."""
    clone, other = (mapped(neighbour.image.clone(f"clone{number}.img"), number) for number in (7, 9))

    assert created(pool, neighbour.array, clone) == SUCCESS

    (call,) = pool.log.of("sr_create")
    assert (call.status, call.stderr) == (0, b"")
    device = initiator.device_of(clone.scsi_id)
    assert os.path.realpath("/dev/disk/by-id/scsi-" + clone.scsi_id) == device
    assert initiator.devices_of(other.scsi_id) == []
    seen = prober.probe_device(device)
    assert seen.problems == ()
    # A row of xapi's for this call may stay if xapi dies; the SR on the LUN must not be that one.
    assert seen.sr_uuid not in (call.params["sr_uuid"], neighbour.uuid)
    became = re.findall(r"  (?:SR|VDI) +\S+  becomes  (\S+)", "\n".join(lab.smlog()))
    assert set(became) == {seen.sr_uuid} | {vdi.uuid for vdi in seen.vdis}

    digest = luns.digest(clone)
    with lab.untouched():
        assert created(pool, neighbour.array, clone) == SUCCESS
    assert luns.digest(clone) == digest
    assert any("was resignatured already" in line for line in lab.smlog())


def test_nothing_of_a_clone_reaches_this_host_though_every_other_call_is_killed(lab, pool, neighbour, pytestconfig):
    seed = pytestconfig.getoption("--seed")
    print(f"--seed {seed}")
    dice = random.Random(seed)
    kills = pytestconfig.getoption("--calls") // 2
    image = neighbour.image
    first, *others = (
        lab.lun(image.clone(f"clone{number}.img"), breakable=True) for number in range(1 + min(kills, 10))
    )
    copies = lab.target(first, *others)
    for lun in (first, *others):
        lun.slow(20)  # else the kernel's target answers before a kill can come between
    before, events = World.now(), read("/sys/kernel/uevent_seqnum")

    with Watcher() as watcher:
        assert created(pool, copies, first) == SUCCESS
        whole = pool.log.of("sr_create")[-1].duration
        found = {assert_new(first, image)}
        for number in range(kills):
            lun = others[number % len(others)]
            if number >= len(others):  # the clone is written to the LUN once more, even while the LUN is open
                run("dd", "if=" + image.path, "of=" + lun.path, "bs=1M", "conv=notrunc,sparse", "status=none")
                assert sr_of(lun).uuid == image.sr.uuid
            moment = (number + dice.random()) / kills * whole
            call = Call(lab, created, pool, copies, lun)
            killed_after(pool, moment)
            call.end()
            assert before.diff(World.now(), except_for=LOCKS_OF_A_KILLED_CALL) == [], f"killed after {moment:.3f} s"
            assert created(pool, copies, lun) == SUCCESS, f"killed after {moment:.3f} s"
            assert before.diff(World.now()) == []
            found.add(assert_new(lun, image))

    assert read("/sys/kernel/uevent_seqnum") == events, "no device has come or gone, and udev was told nothing"
    assert len(found) == 1 + kills
    assert not {os.path.basename(line.split()[0]) for line in watcher.began} & OF_THE_HOST


def killed_after(pool, seconds):
    """The driver that is starting, killed that long after its start, if it has not ended."""
    driver = pool.log.wait_for_start("sr_create", HANGS)
    time.sleep(seconds)
    if driver in pool.log.running():
        with contextlib.suppress(ProcessLookupError):  # it has ended since the log was read
            os.kill(driver.pid, 9)


def test_five_calls_at_once_on_four_luns_of_one_target_and_one_of_them_twice(lab, pool):
    four = [lab.lun(luns.from_disk(builder.one_vhd().disk, f"lun{number}.img")) for number in range(4)]
    copies = lab.target(*four)

    with lab.untouched():
        calls = [Call(lab, created, pool, copies, lun) for lun in [*four, four[0]]]
        assert [call.end() for call in calls] == [SUCCESS] * 5

    assert {sr_of(lun).uuid for lun in four} == chosen(lab)
    assert len(chosen(lab)) == 4


# -- a LUN that this host sees ------------------------------------------------------------------------------------


def test_a_lun_that_this_host_sees_is_written_unless_it_is_used_here(lab, make_pool, neighbour, mapped):
    image = lab.image("chain")
    clone, vg = mapped(image.clone("seen.img"), 7), "VG_XenStorage-" + image.sr.uuid
    device, digest = neighbour.scan(clone), luns.digest(clone)
    pool = make_pool(multipathing="true")

    with open(device, "rb"):
        read = created(pool, neighbour.array, clone)
    initiator.lvm("vgchange", "-ay", vg, device=device)
    active = created(pool, neighbour.array, clone)
    initiator.lvm("vgchange", "-an", vg, device=device)

    assert is_failure(read, 202, "in use"), read
    assert is_failure(active, 202, "in use", vg.replace("-", "--")), active
    assert luns.digest(clone) == digest

    assert created(pool, neighbour.array, clone) == SUCCESS
    assert_shown(clone, image)


def test_the_map_of_a_lun_is_opened_for_its_paths_and_stays(lab, pool, neighbour, mapped):
    clone = mapped(neighbour.image.clone("map.img"), 7)
    device = neighbour.scan(clone)
    wwids = Path("/etc/multipath/wwids").read_bytes()
    run("multipath", "-a", device)
    try:
        run("multipath", device)
        name = "/dev/mapper/" + clone.scsi_id
        until(lambda: os.path.exists(name), "the map is there")
        settle()
        digest = luns.digest(clone)
        with open(name, "rb"):
            used = created(pool, neighbour.array, clone)
        assert is_failure(used, 202, "in use"), used
        assert luns.digest(clone) == digest

        assert created(pool, neighbour.array, clone) == SUCCESS
        assert initiator.multipath_map(clone.scsi_id) == [os.path.basename(device)]
        assert udev_knows(name)["ID_FS_UUID"] == prober.probe_device(name).pv_uuid
    finally:
        settle()
        run("multipath", "-f", clone.scsi_id, check=False)
        Path("/etc/multipath/wwids").write_bytes(wwids)
    assert_new(clone, neighbour.image)


def test_a_lun_that_appears_in_the_middle_of_a_call_is_shown_as_it_is_afterwards(lab, pool, neighbour, mapped):
    clone = mapped(neighbour.image.clone("late.img"), 7, breakable=True)
    clone.slow(100)

    call = Call(lab, created, pool, neighbour.array, clone)
    with call.stopped(STEPS[1]):
        # LVM's commands do not wait for a call on a LUN that this host did not see.
        initiator.lvm("vgchange", "--refresh", neighbour.sr.vg, device=neighbour.sr.device)
        device = neighbour.scan(clone)
        descriptor = os.open(device, os.O_RDONLY)
        os.pread(descriptor, 4096, 0)
    clone.heal()
    try:
        assert call.end() == SUCCESS
        with open(clone.path, "rb") as image:
            assert os.pread(descriptor, 4096, 0) == image.read(4096), "the page cache is stale"
    finally:
        os.close(descriptor)
    assert_shown(clone, neighbour.image)


def udev_knows(device):
    """The properties of a device in udev's database."""
    settle()
    lines = run("udevadm", "info", "-q", "property", device).out.splitlines()
    return dict(line.split("=", 1) for line in lines)


def assert_shown(lun, image):
    """LVM, the page cache and udev show the new identity of a LUN."""
    device = initiator.device_of(lun.scsi_id)
    seen = prober.probe_device(device)
    assert seen.problems == () and seen.sr_uuid == assert_new(lun, image)
    assert udev_knows(device)["ID_FS_UUID"] == seen.pv_uuid


# -- passwords ----------------------------------------------------------------------------------------------------


def test_mutual_chap_is_used_and_shown_nowhere(lab, make_pool, neighbour):
    pool = make_pool(executes=True)
    clone = lab.lun(neighbour.image.clone("clone.img"))
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"), mutual=Chap("array", "battery-staple-2"))
    digest = luns.digest(clone)
    ours = {"chapuser": "sm", "chappassword": "correct-horse-1"}
    ours.update({"incoming_chapuser": "array", "incoming_chappassword": "battery-staple-2"})

    with Watcher() as watcher, lab.untouched():
        for wrong in ({"chappassword": "wrong-horse-22"}, {"incoming_chappassword": "wrong-staple-33"}):
            assert is_failure(created(pool, copies, clone, **{**ours, **wrong}), 68, "Nothing was written.")
        assert luns.digest(clone) == digest
        assert created(pool, copies, clone, **ours) == SUCCESS

    for secret in ("correct-horse-1", "wrong-horse-22", "battery-staple-2", "wrong-staple-33"):
        assert watcher.places(secret) == []
        assert pool.log.grep(secret) == []
        assert not any(secret in line for line in lab.smlog())


# -- while something breaks ---------------------------------------------------------------------------------------


def test_a_lun_that_is_unmapped_during_the_writes_is_finished_by_the_next_call(lab, pool, neighbour, slow_clone):
    copies = lab.target(slow_clone)
    slow_clone.slow(100)

    # The disk below the LUN, which goes when that is unmapped, had the link by the PV's id that is the original's then.
    with lab.untouched(except_for=["links:*lvm-pv-uuid-*"]):
        call = Call(lab, created, pool, copies, slow_clone)
        with call.stopped(STEPS[2]):
            copies.remove_lun(slow_clone)
        failed = call.end()
    assert failed[0].startswith("SR_BACKEND_FAILURE_") and "successfully resigned" not in str(failed), failed
    assert "seconds of this call" not in failed[2], "it does not wait for the deadline"

    copies.add_lun(slow_clone)
    slow_clone.heal()
    assert created(pool, copies, slow_clone) == SUCCESS
    assert {assert_new(slow_clone, neighbour.image)} == chosen(lab)


def test_a_lun_that_answers_nothing_is_waited_for_until_the_deadline(lab, pool, neighbour, slow_clone):
    copies = lab.target(slow_clone)
    digest = luns.digest(slow_clone)
    configure(deadline=8)

    with lab.untouched():
        slow_clone.freeze()
        given_up = created(pool, copies, slow_clone)
        assert is_failure(given_up, 47, "The 8 seconds of this call", "wrote nothing"), given_up
        assert luns.digest(slow_clone) == digest

        configure()
        slow_clone.slow(100)
        call = Call(lab, created, pool, copies, slow_clone)
        with call.stopped(STEPS[2]):
            slow_clone.freeze()
        call.join(3)
        assert call.answer is None, "it waits"
        slow_clone.heal()
        assert call.end() == SUCCESS

    assert {assert_new(slow_clone, neighbour.image)} == chosen(lab)
