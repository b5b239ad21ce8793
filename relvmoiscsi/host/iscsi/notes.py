# SPDX-License-Identifier: LGPL-2.1-only
"""Notes of what a run has changed in open-iscsi, so that a later run can finish its cleanup when it was killed.

A note is a file of its own, written before the change that it speaks of. Each line is a JSON object; a later line
overrides the same keys of those before, and a last line that was cut does not count. Its owner holds an flock on it for
as long as it lives, so a note that can be locked is one that a dead run has left.

    boot, iqn, portal      when and where; a discovery has `discovery` and no IQN
    created, sid           was the session logged in here, and its number as soon as it is known
    sids, marker           what tells that session while its number is not known: those that were there before, and
                           time-outs that this login alone has (changes.py)
    asked                  when iscsid was asked for the session (monotonic), unless it has answered: it may make it yet
    user                   our line in SM's session reference file
    inherited              sessions that SM had references to when we came: the last one to have a line ends them
    others                 whose lines were in SM's file before our scan of a session
    scanning, scanned      LUNs that were there before that scan; has it come to its end?
    brought                LUNs that were there afterwards, with their SCSIid; by SCSI address, as `scanning`
    handed                 to whom all this was left, by a run that has ended as it should; whoever comes next ends it
    waits_for              LUNs at which other runs of ours were then: whoever has worked on one of them ends it
    path, made, ...        the changed record (changes.py)

The file may hold a secret of the record's owner, so only root may read it.
"""

import base64
import fcntl
import json
import logging
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set

from relvmoiscsi.errors import Refused
from relvmoiscsi.host import flock
from relvmoiscsi.host.files import append, remedy, sync_directory
from relvmoiscsi.host.iscsi.portals import Portal
from relvmoiscsi.host.this_host import Host

log = logging.getLogger(__name__)

DIRECTORY = "var/lib/relvmoiscsi/iscsi"

Rank = Callable[[Mapping[str, Any]], Optional[int]]


