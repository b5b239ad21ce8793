# SPDX-License-Identifier: LGPL-2.1-only
"""sr_create: open the LUN, resignature it, leave the host as it was before the call."""

import logging
import math
from typing import TYPE_CHECKING, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError, in_state
from relvmoiscsi.host.settings import one_vdi
from relvmoiscsi.host.sm_log import SmLogHandler
from relvmoiscsi.host.xapi.api import Xapi
from relvmoiscsi.lun import users
from relvmoiscsi.sr_driver.protocol import Call
from relvmoiscsi.sr_driver.transport import CallRequest, Transport

if TYPE_CHECKING:
    from relvmoiscsi.device import Device
    from relvmoiscsi.lun.opened import OpenLun

log = logging.getLogger(__name__)


def sr_create(
    call: Call, config: CallRequest, xapi: Xapi, smlog: SmLogHandler, deadline: Deadline, transport: Transport
) -> str:
    """Give the LUN new identities. Return the new SR UUID. Raises RelvmoiscsiError.

    The new UUID is not the UUID of this call's SR. xapi has a row for the call's SR. If xapi dies during the call, that
    row stays, and no other SR of the same UUID could be introduced.

    The first write comes before the deadline. A call that has begun to write completes its work after the deadline.
    """
    if not config.is_master:
        raise Refused("A resignature runs on the pool's master.", "LVMMaster").in_state(NOTHING_WRITTEN)
    lun = transport.open_lun(call, config, xapi, smlog, deadline, math.inf)
    asked = one_vdi(config.vdis)
    if config.vdi is not None and asked is None:
        problem = UsageError("device-config:vdi names the one VDI that stays.", "InvalidArg").in_state(NOTHING_WRITTEN)
        raise problem.advising("Say device-config:vdis=one as well.")
    asks = users.Question(lun.scsi_id, own_sr=call.sr_ref, here=call.host_ref, clone_of=config.clone_of)
    users.verify_unused(asks, xapi)

    def rewritten(opened: "OpenLun") -> str:
        from relvmoiscsi.sr_driver.rewrite import rewrite  # noqa: PLC0415 - a call that ends before needs no engine

        return rewrite(opened, config, asked, deadline)

    log.info("sr_create: LUN %s", lun.scsi_id)
    try:
        if not config.is_meant:
            # Say which SR is on the LUN, and whether the pool knows that SR.
            with in_state(NOTHING_WRITTEN):
                uuid, what = lun.read(lambda opened: _sr_on(opened.device))
                label = users.known_label(uuid, xapi) if uuid else None
                whose = "The pool has no such SR: it may be another pool's original. " if uuid else ""
                if label is not None:
                    whose = f"The pool has that SR, {label!r}: this is a clone of its LUN, or that LUN. "
                raise UsageError(
                    f"An adapter sees whatever the array maps to it. The LUN {lun.scsi_id} holds {what}. {whose}If it "
                    "is a clone that is to have new identities, say device-config:resign=true.",
                    "InvalidArg",
                )
        return lun.write(rewritten, asks, xapi)
    except Refused as refused:
        from relvmoiscsi.host.xapi import stale_volumes  # noqa: PLC0415 - only a refused call needs it

        until = lun.deadline.for_cleanup()
        stale_volumes.advise(
            refused,
            lun.scsi_id,
            lambda disk: sr_on_disk(lun.scsi_id, "/dev/" + disk, until)[0],
            lambda sr_uuid: stale_volumes.is_attached_to(sr_uuid, xapi.until(until), call.host_ref),
            lambda: None,  # the pool was asked before
        )
        raise


def sr_on_disk(scsi_id: str, path: str, deadline: Deadline) -> Tuple[str, str]:
    """Return the UUID of the SR on a disk, and the SR for a sentence; "" as the UUID if no SR can be read."""
    from relvmoiscsi.host.own_process import Begin, run_in_child  # noqa: PLC0415 - only a refused call needs a disk
    from relvmoiscsi.lun.call import disks_to_read  # noqa: PLC0415 - the same

    def read(_begin: Begin) -> Tuple[str, str]:
        with disks_to_read(scsi_id, [path]) as opened:
            return _sr_on(opened.device)

    uuid, what = run_in_child(read, deadline, "the LUN had been read", only_reads=True)
    return uuid, what


def _sr_on(device: "Device") -> Tuple[str, str]:
    from relvmoiscsi import engine  # noqa: PLC0415 - a call that ends before needs no engine

    found = engine.inspect(device)
    if found.lun is None:
        return "", f"no SR that can be read (it is {found.state})"
    label = found.lun.mgt.name_label if found.lun.mgt else ""
    return found.lun.sr_uuid, f"the SR {found.lun.sr_uuid} ({label!r})"
