# SPDX-License-Identifier: LGPL-2.1-only
"""Let one client at a time work on a copy. The lock is a key in other_config of the pool.

lock_keys.py has the form of the keys. A run writes a guarded key if its role may. A vm-admin, who may clone and
restore, writes an open key.

Each run respects the keys of both kinds. An open key counts against a guarded key only while the guarded key is stale,
and a run takes only the keys that it has written for its own. So a vm-operator can delay runs, but cannot let a second
run begin beside one with a guarded key. Against a vm-operator, the lock of a vm-admin is no protection: its token is
public, and its keys are writable.

xapi adds a key to a map only if the map lacks the key, under the lock of xapi's database. So if two clients add the
same number, one client gets an error. The highest number holds the lock. A client refreshes its lock with the next
number. Another client breaks a stale lock with the next number as well, so only one of the two clients succeeds. After
the add, a client reads the keys again. If the key of another client has appeared, the client withdraws. A key that is
stale then does not count, unless the client's own key is stale too.

A killed client leaves its lock in the pool. The lock is stale STALE_SECONDS after its last refresh; `unlock` breaks a
lock at once. A time that lies further ahead is no time at which a client refreshed its lock, so that lock is stale too.
All times come from the master: no code compares the clocks of two clients.
Source: xen-api ocaml/database/db_cache_impl.ml process_structured_field; ocaml/idl/ocaml_backend/gen_db_actions.ml.
"""

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from relvmoiscsi.deadline import Deadline
from relvmoiscsi.errors import NOTHING_CHANGED, Busy, Refused
from relvmoiscsi.formats.identity import is_uuid
from relvmoiscsi.pool import marks
from relvmoiscsi.pool.calls import Calls, PoolFailure, PoolGone, passing
from relvmoiscsi.pool.client_process import has_ended, this_process, user_name
from relvmoiscsi.pool.lock_keys import (
    BEGINS,
    KEY,
    OPEN_KEY,
    STALE_SECONDS,
    UNREADABLE,
    Lock,
    LockKey,
    LockName,
    in_order,
    key_of,
    lock_of,
    locks_in,
    name_of,
    seconds_of,
)
from relvmoiscsi.pool.records import SCSI_ID
from relvmoiscsi.threads import start_thread
from relvmoiscsi.wording import said, shell_command, some_of

_DENIED = "RBAC_PERMISSION_DENIED"
REFRESH_SECONDS = 300.0
_FORM = "%Y-%m-%dT%H:%M:%SZ"
RELEASE_SECONDS, _RELEASE_PAUSE = 20.0, 2.0  #: for a pool that does not answer: a toolstack restarts in that time
_RELEASE_TRIES = 4  #: at least, on a slow machine too
#: the state of a LUN, for a run that goes on with other LUNs
LUN_STAYS = "This LUN stays as it is."
_MOST_NUMBER = 10**17  #: far more than refreshes can reach; the next number must be one that every client reads
_MOST_STALE = 100  #: stale keys that a run removes for others: a vm-operator can write any number of open keys
_MANY, _MANY_SECONDS = 100, 0.1  #: for each _MANY locks of a run, `verify` trusts a reading for so long
_MOST_ROUNDS = 10  #: of `unlock`, against a client that refreshes its lock at the same moment


