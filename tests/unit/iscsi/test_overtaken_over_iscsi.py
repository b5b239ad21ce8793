# SPDX-License-Identifier: LGPL-2.1-only
"""A client stands still in a session, another host works on the LUN, and the client goes on: the LUN stays as the other
host has left it. The moments are all waits of a run: the client has looked, and has sent nothing yet of what follows.
"""

from contextlib import suppress

import pytest

from kit.chains.random_chain import random_chain
from kit.cuts import entropy, free_ring, image, label_range, same_but_for
from kit.examples import of_each_kind
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.outcome import Silent
from relvmoiscsi import engine, procedure
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.errors import DeviceError, Refused, RelvmoiscsiError
from relvmoiscsi.iscsi import Initiator, Portal, open_lun
from relvmoiscsi.iscsi.link import Link

pytestmark = pytest.mark.states

SCSI_ID = Lun(0).scsi_id
A = Initiator("iqn.2026-01.test:a", "0a0b0c0d-0000-4000-8000-00000000000a")
B = Initiator("iqn.2026-01.test:b", "0a0b0c0d-0000-4000-8000-00000000000b")


class TellsNobody(HostileTarget):
    """A target whose LUN RESET causes no unit attention in other sessions."""

    def reset(self, lun, connection):
        super().reset(lun, connection)
        for session in self.sessions:
            session.attentions.pop(lun.number, None)


def resignature(device, seed="a", one=None):
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, one=one)
    return procedure.resignature(device, entropy(seed), Silent(), request)


def one_of_many(device, seed="a"):
    return resignature(device, seed, OneVdiRequest())


def chain():
    return random_chain(34, free=40, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3).disk.copy()


RUNS = {"one VDI": (lambda: image("one VDI"), resignature), "a chain to one VDI": (chain, one_of_many)}
OTHERS = {"resignature": lambda device: resignature(device, "b"), "recover": engine.recover}


def at(target, initiator, act):
    where = [Portal("127.0.0.1", target.port)]
    with open_lun(where, target.iqn, initiator, SCSI_ID, True, Deadline(500)) as device:
        return act(device)


@pytest.fixture
def standing(monkeypatch):
    """`standing(then, number)`: the client stands still before its wait of this number while `then` runs."""
    wait = Link.wait

    def stand(then=None, number=0):
        waits = []

        def counted(link, is_done, what):
            if not stand.is_other:
                waits.append(what.split(" of ")[0])
                if len(waits) == number:
                    stand.is_other = True
                    then()
                    stand.is_other = False
            wait(link, is_done, what)

        stand.is_other = False
        monkeypatch.setattr(Link, "wait", counted)
        return waits

    return stand


@pytest.mark.parametrize("kind", [HostileTarget, TellsNobody])
@pytest.mark.parametrize("other", list(OTHERS))
@pytest.mark.parametrize("run, seconds", [("one VDI", 11), ("one VDI", 0), ("a chain to one VDI", 11)])
def test_a_client_that_stood_still_leaves_the_lun_to_the_other_host(
    run, other, kind, seconds, clock, standing, monkeypatch
):
    """`seconds`: more than the lease; or none, where the other host has waited for the lease, or has found no mark."""
    monkeypatch.setattr("relvmoiscsi.device.Fence.OUTLAST_SECONDS", 12.0)
    make, act = RUNS[run]
    with HostileTarget([Lun(0, disk=make())]) as counted:
        waits = standing()
        at(counted, A, act)
    stopped = 0
    for number in of_each_kind(waits, 9, f"{run} {other} {kind} {seconds}"):
        met = Meeting(kind, make(), OTHERS[other], clock, seconds)
        failure = met.run(act, standing, number)
        where = (number, waits[number - 1], str(failure))
        if met.before == met.after:
            assert failure is None, where
        elif failure is None:
            assert met.disk == met.after or number < waits.index("the write"), where
        else:
            stopped += 1
            assert isinstance(failure, (Refused, DeviceError)) or waits[number - 1] != "the write", where
            # within the lease, and nobody tells A: its journal in free ring space, and its mark (docs/protocol.rst)
            is_left = seconds == 0 and kind is TellsNobody and engine.find_unfinished(met.before) is None
            places = [*free_ring(met.after), label_range(met.after)] if is_left else []
            assert same_but_for(met.disk, met.after, places), where
    assert stopped


class Meeting:
    """A in a session with a target, and B that does all of its own while A stands still."""

    def __init__(self, kind, disk, other, clock, seconds):
        self.target, self.disk = kind([Lun(0, disk=disk)], ignore=("isid kept",)), disk
        self.other, self.clock, self.seconds = other, clock, seconds
        self.before = self.after = None

    def run(self, act, standing, number):
        """Give the failure of A; None without one."""
        standing(self.overtake, number)
        with self.target:
            try:
                at(self.target, A, act)
            except RelvmoiscsiError as error:
                return error
        return None

    def overtake(self):
        self.before = self.disk.copy()
        self.target.new_call()
        with suppress(RelvmoiscsiError):  # B may refuse what A has just begun
            at(self.target, B, self.other)
        self.clock.now += self.seconds
        self.after = self.disk.copy()
