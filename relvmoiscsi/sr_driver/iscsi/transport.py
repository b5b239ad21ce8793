# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs behind iSCSI targets, over sessions of this process."""

from typing import TYPE_CHECKING

from relvmoiscsi.sr_driver.iscsi.config import Config, parse_config
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport

if TYPE_CHECKING:
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.host.sm_log import SmLogHandler
    from relvmoiscsi.host.xapi.api import Xapi


def open_lun(
    call: Call, config: Config, xapi: "Xapi", smlog: "SmLogHandler", deadline: "Deadline", lock_seconds: float
) -> Lun:
    """The LUN that a call names. Raises Listed, RelvmoiscsiError."""
    from relvmoiscsi.sr_driver.iscsi import access, missing  # noqa: PLC0415 - what words refuse needs nothing of it
    from relvmoiscsi.sr_driver.iscsi.lun import IscsiLun  # noqa: PLC0415 - the same

    found = access.access_of(call, config, xapi, smlog)
    missing.verify_named(found, deadline)
    return IscsiLun(found, deadline, lock_seconds)


ISCSI = Transport("relvmoiscsi", "lvmoiscsi", parse_config, open_lun)
