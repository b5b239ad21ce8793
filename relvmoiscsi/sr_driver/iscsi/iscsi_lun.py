# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN over an iSCSI session of a child process. No disk of the LUN comes to this host: none is hidden or removed.

    lock     one call at a time for a LUN
    seen     this host may have disks of the LUN over other sessions: open these disks exclusively during a write
    fork     the child does the next three steps; the call ends it if it still computes some seconds after the deadline
    open     log in; the LUN is a device of the session
    work     read, plan, write. The deadline counts until the first write
    end      log out
    add      if this host has a session of SM to the target, add the LUN to that session

When a call is killed, also by SIGTERM, its child ends, and its connection closes. The target may still have the
session. So the next writing call for the LUN first ends that session: all writing sessions for the same host, target
and LUN have one ISID (iscsi/target_sessions.py).
"""

import logging
from functools import partial
from typing import Callable, Tuple

from relvmoiscsi.deadline import CLEANUP_SECONDS, Deadline
from relvmoiscsi.host.own_process import Begin, run_in_child
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun.call import CallLun, Found, exclusive_guard, session_to_read, session_to_write
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.users import Question
from relvmoiscsi.sr_driver.iscsi.target_access import Access

log = logging.getLogger(__name__)

_WHAT = "the LUN had been read"
#: The child's waits for the target end at the deadline; then the child logs out, and says which wait that was
_GRACE_SECONDS = CLEANUP_SECONDS + 1


class IscsiLun(CallLun):
    """A LUN that comes and goes with a session of a child process. The kernel's sessions are not changed."""

    def __init__(self, access: Access, deadline: Deadline, lock_seconds: float) -> None:
        super().__init__(access.config.scsi_id, deadline, lock_seconds)
        self._access = access
        self._session = partial(access.lun, self.scsi_id)

    def _read(self, work: Callable[[OpenLun], Found]) -> Found:
        def read(_begin: Begin) -> Found:
            with session_to_read(self.scsi_id, self._session, self.deadline) as lun:
                return work(lun)

        found: Found = run_in_child(read, self.deadline, _WHAT, only_reads=True, grace_seconds=_GRACE_SECONDS)
        return found

    def _write(self, work: Callable[[OpenLun], Found], asks: Question, xapi: Xapi) -> Found:
        with exclusive_guard(self.scsi_id, asks, xapi, self.deadline) as guard:

            def write(begin: Begin) -> Tuple[Found, int]:
                with session_to_write(self.scsi_id, self._session, self.deadline, guard, begin) as (lun, number):
                    return work(lun), number

            calls = guard.hold, guard.verify_record
            found: Found
            found, number = run_in_child(write, self.deadline, _WHAT, calls=calls, grace_seconds=_GRACE_SECONDS)
        with quietly("adding the LUN to a session that this host has"):
            from relvmoiscsi.host.iscsi_sessions import add_lun  # noqa: PLC0415 - only a LUN that was written is added

            iqn, deadline = self._access.config.target_iqn, self.deadline.for_cleanup()
            for problem in add_lun(iqn, self.scsi_id, number, deadline, THIS_HOST):
                log.warning("%s", problem)
        return found
