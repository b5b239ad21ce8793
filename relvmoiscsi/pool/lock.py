# SPDX-License-Identifier: LGPL-2.1-only
"""Let one client at a time work on a copy. The lock is a key in other_config of the pool.

    XenCenter.CustomFields.relvmoiscsi:lock:<what>:<number>
        owner, machine, command, start time, and time of the last refresh

`what` is the SCSIid of the copy's LUN, because a client locks a clone before the SR of the clone exists. `restore` also
locks the UUID of the VM, because two clients may restore one VM from two copies. To write a key of the pool, a user
needs the role pool-operator. For keys that begin with XenCenter.CustomFields, the role vm-operator is enough. So a
vm-admin may clone and restore.

xapi adds a key to a map only if the map lacks the key, under the lock of xapi's database. So if two clients add the
same number, one client gets an error. The highest number holds the lock. A client refreshes its lock with the next
number. Another client breaks a stale lock with the next number as well, so only one of the two clients succeeds. After
the add, a client reads the keys again. If the key of another client has appeared, the client withdraws.

A killed client leaves its lock in the pool. The lock is stale STALE_SECONDS after its last refresh; `unlock` breaks a
lock at once. All times come from the master: no code compares the clocks of two clients.
Source: xen-api ocaml/database/db_cache_impl.ml process_structured_field; ocaml/idl/ocaml_backend/gen_db_actions.ml;
ocaml/idl/datamodel_pool.ml other_config; ocaml/xapi/rbac.ml permission_of_action.
"""

import calendar
import getpass
import os
import socket
import threading
import time
import uuid
from contextlib import contextmanager
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from relvmoiscsi import untrusted
from relvmoiscsi.errors import Refused, RelvmoiscsiError
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, PoolFailure, Record
from relvmoiscsi.pool.records import SCSI_ID
from relvmoiscsi.wording import printable

KEY = "XenCenter.CustomFields.relvmoiscsi:lock:"
STALE_SECONDS = 1800.0
REFRESH_SECONDS = 300.0
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_RELEASE_TRIES = 4  #: when a call fails, or a person presses Ctrl-C again
_UNREADABLE = "unknown"  #: value of a field of a lock that a person has changed by hand
_MOST_ROUNDS = 10  #: of `unlock`, against a client that refreshes its lock at the same moment


class Lock(NamedTuple):
    """A lock in the pool."""

    what: str  #: SCSIid of the LUN of a copy, or UUID of a VM
    number: int
    token: str  #: of the run that owns the lock
    who: str
    host: str
    process: str
    doing: str  #: the command
    since: str  #: times of the master, UTC
    refreshed: str

    def facts(self) -> Dict[str, str]:
        names = ("what", "who", "host", "process", "doing", "since", "refreshed")
        return {name: getattr(self, name) for name in names}

    @property
    def key(self) -> str:
        return f"{KEY}{self.what}:{self.number}"

    def text(self) -> str:
        """Return the owner of the lock, as part of a sentence."""
        return printable(
            f"`relvmoiscsi pool {self.doing}` of {self.who} on {self.host} (process {self.process}), since "
            f"{self.since}, refreshed at {self.refreshed}"
        )

    def is_stale(self, now: str) -> bool:
        """Has no client refreshed the lock for STALE_SECONDS? False for a lock that cannot be read."""
        last = _seconds(self.refreshed)
        return last is not None and (_seconds(now) or 0) - last > STALE_SECONDS


class _Seen(NamedTuple):
    """The locks in the pool, from one call."""

    ref: str
    master: str
    locks: List[Lock]

    def on(self, what: str) -> List[Lock]:
        """Return the locks on `what`, the highest number last."""
        return sorted((lock for lock in self.locks if lock.what == what), key=lambda lock: lock.number)


def name_of(sr: Record) -> str:
    """Return the name of the lock on this copy (the record of its SR)."""
    return str(sr["other_config"].get(SCSI_ID) or sr["uuid"])


