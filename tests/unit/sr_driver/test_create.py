# SPDX-License-Identifier: LGPL-2.1-only
"""A call whose session another program has ended tries once more; the rest of sr_create is tested in VMs."""

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID, SR_UUID
from relvmoiscsi.errors import NotFound
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.xapi.lun_users import Pool
from relvmoiscsi.sr_driver import create
from relvmoiscsi.sr_driver.iscsi.config import parse_config
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport

NOBODY = Pool(pbds={}, srs={}, vdis={})


class Tries:
    """What each try comes to: an error, or the new SR UUID. `taken_away` is what the LUN says of itself after it."""

    def __init__(self, *results, taken_away=True, seconds=50):
        self.clock, self.results, self.taken_away, self.seconds = Clock(), list(results), taken_away, seconds

    def __call__(self, lun, *_):
        lun.was_taken_away = self.taken_away
        self.clock.now += self.seconds
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def created(monkeypatch, tries):
    monkeypatch.setattr(create, "_rewritten", tries)
    monkeypatch.setattr(create, "read_pool", lambda _xapi: NOBODY)
    deadline = Deadline(50, tries.clock)
    transport = Transport("relvmoiscsi", "lvmoiscsi", parse_config, lambda *_: Lun(SCSI_ID, False, deadline))
    call = Call("sr_create", DEVICE_CONFIG)
    return create.sr_create(call, parse_config(DEVICE_CONFIG), None, None, deadline, transport)


def test_a_lun_that_was_taken_away_is_reached_once_more(monkeypatch, caplog):
    assert created(monkeypatch, Tries(NotFound("sdb is gone."), SR_UUID, seconds=30)) == SR_UUID
    assert "sdb is gone. The session that this call had found was ended by another program" in caplog.text


@pytest.mark.parametrize(
    "tries",
    [
        Tries(NotFound("It is not there."), NotFound("It is gone again."), seconds=10),
        Tries(NotFound("It is gone again."), SR_UUID, taken_away=False, seconds=10),
        Tries(NotFound("It is gone again."), SR_UUID, seconds=40),  # there is no time for another one
    ],
    ids=["twice", "of itself", "late"],
)
def test_else_it_fails(monkeypatch, tries):
    with pytest.raises(NotFound, match="gone again"):
        created(monkeypatch, tries)
