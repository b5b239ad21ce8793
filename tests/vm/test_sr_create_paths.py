# SPDX-License-Identifier: LGPL-2.1-only
"""SR.create with several paths to a LUN: through dm-multipath where that is on, never through two disks else."""

import os
import signal

import pytest

from kit.lab import initiator
from kit.lab.command import settle, write
from kit.lab.guest import sg3_rules
from kit.lab.xapi import SUCCESS, Call, created

TWO_GROUPS = [["127.0.0.1:3260"], ["127.0.0.2:3260"]]
BOTH = "127.0.0.1,127.0.0.2"


@pytest.fixture
def multipathed_pool(make_pool):
    return make_pool(multipathing="true")


@pytest.fixture(params=["55", "61"])
def rules_of_sg3_utils(request):
    """The rules of sg3_utils, by whose properties multipathd knows what it may take: Debian's, or those of EL 9."""
    with sg3_rules(request.param):
        yield


@pytest.mark.usefixtures("rules_of_sg3_utils")
def test_other_clones_of_the_target_have_no_map_and_keep_no_session(lab, multipathed_pool, image):
    clones = [lab.lun(image.clone(f"clone{number}.img")) for number in range(2)]
    copies = lab.target(*clones, groups=TWO_GROUPS)

    with lab.multipathing(), lab.event_activation(), lab.untouched():
        assert created(multipathed_pool, copies, clones[0], target=BOTH) == SUCCESS

    assert not any("stays" in line for line in lab.smlog())


def test_with_multipathing_the_lun_is_written_through_its_map_which_goes_again(lab, multipathed_pool, image, clone):
    copies = lab.target(clone, groups=TWO_GROUPS)
    digest = image.digest()

    with lab.multipathing(), lab.untouched():
        assert created(multipathed_pool, copies, clone, target=BOTH) == SUCCESS

    log = lab.smlog()
    assert any("multipath map" in line and "made" in line for line in log), log
    assert any("step 3 of 6" in line and "/dev/mapper/" + clone.scsi_id in line for line in log), log
    assert lab.probe(copies, clone).problems == ()
    assert image.digest() == digest


def test_the_map_of_the_original_stays_in_use(lab, multipathed_pool, image, original, clone):
    array = lab.target(original, clone, groups=TWO_GROUPS)
    digest = image.digest()
    for portal in array.portals:
        initiator.login(array.iqn, portal)

    # The clone's map was there before and stays, and has a PV of its own now.
    with lab.multipathing(original.scsi_id, clone.scsi_id), lab.untouched(except_for=["links:*lvm-pv-uuid-*"]):
        assert created(multipathed_pool, array, clone, target=BOTH) == SUCCESS
        assert len(initiator.multipath_map(original.scsi_id)) == 2

    assert image.digest() == digest


def test_a_path_that_fails_during_the_writes_is_no_failure(lab, multipathed_pool, image):
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    copies = lab.target(clone, groups=TWO_GROUPS)

    with lab.multipathing():
        clone.slow(200)
        call = Call(lab, multipathed_pool, copies, clone, target=BOTH)
        call.reach("step 2 of 6")
        copies.disable(1)
        assert call.end(58) == SUCCESS
        assert initiator.multipath_map(clone.scsi_id) is None
        assert initiator.sessions() == []
        clone.heal()
        copies.enable(1)

    assert lab.probe(copies, clone).problems == ()


def test_a_killed_call_is_finished_by_the_next_and_its_map_goes(lab, multipathed_pool, image):
    """Until now the next call took the map for somebody's, and left it with both sessions for good."""
    clone = lab.lun(image.clone("slow.img"), breakable=True)
    copies = lab.target(clone, groups=TWO_GROUPS)
    locks = set(os.listdir("/run/lock/lvm"))

    with lab.multipathing(), lab.untouched(except_for=["files:/run/lock/lvm/*"]):
        clone.slow(60)
        call = Call(lab, multipathed_pool, copies, clone, target=BOTH)
        os.kill(call.reach("step 2 of 6"), signal.SIGKILL)
        call.end()
        clone.heal()
        assert len(initiator.multipath_map(clone.scsi_id)) == len(initiator.sessions()) == 2

        assert created(multipathed_pool, copies, clone, target=BOTH) == SUCCESS

    for name in set(os.listdir("/run/lock/lvm")) - locks:
        os.unlink(os.path.join("/run/lock/lvm", name))
    assert lab.probe(copies, clone).problems == ()


def test_one_path_has_a_map_as_well_where_multipathing_is_on(lab, multipathed_pool, image, clone):
    """Also one that another call has brought, and keeps from multipath as a disk that it does not want."""
    other = lab.lun(image.clone("other.img"))
    copies = lab.target(other, clone)

    with lab.multipathing(), lab.untouched(except_for=["files:/etc/multipath/wwids"]):
        first = Call(lab, multipathed_pool, copies, other)
        driver = first.reach("logged in to session")
        os.kill(driver, signal.SIGSTOP)
        settle()
        assert created(multipathed_pool, copies, clone) == SUCCESS
        os.kill(driver, signal.SIGCONT)
        assert first.end() == SUCCESS
        with open(
            "/etc/multipath/wwids", encoding="ascii"
        ) as wwids:  # one that is crossed out stays where it is not last
            assert [line for line in wwids if line.startswith("/")] == []

    for lun in (other, clone):
        assert any("step 3 of 6" in line and "/dev/mapper/" + lun.scsi_id in line for line in lab.smlog())


def test_two_paths_without_multipathing_are_refused(lab, pool, clone):
    copies = lab.target(clone, groups=TWO_GROUPS)
    for portal in copies.portals:
        initiator.login(copies.iqn, portal)
    digest = lab.digest(clone)

    with lab.untouched():
        answer = created(pool, copies, clone)

    assert answer[0].startswith("SR_BACKEND_FAILURE_") and "successfully resigned" not in str(answer)
    assert "has 2 paths" in answer[2], answer
    assert lab.digest(clone) == digest


def test_a_target_with_two_portals_is_used_through_one_where_multipathing_is_off(lab, pool, clone):
    copies = lab.target(clone, groups=TWO_GROUPS)

    with lab.untouched():
        assert created(pool, copies, clone, target=BOTH) == SUCCESS

    assert sum("logged in to session" in line for line in lab.smlog()) == 1


def test_an_sr_that_is_attached_during_a_call_has_a_session_to_each_portal(lab, multipathed_pool, clone):
    """SM finds the session of a call that named one portal, takes a line, and looks for no further portals."""
    array = lab.target(clone, groups=TWO_GROUPS)

    with lab.multipathing():
        call = Call(lab, multipathed_pool, array, clone)
        driver = call.reach("logged in to session")
        os.kill(driver, signal.SIGSTOP)
        write(initiator.SR_REF / array.iqn, "99999999-2222-3333-4444-555555555559\n")
        os.kill(driver, signal.SIGCONT)
        assert call.end() == SUCCESS

        assert sorted(initiator.sessions()) == [(array.iqn, portal) for portal in sorted(array.portals)]
        assert initiator.multipath_map(clone.scsi_id) is None
        for session in lab.world()["sessions"]:
            with open(f"/sys/class/iscsi_session/{session}/recovery_tmo", encoding="ascii") as patience:
                assert int(patience.read()) <= 15
        initiator.logout_all()
        assert created(multipathed_pool, array, clone) == SUCCESS  # and cleans up what was noted of both
    assert initiator.sessions() == []