def names_of(calls: Calls, sr_uuids: Iterable[str]) -> List[str]:
    """Return the lock names of the SRs with these UUIDs; for an SR that is gone, the UUID. Raises PoolFailure."""
    there = {sr["uuid"]: name_of(sr) for sr in calls.records("SR").values()}
    return [there.get(uuid, uuid) for uuid in dict.fromkeys(sr_uuids)]


def read(calls: Calls) -> Dict[str, Lock]:
    """Return the lock with the highest number for each locked name. Raises PoolFailure."""
    return {lock.what: lock for lock in sorted(_look(calls).locks, key=lambda lock: lock.number)}


def verify_free(calls: Calls, whats: Iterable[str]) -> None:
    """Raises Refused where another client has locked one of these names; PoolFailure."""
    seen = _look(calls)
    now = _now(calls, seen.master)
    for what in whats:
        for lock in seen.on(what)[-1:]:
            if not lock.is_stale(now):
                raise _refused(lock)


@contextmanager
def held(calls: Calls, whats: Iterable[str], doing: str) -> Iterator["Held"]:
    """Hold the locks on all of these names while the block runs.

    Raises Refused where another client owns one of the locks; then this run takes no lock. Raises PoolFailure. If the
    pool does not answer at the end, the locks stay and become stale.
    """
    mine = Held(calls, list(dict.fromkeys(whats)), doing)
    try:
        mine.take()
        mine.keep_fresh()
        yield mine
    finally:
        mine.release()


class Held:
    """The locks of this run."""

    def __init__(self, calls: Calls, whats: Sequence[str], doing: str) -> None:
        self._calls, self._whats = calls, whats
        self._values = {
            "token": str(uuid.uuid4()),
            "who": _who(),
            "host": socket.gethostname(),
            "process": str(os.getpid()),
            "doing": doing,
        }
        self._numbers: Dict[str, int] = {}
        self._busy, self._over = threading.Lock(), threading.Event()

    def verify(self, calls: Calls) -> None:
        """Check the locks. Call this before each step that changes the pool or a LUN.

        Raises Refused where another client has broken a lock of this run, and may work on the copy now. Raises
        PoolFailure.
        """
        locks = read(calls)
        for what in self._whats:
            if what not in locks or locks[what].token != self._values["token"]:
                by = f" The new lock belongs to {locks[what].text()}." if what in locks else ""
                raise Refused(
                    f"Another client has broken this run's lock on {what}.{by} This run has stopped. "
                    "Repeat the command to resume."
                )

    def take(self) -> None:
        """Take all locks. Raises Refused, PoolFailure."""
        for what in self._whats:
            self._take(what)

    def _take(self, what: str) -> None:
        seen = _look(self._calls)
        now = _now(self._calls, seen.master)
        self._values.setdefault("since", now)
        before = seen.on(what)
        if before and not before[-1].is_stale(now):
            raise _refused(before[-1])
        self._add(self._calls, seen.ref, what, before[-1].number + 1 if before else 1, now)
        new = [lock for lock in _look(self._calls).on(what) if lock not in before and not self._is_mine(lock)]
        if new:
            raise _refused(new[-1])
        for lock in before:
            _remove(self._calls, seen.ref, lock)

    def _is_mine(self, lock: Lock) -> bool:
        return lock.token == self._values["token"]

    def _add(self, calls: Calls, ref: str, what: str, number: int, now: str) -> None:
        self._numbers[what] = number
        marks.add(calls, "pool", ref, f"{KEY}{what}:{number}", marks.text_of({**self._values, "refreshed": now}))

    def keep_fresh(self) -> None:
        """Start a thread that refreshes the locks until `release`."""
        threading.Thread(target=self._refresh_all, daemon=True).start()

    def _refresh_all(self) -> None:
        calls = None
        while not self._over.wait(REFRESH_SECONDS):
            try:
                calls = calls or self._calls.another()
                self.refresh(calls)
            except Refused:
                return  # the next `verify` raises Refused in the working thread
            except RelvmoiscsiError:
                pass  # the next refresh may reach the pool; if not, the lock becomes stale
        if calls is not None:
            calls.close()

    def refresh(self, calls: Calls) -> None:
        """Refresh the locks. Raises Refused where another client has broken a lock; PoolFailure."""
        with self._busy:
            if self._over.is_set():
                return
            self.verify(calls)
            seen = _look(calls)
            now = _now(calls, seen.master)
            for what in self._whats:
                old = self._numbers[what]
                self._add(calls, seen.ref, what, old + 1, now)
                calls.call("pool.remove_from_other_config", seen.ref, f"{KEY}{what}:{old}")

    def release(self) -> None:
        """Remove the keys of this run, and stale keys. The locks of other clients stay.

        A second Ctrl-C takes effect after the release, because a lock that stays in the pool refuses the next command.
        """
        self._over.set()
        stop: Optional[KeyboardInterrupt] = None
        for _ in range(_RELEASE_TRIES):
            try:
                with self._busy:
                    seen = _look(self._calls)
                    now = _now(self._calls, seen.master)
                    for lock in seen.locks:
                        if self._is_mine(lock) or lock.is_stale(now):
                            _remove(self._calls, seen.ref, lock)
                break
            except PoolFailure:
                pass  # the caller reports the error that ended the work
            except KeyboardInterrupt as interrupt:
                stop = interrupt
        if stop is not None:
            raise stop