class _Locks:
    """The locks in the pool, from one call. Raises PoolFailure.

    A vm-operator can write any number of open keys, and a run reads the locks before each step. So of each name and
    kind, only the key with the highest number is parsed.
    """

    def __init__(self, calls: Calls) -> None:
        self.ref, record = calls.pool()
        self._calls, self._master, self._config = calls, str(record["master"]), record["other_config"]
        #: the keys by their beginning and name: a run may lock thousands of LUNs, and asks for each of them
        self._of_name: Dict[str, List[str]] = {}
        for key in filter(lambda key: key.startswith(BEGINS), self._config):
            self._of_name.setdefault(key.rpartition(":")[0], []).append(key)

    def now(self) -> str:
        """Return the time of the master. Raises PoolFailure."""
        said = str(self._calls.call("host.get_servertime", self._master))
        seconds = seconds_of(said)
        if seconds is None:
            raise PoolFailure(f"The master does not say what time it is: {said!r}.")
        return time.strftime(_FORM, time.gmtime(seconds))

    def all(self) -> List[Lock]:
        """Return the locks with all readable keys."""
        return locks_in(self._config)

    def on(self, what: LockName) -> Dict[str, str]:
        """Return the keys of the locks on `what`, with their values."""
        return {key.text: self._config[key.text] for begin in BEGINS for key in self._keys(what, begin)}

    def last(self, what: LockName, begin: str) -> Optional[Lock]:
        """Return the lock on `what` that counts among the keys with this beginning."""
        there = self._keys(what, begin)
        last = max(there, key=lambda key: key.number) if there else None
        return lock_of(last, self._config[last.text]) if last else None

    def _keys(self, what: LockName, begin: str) -> List[LockKey]:
        return list(filter(None, map(key_of, self._of_name.get(begin + what, ()))))

    def holders(self, what: LockName, now: str) -> List[Lock]:
        """Return the locks of clients that may be at work on `what`: at most one of each kind, first the guarded."""
        return [lock for lock in map(self.last, (what, what), BEGINS) if lock and not lock.is_stale(now)]


def names_of(calls: Calls, sr_uuids: Iterable[str]) -> List[LockName]:
    """Return the lock names of the SRs with these UUIDs; for an SR that is gone, the UUID.

    Raises PoolFailure, and Refused as `name_for`.
    """
    there = {sr["uuid"]: sr for sr in calls.records("SR").values()}
    return [name_of(there.get(uuid, {"uuid": uuid, "other_config": {}})) for uuid in dict.fromkeys(sr_uuids)]


def read(calls: Calls) -> Dict[LockName, Lock]:
    """Return the lock that counts for each locked name. Raises PoolFailure."""
    return {lock.what: lock for lock in in_order(_Locks(calls).all())}


def verify_free(calls: Calls, whats: Iterable[LockName]) -> None:
    """Raises Refused where another client has locked one of these names; PoolFailure."""
    for refusal in refusals(calls, whats).values():
        raise refusal


def refusals(calls: Calls, whats: Iterable[LockName], state: str = NOTHING_CHANGED) -> Dict[LockName, Refused]:
    """Return the refusal of each name that another client has locked, with the sentence `state`. Raises PoolFailure."""
    return _refused(calls, _look(calls, list(whats))[2], state)


def _look(calls: Calls, whats: Sequence[LockName]) -> Tuple[_Locks, str, Dict[LockName, Lock]]:
    """Return the locks in the pool, the time of the master, and the lock of another client on each of these names.

    A run removes its lock before its process ends. So a lock that is read behind the end of its process was left:

        t0  this client reads the lock of another run
        t1  the other run removes its lock, and its process ends
        t2  this client finds that the process has ended, and reads the locks again
    """
    ended: List[str] = []  #: tokens of runs whose processes had ended before the reading
    while True:
        seen = _Locks(calls)
        now = seen.now()
        found = {what: lock for what in whats for lock in seen.holders(what, now)[:1]}
        # a vm-operator writes any mark into an open key
        guarded = [lock for lock in found.values() if lock.begin == KEY and lock.token not in ended]
        new = [lock.token for lock in guarded if has_ended(lock.process_mark.split(" "))]
        if not new:
            return seen, now, {what: lock._replace(is_left=lock.token in ended) for what, lock in found.items()}
        ended += new


@contextmanager
def held(
    calls: Calls, whats: Iterable[LockName], doing: str, refused: Optional[Dict[LockName, Refused]] = None
) -> Iterator["Held"]:
    """Hold the locks on all of these names while the block runs.

    Raises Refused where another client owns one of the locks; then this run takes no lock. With `refused`, that dict
    gets the refusal of each such name, and this run takes the locks on the other names. Raises PoolFailure. If the pool
    does not answer at the end, the locks stay and become stale: `calls.notes` gets a sentence, also after good work.
    """
    mine = Held(calls, list(dict.fromkeys(whats)), doing)
    try:
        mine.take(refused)
        start_thread(mine.keep_fresh)
        yield mine
    finally:
        mine.release()


