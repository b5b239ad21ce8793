# SPDX-License-Identifier: LGPL-2.1-only
"""A device of this host that stands still where a test says so, between the requests to the kernel.

    class Stopped(Standing, ImageFile): ...
    Stopped(path, writable=True, stop=7, then=another_host_works)

One thread makes all requests (`block_device.WORKERS` is 1), so a number names the same moment in each run.
"""


class Standing:
    """Calls `then` at the moment of number `stop`, from 1 on; of the moments with the name `at` if that is given.

    `moments` has the names of all moments so far.
    """

    def __init__(self, *given, stop=0, at="", then=None, **named):
        self.moments, self._stop, self._at, self._then = [], stop, at, then
        super().__init__(*given, **named)

    def _pass(self, moment):
        self.moments.append(moment)
        if self._at in ("", moment) and self._stop == (self.moments.count(self._at) if self._at else len(self.moments)):
            self._then()

    def _transfer(self, action, view, offset):
        self._pass(f"before a {action}")
        super()._transfer(action, view, offset)
        self._pass(f"behind a {action}")

    def flush(self):
        self._pass("before a flush")
        super().flush()
        self._pass("behind a flush")
