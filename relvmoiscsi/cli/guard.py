# SPDX-License-Identifier: LGPL-2.1-only
"""Checks and locks before a command writes to a LUN: ask who uses the LUN (lun/users.py), and lock out other writers.

The checks and locks, in this order:

    lock of the LUN     stops other commands of relvmoiscsi and the SR driver, one writer at a time
    xapi                where this machine has xapi: which SR or VM of the pool uses the SCSIid
    SM's LVM lock       where this machine has SM: SM runs LVM commands and writes to volumes under this lock
    LVM's locks         for a block device that LVM sees: on the old VG name, the new VG name, and the orphans
"""

import argparse
import logging
import stat
from contextlib import ExitStack
from typing import Callable, ContextManager, Iterable, Optional, Sequence

from relvmoiscsi.cli.output import say
from relvmoiscsi.doctor.host_root import inventory
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, UsageError
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.disk.scsi_id import scsi_id_at, scsi_id_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lun_lock import lun_lock as lock_of_lun
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.sm_log import SmLogHandler, other_syslog
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_session
from relvmoiscsi.host.xapi.stale_volumes import Attachments
from relvmoiscsi.iscsi.url import is_url
from relvmoiscsi.lun import users
from relvmoiscsi.lun.users import DeviceId, PoolAnswer, Question
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.wording import printable

log = logging.getLogger(__name__)

HOST = THIS_HOST
XAPI_SECONDS = 10.0  #: time limit for one answer
LOCK_SECONDS = 45.0  #: time limit for a lock; the SR driver needs less time


def scsi_id(path: str, given: Optional[str]) -> DeviceId:
    """Return the SCSIid of the device, after a comparison with --scsi-id.

    Raises UsageError for a malformed SCSIid, and as `agreed` does. Raises NotFound or Refused without a device. Raises
    DeviceError when the device does not answer.
    """
    given = in_udevs_form(given)
    return agreed(path, given, scsi_id_of(path) if is_block_device(path) else None)


def in_udevs_form(given: Optional[str]) -> Optional[str]:
    """Return the value of --scsi-id in udev's form. Raises UsageError for a malformed SCSIid."""
    return None if given is None else typed_scsi_id(given)


def agreed(path: str, given: Optional[str], own: Optional[str]) -> DeviceId:
    """Compare two SCSIids. Raises Refused when the SCSIids differ; UsageError when the device has no SCSIid."""
    if given is not None and own is None:
        raise UsageError(f"{path} has no SCSIid, so --scsi-id cannot be compared. Leave out --scsi-id.")
    if given is not None and given != own:
        raise Refused(f"{path} has the SCSIid {own}, and --scsi-id says {given}: it is another LUN.")
    return DeviceId(own, given is not None)


def own_scsi_id(path: str) -> Optional[str]:
    """Return the SCSIid of the device; None for a device that has no SCSIid or does not answer."""
    return scsi_id_at(path) if is_block_device(path) else None


# --- the pool


def ask_pool(path: str, ids: DeviceId, replaced: Sequence[str] = (), new_sr: str = "") -> PoolAnswer:
    """Ask the pool of this host about a LUN, and about the UUID that the SR of the LUN will have.

    `replaced` are the UUIDs of the SRs that the LUN will no longer hold.
    """
    return users.ask_pool(Question(ids.names, replaced), new_sr, is_lun(path), HOST, XAPI_SECONDS)


def verify_not_in_use(arguments: argparse.Namespace, found: PoolAnswer, ids: DeviceId) -> PoolAnswer:
    """Return the answer if the command may continue; raise Refused otherwise.

    Raises Refused when the pool uses the LUN, or when xapi does not answer. Raises Refused when no pool was asked and
    only --yes confirms a write to a block device.

    With --not-in-use, an objection becomes a warning on stderr and in SMlog. A dry run only prints the refusal.
    """
    path = arguments.device
    if arguments.not_in_use:
        if found.objection is not None:
            _warn(f"--not-in-use: {path} will be changed despite this refusal: {found.objection.message}")
        was_needed = found.objection is not None or is_nobody_asked(path, found)
        return found._replace(is_overridden=was_needed)
    problem = found.objection
    if problem is None and is_lun(path):
        problem = users.missing_confirmation(path, found, ids, is_asked=not arguments.yes)
    if problem is not None and getattr(arguments, "dry_run", False):
        say("note: a run without --dry-run is refused: " + printable(problem.message))
    elif problem is not None:
        if problem is found.objection:
            problem.message += " If this is wrong, override with --not-in-use."
        raise problem.in_state(NOTHING_WRITTEN)
    return found


