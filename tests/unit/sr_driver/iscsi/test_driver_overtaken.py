# SPDX-License-Identifier: LGPL-2.1-only
"""A whole call of the driver stands still at each of its moments, another host does all of its work, and the call goes
on: the LUN is the other host's, and the answer of the call is an error.

test_overtaken_over_iscsi.py has the same for the device of a call, with the clients of the same host as well.
"""

import pytest

from kit.chains.random_chain import random_chain
from kit.cuts import entropy, image
from kit.driver_calls import SUCCESS_TEXT
from kit.examples import WHOLE, of_each_kind, seeds
from kit.iscsi import idle_time
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.overtaking import SCSI_ID, B, Moments, Quiet, by_command, serving
from kit.outcome import run_on
from kit.pool import wire
from relvmoiscsi import engine
from relvmoiscsi.device import Fence
from relvmoiscsi.engine import OneVdiRequest
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.lun import call
from relvmoiscsi.sr_driver.iscsi import iscsi_lun, target_access

pytestmark = pytest.mark.states

SUCCESS = wire.Fault(1, SUCCESS_TEXT)


@pytest.fixture(autouse=True)
def real_wait(monkeypatch):
    monkeypatch.setattr(Fence, "OUTLAST_SECONDS", 12.0)


def chain():
    return random_chain(34, free=40, thick=True, odd=False, bat_entries=4096, blocks=5, depth=3).disk


#: what is on the LUN, what the call says beside the LUN, and what the engine is asked for the same
LUNS = {"one VDI": (lambda: image("one VDI"), {}, None), "to one": (chain, {"vdis": "one"}, OneVdiRequest())}


class Meeting:
    """Call A of the driver, and another host."""

    def __init__(self, name, kind, driver, monkeypatch, clock):
        make, self.config, self.one = LUNS[name]
        self.driver, self.monkeypatch, self._clock = driver, monkeypatch, clock
        self._disk, self._kind = make(), kind

    def moments(self):
        with self.monkeypatch.context() as patch, serving(self._disk.copy(), self._kind) as target:
            moments = Moments(patch)
            assert self.call(target) == SUCCESS
        return moments.names

    def call(self, target):
        return self.driver.create(target, **self.config).result

    def at(self, number, overtake):
        """Returns the moment, the answer of A, and the LUN before and behind the work of B, and at the end."""
        held = []
        with self.monkeypatch.context() as patch, serving(self._disk.copy(), self._kind) as target:

            def then():
                idle_time.something_comes(has_come=lambda: False)  # the target does what A has sent so far
                held.append(target.lun(0).disk.copy())
                overtake(self, target)
                held.append(target.lun(0).disk.copy())
                self._clock.now += Fence.LEASE_SECONDS + 1  # before the mark, the other host waits for nobody

            moments = Moments(patch, number, then)
            answer = self.call(target)
            end = target.lun(0).disk.copy()
            # how much goes into a socket at once is up to the kernel: this run may have fewer moments than the counted
            before, after = held or (end, end)
            return moments.names[:number][-1], answer, before, after, end


# --- who overtakes; each takes the meeting and the target


def recover(_meeting, target):
    by_command(target, B, engine.recover)


def resignature(meeting, target):
    request = engine.ResignatureRequest(scsi_id=SCSI_ID, one=meeting.one)
    by_command(target, B, lambda device: run_on(device, entropy("b"), request))


def create(meeting, target):
    """The driver of another host, with files and an initiator of its own. The pool does not keep the calls apart."""
    with meeting.monkeypatch.context() as patch:
        for module in (iscsi_lun, target_access, call):
            patch.setattr(module, "THIS_HOST", Host(str(meeting.driver.root) + "-other"))
        answer = meeting.driver.create(target, localIQN=B.name, **meeting.config)
    assert answer.result == SUCCESS


@pytest.mark.states("overtake", "kind", few=1)
@pytest.mark.parametrize("kind", [HostileTarget, Quiet])
@pytest.mark.parametrize("overtake", [recover, resignature, create])
@pytest.mark.parametrize("name", list(LUNS) if WHOLE else seeds(list(LUNS), 2))
def test_a_call_that_was_overtaken_leaves_the_lun_to_the_other_host_and_fails(
    name, overtake, kind, driver, monkeypatch, clock
):
    meeting = Meeting(name, kind, driver, monkeypatch, clock)
    names = meeting.moments()
    first_change = names.index("before the write")
    overtaken, sampled = 0, list(of_each_kind(names, 40, f"{name} {overtake.__name__} {kind.__name__}"))
    # A run may have fewer moments than the counted: then none of the sampled ones may stand in its writes.
    for number in [*sampled, *range(first_change + 1, len(names) + 1)]:
        if overtaken and number not in sampled:
            break
        moment, answer, before, after, end = meeting.at(number, overtake)
        where = (number, moment, answer)
        assert engine.inspect(end).problem is None, where
        if before == after or number <= first_change and end != after:  # A had not read yet what B has changed
            assert answer == SUCCESS, where
            continue
        assert end.differences(after) == [], where
        assert answer != SUCCESS or number <= first_change or is_committed(before), where
        overtaken += answer != SUCCESS
    assert overtaken


def is_committed(disk):
    """Whether another host finishes the run on this LUN, in the very bytes of this run."""
    mark = engine.find_unfinished(disk)
    return mark is not None and not engine.goes_back(mark)
