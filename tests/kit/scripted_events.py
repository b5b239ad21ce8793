# SPDX-License-Identifier: LGPL-2.1-only
"""Events of block devices that come as a test says."""

from relvmoiscsi.host.events import Events, wait_for


class Scripted(Events):
    """Events that change the world as the test says, one step each; then none come."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.waits = []
        self.closed = False

    def __call__(self, _subsystem):
        return self

    def wait(self, seconds):
        self.waits.append(seconds)
        if self.steps:
            self.steps.pop(0)()

    def close(self):
        self.closed = True


def waiting_with(*steps):
    def wait(condition, timeout_seconds, subsystem="block"):
        return wait_for(condition, timeout_seconds, subsystem, Scripted(*steps))

    return wait
