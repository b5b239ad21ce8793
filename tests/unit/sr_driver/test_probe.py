# SPDX-License-Identifier: LGPL-2.1-only
"""A probe waits for nobody: xapi attaches no disk on this host while it runs."""

from xml.etree import ElementTree

import pytest

from kit import golden
from kit.clock import Clock
from kit.cuts import SCSI_ID as CUT_ID
from kit.cuts import done
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.locks.sm_locks import Busy
from relvmoiscsi.sr_driver import probe
from relvmoiscsi.sr_driver.hba import HBA
from relvmoiscsi.sr_driver.iscsi import ISCSI
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import CallLun


@pytest.fixture
def probing():
    """A probe whose LUN cannot be reached for this reason; what it was given."""

    def ends_in(error, seconds=0, transport=ISCSI):
        found, clock = [], Clock()

        class Unreached(CallLun):
            def read(self, work):
                found.append(self)
                clock.now += seconds
                raise error

        def open_lun(call, config, xapi, smlog, deadline, lock_seconds):
            return Unreached(config.scsi_id, deadline, lock_seconds)

        answer = probe.sr_probe(
            Call("sr_probe", {}),
            ISCSI.parse_config(DEVICE_CONFIG),
            None,
            None,
            Deadline(50, clock),
            transport._replace(open_lun=open_lun),
        )
        return answer, found[0]

    return ends_in


def test_where_somebody_is_at_work_it_says_so_at_once(probing):
    answer, lun = probing(Busy("The lock /var/lock/sm/x is held by process 12."))

    (row,) = ElementTree.fromstring(answer).findall("SR")
    assert {field.tag: field.text for field in row} == {
        "Devlist": SCSI_ID,
        "state": "busy",
        "problem": "The lock /var/lock/sm/x is held by process 12.",
    }
    assert (lun.lock_seconds, lun.deadline.left) == (0, 12)
    _, lun = probing(Busy("A slow host scanned for nine seconds and had 2.7 left for a map."), transport=HBA)
    assert lun.deadline.left == 50


@pytest.mark.parametrize("seconds, words", [(13, "no such LUN. Nothing was written."), (0, "no such LUN")])
def test_anything_else_is_an_error_that_says_what_the_lun_is_at_the_end_of_its_time(probing, seconds, words):
    with pytest.raises(NotFound, match=words):
        probing(NotFound("There is no such LUN."), seconds=seconds)


def test_a_copy_of_a_resignatured_lun_is_told_from_that():
    """Both hold the same SR; the mark in the label says which LUN it was made on."""
    disk = done(golden.load("one").disk)
    first, second = (ElementTree.fromstring(probe.document(disk, scsi_id)) for scsi_id in (CUT_ID, CUT_ID[:-1] + "9"))

    assert first.findtext("SR/UUID") == second.findtext("SR/UUID")
    assert (first.findtext("SR/copied"), second.findtext("SR/copied")) == (None, "true")


def test_what_one_vdi_would_come_to_is_said_of_a_lun_with_an_sr_alone():
    chain, empty = golden.load("chain").disk, SparseDisk(1 << 20)
    first, second = (ElementTree.fromstring(probe.document(disk, CUT_ID)) for disk in (chain, empty))

    assert first.findtext("SR/one_vdi") == engine.one_vdi(chain, engine.inspect(chain).lun).state
    assert (second.findtext("SR/state"), second.find("SR/one_vdi")) == ("empty", None)


def test_what_the_vdis_of_a_resignatured_lun_were_unless_they_do_not_fit_into_an_answer(monkeypatch):
    before = golden.load("chain").disk
    old = engine.inspect(before).lun.disks()
    after = done(before.copy())

    assert ElementTree.fromstring(probe.document(after, CUT_ID)).findtext("SR/old_vdis").split() == sorted(old)
    assert ElementTree.fromstring(probe.document(before, CUT_ID)).find("SR/old_vdis") is None
    monkeypatch.setattr(probe, "MOST_VDIS", 1)
    assert ElementTree.fromstring(probe.document(after, CUT_ID)).find("SR/old_vdis") is None
