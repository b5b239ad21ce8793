# SPDX-License-Identifier: LGPL-2.1-only
"""Two clients of one target in this process: the first stands still at a moment of its run, the other does its work.

    with serving(disk) as target:
        Moments(monkeypatch, 7, then=lambda: by_command(target, B, engine.recover))
        by_driver(target, A, act)

Time passes as in idle_time.
"""

from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from relvmoiscsi.deadline import NO_DEADLINE, Deadline
from relvmoiscsi.iscsi import Initiator, Portal, open_lun
from relvmoiscsi.iscsi.link import Link
from relvmoiscsi.lun.gate import GatedDevice, SessionGate, StepDeadline

SCSI_ID = Lun(0).scsi_id
A = Initiator("iqn.2026-01.test:a", "0a0b0c0d-0000-4000-8000-000000000001")
B = Initiator("iqn.2026-01.test:b", "0a0b0c0d-0000-4000-8000-000000000002")


class Quiet(HostileTarget):
    """Tells no other session of a reset."""

    def reset(self, lun, connection):
        super().reset(lun, connection)
        for session in self.sessions:
            session.attentions.pop(lun.number, None)


def serving(disk, kind=HostileTarget, quirks=()):
    # B resets the LUN under commands of A, whose data come later
    return kind([Lun(0, disk=disk)], quirks, ignore=("isid kept", "data-out"))


# --- how a client opens the LUN, and what it does


def by_command(target, who, act):
    steps = StepDeadline.of_steps(120)
    with open_lun([Portal("127.0.0.1", target.port)], target.iqn, who, 0, True, steps, scsi_id=SCSI_ID) as device:
        device.name = f"iscsi://{target.portal}/{target.iqn}/0"
        return act(GatedDevice(device, SessionGate(steps, NO_DEADLINE)))


def by_driver(target, who, act):
    call = Deadline(500)
    steps = StepDeadline(call)
    with open_lun([Portal("127.0.0.1", target.port)], target.iqn, who, SCSI_ID, True, steps) as device:
        return act(GatedDevice(device, SessionGate(steps, call)))


class Moments:
    """Stands still at the moment of number `stop` of the first client: before each send, and behind each answer."""

    def __init__(self, monkeypatch, stop=0, then=None):
        self.names, self._stop, self._then, self._is_mine, self._what = [], stop, then, True, ""
        wait, turn = Link.wait, Link._turn

        def waited(link, is_done, what):
            self._what = what.split(" of ")[0] if self._is_mine else self._what
            wait(link, is_done, what)
            self._pass("behind")

        def turned(link, seconds):
            if link.wire.outgoing():
                self._pass("before")
            turn(link, seconds)

        monkeypatch.setattr(Link, "wait", waited)
        monkeypatch.setattr(Link, "_turn", turned)

    def _pass(self, when):
        if not self._is_mine:
            return
        self.names.append(f"{when} {self._what.split(' at ')[0]}")
        if len(self.names) == self._stop:
            self._is_mine = False
            try:
                self._then()
            finally:
                self._is_mine = True
