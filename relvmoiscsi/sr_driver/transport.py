# SPDX-License-Identifier: LGPL-2.1-only
"""What a transport is: a way for a LUN to come to this host, with an SR type of its own.

All else is the same whatever the transport: what xapi is answered, the guards from the pool's records, the lock of the
LUN, hiding, the path to write through, the engine, giving the LUN back (held.py). A transport is a folder here:

    config.py       the device-config keys of its stock type
    transport.py    the two types' names, and where the rest begins; light, as a call may end with its words
    reach.py        the LUN on this host: a `Lun`
    listing.py      the list of LUNs that the stock driver prints on stderr
"""

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import UsageError

if TYPE_CHECKING:  # they are slow to import, and a call may end with its words
    from relvmoiscsi.host.deadline import Deadline


class Listed(UsageError):
    """A key is missing; `listing` is the XML of what it could be."""

    def __init__(self, message: str, sm_key: str, xml: str) -> None:
        super().__init__(message, sm_key)
        self.xml = xml


class Wanted:
    """What a device-config says with every transport. Its classes are tuples, with more of their own."""

    __slots__ = ()

    @property
    def scsi_id(self) -> str:
        """Empty when it is missing."""
        raise NotImplementedError

    @property
    def is_master(self) -> bool:
        raise NotImplementedError

    @property
    def vdis(self) -> Optional[str]:
        """One, all, or None: as the host has it."""
        raise NotImplementedError

    @property
    def vdi(self) -> Optional[str]:
        """UUID of the one, where several are live."""
        raise NotImplementedError

    @property
    def clear_databases(self) -> bool:
        """Is no VDI to hold the database of a pool any more?"""
        return False

    @property
    def is_meant(self) -> bool:
        """Did the caller say that the LUN is a clone, where the transport wants that said?"""
        return True


class Lun:
    """The LUN of a call by one transport. `held` takes the steps, in the order in which they stand here."""

    stays_if_new = False  #: is `stays` more than a word?
    is_done = False  #: has it new identities, so that all may see it?
    was_taken_away = False  #: has another program ended what the call had found there, and came with?

    def __init__(
        self, scsi_id: str, multipathing: bool, deadline: "Deadline", lock_seconds: float = math.inf, place: str = ""
    ) -> None:
        """`lock_seconds`: how long to wait for a lock that somebody has, as far as the deadline allows."""
        self.scsi_id, self.multipathing, self.place = scsi_id, multipathing, place
        self.deadline, self.lock_seconds = deadline, lock_seconds
        self.ids_of_pool: Optional[Sequence[str]] = None  #: SCSIids that the pool names, where that was asked already

    def before(self, stack: ExitStack) -> None:
        """The LUN is locked, nothing is hidden yet. What is put onto the stack here is done when it is shown again."""

    def hide_others(self, stack: ExitStack) -> None:
        """Hide what reaching this LUN may bring besides it."""

    def verify_unused_elsewhere(self) -> None:
        """Where it is to be written: raises Refused when another host that may see it uses it, or is at work on it.

        It is locked and hidden here.
        """

    def reach(self, stack: ExitStack) -> None:
        """Have it come; the way back is put onto the stack. Raises RelvmoiscsiError."""
        raise NotImplementedError

    def disks(self) -> List[str]:
        """Its disks ("sdb") that answer. Raises NotFound when there is none in time."""
        raise NotImplementedError

    def verify(self, disks: Sequence[str], there: Sequence[str]) -> None:
        """Are they this LUN now, all of them? `there` were there before. Raises Refused."""
        raise NotImplementedError

    def verify_free(self, disks: Sequence[str]) -> None:
        """Where it is to be written: raises Refused when somebody uses it in a way that opening it does not tell."""

    @property
    def keeps_lvm_away(self) -> bool:
        """Is SM's LVM lock held since before the LUN came?"""
        return False

    def stays(self) -> None:
        """It has new identities: what has come with it is to stay, where the stock driver will look for it."""

    def afterwards(self) -> None:
        """All is undone, and the LUN is not locked any more: finish what calls have left."""


#: call, checked device-config, xapi, log, deadline, seconds to wait for a lock
OpenLun = Callable[[Any, Any, Any, Any, Any, float], Lun]


class Transport(NamedTuple):
    """A way for LUNs to come, by the words of its SR types."""

    sr_type: str  #: ours: "relvmoiscsi"
    stock_type: str  #: that attaches the result: "lvmoiscsi"
    parse_config: Callable[[Mapping[str, str]], Wanted]  #: raises UsageError
    open_lun: OpenLun  #: raises Listed when a key is missing, RelvmoiscsiError
    probe_seconds: float = 12.0  #: of a probe; a dead path alone takes 8 of them, and the clean-up has more of its own
