# SPDX-License-Identifier: LGPL-2.1-only
"""A resignature over a session gives the very bytes of one on an image, in few round trips, whatever is lost."""

import random

import pytest

from kit import golden
from kit.examples import WHOLE
from kit.iscsi.hostile import HostileTarget
from kit.iscsi.lun import Lun
from kit.iscsi.proxy import Cut, CuttingProxy
from relvmoiscsi import engine
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import Refused, Unfinished
from relvmoiscsi.iscsi import Initiator, Portal, open_lun

pytestmark = pytest.mark.usefixtures("clock")

ME = Initiator("iqn.2026-01.test:me", "0a0b0c0d-0000-4000-8000-000000000001")
SCSI_ID = Lun(0).scsi_id


def entropy(name):
    dice = random.Random(f"seed of {name}")
    return lambda count: bytes(dice.getrandbits(8) for _ in range(count))


def load(name):
    return (golden.load if name in golden.NAMES else golden.load_live)(name).disk


def resignatured(device, name):
    prepared = engine.prepare(device, entropy(name), engine.ResignatureRequest(scsi_id=SCSI_ID))
    return engine.resignature(device, prepared)


def over_iscsi(target, name, port=None, seconds=50):
    where = [Portal("127.0.0.1", port or target.port)]
    with open_lun(where, target.iqn, ME, SCSI_ID, True, Deadline(seconds)) as device:
        return resignatured(device, name)


@pytest.mark.states("name", few=4)
@pytest.mark.parametrize("name", golden.NAMES + golden.LIVE_NAMES)
def test_the_same_bytes_as_on_an_image(name):
    image, disk = load(name), load(name)
    expected = resignatured(image, name)

    with HostileTarget([Lun(0, disk=disk)]) as target:
        found = over_iscsi(target, name)

        assert target.lun(0).disk == image
        assert not target.lun(0).unflushed
    assert found._replace(lun=None) == expected._replace(lun=None)


def test_round_trips_are_few(round_trips):
    """1 for the login, 2 to find the LUN, 28 of the engine, 3 for a reset and the looks around it, 1 for the logout."""
    with HostileTarget([Lun(0, disk=load("chain"))]) as target:
        over_iscsi(target, "chain")

    assert round_trips[:3] == [
        f"the login at 127.0.0.1:{target.port}",
        "the list of LUNs",
        "a look at the LUNs",
    ]
    assert round_trips[-1] == "the logout"
    assert len(round_trips) == 35


@pytest.fixture(scope="module")
def whole():
    """Bytes of a run, by direction."""
    with HostileTarget([Lun(0, disk=load("chain"))]) as target, CuttingProxy(target.portal) as proxy:
        over_iscsi(target, "chain", proxy.port)
        return proxy.lengths()


@pytest.mark.states
@pytest.mark.parametrize("seed", range(12))
def test_a_resignature_over_a_connection_that_is_cut_gives_the_same_bytes(whole, seed):
    image = load("chain")
    resignatured(image, "chain")
    dice = random.Random(f"cuts {seed}")
    for _ in range(3 if WHOLE else 1):
        ways = [dice.choice(["out", "in"]) for _ in range(dice.choice([1, 2]))]
        cuts = [Cut(way, dice.randrange(3000, whole[way])) for way in sorted(ways)]
        with HostileTarget([Lun(0, disk=load("chain"))]) as target, CuttingProxy(target.portal, cuts) as proxy:
            over_iscsi(target, "chain", proxy.port)

            assert target.lun(0).disk == image, cuts
            assert not target.lun(0).unflushed


@pytest.mark.states(few=2)
@pytest.mark.parametrize("number", range(0, 26, 5))
def test_a_target_that_loses_its_power_ends_with_the_same_bytes(number):
    image = load("chain")
    resignatured(image, "chain")
    with HostileTarget([Lun(0, disk=load("chain"))]) as target:
        writes, real = [], Lun.write

        def write(lun, offset, data):
            real(lun, offset, data)
            writes.append(offset)
            if len(writes) == number + 1:
                target.power_cut(lambda at: at % 2)

        target.lun(0).write = lambda offset, data: write(target.lun(0), offset, data)
        over_iscsi(target, "chain")

        assert target.count("power cut") == (1 if len(writes) > number else 0)
        assert target.lun(0).disk == image


@pytest.mark.states(few=2)
@pytest.mark.parametrize("number", range(6))
def test_no_run_succeeds_on_a_lun_that_becomes_smaller_at_one_of_its_flushes(number):
    """The target sends no unit attention. The sixth flush is the last command before the run says that it is done."""
    with HostileTarget([Lun(0, disk=load("chain"))]) as target:
        lun, real = target.lun(0), Lun.flush
        whole = lun.size_bytes

        def flush():
            real(lun)
            if lun.flushes == number + 1:
                lun.size_bytes = whole // 2

        lun.flush = flush
        words = f"had {whole} bytes in blocks of 512, and has {whole // 2} bytes"
        with pytest.raises(Unfinished if number else Refused, match=words):
            over_iscsi(target, "chain")

        assert lun.flushes == number + 1
        lun.size_bytes = whole
        earlier = engine.find_unfinished(lun.disk)
        if earlier is not None:
            engine.recover(lun.disk, earlier, SCSI_ID)
        is_new = engine.inspect(lun.disk).state == engine.RESIGNATURED
        assert (earlier is None, is_new) == (number in (0, 5), number >= 3)