class Note:
    """The note of one login, or of one use of a session; `close` or `remove` it."""

    def __init__(self, path: str, descriptor: int, facts: Dict[str, Any]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._facts = facts

    def __getitem__(self, key: str) -> Any:
        """The last fact noted by this key; None if there is none."""
        return self._facts.get(key)

    @property
    def portal(self) -> Portal:
        address, port = self._facts["portal"]
        return Portal(address, port)

    def add(self, durable: bool = True, **facts: Any) -> None:
        """Note these facts (JSON values), on the disk by the time this returns unless not `durable`."""
        self._facts.update(facts)
        try:
            append(self._descriptor, (json.dumps(facts, sort_keys=True) + "\n").encode("ascii"))
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def remove(self) -> None:
        """All that it speaks of is undone."""
        try:
            os.unlink(self.path)
        except OSError as error:
            log.warning("The note %s could not be removed: %s.", self.path, error.strerror)
        self.close()
        for directory in (os.path.dirname(self.path), os.path.dirname(os.path.dirname(self.path))):
            try:
                os.rmdir(directory)
            except OSError:
                return  # other notes, or other files of ours, are there

    def put_back(self) -> None:
        """Leave the note to whoever comes next, which is to try those first that it has not tried for longer."""
        if self._descriptor >= 0:
            try:
                os.utime(self._descriptor)
            except OSError as error:
                log.warning("The note %s keeps its time: %s.", self.path, error.strerror)
        self.close()

    def close(self) -> None:
        """Leave the note to whoever comes next."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def new_note(host: Host, **facts: Any) -> Note:
    """A note of our own with these first facts."""
    directory = host.at(DIRECTORY)
    number = 0
    while True:
        path = os.path.join(directory, f"{os.getpid()}-{number}.json")
        number += 1
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            continue  # of a dead run with our number, or of another login of ours
        except FileNotFoundError:
            continue  # another run has removed the directory
        except OSError as error:
            raise _unusable(path, error) from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Whoever looks for notes of dead runs may have found it in between, empty, and removed it.
        if os.fstat(descriptor).st_nlink:
            note = Note(path, descriptor, {})
            try:
                note.add(boot=host.boot_id, **facts)
                sync_directory(directory)
            except BaseException:
                note.remove()  # nothing has been changed yet
                raise
            return note
        os.close(descriptor)


def dead_notes(host: Host) -> List[Note]:
    """The notes that runs have left which were killed; whoever gets them holds them."""
    return list(dead_notes_in_turn(host))


def dead_notes_in_turn(host: Host, rank: Rank = lambda facts: 0) -> Iterator[Note]:
    """The same one by one, so that a process which hangs in the disks of one note has no copies of the others.

    `rank` is given the facts of a note: the lowest come first, and None is passed over. Of several alike, that one
    comes first which was not put back for longest.
    """
    ranked = []
    for path in _paths(host):
        try:
            when, place = os.stat(path).st_mtime_ns, rank(_peeked(path))
        except FileNotFoundError:
            continue  # its owner has just removed it
        except OSError as error:
            raise _unusable(path, error) from error
        if place is not None:
            ranked.append((place, when, path))
    for _, _, path in sorted(ranked):
        note = _dead_note(path)
        if note is not None:
            yield note


def noted_users(host: Host, iqn: str) -> Set[str]:
    """The SR UUIDs that runs of ours, alive or killed, have put into SM's session reference file of this IQN."""
    return {str(facts["user"]) for facts in noted(host) if facts.get("iqn") == iqn and facts.get("user")}


def any_brought(host: Host) -> bool:
    """Has a scan of any run of ours, alive or killed, brought LUNs, as far as is known?"""
    scans = [facts for facts in noted(host) if facts.get("scanning") is not None]
    return any(facts.get("brought") or not facts.get("scanned") for facts in scans)


def any_waits(host: Host, iqn: str, scsi_id: str) -> bool:
    """Has a run left what it had of this target because another one of ours was at work on the LUN?"""
    return any(facts.get("iqn") == iqn and scsi_id in (facts.get("waits_for") or ()) for facts in noted(host))


def is_handed_over(content: str) -> bool:
    """Did the run of the note with this content end as it should, and leave a session or a LUN to its other users?"""
    return _facts(content.encode("ascii", "replace")).get("handed") is not None


def left_to_nobody(content: str) -> Mapping[str, Optional[str]]:
    """What the run of the note with this content has brought and could leave to nobody: SCSIids by SCSI address.

    That is so while the pool does not tell whose the LUNs are, or while another run is at one of them.
    """
    facts = _facts(content.encode("ascii", "replace"))
    return facts.get("brought") or {} if facts.get("handed") == [] or facts.get("waits_for") else {}


def packed(content: Optional[bytes]) -> Optional[str]:
    """Bytes as a fact."""
    return None if content is None else base64.b64encode(content).decode("ascii")


def unpacked(fact: Optional[str]) -> Optional[bytes]:
    return None if fact is None else base64.b64decode(fact)


def _paths(host: Host) -> List[str]:
    directory = host.at(DIRECTORY)
    try:
        return sorted(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".json"))
    except OSError:
        return []  # there is none


def noted(host: Host) -> Iterator[Dict[str, Any]]:
    """The facts of each note, whoever holds it."""
    for path in _paths(host):
        try:
            yield _peeked(path)
        except OSError:
            continue  # its owner has just removed it


def _peeked(path: str) -> Dict[str, Any]:
    """The facts of a note, whoever holds it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _dead_note(path: str) -> Optional[Note]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # its owner has just removed it
    except OSError as error:
        raise _unusable(path, error) from error
    if not flock.take(descriptor):
        os.close(descriptor)
        return None  # its owner is alive
    note = Note(path, descriptor, _read(descriptor))
    if not os.fstat(descriptor).st_nlink:
        note.close()
        return None
    if note["iqn"] is None:
        # Cut before its first line was whole: nothing had been changed yet.
        note.remove()
        return None
    return note


def _read(descriptor: int) -> Dict[str, Any]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return _facts(file.read())


def _facts(content: bytes) -> Dict[str, Any]:
    facts: Dict[str, Any] = {}
    for line in content.split(b"\n")[:-1]:
        try:
            facts.update(json.loads(line.decode("ascii")))
        except ValueError:
            log.warning("A note on an iSCSI login has a line that cannot be read; it is passed over.")
    return facts


def _unusable(path: str, error: OSError) -> Refused:
    problem = "The note {}, which a cleanup after a crash needs, cannot be used: {}. {}"
    return Refused(problem.format(path, error.strerror, remedy(error))).in_state("Nothing was changed.")
