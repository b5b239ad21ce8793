# SPDX-License-Identifier: LGPL-2.1-only
"""What a caller names, and a LUN that is open: its names, its device, and its guard, which says who may write.

Each source opens its LUN under the lock of the LUN, with the guard of the LUN. source.py has the image file,
disk_source.py the disk, url_source.py the LUN of a URL, guard.py the guards of LUNs.
"""

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from relvmoiscsi.device import Device
from relvmoiscsi.errors import NOTHING_WRITTEN, Busy, Refused, RelvmoiscsiError, UsageError, in_state
from relvmoiscsi.host.locks.lun_lock import lun_lock, user_lock
from relvmoiscsi.host.locks.sm_locks import USE_THAT
from relvmoiscsi.host.this_host import THIS_PROCESS, Host
from relvmoiscsi.sr_types import HBA_SR, SrType

Entered = TypeVar("Entered")

LOCK_SECONDS = 45.0  #: the wait of a command for a lock; the SR driver needs less time

IMAGE_FILE, BLOCK_DEVICE, ISCSI_LUN = "image file", "block device", "iSCSI LUN"


class Permission(NamedTuple):
    """What the caller of a command has said about a LUN."""

    scsi_id: Optional[str] = None  #: of --scsi-id
    not_in_use: bool = False  #: the override of the pool's answer
    is_asked: bool = True  #: a person is asked before the write


class SessionOptions(NamedTuple):
    """What the caller has said about the session to the target of a URL."""

    initiator_name: Optional[str] = None  #: of --initiator-name; None: the name of this machine
    chap_file: Optional[str] = None  #: of --chap-file; None: the environment
    scsi_id: Optional[str] = None  #: the SCSIid that the LUN must have
    #: says that a slow block waits for the target; takes what it waits for, and the longest wait in seconds
    waiting: Optional[Callable[[str, float], ContextManager[None]]] = None


class PoolAnswer(NamedTuple):
    """The answer of this host's pool to the question who uses a LUN."""

    sentence: str
    uuid: Optional[str] = None  #: of the pool that has answered; None without an answer
    name_label: Optional[str] = None
    objection: Optional[Refused] = None  #: why the pool forbids a write to the LUN
    is_overridden: bool = False  #: whether --not-in-use overrides the objection

    def facts(self) -> Dict[str, Any]:
        """Return the value of `pool` for --json."""
        return {
            "asked": self.uuid is not None,
            "pool_uuid": self.uuid,
            "pool_name": self.name_label,
            "overridden": self.is_overridden,
            "sentence": self.sentence,
        }

    @property
    def is_missing(self) -> bool:
        """Has no pool answered?"""
        return self.uuid is None and self.objection is None

    def verify(self) -> None:
        """Raise the objection, unless the caller overrides it."""
        if self.objection is not None and not self.is_overridden:
            raise self.objection.in_state(NOTHING_WRITTEN)


NOBODY_NEEDED = PoolAnswer("No pool was asked whether the LUN is in use: there is nothing to write.")


class Guard(ABC):
    """Who may write to an open LUN."""

    @abstractmethod
    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        """Ask who uses the LUN. `replaced` are the UUIDs of the SRs that the LUN will no longer hold.

        `new_sr` is the UUID that a new run gives the SR, or "".
        """

    @abstractmethod
    def verify_finished(self, sr_uuid: str) -> None:
        """Raise Refused where the pool contradicts a finished run that has left this SR on the LUN."""

    @abstractmethod
    def held(self, vg_names: Sequence[str], replaced: Sequence[str]) -> ContextManager[None]:
        """Hold the locks of a write for the block, and ask under the locks who uses the LUN. No names: no locks.

        Raises Refused before the block; nothing was written.
        """


class ImageGuard(Guard):
    """The guard of an image file: no pool knows the file, and LVM does not see it."""

    def __init__(self, verify_name: Callable[[], None]) -> None:
        """`verify_name` raises an error where the name of the file has led to another file since the open."""
        self._verify_name = verify_name

    def ask(self, replaced: Sequence[str], new_sr: str = "") -> PoolAnswer:
        return PoolAnswer("This is an image file: no pool was asked whether it is in use.")

    def verify_finished(self, sr_uuid: str) -> None:
        pass

    @contextmanager
    def held(self, vg_names: Sequence[str], replaced: Sequence[str]) -> Iterator[None]:
        with in_state(NOTHING_WRITTEN):
            self._verify_name()
        yield


class OpenLun:
    """A LUN that is open. Its source or transport closes it."""

    def __init__(
        self,
        device: Device,
        kind: str,
        scsi_id: Optional[str],
        guard: Guard,
        hardware: Tuple[str, str, str] = ("", "", ""),
        refresh: Callable[[], List[str]] = list,
        sr_type: SrType = HBA_SR,
        pbd_config: Mapping[str, str] = MappingProxyType({}),
        image: str = "",
    ) -> None:
        """`scsi_id` is None for a device without a SCSIid. `hardware`: vendor, model, serial number.

        `image` is the path of the file behind a loop device.

        The stock type of `sr_type` attaches the LUN, by a PBD with `pbd_config` and the SCSIid.
        """
        self.device, self.kind, self.scsi_id, self.guard = device, kind, scsi_id, guard
        self.name = device.name  #: for messages: a path or a URL
        self.is_lun = kind != IMAGE_FILE  #: may another machine use the device?
        #: no pool can be asked who uses the device, and no person can type its SCSIid: a run needs --not-in-use
        self.is_nameless = self.is_lun and scsi_id is None
        self.vendor, self.model, self.serial = hardware
        self.sr_type, self.pbd_config, self.image = sr_type, pbd_config, image
        #: drops what this machine remembers of the LUN, after a write and the end of `device`; returns what to tell
        self.refresh = refresh


