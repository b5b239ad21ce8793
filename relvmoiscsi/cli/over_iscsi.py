# SPDX-License-Identifier: LGPL-2.1-only
"""The LUN of an iscsi:// URL, for the commands on a LUN: initiator name, CHAP secrets and time limits.

    initiator name    --initiator-name; otherwise from /etc/iscsi/initiatorname.iscsi, as xapi writes the IQN
                      of a host; otherwise derived from the UUID of this machine
    CHAP secrets      from the environment variables of libiscsi, or from --chap-file with the same names; never
                      from an argument
    time limits       PATIENCE_SECONDS for each batch of reads or writes; lost sessions are opened again in this time

The session makes no disk, no map and no LVM device on this machine, so there is no LVM lock to take. If this machine
also sees the LUN as a disk, the caches of that disk would be stale after a write. So no command writes to such a LUN by
its URL.
"""

import argparse
import hashlib
import logging
import os
import re
from contextlib import ExitStack, contextmanager
from glob import escape, glob
from multiprocessing.pool import ThreadPool
from typing import Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from relvmoiscsi.cli import guard
from relvmoiscsi.cli.output import say, waiting
from relvmoiscsi.cli.secret_file import lines_of
from relvmoiscsi.deadline import Deadline, OutOfTime
from relvmoiscsi.device import Chunk, ForwardingDevice, Range
from relvmoiscsi.doctor.host_root import inventory
from relvmoiscsi.errors import NOTHING_WRITTEN, DeviceError, NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.locks.lun_lock import lun_lock as lock_of_lun
from relvmoiscsi.host.locks.user_lock import user_lock
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import Credentials, Initiator, LunDevice, LunInfo, Target, discover, list_luns, open_lun
from relvmoiscsi.iscsi.url import FORM, Url, parse_url

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 120.0  #: for a batch of reads or writes, and for a login
LIST_SECONDS = 20.0  #: for all work on one LUN of a list
LISTED_AT_ONCE = 4  #: sessions in parallel; arrays limit their number

USER, SECRET = "LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"
TARGET_USER, TARGET_SECRET = "LIBISCSI_CHAP_TARGET_USERNAME", "LIBISCSI_CHAP_TARGET_PASSWORD"
_NAMES = (USER, SECRET, TARGET_USER, TARGET_SECRET)

INITIATOR_FILE = "etc/iscsi/initiatorname.iscsi"
#: Nobody can register this domain (RFC 2606). A naa. name would need no domain, but NetApp's arrays reject naa. names,
#: and targetcli rejects locally assigned naa. names (naa.3).
OWN_NAME = "iqn.2026-11.invalid.relvmoiscsi:{}"
MAX_NAME_BYTES = 223  #: RFC 7143 4.2.7.1
_INITIATOR = re.compile(r"(iqn\.[0-9]{4}-[0-9]{2}\.[!-~]{1,211}|eui\.[0-9A-Fa-f]{16}|naa\.([0-9A-Fa-f]{16}){1,2})\Z")

#: keys of errors after which a second attempt to open the LUN would fail the same way
_PERMANENT_KEYS = ("DNSError", "ISCSITarget", "ISCSILogin", "ISCSIDiscovery", "ISCSIDevice", "ISCSIPort")

Found = TypeVar("Found")


# --- who logs in


def host_uuid(host: Optional[Host] = None) -> str:
    """Return an id that no other machine has: on a host of xapi, the UUID of the host."""
    host = host or guard.HOST
    installation = inventory(host).get("INSTALLATION_UUID", "")
    machine = text_of(host.at("etc/machine-id")).strip()
    return installation or machine or host.boot_id


