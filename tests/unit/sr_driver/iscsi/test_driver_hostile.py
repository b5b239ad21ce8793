# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN whose metadata a stranger has made very large: the call ends in time, whatever is left to compute."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kit.build_lvm import LvText, lv_text
from kit.builder import build_sr, vhd
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.options import Chap
from relvmoiscsi import deadline
from relvmoiscsi.deadline import NOT_BEGUN, Deadline, OutOfTime
from relvmoiscsi.device import Range
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import call
from relvmoiscsi.sr_driver.iscsi import iscsi_lun
from relvmoiscsi.sr_driver.iscsi.iscsi_config import IscsiConfig
from relvmoiscsi.sr_driver.iscsi.iscsi_lun import IscsiLun
from relvmoiscsi.sr_driver.probe import document
from relvmoiscsi.sr_driver.rewrite import rewrite

pytestmark = pytest.mark.processes

SCSI_ID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"
CONFIG = IscsiConfig({"target": "127.0.0.1", "targetIQN": "iqn.2026-01.test:array", "SCSIid": SCSI_ID})


def with_volumes(text, count):
    """The text of a VG with so many more raw VDIs."""
    first = 100
    rows = ((f"{at:06d}", ((1, first + at),)) for at in range(count))
    more = "\n".join(
        lv_text(LvText(f"LV-00{at}-0000-4000-8000-000000000000", f"{at}-0000-0000-0000-0000-0000-000000", False, (),
                       segments, 1795219866))
        for at, segments in rows
    )  # fmt: skip
    text = re.sub(r"\npe_count = \d+", f"\npe_count = {first + count}", text)
    return text.replace("logical_volumes {\n", "logical_volumes {\n" + more, 1)


@pytest.fixture(scope="module")
def hostile():
    """Nearly as much metadata as a run reads. One look at the LUN takes seconds; every machine takes more than one."""
    edit = {"edit_text": lambda text: with_volumes(text, 20000)}
    return build_sr([vhd("disk")], area=Range(4096, 20 << 20), size_bytes=1 << 40, **edit).disk


@pytest.fixture
def lun(hostile, tmp_path, monkeypatch):
    """The LUN of a call with half a second of time, by a session whose target answers at once."""
    for module in (call, iscsi_lun):
        monkeypatch.setattr(module, "THIS_HOST", Host(str(tmp_path)))
    monkeypatch.setattr(iscsi_lun, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(deadline, "_LEAST_CLEANUP_SECONDS", 0.1)

    @contextmanager
    def session(_scsi_id, _writable, _deadline):
        disk = hostile.copy()
        disk.info = SimpleNamespace(kernel_number=7)
        yield disk

    return IscsiLun(SimpleNamespace(config=CONFIG, lun=session), Deadline(0.5, state=NOT_BEGUN), 0)


CALLS = {
    "sr_probe": lambda lun: lun.read(lambda opened: document(opened.device, SCSI_ID)),
    "sr_create": lambda lun: lun.write(
        lambda opened: rewrite(opened, CONFIG, None, lun.deadline), call.Question(SCSI_ID), None
    ),
}


@pytest.mark.parametrize("command", list(CALLS))
def test_a_call_ends_in_time_though_its_lun_has_more_metadata_than_it_can_compute(lun, command):
    with pytest.raises(
        OutOfTime, match="The 0.5 seconds of this call were over before the LUN had been read"
    ) as caught:
        CALLS[command](lun)
    assert caught.value.disk_state == NOT_BEGUN


def test_an_error_of_the_target_at_the_deadline_is_the_answer_and_not_the_time_alone(lun):
    """The waits of a session end at the deadline, with a sentence on what it has waited for."""

    def work(_opened):
        while not lun.deadline.has_passed:
            pass
        raise RelvmoiscsiError("The portal did not answer.", "ISCSITarget")

    with pytest.raises(RelvmoiscsiError, match=r"The portal did not answer\.") as caught:
        lun.read(work)
    assert caught.value.sm_key == "ISCSITarget"


def test_a_secret_that_one_portal_refuses_goes_to_no_other_portal_of_a_list_of_targets(driver, clone):
    with HostileTarget([clone], chap=Chap("alice", "sesamesesame")) as target:
        found = driver.probe(
            target, target="127.0.0.1,localhost", targetIQN="", chapuser="alice", chappassword="not this one"
        )
        assert "the CHAP user or secret is wrong" in str(found.result)
        assert target.count("login refused", 0x0201) == 2  # without CHAP, then with it
