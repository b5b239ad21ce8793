# SPDX-License-Identifier: LGPL-2.1-only
"""A call whose session another program has ended tries once more; a clone on which volumes of its original are active
is refused with what to do. The rest of sr_create is tested in VMs.
"""

import os
import signal
from contextlib import contextmanager

import pytest

from kit.clock import Clock
from kit.driver_calls import DEVICE_CONFIG, SCSI_ID, SR_UUID
from relvmoiscsi.errors import NotFound, Refused
from relvmoiscsi.host import terminated
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.xapi.api import XapiFailure
from relvmoiscsi.host.xapi.lun_users import Pool
from relvmoiscsi.host.xapi.other_hosts import Use
from relvmoiscsi.sr_driver import create
from relvmoiscsi.sr_driver.iscsi.config import parse_config
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport

NOBODY = Pool(pbds={}, srs={}, vdis={})


class Tries:
    """What each try comes to: an error, or the new SR UUID. `taken_away` is what the LUN says of itself after it."""

    def __init__(self, *results, taken_away=True, seconds=50):
        self.clock, self.results, self.taken_away, self.seconds = Clock(), list(results), taken_away, seconds
        self.luns, self.looks = [], 0

    def open_lun(self, *_):
        self.luns.append(Lun(SCSI_ID, False, Deadline(50, self.clock)))
        return self.luns[-1]

    def read_pool(self, _xapi):
        self.looks += 1
        return NOBODY

    @contextmanager
    def held(self, lun, _to_write):
        assert lun is self.luns[-1] and lun.ids_of_pool == []
        lun.was_taken_away = self.taken_away
        self.clock.now += self.seconds
        terminated.heed_no_longer()
        yield "/dev/sdb"

    def apart(self, *_):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def created(monkeypatch, tries):
    for name, value in (("_held", tries.held), ("read_pool", tries.read_pool), ("apart", tries.apart)):
        monkeypatch.setattr(create, name, value)
    transport = Transport("relvmoiscsi", "lvmoiscsi", parse_config, tries.open_lun)
    config = parse_config(DEVICE_CONFIG)
    call = Call("sr_create", DEVICE_CONFIG)
    return create.sr_create(call, config, None, None, Deadline(50, tries.clock), transport)


def test_a_lun_that_was_taken_away_is_reached_once_more(monkeypatch, caplog):
    assert created(monkeypatch, Tries(NotFound("sdb is gone."), SR_UUID, seconds=15)) == SR_UUID
    assert "sdb is gone. The session that this call had found was ended by another program" in caplog.text


def test_the_pool_is_asked_again_as_it_may_name_the_lun_by_then(monkeypatch):
    tries = Tries(NotFound("sdb is gone."), SR_UUID, seconds=15)

    created(monkeypatch, tries)

    assert tries.looks == len(tries.luns) == 2


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


def test_a_second_try_can_be_told_to_end(monkeypatch):
    tries = Tries(NotFound("sdb is gone."), SR_UUID, seconds=15)
    held = tries.held

    def told_to_end(lun, to_write):
        if len(tries.luns) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            terminated.pause(0)
        return held(lun, to_write)

    monkeypatch.setattr(tries, "held", told_to_end)
    with pytest.raises(terminated.Terminated), terminated.heeded():
        created(monkeypatch, tries)


# --- volumes of the original on the clone

ORIGINAL = "5d0d2b3a-7777-4a4a-9b9b-0123456789ab"
MGT = "VG_XenStorage--{}-MGT".format(ORIGINAL.replace("-", "--"))
IN_USE = f"/dev/sdc is in use by device-mapper volume {MGT}."


class Asked:
    """xapi, which has a PBD of the original on each of two hosts."""

    def __init__(self, attached=(), is_mute=False):
        self.attached, self.is_mute = attached, is_mute

    def until(self, _deadline):
        return self

    def records(self, kind):
        if self.is_mute:
            raise XapiFailure("PBD.get_all_records", [], "no answer")
        pbds = {
            name: {"SR": "s", "host": name, "currently_attached": name in self.attached} for name in ("me", "other")
        }
        return pbds if kind == "PBD" else {"s": {"uuid": ORIGINAL, "current_operations": {}}}


def refusal(monkeypatch, xapi, use=None, reads=f"{ORIGINAL} the SR {ORIGINAL}", problem=IN_USE):
    """The text of a call whose clone cannot be opened for writing."""
    tries = Tries(SR_UUID)

    @contextmanager
    def held(_lun, _to_write):
        raise Refused(problem).in_state("Nothing was written.")
        yield

    def apart(*_, **__):
        if isinstance(reads, Exception):
            raise reads
        return reads

    use = use or Use(("sdc",), (MGT,))
    parts = (("_held", held), ("read_pool", tries.read_pool), ("apart", apart), ("use_of_lun", lambda _scsi_id: use))
    for name, value in parts:
        monkeypatch.setattr(create, name, value)
    transport = Transport("relvmoiscsi", "lvmoiscsi", parse_config, tries.open_lun)
    call = Call("sr_create", DEVICE_CONFIG)._replace(host_ref="me")
    with pytest.raises(Refused) as caught:
        create.sr_create(call, parse_config(DEVICE_CONFIG), xapi, None, Deadline(50, tries.clock), transport)
    return str(caught.value)


def test_a_clone_with_volumes_that_a_failed_plug_has_left_is_refused_with_the_way_out(monkeypatch):
    said = refusal(monkeypatch, Asked(attached=["other"]))

    assert said.startswith(IN_USE) and said.endswith("Nothing was written.")
    assert f"Run `vgchange -an VG_XenStorage-{ORIGINAL}` on this host, resignature the clone" in said


@pytest.mark.parametrize("xapi", [Asked(attached=["me"]), Asked(is_mute=True)], ids=["attached here", "xapi is mute"])
def test_what_may_be_the_original_in_use_is_never_to_be_deactivated(monkeypatch, xapi):
    said = refusal(monkeypatch, xapi)

    assert "may be the original in use" in said and "vgchange" not in said


@pytest.mark.parametrize(
    ("use", "reads"),
    [
        (Use(("sdc",), ()), ORIGINAL + " the SR"),
        (Use(("sdc",), (MGT,)), "- no SR that can be read"),
        (Use(("sdc",), (MGT,)), NotFound("sdc is gone.")),
    ],
    ids=["no volumes", "another content", "gone"],
)
def test_any_other_refusal_stands_as_it_was(monkeypatch, use, reads):
    assert refusal(monkeypatch, Asked(), use, reads) == IN_USE + " Nothing was written."