#: the locks that this process has taken here: (process, root of the host, SCSIid)
_own_locks: Set[Tuple[int, str, Optional[str]]] = set()


@contextmanager
def lun_locked(scsi_id: Optional[str], host: Host, seconds: float, over_network: bool = False) -> Iterator[None]:
    """Hold the lock of a LUN for the block: one relvmoiscsi of this machine works on the LUN.

    This is the only place that takes a lock of a whole write, for commands and for calls of drivers; a call that only
    reads takes it too. A device without a SCSIid has none. A child that hangs keeps the lock (`guards_lun`).

    Over the network, an ordinary user may write to a LUN, and can neither make nor see root's lock file: users have a
    lock of their own.
    """
    lock, own = user_lock if over_network and os.geteuid() != 0 else lun_lock, (os.getpid(), host.root, scsi_id)
    with ExitStack() as held:
        if scsi_id is not None:
            if own in _own_locks:  # a wait could not end: who waits is who has the lock
                raise Busy(f"The LUN {scsi_id} is in use by {THIS_PROCESS}.").advising(USE_THAT)
            held.enter_context(lock(scsi_id, host, seconds))
            _own_locks.add(own)
            held.callback(_own_locks.discard, own)
        yield


class LunSource(ABC):
    """What a caller names."""

    is_path = True  #: Is the name a path of this machine?

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host

    @property
    def path(self) -> str:
        """The path that is opened: by default, the name."""
        return self.name

    def opened(self, permission: Permission, to_write: bool) -> ContextManager[OpenLun]:
        """Open the LUN for a run, for the block. If that fails, the error says that nothing was written.

        A run looks before it opens the LUN for a write. A LUN in use cannot be opened for a write, and udev scans a LUN
        that was open for a write.
        """
        return unwritten(self.opened_to_write(permission) if to_write else self.opened_to_read(permission))

    @contextmanager
    def opened_dry(self, permission: Permission) -> Iterator[OpenLun]:
        """Open the LUN as for a read, for a dry run. Raises Refused while a run of this machine works on the LUN."""
        with self.opened(permission, to_write=False) as lun, unwritten(self._locked(lun.scsi_id, 0)):
            lun.device.look_for_users()
            yield lun

    @abstractmethod
    def opened_to_read(self, permission: Optional[Permission] = None) -> ContextManager[OpenLun]:
        """Open the device for the block; it may be in use. Raises NotFound, UsageError, Refused.

        With a permission, a device that does not tell its SCSIid is an error.
        """

    @contextmanager
    def opened_to_write(self, permission: Permission) -> Iterator[OpenLun]:
        """Open the device for the block, when nobody else of this machine writes to it. Raises as `opened_to_read`."""
        scsi_id = self._find_scsi_id(permission)
        with self._locked(scsi_id, LOCK_SECONDS), self._opened_alone(scsi_id, permission) as lun:
            yield lun

    def _locked(self, scsi_id: Optional[str], seconds: float) -> ContextManager[None]:
        return lun_locked(scsi_id, self.host, seconds, over_network=not self.is_path)

    @abstractmethod
    def _find_scsi_id(self, permission: Permission) -> Optional[str]:
        """Return the SCSIid, before the lock of the LUN. Raises as `opened_to_read`."""

    @abstractmethod
    def _opened_alone(self, scsi_id: Optional[str], permission: Permission) -> ContextManager[OpenLun]:
        """Open the device for a write, under the lock of the LUN. Raises Refused where a program uses the LUN."""

    def is_same(self, other: "LunSource") -> bool:
        """Do both name the same device? Raises NotFound for a path without a device."""
        from relvmoiscsi.host.disk.same_device import same_device  # noqa: PLC0415 - a driver opens no path

        return self.is_path and other.is_path and same_device(self.path, other.path)

    def may_open_after(self, problem: RelvmoiscsiError) -> bool:
        """Can the device be opened again after this error?"""
        return True


def agreed(name: str, given: Optional[str], own: Optional[str]) -> Optional[str]:
    """Return the own SCSIid of a device. Raises Refused for another SCSIid than given, UsageError for none."""
    if given is not None and own is None:
        raise UsageError(f"{name} has no SCSIid, so the given SCSIid (`--scsi-id`) cannot be compared.").advising(
            "Leave the SCSIid out."
        )
    if given is not None and given != own:
        raise Refused(f"{name} has the SCSIid {own}, and the given SCSIid is {given}: it is another LUN.")
    return own


@contextmanager
def unwritten(entrance: ContextManager[Entered]) -> Iterator[Entered]:
    """Enter a context for the block. If that fails, the error says that nothing was written.

    A Refused has another state before: a lock says that nothing was changed.
    """
    with ExitStack() as held:
        with in_state(NOTHING_WRITTEN):
            try:
                entered = held.enter_context(entrance)
            except Refused as refused:
                refused.disk_state = NOTHING_WRITTEN
                raise
        yield entered
