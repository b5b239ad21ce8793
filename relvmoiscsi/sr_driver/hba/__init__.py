# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs that an array maps to the adapters of a host: Fibre Channel, SAS, hardware iSCSI, FCoE."""

import math
from typing import TYPE_CHECKING

from relvmoiscsi.sr_driver.hba.config import HbaConfig
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Transport
from relvmoiscsi.sr_types import HBA_SR

if TYPE_CHECKING:
    from relvmoiscsi.deadline import Deadline
    from relvmoiscsi.host.sm_log import SmLogHandler
    from relvmoiscsi.host.xapi.api import Xapi
    from relvmoiscsi.lun.call import CallLun


def open_lun(
    call: Call, config: HbaConfig, xapi: "Xapi", _smlog: "SmLogHandler", deadline: "Deadline", lock_seconds: float
) -> "CallLun":
    """Return the LUN that a call names. Raises MissingKey or another RelvmoiscsiError."""
    from relvmoiscsi.sr_driver.hba.lun import named_lun  # noqa: PLC0415 - a refused device-config needs no disks

    return named_lun(call, config, xapi, deadline, lock_seconds)


# A probe may use the time of the whole call: after a scan, a slow host needs long to bring all paths. Each step
# that may hang has its own limit. During the probe, xapi plugs no PBD of this host; VMs run and start.
HBA = Transport(HBA_SR, HbaConfig, open_lun, probe_seconds=math.inf)
