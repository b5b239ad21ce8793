# SPDX-License-Identifier: LGPL-2.1-only
"""The calls that are answered by work; whoever refuses a call for its words imports none of this."""

import logging

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import in_state
from relvmoiscsi.host.settings import deadline_seconds
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport, Wanted

log = logging.getLogger(__name__)


def create(call: Call, config: Wanted, smlog: SmLogHandler, transport: Transport) -> None:
    """The LUN is resignatured when this returns. Raises RelvmoiscsiError."""
    deadline = Deadline(deadline_seconds())
    from relvmoiscsi.sr_driver.create import sr_create  # noqa: PLC0415 - each command imports what it needs

    # If the LUN was written, that is said already.
    with in_state(lambda: deadline.disk_state if deadline.has_passed else ""):
        sr_uuid = sr_create(call, config, _xapi(call, deadline), smlog, deadline, transport)
    log.info("the LUN is SR %s now; %.1f seconds", sr_uuid, deadline.seconds - deadline.left)


def probe(call: Call, config: Wanted, smlog: SmLogHandler, transport: Transport) -> str:
    """What is to be seen from this host, as XML. Raises RelvmoiscsiError."""
    deadline = Deadline(deadline_seconds())
    from relvmoiscsi.sr_driver.probe import sr_probe  # noqa: PLC0415

    return sr_probe(call, config, _xapi(call, deadline), smlog, deadline, transport)


def _xapi(call: Call, deadline: Deadline) -> Xapi:
    return Xapi(call.session_ref, subtask_of=call.subtask_of, deadline=deadline)
