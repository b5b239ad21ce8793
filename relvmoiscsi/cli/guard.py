# SPDX-License-Identifier: LGPL-2.1-only
"""What a command that writes to a LUN does first, lest it hurts anybody: it asks who uses the LUN, and takes the locks
of whoever else might write to it.

    the LUN's lock           one of us at a time: the SR driver takes it as well
    xapi, where it is        who in the pool uses the SCSIid; before the first write, and after what is only told
    SM's LVM lock            where SM is: it runs LVM commands and writes to volumes under it
    LVM's own locks          where the device is one that LVM can see: for its old group, its new one and orphans
"""

import argparse
import logging
import os
import stat
from contextlib import ExitStack
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

from relvmoiscsi.cli.output import say
from relvmoiscsi.doctor.host_root import inventory
from relvmoiscsi.errors import NOTHING_WRITTEN, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk.exclusive import stat_path
from relvmoiscsi.host.disk.scsi_id import scsi_id_at, scsi_id_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lvm_locks import lvm_locks
from relvmoiscsi.host.sm_log import SmLogHandler, other_syslog
from relvmoiscsi.host.this_host import THIS_HOST
from relvmoiscsi.host.xapi import stale_volumes
from relvmoiscsi.host.xapi.api import Xapi, XapiFailure, local_session
from relvmoiscsi.host.xapi.lun_users import Pool, read_pool, verify_unused
from relvmoiscsi.host.xapi.other_hosts import use_of_lun
from relvmoiscsi.host.xapi.stale_volumes import Attachments
from relvmoiscsi.iscsi.url import is_url
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import printable

log = logging.getLogger(__name__)

HOST = THIS_HOST
XAPI_SECONDS = 10.0  #: for each answer
LOCK_SECONDS = 45.0  #: the SR driver is done by then


class ScsiIds(NamedTuple):
    """By what SCSIids the pool may know a LUN."""

    given: Optional[str]  #: with --scsi-id
    own: Optional[str]  #: that the device has itself

    @property
    def names(self) -> List[str]:
        """Those that there are, each once."""
        return list(dict.fromkeys(filter(None, self)))

    @property
    def recorded(self) -> Optional[str]:
        """The one by which a run is known later."""
        return self.given or self.own


def scsi_ids(path: str, given: Optional[str]) -> ScsiIds:
    """What was said of the LUN, and what the device says itself.

    Raises UsageError for what is no SCSIid, NotFound or Refused when there is no device, DeviceError when it does not
    tell and nobody else has, Refused when it tells another SCSIid than was given: it is another LUN.
    """
    check_given(given)
    own = own_scsi_id(path) if given else (scsi_id_of(path) if is_block_device(path) else None)
    return agreed(path, given, own)


def check_given(given: Optional[str]) -> None:
    """Raises UsageError for what is no SCSIid."""
    if given is not None and not is_scsi_id(given):
        raise UsageError(f"{given!r} is no SCSIid.")


def agreed(path: str, given: Optional[str], own: Optional[str]) -> ScsiIds:
    """Both. Raises Refused when they differ."""
    if None not in (given, own) and given != own:
        raise Refused(f"{path} has the SCSIid {own}, and --scsi-id says {given}: it is another LUN.")
    return ScsiIds(given, own)


def own_scsi_id(path: str) -> Optional[str]:
    """The SCSIid that the device has itself; None for one that has none, or does not tell."""
    return scsi_id_at(path) if is_block_device(path) else None


# --- the pool


class PoolAnswer(NamedTuple):
    """Whether the pool of this host was asked who uses a LUN, and what it says."""

    sentence: str
    uuid: Optional[str] = None  #: of the pool that has answered; None where nobody has
    name_label: Optional[str] = None
    objection: Optional[Refused] = None  #: why the LUN must not be written to, as far as the pool is concerned
    is_overridden: bool = False  #: by --not-in-use

    def facts(self) -> Dict[str, Any]:
        """What --json gives as `pool`."""
        return {
            "asked": self.uuid is not None,
            "uuid": self.uuid,
            "name_label": self.name_label,
            "overridden": self.is_overridden,
            "sentence": self.sentence,
        }


