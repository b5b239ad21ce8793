# SPDX-License-Identifier: LGPL-2.1-only
"""What a test holds in its hands: the fixture `lab`."""

import contextlib
import itertools

from kit import golden

from . import initiator, luns
from .command import HANGS, read, settle, until, write
from .lio import Lun, Target
from .restore import restore
from .world import World, assert_untouched

WWIDS = "/etc/multipath/wwids"

_TARGETS = itertools.count(1)


@contextlib.contextmanager
def cleared(guest):
    """Context: a Lab that gives its ports and files back, whatever happens; then the world must be as it was before."""
    before = World.now()
    lab = Lab(guest)
    try:
        try:
            yield lab
        finally:
            lab.clear()
        assert_untouched(before)
    except BaseException:  # the next test shall fail for itself alone
        restore(before)
        raise


class Lab:
    """A host and its storage, for one test. `clear` takes away what was made here, and nothing of another Lab."""

    def __init__(self, guest):
        self.guest, self.syslog = guest, guest.syslog
        self._others = {iqn for iqn, _ in initiator.sessions()}, luns.names()  #: sessions and files: they stay
        self._targets, self._luns, self._threads, self._srs = [], [], [], []
        self.mark = len(self.syslog.lines)  #: in the log, where this test begins

    # -- storage ----------------------------------------------------------------------------------------------------

    def image(self, kind, name=None):
        """A golden LUN as a new file: "one", "chain" or "tree"."""
        return luns.from_disk(golden.load(kind).disk, name or kind + ".img")

    def target(self, *lun_list, iqn=None, **options):
        """A target that is up; LUNs without a number of their own get 0, 1, ... `options`: see lio.Target."""
        for number, lun in enumerate(lun_list):
            lun.number = lun.number or number
        self._targets.append(Target(iqn or f"iqn.2026-01.lab:t{next(_TARGETS)}", lun_list, **options))
        return self._targets[-1].create()

    def lun(self, image, **options):
        """A LUN on an image; `options`: see lio.Lun."""
        self._luns.append(Lun(image.path, **options))
        return self._luns[-1]

    # -- the host ---------------------------------------------------------------------------------------------------

    def attach(self, target, lun, uuid):
        """The SR on `lun` is in use on this host, until its `detach` or until this Lab is cleared."""
        self._srs.append(initiator.AttachedSr(target, lun, uuid))
        return self._srs[-1]

    def smlog(self):
        """Texts logged to LOCAL2 in this test."""
        return self.syslog.smlog(self.mark)

    @contextlib.contextmanager
    def untouched(self, except_for=()):
        """Context: the world is the same at its end, whatever happens within."""
        before = World.now()
        yield
        assert_untouched(before, except_for)

    @contextlib.contextmanager
    def multipathing(self, *scsi_ids):
        """Context: multipathd runs and `scsi_ids` have maps of two paths; at its end wwids is what it was."""
        wwids = read(WWIDS)
        self.guest.multipathd.start()
        try:
            for scsi_id in scsi_ids:
                until(lambda it=scsi_id: len(initiator.multipath_map(it) or ()) == 2, "map of " + scsi_id)
            settle()
            yield
        finally:
            self.guest.multipathd.stop()
            write(WWIDS, wwids + "\n")

    # -- calls, and the end -------------------------------------------------------------------------------------------

    def begin(self, thread):
        """Start a thread of the test. It has ended before anything that it may use is taken away."""
        self._threads.append(thread)
        thread.start()

    def end_calls(self, seconds=HANGS):
        """Mend the LUNs, and wait until the threads of the test have ended, whatever became of the test."""
        for lun in self._luns:
            lun.mend()
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), f"a call of this test has not ended {seconds} seconds after it"

    def clear(self):
        """Take away what this test made through the lab, all of it even if some of it cannot be."""
        iqns, files = self._others
        with contextlib.ExitStack() as ends:  # the last of them is the first
            ends.callback(luns.remove_all, keep=files)
            for target in self._targets:
                ends.callback(target.remove)
            ends.callback(initiator.logout_all, keep=iqns)
            for sr in self._srs:
                ends.callback(sr.detach)
            ends.callback(self.end_calls)
