# SPDX-License-Identifier: LGPL-2.1-only
"""What a command that writes to a LUN does first, lest it hurts anybody: it asks who uses the LUN, and takes the locks
of whoever else might write to it.

    the LUN's lock           one of us at a time: the SR driver takes it as well
    xapi, where it is        who in the pool uses the SCSIid; before the first write, and after what is only told
    SM's LVM lock            where SM is: it runs LVM commands and writes to volumes under it
    LVM's own locks          where the device is one that LVM can see
"""

import argparse
import logging
import os
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Callable, ContextManager, Iterable, List, Optional, Sequence

from relvmoiscsi.cli.output import say
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError
from relvmoiscsi.host.disk.claim import stat_path
from relvmoiscsi.host.disk.scsi_id import scsi_id_at, scsi_id_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.wording import printable

if TYPE_CHECKING:
    from relvmoiscsi.host.xapi.stale_volumes import Attachments

log = logging.getLogger(__name__)

HOST = THIS_HOST
XAPI_SECONDS = 10.0  #: for each answer
LOCK_SECONDS = 45.0  #: the SR driver is done by then


def scsi_ids(path: str, given: Optional[str]) -> List[str]:
    """By what names the pool may know the LUN: what was said of it, and what the device says itself.

    Raises NotFound or Refused when there is no device, DeviceError when it does not tell and nobody else has.
    """
    own = None
    if _is_block_device(path):
        own = scsi_id_at(path) if given else scsi_id_of(path)
    return list(dict.fromkeys(filter(None, [given, own])))


# --- the pool


def verify_not_in_use(arguments: argparse.Namespace, ids: Iterable[str]) -> None:
    """Raises Refused when somebody in the pool uses the LUN, or when xapi is there and does not say.

    With --not-in-use that is a warning, on stderr and in SMlog; in a dry run it is told beforehand.
    """
    found = _objection(list(ids))
    if found is None:
        return
    if arguments.not_in_use:
        _warn(f"--not-in-use: {arguments.device} is written to in spite of this: {found.message}")
    elif getattr(arguments, "dry_run", False):
        say("note: this would be refused: " + printable(found.message))
    else:
        found.message += " If you know better, --not-in-use overrides that."
        raise found.in_state(NOTHING_WRITTEN)


def _objection(ids: List[str]) -> Optional[Refused]:
    """Why the LUN must not be written to, as far as the pool is concerned."""
    socket = HOST.xapi_socket
    if not ids or not os.path.exists(socket):
        return None
    from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_session  # noqa: PLC0415 - slow to import
    from relvmoiscsi.host.xapi.lun_users import read_pool, verify_unused  # noqa: PLC0415

    try:
        with local_session(socket, XAPI_SECONDS) as session_ref:
            pool = read_pool(Xapi(session_ref, socket, timeout=XAPI_SECONDS))
    except XapiFailure as failure:
        return Refused(
            "Whether this pool uses the LUN {} cannot be told: {} See to it that xapi answers "
            "(`xe-toolstack-restart` starts it anew), then try again.".format(" or ".join(ids), failure.message)
        )
    for scsi_id in ids:
        try:
            verify_unused(scsi_id, pool)
        except Refused as found:
            return found
    return None


def way_out(ids: Sequence[str], read_sr: Callable[[], str]) -> str:
    """What a refusal is to say of volumes that the storage manager has activated on a clone; "" where there are none.

    `read_sr` gives the UUID of the SR on the LUN. A LUN that the pool has in its records may be the original.
    """
    from relvmoiscsi.host.xapi import stale_volumes  # noqa: PLC0415 - slow to import
    from relvmoiscsi.host.xapi.other_hosts import use_of_lun  # noqa: PLC0415

    stacked = [name for scsi_id in ids for name in use_of_lun(scsi_id, HOST).stacked]
    if not stacked:
        return ""
    objection = _objection(list(ids))
    try:
        return objection.message if objection else stale_volumes.way_out(read_sr(), stacked, _attachments())
    except RelvmoiscsiError as problem:
        log.debug("which SR the LUN holds cannot be read: %s", problem)
        return ""


def _attachments() -> "Optional[Attachments]":
    """What xapi says of the SRs of this host; None where it does not answer."""
    from relvmoiscsi.doctor.host_root import inventory  # noqa: PLC0415 - slow to import
    from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_session  # noqa: PLC0415
    from relvmoiscsi.host.xapi.stale_volumes import Attachments  # noqa: PLC0415

    socket = HOST.xapi_socket
    try:
        with local_session(socket, XAPI_SECONDS) as session_ref:
            xapi = Xapi(session_ref, socket, timeout=XAPI_SECONDS)
            uuid = inventory(HOST).get("INSTALLATION_UUID", "")
            own = [ref for ref, host in xapi.records("host").items() if uuid and host.get("uuid") == uuid]
            return Attachments(xapi.records("PBD"), xapi.records("SR"), "".join(own))
    except XapiFailure:
        return None


def _warn(sentence: str) -> None:
    """On stderr, and where SM's own log is."""
    from relvmoiscsi.host.sm_log import SmLogHandler  # noqa: PLC0415 - slow to import, and seldom needed

    text = printable(sentence)
    say("warning: " + text)
    SmLogHandler().handle(logging.makeLogRecord({"levelno": logging.WARNING, "msg": "%s", "args": (text,)}))


# --- locks


def lun_lock(path: str, ids: Iterable[str]) -> ContextManager[object]:
    """Held for as long as the device is: no other command of ours, nor the SR driver, is at work on the LUN.

    Raises Refused, at once, when one is and does not end in time; NotFound when there is no device.
    """
    held = ExitStack()
    if _is_block_device(path):
        for scsi_id in sorted(ids):
            _take(held, sm_locks.lun_lock(scsi_id, HOST, LOCK_SECONDS))
    return held


def write_locks(path: str, vg_names: Iterable[str]) -> ContextManager[object]:
    """Held while a run is carried out: SM's LVM lock where SM is, and LVM's own on the names of the volume group.

    An image file is nobody else's. Raises Refused, at once, when a lock stays taken.
    """
    held = ExitStack()
    if _is_block_device(path):
        if sm_locks.is_sm_here(HOST):
            _take(held, sm_locks.lvm_lock(HOST, LOCK_SECONDS))
        _take(held, lvm_locks(vg_names))
    return held


def _is_block_device(path: str) -> bool:
    return stat.S_ISBLK(stat_path(path).st_mode)


def _take(held: ExitStack, lock: ContextManager[object]) -> None:
    try:
        held.enter_context(lock)
    except Refused as error:
        held.close()
        error.disk_state = NOTHING_WRITTEN  # in the words of a command on a LUN
        raise