NOBODY_NEEDED = PoolAnswer("No pool was asked whether the LUN is in use: there is nothing to write.")
_IMAGE_FILE = PoolAnswer("This is an image file: no pool was asked whether it is in use.")
_NO_XAPI = PoolAnswer("No xapi on this machine: no pool was asked whether this LUN is in use.")
_NO_SCSI_ID = PoolAnswer("The LUN has no SCSIid: no pool was asked whether this LUN is in use.")


def ask_pool(path: str, ids: ScsiIds, new_sr: str = "") -> PoolAnswer:
    """What the pool of this host, if it is in one, says of a LUN, and of the UUID that its SR is to have."""
    socket = HOST.xapi_socket
    if not ids.names and not is_lun(path):
        return _IMAGE_FILE
    if not os.path.exists(socket):
        return _NO_XAPI if is_lun(path) else _IMAGE_FILE
    if not ids.names:
        return _NO_SCSI_ID

    try:
        with local_session(socket, XAPI_SECONDS) as session_ref:
            xapi = Xapi(session_ref, socket, timeout=XAPI_SECONDS)
            return _answer_of(list(xapi.records("pool").values()), ids, read_pool(xapi), new_sr)
    except XapiFailure as failure:
        problem = Refused(
            "xapi cannot say whether this pool uses the LUN {}: {} Make xapi answer (`xe-toolstack-restart` "
            "restarts xapi), then repeat the command.".format(" or ".join(ids.names), failure.message)
        )
        return PoolAnswer("xapi does not answer: this LUN may be in use.", objection=problem)


def _answer_of(pools: Sequence[Mapping[str, Any]], ids: ScsiIds, pool: Pool, new_sr: str) -> PoolAnswer:
    """What a pool says by its records; `pools` has the one of the pool itself."""
    named = pools[0] if pools else {}
    uuid, label = str(named.get("uuid", "unknown")), str(named.get("name_label", ""))
    called = f"{uuid} ({label!r})" if label else uuid
    for scsi_id in ids.names:
        try:
            verify_unused(scsi_id, pool)
        except Refused as found:
            return PoolAnswer(f"The pool {called} was asked: this LUN is in use.", uuid, label, found)
    twin = None
    if any(sr.get("uuid") == new_sr for sr in pool.srs.values()):
        twin = Refused(
            f"This pool has an SR {new_sr} already: give another --sr-uuid, or two LUNs share every identity."
        )
    return PoolAnswer(f"The pool {called} was asked: it does not use this LUN.", uuid, label, twin)


def verify_not_in_use(arguments: argparse.Namespace, found: PoolAnswer, ids: ScsiIds) -> PoolAnswer:
    """The answer, where a command may go on. Raises Refused when somebody in the pool uses the LUN, or when xapi is
    there and does not say; and when nobody was asked, and --yes is all that was said of a block device.

    With --not-in-use an objection is a warning, on stderr and in SMlog; in a dry run all is told beforehand.
    """
    if arguments.not_in_use:
        if found.objection is not None:
            _warn(f"--not-in-use: {arguments.device} will be changed despite this refusal: {found.objection.message}")
        was_needed = found.objection is not None or is_nobody_asked(arguments.device, found)
        return found._replace(is_overridden=was_needed)
    problem = found.objection or _unsaid(arguments, found, ids)
    if problem is not None and getattr(arguments, "dry_run", False):
        say("note: a run without --dry-run is refused: " + printable(problem.message))
    elif problem is not None:
        if problem is found.objection:
            problem.message += " If this is wrong, override with --not-in-use."
        raise problem.in_state(NOTHING_WRITTEN)
    return found


def is_nobody_asked(path: str, found: PoolAnswer) -> bool:
    """Whether this is a LUN of which no pool has said anything."""
    return is_lun(path) and found.uuid is None and found.objection is None


def _unsaid(arguments: argparse.Namespace, found: PoolAnswer, ids: ScsiIds) -> Optional[Refused]:
    """Why nobody has answered for a LUN of which no pool has said anything. A person is asked, if that helps."""
    path = arguments.device
    if not is_nobody_asked(path, found) or is_named(ids):
        return None
    if ids.own is None:
        return Refused(
            f"No pool was asked whether {path} is in use, and the device has no SCSIid. If the device is the "
            "unused clone, use --not-in-use."
        )
    if arguments.yes:
        return Refused(
            f"No pool was asked whether {path} is in use, and --yes alone does not identify the clone. Add "
            "--scsi-id with the SCSIid of the clone, or --not-in-use."
        )
    return None