class Held:
    """The locks of this run."""

    def __init__(
        self, calls: Calls, whats: Sequence[LockName], doing: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls, self._whats, self._clock = calls, whats, clock
        self._trusted_until = clock()
        self._values = {
            "token": str(uuid.uuid4()),
            "who": user_name(),
            "host": socket.gethostname(),
            "process": str(os.getpid()),
            "process_mark": " ".join(this_process()),
            "doing": doing,
        }
        self._begins = [KEY, OPEN_KEY]  #: the first one counts; a role that may not write it takes the next one
        #: the keys that this run has added, and not removed since, of each name: no key of another client is among them
        self._written: Dict[LockName, List[str]] = {}
        self._lost: Optional[Refused] = None  #: of a refresh that found a lock broken
        self._busy, self._over = threading.Lock(), threading.Event()

    def verify(self, calls: Calls) -> None:
        """Check the locks. Call this before each step that changes the pool or a LUN.

        Raises Refused where another client has broken a lock of this run, and may work on the copy now. Raises
        PoolFailure.

        One reading has all locks of the pool, and a run calls this for each of its LUNs. So a run with many locks
        trusts a reading for a moment, 0.8 s with 800 locks. A step takes longer, and no code looks at a lock during a
        step.
        """
        if self._lost is not None:
            raise self._lost
        now = self._clock()
        if now >= self._trusted_until:
            self._verified(calls)
            self._trusted_until = now + len(self._whats) // _MANY * _MANY_SECONDS

    def _verified(self, calls: Calls) -> Tuple[_Locks, List[Lock]]:
        """Check the locks; return the locks in the pool, and the lock of this run on each name. Raises as `verify`."""
        seen, now, ours = _Locks(calls), "", []
        for what in self._whats:
            mine = seen.last(what, self._begins[0])
            if mine is None or not self._is_mine(mine):
                raise _broken(what, mine)
            other = seen.last(what, KEY if mine.begin == OPEN_KEY else OPEN_KEY)
            now = now or (seen.now() if other else "")
            if other and not other.is_stale(now) and (mine.begin == OPEN_KEY or mine.is_stale(now)):
                raise _broken(what, other)
            ours.append(mine)
        return seen, ours

    def take(self, refused: Optional[Dict[LockName, Refused]] = None) -> None:
        """Take the locks, with one call for each lock. Raises Refused, PoolFailure. `refused` is as for `held`.

        The keys are read before the first add and behind the last add. So a key that another client has added
        meanwhile shows in the second reading, whichever lock it is for.
        """
        seen, now, taken = _look(self._calls, self._whats)
        self._values.setdefault("since", now)
        self._leave(taken, refused)
        for what in self._whats:
            self._add_first(seen, what, now)
        there = _Locks(self._calls)
        before = {key: text for what in self._whats for key, text in seen.on(what).items()}
        stale = [lock.key for lock in locks_in(before) if lock.is_stale(now)]
        added = [
            lock
            for what in self._whats
            for key, text in there.on(what).items()
            if before.get(key) != text
            for lock in locks_in({key: text})
        ]
        new = [lock for lock in added if not self._is_mine(lock)]
        now = there.now() if new else now
        if not any(lock.is_stale(now) for lock in added if self._is_mine(lock)):  # else this client was the slow one
            new = [lock for lock in new if not lock.is_stale(now)]
        self._leave({lock.what: lock for lock in in_order(new)}, refused)
        needless = [lock.key for other in new for lock in locks_in(there.on(other.what)) if self._is_mine(lock)]
        for key in [*needless, *stale[:_MOST_STALE]]:
            with passing(_DENIED):  # the key stays: it is stale, and needs another role
                self._calls.call("pool.remove_from_other_config", seen.ref, key)

    def _leave(self, taken: Mapping[LockName, Lock], refused: Optional[Dict[LockName, Refused]]) -> None:
        """Leave these names to the clients with these locks. Raises Refused without `refused`."""
        if refused is not None:
            refused.update(_refused(self._calls, taken, LUN_STAYS))
        elif taken:
            raise next(iter(_refused(self._calls, taken).values()))
        self._whats = [what for what in self._whats if what not in taken]

    def _add_first(self, seen: _Locks, what: LockName, now: str) -> None:
        """Add a guarded key, or an open key where the role of this session may not write the other. Raises Refused."""
        last = seen.last(what, self._begins[0])
        if last is not None and last.number >= _MOST_NUMBER:
            raise _refused(self._calls, {what: last})[what]
        try:
            self._add(self._calls, seen.ref, what, last.number + 1 if last is not None else 1, now)
        except PoolFailure as failure:
            if failure.code != _DENIED or len(self._begins) == 1:
                raise
            del self._begins[0], self._written[what]
            self._add_first(seen, what, now)

    def _is_mine(self, lock: Lock) -> bool:
        return lock.token == self._values["token"] and lock.key in self._written.get(lock.what, ())

    def _add(self, calls: Calls, ref: str, what: LockName, number: int, now: str) -> None:
        key = f"{self._begins[0]}{what}:{number}"
        self._written.setdefault(what, []).append(key)  # before the call, whose answer may be lost
        self._values["refreshed"] = now
        marks.add(calls, "pool", ref, key, marks.text_of(self._values))

    def keep_fresh(self) -> None:
        """Refresh the locks until `release`, in a thread."""
        calls = None
        while not self._over.wait(REFRESH_SECONDS):
            try:
                calls = calls or self._calls.another()
                self.refresh(calls)
            except Refused:
                return  # the next `verify` raises Refused in the working thread
            except Exception as error:  # noqa: BLE001 - also of an answer that nobody expects: a lock must not grow stale
                logging.getLogger(__name__).debug("the locks were not refreshed: %r", error)  # the next may be
        if calls is not None:
            calls.close()

    def refresh(self, calls: Calls) -> None:
        """Refresh the locks. Raises Refused where another client has broken a lock; PoolFailure."""
        with self._busy:
            try:
                if not self._over.is_set():
                    self._refreshed(calls)
            except Refused as refused:
                self._lost = refused
                raise

    def _refreshed(self, calls: Calls) -> None:
        seen, ours = self._verified(calls)
        now = seen.now()
        for mine in ours:
            self._add(calls, seen.ref, mine.what, mine.number + 1, now)
            # Another client may have taken the stale lock, with a key of the other kind. Of two keys of one kind, the
            # number decides.
            for lock in _Locks(calls).holders(mine.what, now) if mine.is_stale(now) else ():
                if lock.begin != mine.begin:
                    raise _broken(mine.what, lock)
            for key in self._written[mine.what][:-1]:
                calls.call("pool.remove_from_other_config", seen.ref, key)
            del self._written[mine.what][:-1]

    def release(self) -> None:
        """Remove the keys of this run, and stale keys, at most _MOST_STALE. The locks of other clients stay.

        A pool that does not answer is asked again: the lock of this run would refuse the repeated command. A second
        Ctrl-C takes effect after the release, for the same reason.
        """
        self._over.set()
        stop: Optional[KeyboardInterrupt] = None
        pause, tries, limit = 0.0, _RELEASE_TRIES if self._written else 1, Deadline(RELEASE_SECONDS)
        while True:
            tries -= 1
            try:
                time.sleep(pause)
                self._remove_keys()
                break
            except (PoolFailure, PoolGone):  # the caller reports the error that ended the work
                pause = limit.within(_RELEASE_PAUSE)
                if tries <= 0 and not (pause and self._written):
                    self._calls.notes += [self._stay()] if self._written else []
                    break
            except KeyboardInterrupt as interrupt:
                stop = interrupt
        if stop is not None:
            raise stop

    def _remove_keys(self) -> None:
        with self._busy:
            seen = _Locks(self._calls)
            now = seen.now()
            locks = seen.all()
            mine = [lock for lock in locks if self._is_mine(lock)]
            stale = [lock for lock in locks if not self._is_mine(lock) and lock.is_stale(now)]
            for lock in [*mine, *stale[:_MOST_STALE]]:
                with passing(_DENIED):
                    self._calls.call("pool.remove_from_other_config", seen.ref, lock.key)

    def _stay(self) -> str:
        """Return the sentence on the locks that this run could not remove: `unlock` of a name removes all of them."""
        whats = list(self._written)
        until = (seconds_of(self._values["refreshed"]) or 0.0) + STALE_SECONDS
        return (
            f"The pool does not answer, so the lock of this run on {some_of(whats)} may stay until "
            f"{time.strftime(_FORM, time.gmtime(until))}, unless "
            f"`{shell_command('relvmoiscsi pool unlock', whats[0])}` removes it."
        )


def to_break(calls: Calls, what: LockName) -> List[Lock]:
    """Return the locks that a person breaks with the lock on `what`: those, and all others of the same runs.

    A run writes keys of one kind, so a token counts only among keys of its kind: a vm-operator can copy the token of a
    guarded key, but only into an open key. Raises PoolFailure.
    """
    locks = _Locks(calls).all()
    runs = {(each.begin, each.token) for each in locks if each.what == what and each.token != UNREADABLE}
    return [each for each in locks if each.what == what or (each.begin, each.token) in runs]


def to_tell(locks: Sequence[Lock], what: LockName) -> List[Lock]:
    """Return what a person is told of the locks of `to_break`: one of each kind for each name, `what` first."""
    last = {(each.what, each.begin): each for each in in_order(locks)}
    return sorted(last.values(), key=lambda each: (each.what != what, each.what, each.begin != KEY))


def verify_may_break(calls: Calls, locks: Sequence[Lock]) -> None:
    """Raises PoolFailure where the role of this user may not break one of these locks. An open lock needs less."""
    if any(each.begin == KEY for each in locks):
        calls.verify_may_call("pool.remove_from_other_config")


def unlock(calls: Calls, told: Sequence[Lock]) -> List[Lock]:
    """Break the locks of the runs in `told` (from `to_break`). Return the broken locks. Raises PoolFailure.

    A run that takes the lock while a person is asked keeps it.
    """
    runs = {(each.what, each.begin, each.token) for each in told}
    broken: Dict[Tuple[str, str], Lock] = {}
    for _ in range(_MOST_ROUNDS):
        seen = _Locks(calls)
        there = [each for each in seen.all() if (each.what, each.begin, each.token) in runs]
        if not there:
            break
        for each in there:
            calls.call("pool.remove_from_other_config", seen.ref, each.key)
        broken.update({(each.what, each.begin): each for each in in_order(there)})
    return [broken[each] for each in sorted(broken)]


def _broken(what: LockName, by: Optional[Lock]) -> Refused:
    whose = f" The new lock belongs to {by.text()}." if by is not None else ""
    return Refused(f"Another client has broken this run's lock on {what}.{whose} This run has stopped.").advising(
        "Repeat the command to resume."
    )


def _refused(calls: Calls, locks: Mapping[LockName, Lock], state: str = NOTHING_CHANGED) -> Dict[LockName, Refused]:
    """Return the refusal of each of these names, with the name of the SR or VM. Raises PoolFailure."""
    labels: Dict[str, str] = {}  #: objects, by the name of the lock; a clone that was not introduced has none
    for record in calls.records("SR").values() if locks else ():
        of_lun = str(record["other_config"].get(SCSI_ID))
        labels.update(dict.fromkeys((record["uuid"], of_lun), f"SR {said(record['name_label'])}"))
    for what in [what for what in locks if is_uuid(what) and what not in labels]:  # a pool may have thousands of VMs
        with passing("UUID_INVALID", "HANDLE_INVALID"):
            name = calls.call("VM.get_name_label", calls.call("VM.get_by_uuid", what))
            labels[what] = f"VM {said(name)}"
    found: Dict[LockName, Refused] = {}
    for what, lock in locks.items():
        unlock = shell_command("relvmoiscsi pool unlock", what)
        told = f"Another client has locked {what}: {lock.text()}."
        advice = (
            "Wait until the other run has ended, then repeat the command. If the other run was killed or has lost the "
            f"pool, first break its lock: `{unlock}`. {STALE_SECONDS / 60:.0f} minutes after its last refresh the lock "
            "expires."
        )
        if lock.is_left:
            told += " That process, of this machine, has ended, and has left its lock."
            advice = f"Break the lock: `{unlock}`. Then repeat the command."
        told += f" The lock is on the {labels[what]}." if what in labels else ""
        found[what] = Busy(told).in_state(state).advising(advice)
    return found