def unlock(calls: Calls, lock: Lock) -> List[Lock]:
    """Break a lock and the other locks of the same run. Return the broken locks. Raises PoolFailure."""
    broken: Dict[str, Lock] = {}
    for _ in range(_MOST_ROUNDS):
        seen = _look(calls)
        there = [each for each in seen.locks if each.key == lock.key or each.token == lock.token != _UNREADABLE]
        if not there:
            break
        for each in there:
            _remove(calls, seen.ref, each)
            broken[each.what] = each
    return [broken[what] for what in sorted(broken)]


def _refused(lock: Lock) -> Refused:
    return Refused(
        f"Another client has locked {lock.what}: {lock.text()}. Nothing was changed. Wait until the other run "
        f"has ended. If the other run was killed, break its lock: `relvmoiscsi pool unlock {lock.what}`. "
        f"{STALE_SECONDS / 60:.0f} minutes "
        "after its last refresh the lock expires."
    )


def _look(calls: Calls) -> _Seen:
    """Read the locks of the pool. Raises PoolFailure."""
    ((ref, record),) = list(calls.records("pool").items())[:1]
    locks = []
    for key, text in record["other_config"].items():
        what, _, number = key[len(KEY) :].rpartition(":")
        if key.startswith(KEY) and untrusted.is_number(number):
            try:
                values = marks.values_of(text)
            except ValueError:
                values = {}  # a person has changed the key by hand: `unlock` removes the key
            locks.append(Lock(what, int(number), *(str(values.get(name, _UNREADABLE)) for name in Lock._fields[2:])))
    return _Seen(ref, str(record["master"]), locks)


def _now(calls: Calls, master: str) -> str:
    """Return the time of the master. Raises PoolFailure."""
    seconds = _seconds(str(calls.call("host.get_servertime", master))) or 0
    return time.strftime(_FORM, time.gmtime(seconds))


def _remove(calls: Calls, ref: str, lock: Lock) -> None:
    calls.call("pool.remove_from_other_config", ref, lock.key)


def _seconds(moment: str) -> Optional[int]:
    """Return the seconds since 1970; None for a text that is no time. xapi writes dates with or without dashes."""
    try:
        return calendar.timegm(time.strptime(moment.replace("-", ""), _FORM.replace("-", "")))
    except ValueError:
        return None


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no user has this uid
        return str(os.getuid())
