# SPDX-License-Identifier: LGPL-2.1-only
"""What sr_create does to a golden LUN at hand; and a clone on which volumes of its original are active is refused."""

import logging
from contextlib import contextmanager

import pytest

from kit import golden
from kit.chains.lun import EXTENT, Lun
from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID
from kit.outcome import opened
from kit.pool.database import Database
from relvmoiscsi import engine
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import stale_volumes
from relvmoiscsi.host.xapi.other_hosts import Use
from relvmoiscsi.lun import guard, users
from relvmoiscsi.lun.call import CallLun
from relvmoiscsi.lun.pool_records import PoolRecords
from relvmoiscsi.lun.users import Question
from relvmoiscsi.sr_driver import create, rewrite
from relvmoiscsi.sr_driver.iscsi.iscsi_config import IscsiConfig
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport
from relvmoiscsi.sr_types import ISCSI_SR

NOBODY = PoolRecords(pbds={}, srs={}, vdis={})


# --- volumes of the original on the clone

ORIGINAL = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
MGT = "VG_XenStorage--{}-MGT".format(ORIGINAL.replace("-", "--"))
THE_ORIGINAL = (ORIGINAL, f"the SR {ORIGINAL}")
IN_USE = f"/dev/sdc is in use by device-mapper volume {MGT}."


class Asked:
    """xapi, which has a PBD of the original on each of two hosts."""

    def __init__(self, attached=()):
        self.attached = attached

    def until(self, _deadline):
        return self

    def records(self, kind):
        pbds = {
            name: {"SR": "s", "host": name, "currently_attached": name in self.attached} for name in ("me", "other")
        }
        return pbds if kind == "PBD" else {"s": {"uuid": ORIGINAL, "current_operations": {}}}


def refusal(monkeypatch, xapi, use=None, reads=THE_ORIGINAL, problem=IN_USE):
    """The text of a call whose clone cannot be opened for writing."""

    class InUse(CallLun):
        def write(self, work, asks, xapi):
            raise Refused(problem).in_state("Nothing was written.")

    def sr_on_disk(_scsi_id, path, _deadline):
        assert path == "/dev/sdc"
        if isinstance(reads, Exception):
            raise reads
        return reads

    use = use or Use(("sdc",), (MGT,))
    monkeypatch.setattr(create, "sr_on_disk", sr_on_disk)
    monkeypatch.setattr(users, "read_pool", lambda _xapi: NOBODY)
    monkeypatch.setattr(stale_volumes, "use_of_lun", lambda _scsi_id, _host: use)
    deadline = Deadline(50, Clock())
    transport = Transport(ISCSI_SR, IscsiConfig, lambda *_: InUse(SCSI_ID, deadline))
    call = Call("sr_create", DEVICE_CONFIG)._replace(host_ref="me")
    with pytest.raises(Refused) as caught:
        create.sr_create(call, IscsiConfig(DEVICE_CONFIG), xapi, None, deadline, transport)
    return str(caught.value)


def test_a_clone_with_volumes_that_a_failed_plug_has_left_is_refused_with_the_way_out(monkeypatch):
    said = refusal(monkeypatch, Asked(attached=["other"]))

    assert said.startswith(f"{IN_USE} Nothing was written. ")
    assert f"Run `vgchange -an VG_XenStorage-{ORIGINAL}` on this host, resignature the clone" in said


@pytest.mark.parametrize(
    ("use", "reads"),
    [
        (Use(("sdc",), ()), (ORIGINAL, "the SR")),
        (Use(("sdc",), (MGT,)), ("", "no SR that can be read")),
        (Use(("sdc",), (MGT,)), NotFound("sdc is gone.")),
    ],
    ids=["no volumes", "another content", "gone"],
)
def test_any_other_refusal_stands_as_it_was(monkeypatch, use, reads):
    assert refusal(monkeypatch, Asked(), use, reads) == IN_USE + " Nothing was written."


# --- a LUN at hand


@pytest.fixture
def waits(monkeypatch):
    """The seconds that each lock was waited for; no lock is taken."""
    found = []

    def lock_of(held):
        @contextmanager
        def lock(*_args, timeout=None):
            found.append(timeout)
            yield held

        return lock

    monkeypatch.setattr(guard.sm_locks, "lvm_lock", lock_of([]))
    monkeypatch.setattr(guard, "lvm_locks", lock_of(None))
    return found


def rewritten(disk, deadline, scsi_id=SCSI_ID):
    """A call of the driver for a LUN that LVM sees."""
    who = guard.CallGuard(Question(scsi_id), Database(), THIS_HOST, guard.DISK_LOCKS, deadline)
    return rewrite.rewrite(opened(disk, who, scsi_id), IscsiConfig(DEVICE_CONFIG), None, deadline)


def test_who_holds_a_lock_is_told_before_the_time_is_over(waits):
    """The caller gives up at the deadline, and says that the LUN was not read by then."""
    rewritten(golden.load("one").disk, Deadline(12, Clock()))

    assert waits == [11, 11]
    assert guard.wait_seconds(Deadline(0.5, Clock()), 600) == 0
    assert guard.wait_seconds(NO_DEADLINE, 600) == 600


@pytest.mark.parametrize("kind, lines", [("one", 0), ("chain", 1)])
def test_more_than_one_vdi_is_said_plainly(caplog, waits, kind, lines):
    caplog.set_level(logging.INFO)
    disk = golden.load(kind).disk

    rewritten(disk, NO_DEADLINE)

    rows = len(engine.inspect(disk).lun.disks())
    said = [record.getMessage() for record in caplog.records if "CloudStack" in record.getMessage()]
    assert len(said) == lines
    assert all(f"the SR has {rows} VDIs" in line for line in said)


@pytest.mark.usefixtures("waits")
def test_a_later_copy_of_a_resignatured_lun_is_logged_and_gets_new_identities(caplog):
    """CloudStack clones resignatured LUNs all the time, and nobody could answer a question."""
    caplog.set_level(logging.INFO)
    disk, later = golden.load("one").disk, SCSI_ID[:-4] + "beef"
    first = rewritten(disk, NO_DEADLINE)
    sentence = f" was resignatured as LUN {SCSI_ID!r}, and is the LUN {later} now: it is taken for a later copy."
    assert not any("later copy" in line for line in caplog.messages)

    second = rewritten(disk, NO_DEADLINE, later)
    again = rewritten(disk, NO_DEADLINE, later)

    assert len({first, second}) == 2 and again == second
    assert [line for line in caplog.messages if "later copy" in line] == [disk.name + sentence]


@pytest.mark.usefixtures("waits")
def test_the_first_of_many_notes_are_logged_with_the_number_of_the_others(caplog):
    caplog.set_level(logging.INFO)
    lun = Lun.new(ORIGINAL, 300, "many notes")
    for number in range(250):
        lun.create(f"stranger{number}", EXTENT)
    lun.commit()

    rewritten(lun.disk, NO_DEADLINE)

    notes = [line for line in caplog.messages if "is carried over as it is" in line]
    assert len(notes) < 201 and any("and 51 more" in line for line in caplog.messages)
