# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create type=relvmoiscsi as xapi executes it, on real iSCSI, beside the original in use."""

import glob
import os
import shutil
import signal
import subprocess
import threading

import pytest
import XenAPI

from lab.guest import INITIATOR
from lab.lio import Chap
from pool import client
from pool.simulator import XAPI_SOCKET, Pool, sm_directory

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
DRIVER = os.path.join(TOP, "drivers/ReLVMoISCSISR")

SUCCESS = [
    "SR_BACKEND_FAILURE_1",
    "",
    "Error reporting error, unknown key The SR has been successfully resigned. Use the lvmoiscsi type to attach it",
    "",
]
#: what stays on a host once SM and the driver have run there: locks that would be unsafe to remove
STAYING = ["/run/lock/sm/iscsiadm/running", "/run/lock/sm/iscsiadm/isciadm_running", "/run/lock/sm/.nil/lvm"]


@pytest.fixture(scope="session", autouse=True)
def a_host_where_sm_ran(guest):
    """Locks of SM and of ours are there, and so are our udev rules."""
    os.makedirs("/run/relvmoiscsi", exist_ok=True)
    for rules in glob.glob(os.path.join(TOP, "udev", "*.rules")):
        shutil.copy(rules, "/etc/udev/rules.d")
    subprocess.run(["udevadm", "control", "--reload"], check=True)
    for path in STAYING:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="ascii"):
            pass


@pytest.fixture
def pool(tmp_path):
    os.makedirs(os.path.dirname(XAPI_SOCKET), exist_ok=True)
    with Pool(sm_directory(tmp_path / "sm", DRIVER), XAPI_SOCKET) as pool:
        for host in pool.hosts:
            pool.db.set("host", host, "other_config", {"iscsi_iqn": INITIATOR, "multipathing": "false"})
        yield pool


@pytest.fixture
def image(lab):
    return lab.image("chain")


@pytest.fixture
def original(lab, image):
    """The LUN of the SR, behind a target of its own."""
    lun = lab.lun(image)
    lab.target(lun)
    return lun


@pytest.fixture
def clone(lab, image):
    return lab.lun(image.clone("clone.img"))


def created(pool, target, lun, **more):
    """What XenAPI says to SR.create: the four strings of its failure."""
    config = dict(target="127.0.0.1", targetIQN=target.iqn, SCSIid=lun.scsi_id, resign="true", **more)
    with client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        with pytest.raises(XenAPI.Failure) as caught:
            session.xenapi.SR.create(host, config, "0", "name", "", "relvmoiscsi", "user", True, {})
    return caught.value.details


def test_a_clone_is_resignatured_beside_its_original_in_use(lab, pool, image, original, clone):
    copies = lab.target(clone)
    digest = image.digest()
    (source,) = [target for target in lab._targets if original in target.luns]

    with lab.attached(source, original, image.sr.uuid), lab.untouched():
        assert created(pool, copies, clone) == SUCCESS

    (call,) = pool.log.of("sr_create")
    assert (call.status, call.stderr) == (0, b"")
    seen = lab.probe(copies, clone)
    assert seen.sr_uuid == call.params["sr_uuid"] != image.sr.uuid
    assert seen.problems == ()
    assert image.digest() == digest
    assert any("becomes  " + seen.sr_uuid in line for line in lab.smlog())


def test_the_same_call_again_gives_the_same_answer_without_a_write(lab, pool, clone):
    copies = lab.target(clone)
    assert created(pool, copies, clone) == SUCCESS
    digest = clone.digest() if hasattr(clone, "digest") else None
    first = lab.probe(copies, clone).sr_uuid

    assert created(pool, copies, clone) == SUCCESS

    assert lab.probe(copies, clone).sr_uuid == first
    assert digest is None or clone.digest() == digest


def test_chap_is_used_and_shown_nowhere(lab, pool, clone):
    copies = lab.target(clone, chap=Chap("sm", "correct-horse-1"))

    with lab.secrets() as watcher, lab.untouched():
        assert created(pool, copies, clone, chapuser="sm", chappassword="correct-horse-1") == SUCCESS
        wrong = created(pool, copies, clone, chapuser="sm", chappassword="wrong-horse-22")

    assert wrong[0] == "SR_BACKEND_FAILURE_68" and "successfully resigned" not in str(wrong)
    for secret in ("correct-horse-1", "wrong-horse-22"):
        assert watcher.places(secret) == []
        assert pool.log.grep(secret) == []
        assert not any(secret in line for line in lab.smlog())


