# SPDX-License-Identifier: LGPL-2.1-only
"""The locks of clients as keys in other_config of the pool: their names, what they say, and who may write them. Pure.

    relvmoiscsi:lock:<what>:<number>                            a guarded key: to write it takes the role pool-operator
    XenCenter.CustomFields.relvmoiscsi:lock:<what>:<number>     an open key: to write it takes the role vm-operator
        owner, machine, process, command, start time, and time of the last refresh

`what` is the SCSIid of the copy's LUN, because a client locks a clone before the SR of the clone exists. `restore` also
locks the UUID of the VM, because two clients may restore one VM from two copies. lock.py takes and removes the keys.
Source: xen-api ocaml/idl/datamodel_pool.ml other_config; ocaml/xapi/rbac.ml permission_of_action.
"""

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, NewType, Optional

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Refused
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Record
from relvmoiscsi.pool.records import SCSI_ID
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.wording import printable, quoted, said

KEY = "relvmoiscsi:lock:"
OPEN_KEY = "XenCenter.CustomFields." + KEY
BEGINS = (KEY, OPEN_KEY)
STALE_SECONDS = 1800.0
_NUMBER = re.compile(r"[1-9][0-9]{0,17}\Z")  #: as a run writes it
_MOST_BEHIND = 300  #: characters of a key behind its beginning
UNREADABLE = "unknown"  #: value of a field of a lock that a person has changed by hand
#: what a lock may show as a command to copy; an open key can have any text
_COMMANDS = (
    *("attach", "clone", "discard", "rescue", "rescue --done", "save-vms"),
    *("restore", "restore --undo", "restore --home", "restore --keep"),
)


#: SCSIid of the LUN of a copy, UUID of a copy without a SCSIid, or UUID of a VM; made by `name_for`
LockName = NewType("LockName", str)


class Lock(NamedTuple):
    """A lock in the pool."""

    what: LockName
    number: int
    token: str  #: of the run that owns the lock
    who: str
    host: str
    process: str
    doing: str  #: the command
    since: str  #: times of the master, UTC
    refreshed: str
    process_mark: str  #: of client_process.py, which knows a process of this machine
    begin: str = KEY  #: of the key: KEY or OPEN_KEY
    is_left: bool = False  #: by a process of this machine that has ended; lock.py knows

    def facts(self) -> Dict[str, str]:
        names = ("who", "process", "doing", "since", "refreshed")
        return {"locked": self.what, "client_host": self.host, **{name: getattr(self, name) for name in names}}

    @property
    def key(self) -> str:
        return f"{self.begin}{self.what}:{self.number}"

    def text(self) -> str:
        """Return the owner of the lock, as part of a sentence."""
        by = f"`relvmoiscsi pool {quoted(*self.doing.split())}`" if self.doing in _COMMANDS else said(self.doing)
        owner = f"{by} of {said(self.who)} on {said(self.host)} (process {self.process})"
        return printable(f"{owner}, since {self.since}, refreshed at {self.refreshed}")

    def is_stale(self, now: str) -> bool:
        """Has no client refreshed the lock for STALE_SECONDS? False for a lock that cannot be read."""
        last, moment = seconds_of(self.refreshed), seconds_of(now)
        return last is not None and moment is not None and abs(moment - last) > STALE_SECONDS


def in_order(locks: Iterable[Lock]) -> List[Lock]:
    return sorted(locks, key=lambda lock: (lock.begin == KEY, lock.number))


def _is_name(text: str) -> bool:
    """May this be the name of a lock? None has a backtick: in a message, the name would look like a command."""
    return is_scsi_id(text) and "`" not in text  # a UUID has the form of a SCSIid, too


def name_for(text: str) -> LockName:
    """Return the name of the lock on the LUN with this SCSIid, or on the VM or SR with this UUID.

    Raises Refused for another text: no client would find that lock.
    """
    if not _is_name(text):
        raise Refused(f"{text!r} is neither a SCSIid nor a UUID: it cannot be locked.").advising(
            "Give another SR, VM or LUN."
        )
    return LockName(text)


def name_of(sr: Record) -> LockName:
    """Return the name of the lock on this copy (the record of its SR)."""
    scsi_id = str(sr["other_config"].get(SCSI_ID, ""))
    return name_for(scsi_id if _is_name(scsi_id) else str(sr["uuid"]))


def locks_in(config: Mapping[str, str]) -> List[Lock]:
    """Return the locks in other_config of the pool, of which a vm-operator may have written the open keys.

    A process that is no number, and a time that is no time, is UNREADABLE.
    """
    return [lock_of(key, config[key.text]) for key in filter(None, map(key_of, config))]


class LockKey(NamedTuple):
    """The key of a lock."""

    text: str
    begin: str
    what: str
    number: int


def key_of(text: str) -> Optional[LockKey]:
    """Return the key of a lock; None for a key that no run writes.

    No command reads or removes such a key. Each key of a lock is short and ASCII, so xapi takes the call that removes
    it. A vm-operator writes others: as JSON, 200 KB of quotation marks are more than xapi reads in a call.
    """
    begin = next(filter(text.startswith, BEGINS), "")
    what, _, number = text[len(begin) : len(begin) + _MOST_BEHIND].rpartition(":")
    if begin and len(text) <= len(begin) + _MOST_BEHIND and _NUMBER.match(number) and _is_name(what):
        return LockKey(text, begin, what, untrusted.number(number))
    return None


def lock_of(key: LockKey, text: str) -> Lock:
    try:
        values = marks.values_of(text)
    except ValueError:
        values = {}  # a person has changed the key by hand: `unlock` removes the key
    fields = {name: str(values.get(name, UNREADABLE)) for name in Lock._fields[2:-2]}
    spoiled = [name for name in ("since", "refreshed") if seconds_of(fields[name]) is None]
    spoiled += [] if untrusted.is_number(fields["process"]) else ["process"]
    fields.update(dict.fromkeys(spoiled, UNREADABLE))
    return Lock(what=name_for(key.what), number=key.number, begin=key.begin, is_left=False, **fields)


def seconds_of(moment: str) -> Optional[int]:
    """Return the seconds since 1970; None for a text that is no time."""
    try:
        return untrusted.utc_seconds(moment)
    except ValueError:
        return None
