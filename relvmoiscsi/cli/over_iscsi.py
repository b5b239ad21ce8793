# SPDX-License-Identifier: LGPL-2.1-only
"""A LUN behind an iscsi:// URL, for the commands on a LUN: who logs in, with which secrets, and how long is waited.

    who       --initiator-name; else /etc/iscsi/initiatorname.iscsi, where xapi keeps the IQN of a host as well; else a
              name made of the UUID of this machine, the same each time
    secrets   the environment variables of libiscsi, or --chap-file with the same names. Never a word of the command
    how long  each batch of reads or writes has PATIENCE_SECONDS, in which sessions that are lost are made again

Nothing of the LUN comes to this machine: no disk, no map, no LVM. So there is no lock of LVM to take. What a LUN that
this machine sees as a disk keeps in its caches nobody could tell from here: nothing is written to such a LUN by a URL.
"""

import argparse
import hashlib
import logging
import os
import re
import stat
from contextlib import ExitStack, contextmanager
from glob import escape, glob
from multiprocessing.pool import ThreadPool
from typing import Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from relvmoiscsi.cli import guard
from relvmoiscsi.cli.output import say
from relvmoiscsi.deadline import Deadline
from relvmoiscsi.device import Chunk, Device, Range
from relvmoiscsi.doctor.host_root import inventory
from relvmoiscsi.errors import NOTHING_WRITTEN, NotFound, Refused, RelvmoiscsiError, UsageError
from relvmoiscsi.host.disk.scsi_id import scsi_id_of_disk
from relvmoiscsi.host.files import text_of
from relvmoiscsi.host.locks import sm_locks
from relvmoiscsi.host.locks.lun_name import lun_name
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.iscsi import Credentials, Initiator, LunDevice, LunInfo, Target, discover, list_luns, open_lun
from relvmoiscsi.iscsi.url import FORM, Url, parse_url

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 120.0  #: of a batch of reads or writes, and of a login
LIST_SECONDS = 20.0  #: of the work at one LUN of many
LISTED_AT_ONCE = 4  #: sessions; arrays have limits

USER, SECRET = "LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"
TARGET_USER, TARGET_SECRET = "LIBISCSI_CHAP_TARGET_USERNAME", "LIBISCSI_CHAP_TARGET_PASSWORD"
_NAMES = (USER, SECRET, TARGET_USER, TARGET_SECRET)

INITIATOR_FILE = "etc/iscsi/initiatorname.iscsi"
#: A domain that nobody can register (RFC 2606). A naa. name would need no domain, but NetApp's arrays know none, and
#: targetcli refuses those that are assigned locally (naa.3).
OWN_NAME = "iqn.2026-11.invalid.relvmoiscsi:{}"
_INITIATOR = re.compile(r"(iqn\.[0-9]{4}-[0-9]{2}\.[!-~]{1,210}|eui\.[0-9A-Fa-f]{16}|naa\.([0-9A-Fa-f]{16}){1,2})\Z")

#: errors after which another attempt to open the LUN would end in the same way
_NOT_OPEN = ("DNSError", "ISCSITarget", "ISCSILogin", "ISCSIDiscovery", "ISCSIDevice", "ISCSIPort")

Found = TypeVar("Found")


# --- who logs in


def host_uuid(host: Optional[Host] = None) -> str:
    """What tells this machine from any other that might write to the same LUN; of a host of xapi, its UUID there."""
    host = host or guard.HOST
    installation = inventory(host).get("INSTALLATION_UUID", "")
    machine = text_of(host.at("etc/machine-id")).strip()
    return installation or machine or host.boot_id


def initiator_name(given: Optional[str]) -> str:
    """The IQN to log in with. Raises UsageError for what cannot be one."""
    if given is not None:
        if not _INITIATOR.match(given):
            raise UsageError(f"{given!r} is not an initiator name: begin with iqn., eui. or naa.")
        return given
    for line in text_of(guard.HOST.at(INITIATOR_FILE)).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "InitiatorName" and _INITIATOR.match(value.strip()):
            return value.strip()
    return OWN_NAME.format(hashlib.sha256(f"initiator of {host_uuid()}".encode()).hexdigest()[:16])


