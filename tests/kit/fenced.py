# SPDX-License-Identifier: LGPL-2.1-only
"""A client that looks before it writes, as block devices do, and that stands still where a test says so.

    clock = Clock()
    first = FencedDisk(disk, clock, stop=7, then=lambda: engine.recover(FencedDisk(disk, clock)))

Both clients have their own fence, and their own place in the world: nobody knows that another one has ended.
"""

import itertools

from relvmoiscsi.device import Fence, ForwardingDevice

LEASE_SECONDS = 2.0
_CLAIMS = itertools.count(1)


class FencedDisk(ForwardingDevice):
    """`then` runs at the moment of number `stop`, from 1 on, when it has stood still for `stands_still` seconds.

    `moments` has the names of all moments.
    """

    def __init__(self, disk, clock, stop=0, then=None, stands_still=LEASE_SECONDS + 1, writer=bytes(4)):
        super().__init__(disk)
        self._fence = Fence(disk.name, clock, LEASE_SECONDS, writer=writer, claim=next(_CLAIMS))
        self._clock, self._stop, self._then, self._stands_still = clock, stop, then, stands_still
        self.moments, self.waited = [], 0.0

    def _pass(self, moment):
        self.moments.append(moment)
        if len(self.moments) == self._stop:
            self._clock.sleep(self._stands_still)
            self._then()

    def read(self, ranges):
        self._pass("before a read")
        return super().read(ranges)

    def write(self, chunks):
        self._pass("before a look")
        self.fence.look(self._device.read)
        self._pass("between look and write")
        self.fence.look_if_due(self._device.read)
        super().write(chunks)

    def flush(self):
        self._pass("before a flush")
        super().flush()

    def end_late_writes(self, of_another_host=False):
        if of_another_host:
            self.waited += Fence.OUTLAST_SECONDS
            self._clock.sleep(Fence.OUTLAST_SECONDS)