def initiator_name(given: Optional[str]) -> str:
    """Return the initiator name for the login. Raises UsageError for a malformed name."""
    if given is not None:
        if len(given.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            raise UsageError(f"{given!r} is not an initiator name: it has more than {MAX_NAME_BYTES} bytes.")
        if not _INITIATOR.match(given):
            raise UsageError(
                f"{given!r} is not an initiator name, expected iqn.YYYY-MM.DOMAIN, eui. with 16 hex digits, or naa. "
                "with 16 or 32."
            )
        return given
    for line in text_of(guard.HOST.at(INITIATOR_FILE)).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "InitiatorName" and _INITIATOR.match(value.strip()):
            return value.strip()
    return OWN_NAME.format(hashlib.sha256(f"initiator of {host_uuid()}".encode()).hexdigest()[:16])


def credentials(arguments: argparse.Namespace, url: Url) -> Credentials:
    """Return the CHAP users and secrets, from the environment or --chap-file. Raises UsageError.

    A user in the URL takes precedence.
    """
    if arguments.chap_file is not None:
        values = _in_file(arguments.chap_file)
        if not any(values.values()):
            raise UsageError(f"The file {arguments.chap_file} of --chap-file holds no CHAP user and no password.")
    else:
        values = {name: os.environ.get(name, "") for name in _NAMES}
    try:
        return Credentials(url.user or values[USER], values[SECRET], values[TARGET_USER], values[TARGET_SECRET])
    except UsageError as problem:
        problem.message += f" The environment or --chap-file gives them as {', '.join(_NAMES)}."
        raise


def _in_file(path: str) -> Dict[str, str]:
    """Return the values in a file of --chap-file. Raises UsageError; the message contains no line of the file."""
    found = dict.fromkeys(_NAMES, "")
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, is_set, value = line.partition("=")
        if name.strip() not in found or not is_set:
            raise UsageError(f"Line {number} of {path} is not NAME=VALUE with one of the names {', '.join(_NAMES)}.")
        found[name.strip()] = value.strip()
    return found


# --- a LUN


class Patience(Deadline):
    """A deadline that starts again with each batch: `seconds` without the end of a batch."""

    of_what = "for this step"

    def renew(self) -> None:
        self._end = self._clock() + self.seconds


class UrlDevice(ForwardingDevice):
    """The LUN of a URL. A batch that exceeds its time fails with DeviceError."""

    def __init__(self, url: str, device: LunDevice, patience: Patience) -> None:
        device.name = url
        super().__init__(device)
        self.info, self.copy_limit_bytes = device.info, device.copy_limit_bytes
        self._patience = patience

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        self._patience.renew()
        return super().read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._patience.renew()
        super().write(chunks)

    def flush(self) -> None:
        self._patience.renew()
        super().flush()

    def end_late_writes(self, of_another_host: bool = False) -> None:
        self._patience.renew()
        super().end_late_writes(of_another_host)


class _Login(NamedTuple):
    """The parameters of a session."""

    url: Url
    initiator: Initiator
    credentials: Credentials


def _login(arguments: argparse.Namespace, text: str) -> _Login:
    url = parse_url(text)
    initiator = Initiator(initiator_name(arguments.initiator_name), host_uuid())
    return _Login(url, initiator, credentials(arguments, url))


@contextmanager
def opened_url(
    arguments: argparse.Namespace,
    text: str,
    writable: bool,
    scsi_id: Optional[str] = None,
    seconds: float = PATIENCE_SECONDS,
) -> Iterator[UrlDevice]:
    """Open the LUN of a URL for the block. `scsi_id` is the SCSIid that the LUN must have.

    For a write, the caller holds the lock of the LUN. Raises UsageError, NotFound, Refused.
    """
    login = _login(arguments, text)
    if login.url.lun is None:
        raise UsageError(f"{text} names no LUN, expected {FORM}. `relvmoiscsi show {text}` lists the LUNs.")
    patience = Patience(seconds)
    with ExitStack() as held:
        with _at_target(login, seconds):
            where = ([login.url.portal], login.url.iqn, login.initiator, login.url.lun, writable, patience)
            device = held.enter_context(open_lun(*where, login.credentials, scsi_id=scsi_id))
        yield UrlDevice(text, device, patience)


@contextmanager
def _at_target(login: _Login, seconds: float) -> Iterator[None]:
    """Say that a slow block waits for the target. Add the initiator name of this machine to the target's errors."""
    initiator = login.initiator
    try:
        with waiting(f"the answer of {login.url.portal}", seconds):
            yield
    except (NotFound, Refused) as problem:
        asks_for_it = problem.sm_key in ("ISCSILogin", "ISCSIDiscovery", "ISCSIDevice")
        if asks_for_it and initiator.name not in problem.message:
            problem.message += f" The initiator name of this machine is {initiator.name}."
        raise


def may_open(problem: RelvmoiscsiError) -> bool:
    """Can the LUN be opened again after this error? Not if the error has already taken all the time of a step."""
    is_late = problem.sm_key == OutOfTime.sm_key and isinstance(problem, (OutOfTime, DeviceError))
    return problem.sm_key not in _PERMANENT_KEYS and not is_late


def own_scsi_id(arguments: argparse.Namespace, text: str) -> Optional[str]:
    """Return the SCSIid of the LUN of a URL. Raises UsageError, NotFound, Refused."""
    with opened_url(arguments, text, writable=False) as device:
        return device.info.scsi_id


def lun_lock(scsi_id: Optional[str]) -> ContextManager[object]:
    """Hold the lock of a LUN for a write by URL, against other commands on this machine. Raises Refused.

    Root takes the lock of the SR driver. An ordinary user cannot see that lock, and takes the lock of ordinary users.
    """
    held = ExitStack()
    if scsi_id is not None:
        take = lock_of_lun if os.geteuid() == 0 else user_lock
        guard.take(held, take(scsi_id, guard.HOST, guard.LOCK_SECONDS))
    return held


def refuse_where_seen(text: str, scsi_id: Optional[str]) -> None:
    """Raises Refused where this machine sees the LUN as a disk.

    After a write by URL, the caches of the disk would be stale. The command also would not ask the users of the disk.
    """
    disks = _seen_as(scsi_id)
    if disks:
        names = ", ".join("/dev/" + name for name in disks)
        raise Refused(
            f"This machine sees {text} as {names} already. Give the command that device instead, or its multipath map."
        ).in_state(NOTHING_WRITTEN)


def say_where_seen(scsi_id: Optional[str]) -> None:
    """Print a note about disks that appeared during the run: their caches may be stale."""
    for name in _seen_as(scsi_id):
        say(
            f"note: during the run this machine found the LUN as /dev/{name}. Drop its cached data: "
            f"`blockdev --flushbufs /dev/{name}; udevadm trigger --action=change /dev/{name}`."
        )


def _seen_as(scsi_id: Optional[str]) -> List[str]:
    """Return the kernel names of the disks with the SCSIid, from /sys: a container may have no device node."""
    if scsi_id is None:
        return []
    names = [os.path.basename(path) for path in glob(os.path.join(escape(guard.HOST.sysfs), "block/sd*"))]
    return sorted(name for name in names if scsi_id_of_disk(name, guard.HOST) == scsi_id)


# --- what is there


def targets(arguments: argparse.Namespace, text: str) -> List[Target]:
    """Return the targets of a portal. Raises UsageError, NotFound, Refused."""
    login = _login(arguments, text)
    with _at_target(login, PATIENCE_SECONDS):
        return discover([login.url.portal], login.initiator, login.credentials, Deadline(PATIENCE_SECONDS))


def luns(arguments: argparse.Namespace, text: str) -> List[LunInfo]:
    """Return the LUNs of a target. Raises UsageError, NotFound, Refused."""
    login = _login(arguments, text)
    deadline = Deadline(PATIENCE_SECONDS)
    with _at_target(login, PATIENCE_SECONDS):
        return list_luns([login.url.portal], login.url.iqn, login.initiator, deadline, login.credentials)


def each_at_once(works: Sequence[Callable[[], Found]]) -> List[Found]:
    """Call the functions, LISTED_AT_ONCE in parallel, and return the results in order. Exceptions propagate.

    Ctrl-C does not wait for the threads: ThreadPool uses daemon threads, unlike concurrent.futures.
    """
    with ThreadPool(LISTED_AT_ONCE) as pool:
        found = pool.map(lambda work: work(), works, chunksize=1)
        pool.close()
        pool.join()
        return found
