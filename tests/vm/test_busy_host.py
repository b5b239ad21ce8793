# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create on a host where others work too: what is theirs goes on, and nothing of ours stays."""

import contextlib
import os
import shutil
import signal
import struct
import subprocess

import pytest

from kit.lab import initiator
from kit.lab.command import run, settle, until, write
from kit.lab.xapi import SUCCESS, Call, created
from relvmoiscsi.host.disk.udev import hidden, hidden_target, is_hidden
from relvmoiscsi.host.iscsi.notes import DIRECTORY, new_note
from relvmoiscsi.host.this_host import Host

NOTES = os.path.join("/", DIRECTORY)
#: of a line in SM's file blanks may stay, and which of several copies a link by PV id leads to is udev's choice
LINKS_AND_BLANKS = ["links:*lvm-pv-uuid-*", "files:/run/sr-ref/*"]


@pytest.fixture
def data(lab):
    """A LUN with a file system that belongs to somebody else."""
    image = lab.blank("data.img", 32 << 20)
    run("mkfs.ext4", "-q", "-F", image.path)
    return lab.lun(image)


@pytest.fixture
def mount(tmp_path):
    """Mounts a disk where this process cannot see it: in a mount namespace of its own."""
    processes = []

    def mounted(device):
        script = 'mount "$0" "$1" && echo mounted && read line && ls "$1" && umount "$1"'
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, device, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout.readline() == "mounted\n"
        return process

    yield mounted
    for process in processes:
        if process.returncode is None:
            process.communicate("\n", 60)


def unmounted(process):
    """What was to be seen in the file system to the end."""
    answer, _ = process.communicate("\n", 60)
    assert process.returncode == 0
    return answer.split()


@contextlib.contextmanager
def late_udev(directory):
    """Holds udev at a disk that comes, behind the rule that hides it; gives functions: wait until it is, let it go."""
    at_it, go, rules = str(directory / "at-it"), str(directory / "go"), "/run/udev/rules.d/58-late.rules"
    script = f"/usr/bin/touch {at_it}; until [ -e {go} ]; do /bin/sleep 1; done"
    os.makedirs(os.path.dirname(rules), exist_ok=True)
    write(rules, f'KERNEL=="sd*", ENV{{DEVTYPE}}=="disk", ACTION=="add", PROGRAM="/bin/sh -c \'{script}\'"\n')
    run("udevadm", "control", "--reload")
    try:
        yield lambda: until(lambda: os.path.exists(at_it), "udev is at the disk"), lambda: write(go, "")
    finally:
        write(go, "")
        shutil.rmtree(os.path.dirname(rules))
        run("udevadm", "control", "--reload")


def test_a_disk_that_udev_is_at_when_the_switch_goes_is_shown_with_its_partitions(lab, pool, data, tmp_path):
    image = lab.blank("parts.img", 32 << 20)
    with open(image.path, "r+b") as disk:
        disk.seek(446)  # the first partition of a master boot record
        disk.write(struct.pack("<8B2I", 0, 0, 0, 0, 0x83, 0, 0, 0, 2048, 32768) + bytes(48) + b"\x55\xaa")
    lun = lab.lun(image, number=9)
    array = lab.target(data)
    initiator.login(array.iqn, array.portal)
    array.add_lun(lun)

    with late_udev(tmp_path) as (wait, let_go):
        with hidden_target(array.iqn):
            initiator.iscsiadm("-m", "session", "--rescan")
            wait()
        let_go()
        settle()

    device = initiator.device_of(lun.scsi_id)
    link = "/dev/disk/by-id/scsi-" + lun.scsi_id
    assert [os.path.realpath(path) for path in (link, link + "-part1")] == [device, device + "1"]
    assert not is_hidden(os.path.basename(device))


def test_no_clone_of_a_target_is_activated_while_another_one_is_resignatured(lab, pool, image):
    clones = [lab.lun(image.clone(f"clone{number}.img")) for number in range(2)]
    copies = lab.target(*clones)
    digest = lab.digest(clones[1])

    with lab.event_activation(), lab.untouched():
        assert created(pool, copies, clones[0]) == SUCCESS

    assert lab.digest(clones[1]) == digest


