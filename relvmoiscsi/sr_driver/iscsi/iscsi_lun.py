# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN over an iSCSI session of this process. No disk of the LUN comes to this host, so no disk is hidden or removed.

    lock     one call at a time for a LUN
    seen     this host may have disks of the LUN over other sessions: open these disks exclusively during a write
    open     log in; the LUN is a device of the session
    work     read. The deadline counts until the first write
    end      log out. If this host has a session of SM to the target, add the LUN to that session

When a call is killed, also by SIGTERM, its connection closes. The target may still have the session. So the next
writing call for the LUN first ends that session: all writing sessions for the same host, target and LUN have one ISID
(iscsi/target_sessions.py).
"""

import logging
from functools import partial
from typing import Callable

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.host.terminated import quietly
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun.call import CallLun, Found, session_to_read, session_to_write
from relvmoiscsi.lun.opened import OpenLun
from relvmoiscsi.lun.users import Question
from relvmoiscsi.sr_driver.iscsi.target_access import Access

log = logging.getLogger(__name__)


class IscsiLun(CallLun):
    """A LUN that comes and goes with a session of this process. The kernel's sessions are not changed."""

    def __init__(self, access: Access, deadline: Deadline, lock_seconds: float) -> None:
        super().__init__(access.config.scsi_id, deadline, lock_seconds)
        self._access = access
        self._session = partial(access.lun, self.scsi_id)

    def _read(self, work: Callable[[OpenLun], Found]) -> Found:
        with session_to_read(self.scsi_id, self._session, self.deadline) as lun:
            return work(lun)

    def _write(self, work: Callable[[OpenLun], Found], asks: Question, xapi: Xapi) -> Found:
        def add(number: int) -> None:
            from relvmoiscsi.host.iscsi_sessions import add_lun  # noqa: PLC0415 - only a LUN that was written is added

            with quietly("adding the LUN to a session that this host has"):
                iqn, deadline = self._access.config.target_iqn, self.deadline.for_cleanup()
                for problem in add_lun(iqn, self.scsi_id, number, deadline, THIS_HOST):
                    log.warning("%s", problem)

        with session_to_write(self.scsi_id, self._session, self.deadline, asks, xapi, add) as lun:
            return work(lun)
