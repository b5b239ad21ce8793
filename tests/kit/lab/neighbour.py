# SPDX-License-Identifier: LGPL-2.1-only
"""What else goes on at a host: open-iscsi's session to the array, an SR in use on it, and I/O under way.

The SR is the original of the clones that tests make. `verify` says whether anything of that was disturbed.
"""

import mmap
import os
import threading
from pathlib import Path
from typing import NamedTuple

from . import initiator, luns
from .command import HANGS, read, run, settle
from .world import iscsi_sessions

BLOCK = 4096
BLOCKS = 256  #: of the data LUN that are written, in turn
PAUSE_SECONDS = 0.2  #: one processor is for all


class Calm(NamedTuple):
    """How it is with a neighbour whom nobody disturbs."""

    session: str  #: target, portal, state; None if another one has come in its place
    troubles: dict  #: what the target counts: resets, commands and connections that were ended
    said: list  #: by the kernel, of connections that it has lost
    original: str  #: digest of the original
    active: list  #: volumes of the SR


class Neighbour:
    """`lab` is one of its own, which lives as long. `array` is the target, `image` the original, `sr` is attached."""

    def __init__(self, lab):
        self.image = lab.image("one", "production.img")
        self.data = lab.lun(luns.blank("data.img", 16 << 20))
        self.original = lab.lun(self.image)
        self.array = lab.target(self.original, self.data, iqn="iqn.2026-01.lab:array")
        self.uuid = self.image.sr.uuid
        self.sr = lab.attach(self.array, self.original, self.uuid)
        self._io = _Io(initiator.device_of(self.data.scsi_id), self.data.path)
        self._session = next(name for name, what in iscsi_sessions() if self.array.iqn in what)
        self._was = self._look()

    def _look(self):
        return Calm(
            session=dict(iscsi_sessions()).get(self._session),
            troubles=self._troubles(),
            said=_kernel_said(),
            original=luns.digest(self.image),
            active=self.sr.active,
        )

    def verify(self):
        """AssertionError if anybody has disturbed the session, its disks, the SR or the I/O since the last time."""
        was, self._was = self._was, self._look()
        self._io.verify()
        for what, now in self._was._asdict().items():
            assert now == getattr(was, what), f"the neighbour's {what} was disturbed"

    def scan(self, lun):
        """Have the kernel's session find one more LUN of the array, by its number; gives the disk."""
        place = Path("/sys/class/iscsi_session", self._session).resolve()
        (host,) = [part for part in place.parts if part[:4] == "host"]
        Path("/sys/class/scsi_host", host, "scan").write_text(f"0 0 {lun.number}\n")
        settle()
        return initiator.device_of(lun.scsi_id)

    def forget(self, lun):
        """The kernel's session has no disk of a LUN any more, and the array does not map it."""
        for device in initiator.devices_of(lun.scsi_id):
            Path("/sys/block", os.path.basename(device), "device/delete").write_text("1\n")
        if lun in self.array.luns:
            self.array.remove_lun(lun)
        # A link by the PV's id may have led to the clone, as it had the same.
        run("udevadm", "trigger", "--settle", "--sysname-match=" + os.path.basename(self.sr.device))

    def close(self):
        self._io.stop()

    def _troubles(self):
        """What the target counts. The disk's own count of errors grows as well when the array maps another LUN."""
        resets = [lun.directory / "statistics/scsi_tgt_dev" for lun in (self.original, self.data)]
        counts = [path for place in resets for name in ("resets", "aborts_*") for path in place.glob(name)]
        counts += (self.array.directory / "fabric_statistics/iscsi_sess_err").glob("*_errors")
        assert len(counts) > 4, counts
        return {str(path): read(path) for path in counts}


def _kernel_said():
    """What the kernel says of iSCSI connections that it has lost."""
    return [line for line in run("dmesg").out.splitlines() if "detected conn error" in line]


class _Io:
    """Writes the blocks of a disk in turn and reads each back, past the page cache, until `stop`."""

    def __init__(self, device, path):
        self._path, self._stop, self._thread = path, threading.Event(), threading.Thread(target=self._run, daemon=True)
        self._descriptor = os.open(device, os.O_RDWR | os.O_DIRECT)
        self._written, self._errors, self.count = {}, [], 0
        self._changed = threading.Condition()
        self._thread.start()

    def verify(self):
        """It goes on: two more rounds end after this was asked. What was written is what the array has."""
        with self._changed:
            wanted = self.count + 2
            self._changed.wait_for(lambda: self._errors or self.count >= wanted, HANGS)
            errors, self._errors = self._errors, []
            assert errors == [], f"I/O of the neighbour: {errors}"
            assert self.count >= wanted, "the I/O of the neighbour hangs"
            with open(self._path, "rb") as image:
                for number, block in self._written.items():
                    image.seek(number * BLOCK)
                    assert image.read(BLOCK) == block, f"block {number} of the neighbour's disk"

    def stop(self):
        self._stop.set()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self):
        with mmap.mmap(-1, BLOCK) as buffer:
            while not self._stop.wait(PAUSE_SECONDS):
                try:
                    self._round(buffer)
                except (OSError, AssertionError) as error:
                    with self._changed:
                        self._errors.append(repr(error))
                        self._changed.notify_all()

    def _round(self, buffer):
        number, block = self.count % BLOCKS, self.count.to_bytes(8, "big") * (BLOCK // 8)
        with self._changed:  # who verifies sees no block that is half written
            buffer[:] = block
            os.lseek(self._descriptor, number * BLOCK, os.SEEK_SET)
            assert os.writev(self._descriptor, [buffer]) == BLOCK
            buffer[:] = bytes(BLOCK)
            os.lseek(self._descriptor, number * BLOCK, os.SEEK_SET)
            assert os.readv(self._descriptor, [buffer]) == BLOCK
            assert buffer[:] == block, f"block {number} was read as something else"
            self._written[number] = block
            self.count += 1
            self._changed.notify_all()
