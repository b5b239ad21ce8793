# SPDX-License-Identifier: LGPL-2.1-only
"""sr_create: reach the LUN, resignature it, leave the host as it was."""

import logging
import math
from typing import Optional

from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.host.deadline import Deadline
from relvmoiscsi.host.disk.block_device import open_device
from relvmoiscsi.host.own_process import AskingDevice, Begin, apart
from relvmoiscsi.host.settings import OneVdiSetting, one_vdi
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.host.xapi.lun_users import read_pool, verify_unused
from relvmoiscsi.sr_driver.held import held
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import Lun, Transport, Wanted

log = logging.getLogger(__name__)


def sr_create(
    call: Call, config: Wanted, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline, transport: Transport
) -> str:
    """Give the LUN new identities; gives the new SR UUID. Raises RelvmoiscsiError.

    No write begins after the deadline; what has begun goes on to its end.
    """
    if not config.is_master:
        raise Refused("A resignature runs on the pool's master.", "LVMMaster").in_state("Nothing was written.")
    lun = transport.open_lun(call, config, xapi, smlog, deadline, math.inf)
    asked = one_vdi(config.vdis)
    if config.vdi is not None and asked is None:
        problem = "device-config:vdi names the one VDI that stays; say device-config:vdis=one as well."
        raise UsageError(problem, "InvalidArg").in_state("Nothing was written.")
    verify_unused(lun.scsi_id, read_pool(xapi), call.sr_ref)
    log.info("sr_create: LUN %s %s", lun.scsi_id, lun.place)
    with held(lun, meanwhile=_load_engine) as path:
        return apart(lambda begin: _resignatured(path, lun, config, asked, begin), deadline, "the LUN had been read")


def _resignatured(path: str, lun: Lun, config: Wanted, asked: Optional[OneVdiSetting], begin: Begin) -> str:
    """Its SR is not the one that xapi has a row of during this call.

    Should xapi die, that row stays, and a second SR of the same UUID could never be introduced.
    """
    from relvmoiscsi.resignature.one_vdi.choice import Request  # noqa: PLC0415 - see _load_engine
    from relvmoiscsi.sr_driver.rewrite import LOCK_SECONDS, resignatured  # noqa: PLC0415 - the same

    one = Request(config.vdi, asked.most_bytes, asked.note) if asked is not None else None
    with open_device(path, writable=True, lock_timeout=lun.deadline.within(LOCK_SECONDS)) as device:
        return resignatured(AskingDevice(device, begin), lun.scsi_id, "", lun.deadline, one)


def _load_engine() -> None:
    """While udev is busy with the disk there is nothing else to do; a call that ends before needs no engine."""
    import relvmoiscsi.sr_driver.rewrite  # noqa: F401, PLC0415
