# SPDX-License-Identifier: LGPL-2.1-only
"""The look directly before a write leaves: the last look must be younger than the lease."""

import pytest

from kit.clock import Clock
from relvmoiscsi.device import Chunk, Fence, Range
from relvmoiscsi.errors import DeviceError, Overtaken

PLACE, BYTES = Range(512, 512), bytes([1]) * 512


class Lun:
    """A LUN, and the fence of a run on it. Each read takes the next of these seconds; the last stays."""

    def __init__(self, *seconds):
        self.clock, self.seconds, self.looks, self.content = Clock(), list(seconds), 0, BYTES
        self.fence = Fence("LUN", self.clock, lease_seconds=10)

    def read(self, ranges):
        assert ranges == [PLACE]
        self.looks += 1
        assert self.looks <= Fence.SLOW_LOOKS, "it looks for ever"
        self.clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return [self.content]

    def look_if_due(self):
        self.fence.look_if_due(self.read)
        return self.looks


def test_a_run_that_holds_nothing_looks_at_nothing():
    assert Lun(60).look_if_due() == 0


def test_a_write_has_a_look_of_its_own_only_when_the_lease_of_the_last_look_is_over():
    lun = Lun(1)
    lun.fence.hold([Chunk(PLACE.offset, BYTES)])

    assert [lun.look_if_due(), lun.look_if_due()] == [1, 1]
    lun.clock.now += 9
    assert lun.look_if_due() == 1
    lun.clock.now += 1
    assert lun.look_if_due() == 2

    lun.clock.now += 11
    lun.content = bytes(512)
    with pytest.raises(Overtaken):
        lun.look_if_due()


def test_a_look_that_took_longer_than_the_lease_is_repeated_and_in_the_end_no_write_leaves():
    lun = Lun(11, 11, 10)
    lun.fence.hold([Chunk(PLACE.offset, BYTES)])
    assert lun.look_if_due() == 3

    lun = Lun(11)
    lun.fence.hold([Chunk(PLACE.offset, BYTES)])
    with pytest.raises(DeviceError, match="write.*each answer to a read takes longer than 10 seconds"):
        lun.look_if_due()
    assert lun.looks == Fence.SLOW_LOOKS