def beside_yes(arguments: argparse.Namespace, found: PoolAnswer, ids: DeviceId) -> str:
    """Return the options without which --yes is refused; "" where --yes is enough."""
    if arguments.not_in_use or ids.is_named or not is_nobody_asked(arguments.device, found):
        return ""
    return "--not-in-use" if ids.own is None else "--scsi-id ID or --not-in-use"


def is_nobody_asked(path: str, found: PoolAnswer) -> bool:
    """Is this a LUN about which no pool has answered?"""
    return is_lun(path) and found.is_missing


def way_out(path: str, ids: DeviceId, read_sr: Callable[[], str]) -> str:
    """Return the advice for a refusal: how to remove the volumes that SM has activated on a clone; "" without volumes.

    `read_sr` returns the UUID of the SR on the LUN. A LUN in the records of the pool may be the original.
    """
    advice = users.advice_on_holders(ids.names, lambda _disk: read_sr(), _attachments, HOST)
    refusal = ask_pool(path, ids).objection if advice else None
    return refusal.message if refusal is not None else advice


def _attachments() -> Optional[Attachments]:
    """Return xapi's records of the SRs on this host; None where xapi does not answer."""
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
    """Print a warning on stderr and write the warning to SMlog."""
    text = printable(sentence)
    say("warning: " + text)
    write_log([text], logging.WARNING)


def write_log(lines: Iterable[str], level: int = logging.INFO) -> None:
    """Write lines for a later investigation: to SMlog where SM is, otherwise to syslog."""
    handler = SmLogHandler() if sm_locks.is_sm_here(HOST) else other_syslog()
    for line in lines:
        handler.handle(logging.makeLogRecord({"levelno": level, "msg": "%s", "args": (line,)}))


# --- locks


def lun_lock(path: str, ids: Iterable[str]) -> ContextManager[object]:
    """Hold the lock of the LUN for as long as the device is open, against the SR driver and other commands.

    Raises Refused, before the block, when the lock is not free within LOCK_SECONDS; NotFound without a device.
    """
    held = ExitStack()
    if is_block_device(path):
        for scsi_id in sorted(ids):
            take(held, lock_of_lun(scsi_id, HOST, LOCK_SECONDS))
    return held


def write_locks(path: str, vg_names: Iterable[str]) -> ContextManager[object]:
    """Hold SM's LVM lock, where SM is, and LVM's locks on the VG names, while a run writes.

    An image file and a URL need no lock: LVM does not see either. Raises Refused, before the block, when a lock is not
    free within LOCK_SECONDS.
    """
    held = ExitStack()
    if not is_url(path) and is_block_device(path):
        if sm_locks.is_sm_here(HOST):
            take(held, sm_locks.lvm_lock(HOST, LOCK_SECONDS))
        take(held, lvm_locks(vg_names))
    return held


def is_lun(path: str) -> bool:
    """May another machine use the device? False for an image file. Raises the errors of `is_block_device`."""
    return is_url(path) or is_block_device(path)


def is_block_device(path: str) -> bool:
    """Is `path` a block device? Raises NotFound or Refused for a missing or unusable path."""
    return stat.S_ISBLK(stat_path(path).st_mode)


def take(held: ExitStack, lock: ContextManager[object]) -> None:
    """Enter one more lock. Raises Refused where the lock is not free, after the release of all locks."""
    try:
        held.enter_context(lock)
    except Refused as error:
        held.close()
        error.disk_state = NOTHING_WRITTEN  # commands on a LUN use this sentence
        raise
