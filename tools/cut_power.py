#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""Resignature an image and be killed in the middle of it: kill -9 after so many writes.

    python3 tools/cut_power.py IMAGE WRITES

For the demo and for curious people; the tests try every place to be cut at.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from relvmoiscsi import engine
from relvmoiscsi.device import Chunk, Device, ForwardingDevice
from relvmoiscsi.host.disk.block_device import open_device


class MortalDevice(ForwardingDevice):
    """Passes everything on; the process does not survive the write after the last allowed one."""

    def __init__(self, device: Device, allowed_writes: int) -> None:
        super().__init__(device)
        self._left = allowed_writes

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            super().write([chunk])


def main(path: str, allowed_writes: int) -> None:
    with open_device(path, writable=True) as device:
        mortal = MortalDevice(device, allowed_writes)
        prepared = engine.prepare(mortal, os.urandom)
        if not isinstance(prepared, engine.Prepared):
            sys.exit(f"{path} is resignatured already")
        print(f"planned: SR {prepared.plan.run.ids.sr} becomes {prepared.plan.run.ids.new_sr}", flush=True)
        engine.resignature(mortal, prepared)
    sys.exit(f"it was over before {allowed_writes} writes")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