@pytest.mark.parametrize(
    "change, code",
    [
        ({"SCSIid": "3600140500000000000000000000000000"}, "SR_BACKEND_FAILURE_67"),
        ({"targetIQN": "iqn.2026-01.lab:none"}, "SR_BACKEND_FAILURE_83"),
        ({"port": "3999"}, "SR_BACKEND_FAILURE_141"),
        ({"target": "no-such-name.invalid"}, "SR_BACKEND_FAILURE_140"),
    ],
)
def test_what_cannot_be_reached_is_told_apart_and_leaves_nothing(lab, pool, clone, change, code):
    copies = lab.target(clone)
    config = {"target": "127.0.0.1", "targetIQN": copies.iqn, "SCSIid": clone.scsi_id, **change}

    with lab.untouched(), client.connected(pool) as session:
        host = session.xenapi.host.get_all()[0]
        with pytest.raises(XenAPI.Failure) as caught:
            session.xenapi.SR.create(host, config, "0", "name", "", "relvmoiscsi", "user", True, {})

    assert caught.value.details[0] == code


def test_a_lun_without_an_sr_and_a_read_only_one_are_refused(lab, pool, image):
    empty = lab.lun(lab.blank("empty.img"))
    locked = lab.lun(image.clone("locked.img"), read_only=True)
    target = lab.target(empty, locked)

    with lab.untouched():
        nothing, read_only = created(pool, target, empty), created(pool, target, locked)

    assert nothing[0] == "SR_BACKEND_FAILURE_92" and "is empty" in nothing[2]
    assert read_only[0] == "SR_BACKEND_FAILURE_202" and "read-only" in read_only[2]


def test_the_session_of_an_sr_on_the_same_iqn_survives(lab, pool, image):
    luns = [lab.lun(image)] + [lab.lun(image.clone("clone{}.img".format(n))) for n in range(1, 10)]
    array = lab.target(*luns)
    digest = image.digest()

    # Which of several copies a link by PV id leads to is udev's choice; of a line in SM's file blanks may stay.
    links_and_blanks = ["links:*lvm-pv-uuid-*", "files:/run/sr-ref/*"]
    with lab.attached(array, luns[0], image.sr.uuid) as sr, lab.untouched(except_for=links_and_blanks):
        assert created(pool, array, luns[7]) == SUCCESS
        assert "MGT" in sr.active

    assert image.digest() == digest


@pytest.mark.parametrize("delay_s", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_a_killed_call_is_finished_by_the_next(lab, pool, clone, delay_s):
    copies = lab.target(clone)

    def kill():
        running = pool.log.wait_for_start("sr_create")
        threading.Event().wait(delay_s)
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was done before

    killer = threading.Thread(target=kill)
    killer.start()
    created(pool, copies, clone)
    killer.join()

    with lab.untouched(except_for=["sessions", "records", "block", "files", "links", "names", "processes"]):
        assert created(pool, copies, clone) == SUCCESS
    assert lab.probe(copies, clone).problems == ()


def test_two_calls_at_once_give_one_resignature(lab, pool, clone):
    copies = lab.target(clone)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(created(pool, copies, clone))) for _ in range(2)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [SUCCESS, SUCCESS]
    seen = lab.probe(copies, clone)
    assert seen.sr_uuid in [call.params["sr_uuid"] for call in pool.log.of("sr_create")]


def test_an_sr_that_has_the_scsi_id_is_never_touched(lab, pool, image, clone):
    copies = lab.target(clone)
    digest = clone.digest() if hasattr(clone, "digest") else None
    sr = pool.db.create("SR", name_label="in use", type="lvmoiscsi", uuid=image.sr.uuid)
    pool.db.create("PBD", SR=sr, host=pool.master, device_config={"SCSIid": clone.scsi_id}, currently_attached=True)

    with lab.untouched():
        answer = created(pool, copies, clone)

    assert answer[0] == "SR_BACKEND_FAILURE_202" and image.sr.uuid in answer[2]
    assert digest is None or clone.digest() == digest


def test_lvm_does_not_grab_the_clone_while_events_activate(lab, pool, clone):
    copies = lab.target(clone)

    with lab.event_activation(), lab.untouched():
        assert created(pool, copies, clone) == SUCCESS