def test_a_lun_that_is_done_is_seen_while_another_call_is_at_work_on_its_target(lab, pool, image):
    clones = [lab.lun(image.clone(f"clone{number}.img")) for number in range(3)]
    array = lab.target(*clones)
    done, other, of_the_pool = (lun.scsi_id for lun in clones)

    with hidden_target(array.iqn, [of_the_pool]):  # as the other call does it
        initiator.login(array.iqn, array.portal)
        settle()
        assert is_seen(of_the_pool) and not is_seen(done)
        assert created(pool, array, clones[0]) == SUCCESS
        assert is_seen(done), "SM waits 15 seconds for this link"
        assert not is_seen(other)


def test_what_a_login_brings_whose_call_was_just_killed_is_hidden_until_the_next_call(lab, pool, image):
    clones = [lab.lun(image.clone(f"clone{number}.img")) for number in range(3)]
    array = lab.target(*clones)
    wanted, other, of_the_pool = (lun.scsi_id for lun in clones)

    child = os.fork()
    if not child:
        with hidden(wanted, multipath=True), hidden_target(array.iqn, [of_the_pool]):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    initiator.login(array.iqn, array.portal)  # iscsid goes on with it
    settle()
    assert [is_seen(one) for one in (wanted, other, of_the_pool)] == [False, False, True]
    properties = run("udevadm", "info", "-q", "property", initiator.device_of(wanted))
    assert "nompath=1" in properties.output, "nothing would hide the map"

    assert created(pool, array, clones[0]) == SUCCESS
    assert is_seen(wanted) and is_seen(other)
    assert not os.path.exists("/run/relvmoiscsi/hide")


def is_seen(scsi_id):
    """By what SM goes by."""
    device, link = initiator.device_of(scsi_id), "/dev/disk/by-id/scsi-" + scsi_id
    return os.path.exists(link) and os.path.realpath(link) == device and not is_hidden(os.path.basename(device))


def test_what_a_scan_brings_is_hidden_and_goes_again(lab, pool, image, original):
    array = lab.target(original)
    digest = image.digest()

    with lab.attached(array, original, image.sr.uuid) as sr, lab.event_activation():
        with lab.untouched(except_for=LINKS_AND_BLANKS):
            clones = [array.add_lun(lab.lun(image.clone(f"clone{n}.img"), number=n)) for n in (9, 10)]
            assert created(pool, array, clones[0]) == SUCCESS
        assert "MGT" in sr.active
        answer = created(pool, array, clones[0], SCSIid=None)

    assert answer[0] == "SR_BACKEND_FAILURE_107" and clones[1].scsi_id in answer[3]
    assert initiator.devices_of(clones[1].scsi_id) == []
    assert lab.digest(clones[1]) == digest


def test_the_lun_of_an_sr_that_is_being_attached_stays_when_our_scan_was_first(lab, pool, clone):
    array = lab.target(clone)
    initiator.login(array.iqn, array.portal)
    write(initiator.SR_REF / array.iqn, "99999999-2222-3333-4444-555555555559\n")
    wanted = array.add_lun(lab.lun(lab.blank("data.img", 8 << 20), number=9))  # SM has its line, and has yet to look
    sr = pool.db.create("SR", name_label="data", type="lvmoiscsi")
    pool.db.create("PBD", SR=sr, host=pool.master, device_config={"SCSIid": wanted.scsi_id})

    assert created(pool, array, clone) == SUCCESS

    disk = initiator.device_of(wanted.scsi_id)
    settle()
    assert not is_hidden(os.path.basename(disk))


def test_a_note_of_a_killed_call_does_not_end_a_session_of_others(lab, pool, clone, data, mount):
    array = lab.target(data, clone)
    address, port = array.portal.split(":")
    new_note(Host("/"), iqn=array.iqn, portal=[address, int(port)], user=None, created=True).close()
    initiator.login(array.iqn, array.portal)
    user = mount(initiator.device_of(data.scsi_id))
    session = lab.world()["sessions"]

    assert created(pool, array, clone) == SUCCESS

    assert lab.world()["sessions"] == session
    assert unmounted(user) == ["lost+found"]
    assert not os.path.exists(NOTES)