def way_out(path: str, ids: ScsiIds, read_sr: Callable[[], str]) -> str:
    """What a refusal is to say of volumes that the storage manager has activated on a clone; "" where there are none.

    `read_sr` gives the UUID of the SR on the LUN. A LUN that the pool has in its records may be the original.
    """
    stacked = [name for scsi_id in ids.names for name in use_of_lun(scsi_id, HOST).stacked]
    if not stacked:
        return ""
    objection = ask_pool(path, ids).objection
    try:
        return objection.message if objection else stale_volumes.way_out(read_sr(), stacked, _attachments())
    except RelvmoiscsiError as problem:
        log.debug("which SR the LUN holds cannot be read: %s", problem)
        return ""


def _attachments() -> Optional[Attachments]:
    """What xapi says of the SRs of this host; None where it does not answer."""
    socket = HOST.xapi_socket
    try:
        with local_session(socket, XAPI_SECONDS) as session_ref:
            xapi = Xapi(session_ref, socket, timeout=XAPI_SECONDS)
            uuid = inventory(HOST).get("INSTALLATION_UUID", "")
            own = [ref for ref, host in xapi.records("host").items() if uuid and host.get("uuid") == uuid]
            return Attachments(xapi.records("PBD"), xapi.records("SR"), "".join(own))
    except XapiFailure:
        return None


def is_named(ids: ScsiIds) -> bool:
    """Whether --scsi-id has said which LUN is meant, and the device agrees."""
    return ids.own is not None and ids.given == ids.own


def _warn(sentence: str) -> None:
    """On stderr, and where SM's own log is."""
    text = printable(sentence)
    say("warning: " + text)
    write_log([text], logging.WARNING)


def write_log(lines: Iterable[str], level: int = logging.INFO) -> None:
    """Lines for whoever looks a year later: in SMlog where SM is, else in syslog."""
    handler = SmLogHandler() if sm_locks.is_sm_here(HOST) else other_syslog()
    for line in lines:
        handler.handle(logging.makeLogRecord({"levelno": level, "msg": "%s", "args": (line,)}))


# --- locks


def lun_lock(path: str, ids: Iterable[str]) -> ContextManager[object]:
    """Held for as long as the device is: no other command of ours, nor the SR driver, is at work on the LUN.

    Raises Refused, at once, when one is and does not end in time; NotFound when there is no device.
    """
    held = ExitStack()
    if is_block_device(path):
        for scsi_id in sorted(ids):
            take(held, sm_locks.lun_lock(scsi_id, HOST, LOCK_SECONDS))
    return held


def write_locks(path: str, vg_names: Iterable[str]) -> ContextManager[object]:
    """Held while a run is carried out: SM's LVM lock where SM is, and LVM's own on the names of the volume group.

    An image file is nobody else's, and LVM does not see what is behind a URL. Raises Refused, at once, when a lock
    stays taken.
    """
    held = ExitStack()
    if not is_url(path) and is_block_device(path):
        if sm_locks.is_sm_here(HOST):
            take(held, sm_locks.lvm_lock(HOST, LOCK_SECONDS))
        take(held, lvm_locks(vg_names))
    return held


def is_lun(path: str) -> bool:
    """Whether somebody elsewhere may use it: no image file. Raises as `is_block_device`."""
    return is_url(path) or is_block_device(path)


def is_block_device(path: str) -> bool:
    """Raises NotFound or Refused when there is nothing at `path`, or nothing for us."""
    return stat.S_ISBLK(stat_path(path).st_mode)


def take(held: ExitStack, lock: ContextManager[object]) -> None:
    """Hold one more lock. Raises Refused, with nothing held, where it stays taken."""
    try:
        held.enter_context(lock)
    except Refused as error:
        held.close()
        error.disk_state = NOTHING_WRITTEN  # in the words of a command on a LUN
        raise
