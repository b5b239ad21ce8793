# SPDX-License-Identifier: LGPL-2.1-only
"""What sr_create does to a LUN at hand, on golden ones; the locks are those of the machine and left out."""

import logging
from contextlib import contextmanager

import pytest

from kit import golden
from kit.clock import Clock
from kit.driver_calls import SCSI_ID
from relvmoiscsi import engine
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.host.locks.lvm_locks import LvmLocks
from relvmoiscsi.sr_driver import rewrite


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The seconds that each lock was waited for; no lock is taken."""
    found = []

    def lock_of(held):
        @contextmanager
        def lock(*_args, timeout=None):
            found.append(timeout)
            yield held

        return lock

    monkeypatch.setattr(rewrite.sm_locks, "lvm_lock", lock_of([]))
    monkeypatch.setattr(rewrite, "lvm_locks", lock_of(LvmLocks()))
    return found


def test_who_holds_a_lock_is_told_before_the_time_is_over(waits):
    """The caller gives up at the deadline, and says that the LUN was not read by then."""
    rewrite.resignatured(golden.load("one").disk, engine.ResignatureRequest(SCSI_ID), Deadline(12, Clock()))

    assert waits == [11, 11]
    assert rewrite.waiting(Deadline(0.5, Clock()), 600) == 0
    assert rewrite.waiting(NO_DEADLINE, 600) == 600


@pytest.mark.parametrize("kind, lines", [("one", 0), ("chain", 1)])
def test_more_than_one_vdi_is_said_plainly(caplog, kind, lines):
    caplog.set_level(logging.INFO)
    disk = golden.load(kind).disk

    rewrite.resignatured(disk, engine.ResignatureRequest(SCSI_ID), NO_DEADLINE)

    rows = len(engine.inspect(disk).lun.disks())
    said = [record.getMessage() for record in caplog.records if "CloudStack" in record.getMessage()]
    assert len(said) == lines
    assert all(f"the SR has {rows} VDIs" in line for line in said)
