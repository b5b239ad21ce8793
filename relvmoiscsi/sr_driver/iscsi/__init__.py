# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs behind iSCSI targets, over iSCSI sessions of this process."""

from typing import TYPE_CHECKING

from relvmoiscsi.sr_driver.iscsi.iscsi_config import IscsiConfig
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport, record_of_host
from relvmoiscsi.sr_types import ISCSI_SR

if TYPE_CHECKING:
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.host.sm_log import SmLogHandler
    from relvmoiscsi.host.xapi.api import Xapi
    from relvmoiscsi.lun.call import CallLun


def open_lun(
    call: Call, config: IscsiConfig, xapi: "Xapi", smlog: "SmLogHandler", deadline: "Deadline", lock_seconds: float
) -> "CallLun":
    """Return the LUN that a call names. Raises MissingKey or another RelvmoiscsiError."""
    from relvmoiscsi.sr_driver.iscsi.iscsi_lun import IscsiLun  # noqa: PLC0415 - a refused device-config needs no LUN
    from relvmoiscsi.sr_driver.iscsi.target_access import access_of  # noqa: PLC0415 - the same

    access = access_of(config, record_of_host(call, xapi), xapi, smlog.hide)
    if not (config.target_iqn and config.scsi_id):
        from relvmoiscsi.sr_driver.iscsi.unnamed import missing_key  # noqa: PLC0415 - a call that names its LUN

        raise missing_key(access, deadline)
    return IscsiLun(access, deadline, lock_seconds)


ISCSI = Transport(ISCSI_SR, IscsiConfig, open_lun)