def test_a_session_of_ours_that_others_use_by_the_end_is_handed_over(lab, pool, image, data, mount):
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    array = lab.target(data, clone)
    clone.slow(200)

    call = Call(lab, pool, array, clone)
    call.reach("step 2 of 6")
    user = mount(initiator.device_of(data.scsi_id))
    assert call.end() == SUCCESS

    (session,) = lab.world()["sessions"]
    with open(f"/sys/class/iscsi_session/{session}/recovery_tmo", encoding="ascii") as patience:
        assert patience.read().strip() == "144"
    assert any("stays, as its disks are in use: the file system mounted at" in line for line in lab.smlog())
    assert unmounted(user) == ["lost+found"]
    assert not os.path.exists(NOTES) and initiator.references() == []


def test_a_call_that_is_told_to_end_leaves_the_host_as_it_was_or_ends_its_work(lab, pool, image):
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    array = lab.target(clone)
    clone.slow(100)

    with lab.untouched():
        call = Call(lab, pool, array, clone)
        os.kill(call.reach("logged in to session"), signal.SIGTERM)
        answer = call.end()
        assert answer[0] == "SR_BACKEND_FAILURE_47" and "(SIGTERM)" in answer[2]
    with lab.untouched():
        call = Call(lab, pool, array, clone)
        driver = call.reach("sr_create: LUN")
        call.reach("step 2 of 6")
        os.kill(driver, signal.SIGTERM)
        assert call.end() == SUCCESS


def test_who_holds_the_last_line_ends_the_session_that_sm_has_left(lab, pool, image, original, clone):
    array = lab.target(original, clone)

    with lab.untouched(except_for=["records"]):  # SM's record of the node stays when it logs out
        sr = initiator.AttachedSr(array, original, image.sr.uuid).attach()
        call = Call(lab, pool, array, clone)
        driver = call.reach("using the session to")
        os.kill(driver, signal.SIGSTOP)
        try:
            sr.detach()
        finally:
            os.kill(driver, signal.SIGCONT)
        assert [iqn for iqn, _ in initiator.sessions()] == [array.iqn], "SM has left it to us"
        assert call.end() == SUCCESS

    assert initiator.sessions() == []


def test_a_session_that_sm_ends_just_as_a_call_has_begun_to_use_it_is_made_anew(lab, pool, image, original):
    """SM had read its file before our line was there, and was at iscsiadm only now."""
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    array = lab.target(original, clone)
    with lab.untouched():
        initiator.login(array.iqn, array.portal)
        clone.slow(300)
        call = Call(lab, pool, array, clone)
        call.reach(f"the LUN {clone.scsi_id} is")
        initiator.iscsiadm("-m", "node", "-T", array.iqn, "--logout")
        answer = call.end()
        initiator.iscsiadm("-m", "node", "-T", array.iqn, "-o", "delete")

    assert answer == SUCCESS
    assert any("by another program; once more" in line for line in lab.smlog())


def test_a_sick_lun_of_others_does_not_keep_a_clone_from_its_identity(lab, pool, image):
    """It is not ready, and the kernel waits for it for as long as a disk takes to spin up, if it is asked."""
    sick, clone = lab.lun(lab.blank("sick.img", 32 << 20), number=3), lab.lun(image.clone("clone.img"), number=9)
    array = lab.target(sick)
    initiator.login(array.iqn, array.portal)
    array.add_lun(clone)
    offline = array.group(1) / "lun" / f"lun_{sick.number}" / "alua_tg_pt_offline"
    write(offline, "1\n")
    try:
        answer = created(pool, array, clone)
    finally:
        write(offline, "0\n")
    log = lab.smlog()
    initiator.logout(array.iqn)

    assert answer == SUCCESS
    assert not any("is not waited for" in line for line in log)