def credentials(arguments: argparse.Namespace, url: Url) -> Credentials:
    """CHAP users and secrets, of the environment or of --chap-file; that of a URL comes first. Raises UsageError."""
    if arguments.chap_file is not None:
        values = _in_file(arguments.chap_file)
        if not any(values.values()):
            raise UsageError(f"The file {arguments.chap_file} of --chap-file holds no CHAP user and no password.")
    else:
        values = {name: os.environ.get(name, "") for name in _NAMES}
    found = Credentials(url.user or values[USER], values[SECRET], values[TARGET_USER], values[TARGET_SECRET])
    for user, secret, where in (
        (found.user, found.secret, SECRET),
        (found.incoming_user, found.incoming_secret, TARGET_SECRET),
    ):
        if user and not secret:
            raise UsageError(f"The CHAP user {user!r} has no password: give {where}, or --chap-file with that line.")
        if secret and not user:
            raise UsageError(f"{where} is a password without a user: give the CHAP user as well.")
    if found.incoming_user and not found.user:
        raise UsageError(f"The target authenticates only to a CHAP user: give {USER} and {SECRET} as well.")
    return found


def _in_file(path: str) -> Dict[str, str]:
    """The values in a file of --chap-file. Raises UsageError, which has no line of the file."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise UsageError(f"{path} holds passwords and is accessible to other users. Run `chmod 600 {path}`.")
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UsageError(f"The file {path} of --chap-file cannot be read: {reason}.") from None
    found = dict.fromkeys(_NAMES, "")
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, is_set, value = line.partition("=")
        if name.strip() not in found or not is_set:
            raise UsageError(f"Line {number} of {path} is not NAME=VALUE with one of the names {', '.join(_NAMES)}.")
        found[name.strip()] = value.strip()
    return found


# --- a LUN


class Patience(Deadline):
    """So many seconds without an end to what is waited for: each batch begins anew."""

    def renew(self) -> None:
        self._end = self._clock() + self.seconds


class UrlDevice(Device):
    """A LUN behind a URL. A batch that takes longer than its time fails with DeviceError."""

    def __init__(self, url: str, device: LunDevice, patience: Patience) -> None:
        self.name = device.name = url
        self.size_bytes, self.block_size = device.size_bytes, device.block_size
        self.physical_block_size = device.physical_block_size
        self.info, self.copy_limit_bytes = device.info, device.copy_limit_bytes
        self._device, self._patience = device, patience

    def read(self, ranges: Sequence[Range]) -> List[bytes]:
        self._patience.renew()
        return self._device.read(ranges)

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._patience.renew()
        self._device.write(chunks)

    def flush(self) -> None:
        self._patience.renew()
        self._device.flush()


class _Login(NamedTuple):
    """What a session takes."""

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
    """The LUN of a URL, for the block; `scsi_id` is what it must have. For writing, whoever opens it has its lock.

    Raises UsageError, NotFound, Refused.
    """
    login = _login(arguments, text)
    if login.url.lun is None:
        raise UsageError(f"{text} names no LUN, expected {FORM}. `relvmoiscsi show {text}` lists the LUNs.")
    patience = Patience(seconds)
    with ExitStack() as held:
        with _who_asked(login.initiator):
            where = ([login.url.portal], login.url.iqn, login.initiator, login.url.lun, writable, patience)
            device = held.enter_context(open_lun(*where, login.credentials, scsi_id=scsi_id))
        yield UrlDevice(text, device, patience)


@contextmanager
def _who_asked(initiator: Initiator) -> Iterator[None]:
    """What does not come about says the name by which the array knows this machine."""
    try:
        yield
    except (NotFound, Refused) as problem:
        asks_for_it = problem.sm_key in ("ISCSILogin", "ISCSIDiscovery", "ISCSIDevice")
        if asks_for_it and initiator.name not in problem.message:
            problem.message += f" The initiator name of this machine is {initiator.name}."
        raise


def may_open(problem: RelvmoiscsiError) -> bool:
    """Whether a LUN that was not worked on for this reason may open all the same."""
    return problem.sm_key not in _NOT_OPEN


def own_scsi_id(arguments: argparse.Namespace, text: str) -> Optional[str]:
    """The SCSIid that the LUN of a URL has. Raises UsageError, NotFound, Refused."""
    with opened_url(arguments, text, writable=False) as device:
        return device.info.scsi_id


def lun_lock(scsi_id: Optional[str]) -> ContextManager[object]:
    """Held for as long as the LUN is open for writing: nobody else on this machine works on it by a URL.

    Root takes the lock of the SR driver as well; who is not root may not, and looks at it. Raises Refused.
    """
    held = ExitStack()
    if scsi_id is None:
        return held
    if os.geteuid() == 0:
        guard.take(held, sm_locks.lun_lock(scsi_id, guard.HOST, guard.LOCK_SECONDS))
    elif _is_locked_by_root(scsi_id):
        raise Refused(
            f"The SR driver, or a command of root, is working on the LUN {scsi_id}. Repeat the command later."
        )
    guard.take(held, lun_name(scsi_id, guard.LOCK_SECONDS, guard.HOST))
    return held


def _is_locked_by_root(scsi_id: str) -> bool:
    try:
        return sm_locks.is_lun_locked(scsi_id, guard.HOST)
    except PermissionError as error:
        log.debug("whether root works on the LUN cannot be told: %s", error)
        return False


def refuse_where_seen(text: str, scsi_id: Optional[str]) -> None:
    """Raises Refused where this machine sees the LUN as a disk: what it keeps in its caches would be old, and who uses
    the disk would not be asked.
    """
    disks = _seen_as(scsi_id)
    if disks:
        names = ", ".join("/dev/" + name for name in disks)
        raise Refused(
            f"This machine sees {text} as {names} already. Give the command that device instead, or its multipath map."
        ).in_state(NOTHING_WRITTEN)


def say_where_seen(scsi_id: Optional[str]) -> None:
    """Tell of disks that came while the LUN was written to: what was read of them may be old."""
    for name in _seen_as(scsi_id):
        say(
            f"note: during the run this machine found the LUN as /dev/{name}. Drop its cached data: "
            f"`blockdev --flushbufs /dev/{name}; udevadm trigger --action=change /dev/{name}`."
        )


def _seen_as(scsi_id: Optional[str]) -> List[str]:
    """The kernel's names of the disks with the SCSIid. A container sees them in /sys, whether it has a node or not."""
    if scsi_id is None:
        return []
    names = [os.path.basename(path) for path in glob(os.path.join(escape(guard.HOST.sysfs), "block/sd*"))]
    return sorted(name for name in names if scsi_id_of_disk(name, guard.HOST) == scsi_id)


# --- what is there


def targets(arguments: argparse.Namespace, text: str) -> List[Target]:
    """The targets of a portal. Raises UsageError, NotFound, Refused."""
    login = _login(arguments, text)
    with _who_asked(login.initiator):
        return discover([login.url.portal], login.initiator, login.credentials, Deadline(PATIENCE_SECONDS))


def luns(arguments: argparse.Namespace, text: str) -> List[LunInfo]:
    """The LUNs behind a target. Raises UsageError, NotFound, Refused."""
    login = _login(arguments, text)
    deadline = Deadline(PATIENCE_SECONDS)
    with _who_asked(login.initiator):
        return list_luns([login.url.portal], login.url.iqn, login.initiator, deadline, login.credentials)


def each_at_once(works: Sequence[Callable[[], Found]]) -> List[Found]:
    """What each gives, LISTED_AT_ONCE at a time, in order. What one raises goes through.

    Ctrl-C waits for none: a ThreadPool has daemon threads, which concurrent.futures has not.
    """
    with ThreadPool(LISTED_AT_ONCE) as pool:
        found = pool.map(lambda work: work(), works, chunksize=1)
        pool.close()
        pool.join()
        return found
