# SPDX-License-Identifier: LGPL-2.1-only
"""Records in open-iscsi's database: found, edited and put back as they were.

    <database>/nodes/<IQN>/<address>,<port>                   a record without a portal group, as `-o new` makes it
    <database>/nodes/<IQN>/<address>,<port>,<tpgt>/<iface>    a record that discovery made
    <database>/send_targets/<address>,<port>/st_config        a record of a discovery
    /run/lock/iscsi/lock, lock.write                          the lock: whoever can link lock.write to lock has it

The database is /var/lib/iscsi with Red Hat and XenServer, /etc/iscsi with Debian. A record is text, a line for each
setting, and iscsiadm reads secrets from it; given to iscsiadm they would stand in its argv for everybody to see. So the
file is written here, under open-iscsi's own lock, which iscsiadm itself holds while it reads or writes a record only.
Source: open-iscsi usr/idbm.c (idbm_lock, idbm_recinfo_config, idbm_rec_write), usr/initiator.h.
"""

import logging
import os
import re
import time
from contextlib import contextmanager
from glob import escape, glob
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from relvmoiscsi.errors import Refused, UsageError
from relvmoiscsi.host.files import content_of, remedy, replace, sync_directory
from relvmoiscsi.host.flock import POLL_SECONDS
from relvmoiscsi.host.iscsi.portals import Portal, same_portal
from relvmoiscsi.host.this_host import Host

log = logging.getLogger(__name__)

DATABASES = ("var/lib/iscsi", "etc/iscsi")
LOCK_DIRECTORIES = ("run/lock/iscsi", "var/lock/iscsi")
LOCK_WAIT_SECONDS = 30.0  #: as open-iscsi has it, where there is that much time
STALE_SECONDS = 2.0
DEFAULT_IFACE = "default"
MAX_VALUE = 255  #: bytes; open-iscsi cuts longer ones

_END = b"# END RECORD"
_NEW_RECORD = ".relvmoiscsi-record"
_SETTING = re.compile(rb"[ \t]*([^\s=#]+)\s*=[ \t]*(.*?)\s*\Z", re.DOTALL)

#: Values of settings by name; None: the setting is not there.
Settings = Mapping[str, Optional[str]]


class Record(NamedTuple):
    """A node record: how to reach one portal of a target through one interface."""

    path: str
    tpgt: Optional[int]
    iface: str  #: "" if the file is named after the portal alone

    @property
    def selection(self) -> List[str]:
        """What makes iscsiadm take this record and no other of the same portal."""
        return ["-I", self.iface or DEFAULT_IFACE]


def node_records(host: Host, iqn: str, portal: Portal) -> List[Record]:
    """The records for this target at this (numeric) portal; those for the default interface first."""
    found = []
    for database in DATABASES:
        for path in glob(os.path.join(escape(os.path.join(host.root, database, "nodes", iqn)), "*,*")):
            address, port, *tpgt = os.path.basename(path).split(",")
            if not port.isdigit() or not same_portal(Portal(address, int(port)), portal):
                continue
            group = int(tpgt[0]) if tpgt and tpgt[0].isdigit() else None
            if os.path.isdir(path):
                found += [Record(os.path.join(path, name), group, name) for name in os.listdir(path)]
            else:
                found.append(Record(path, group, ""))
    return sorted(found, key=lambda record: (record.iface not in ("", DEFAULT_IFACE), record.path))


def discovery_record(host: Host, portal: Portal) -> Optional[str]:
    """The file of the SendTargets record of this (numeric) portal; None if there is none."""
    for database in DATABASES:
        for path in glob(os.path.join(escape(os.path.join(host.root, database, "send_targets")), "*,*", "st_config")):
            address, port = os.path.basename(os.path.dirname(path)).split(",")[:2]
            if port.isdigit() and same_portal(Portal(address, int(port)), portal):
                return path
    return None


def lasting_directories(host: Host, kind: str) -> List[str]:
    """The directories that `remove_record` leaves even when they are empty; `kind` is "nodes" or "send_targets".

    Those of the database itself, and any that are empty now. Others go with their last record, as with open-iscsi.
    """
    found = []
    for database in DATABASES:
        top = os.path.join(host.root, database, kind)
        found += [path for path in (os.path.dirname(top), top) if os.path.isdir(path)]
        found += [directory for directory, names, files in os.walk(top) if not names and not files]
    return found


def with_settings(text: bytes, settings: Settings) -> bytes:
    """The record with these settings: changed where they stand, added at its end, taken out for None.

    Every other line, known or not, stays byte for byte. Raises UsageError for a value that a record cannot hold.
    """
    missing = {name.encode("ascii"): _value(name, value) for name, value in settings.items()}
    wanted = dict(missing)
    lines: List[bytes] = []
    end: Optional[int] = None  # number of the line that ends the record
    for line in text.splitlines(True):
        match = _SETTING.match(line)
        name = match.group(1) if match else b""
        if name in wanted:
            missing.pop(name, None)
            lines.append(_line(name, wanted[name]))
            continue
        if line.startswith(_END):
            end = len(lines)
        lines.append(line)
    added = [_line(name, value) for name, value in missing.items()]
    if added and lines and end is None and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    position = len(lines) if end is None else end
    return b"".join(lines[:position] + added + lines[position:])


def settings_in(text: bytes, names: Sequence[str]) -> Dict[str, Optional[str]]:
    """The values of these settings in the record; None for those that are not there."""
    found: Dict[str, Optional[str]] = dict.fromkeys(names)
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match and match.group(1).decode("utf-8", "surrogateescape") in found:
            found[match.group(1).decode("ascii")] = match.group(2).decode("utf-8", "surrogateescape")
    return found


def read_record(path: str) -> Optional[bytes]:
    """The bytes of the record; None if there is no such file any more."""
    try:
        return content_of(path)
    except OSError as error:
        raise _unusable(path, error) from error


def write_record(path: str, text: bytes) -> None:
    """Put new text in the place of the record, for root alone: a cut leaves the old record or the new one.

    The database's lock is held. The new one is made outside the directories whose files open-iscsi takes for records.
    """
    _remove_unfinished(path)
    try:
        os.chmod(path, 0o600)
        replace(path, text, _unfinished(path))
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise _unusable(path, error) from error


def _unfinished(path: str) -> str:
    """Where new text of a record is written: in its database, in the file system of the record."""
    while path not in ("", "/") and os.path.basename(path) not in ("nodes", "send_targets"):
        path = os.path.dirname(path)
    return os.path.join(os.path.dirname(os.path.realpath(path)), _NEW_RECORD)


def _remove_unfinished(path: str) -> None:
    """What a run has left that was killed while it wrote a record; a secret may be in it."""
    try:
        os.unlink(_unfinished(path))
    except FileNotFoundError:
        pass  # as nearly always
    except OSError as error:
        raise _unusable(_unfinished(path), error) from error


def put_back(path: str, before: bytes, mode: int, names: Sequence[str]) -> None:
    """Make the record what it was before we changed the settings `names`, byte for byte.

    Another program may have changed it since: then what it changed stays, and those settings get their old values. Of
    one whose write was cut nothing stays.
    """
    _remove_unfinished(path)
    now = read_record(path)
    if now is None:
        log.info("%s, which was changed for a login, has been removed by another program; it stays so", path)
        return
    restored = with_settings(now, settings_in(before, names))
    if now != before:
        was_cut = _END in before and _END not in now
        is_same = _all_settings(restored) == _all_settings(before)
        write_record(path, before if was_cut or is_same else restored)
        log.info("put back %s", path)
    os.chmod(path, mode)


def remove_record(path: str, lasting: Sequence[str]) -> None:
    """Remove a record that we made, and the directories around it that are empty then and not `lasting`.

    A directory in its place means that a discovery has made the record its own; it stays.
    """
    _remove_unfinished(path)
    try:
        os.unlink(path)
        log.info("removed %s", path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        log.info("%s, which was made for a login, is not ours any more", path)
    except OSError as error:
        raise _unusable(path, error) from error
    directory = os.path.dirname(path)
    # Three levels of directories at most lie between a record and the database.
    for _ in range(3):
        if directory in lasting:
            return
        try:
            os.rmdir(directory)
        except OSError:
            return  # others use it, or it is gone
        directory = os.path.dirname(directory)


@contextmanager
def database_lock(
    host: Host,
    timeout: float = LOCK_WAIT_SECONDS,
    changed: Callable[[bool], None] = lambda held: None,
) -> Iterator[None]:
    """Hold open-iscsi's lock of its database while the block runs; `timeout` is in seconds.

    The lock has no owner: killed in between, we would leave it taken for good. So `changed` is told before we take it
    and after we gave it back, for `break_stale_lock` by a later run.

    Raises Refused when the lock stays taken.
    """
    path = _lock_path(host)
    deadline = time.monotonic() + timeout
    changed(True)
    while not _link(path):
        if time.monotonic() >= deadline:
            changed(False)
            raise Refused(
                "The lock {} of open-iscsi's database is taken and did not become free in time. If no iscsiadm runs, "
                "one was killed while it held the lock: remove the file, then try again.".format(path + ".write"),
                "ISCSIQueryDaemon",
            )
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _unlink(path + ".write")
        changed(False)


def break_stale_lock(host: Host, seconds: float = STALE_SECONDS) -> None:
    """Free open-iscsi's lock if it is one that a dead run of ours may have held, and stays as it is for this long.

    Whether that run had it or still waited for it is not known; iscsiadm has it for milliseconds.
    """
    path = _lock_path(host)
    taken = _taken_at(path)
    deadline = time.monotonic() + seconds
    while taken is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        if _taken_at(path) != taken:
            return
    if taken is not None:
        log.info("freeing %s, which a killed run held", path + ".write")
        _unlink(path + ".write")


def _taken_at(path: str) -> Optional[int]:
    """When the lock was taken, as the kernel has noted it with the link; None if it is free."""
    try:
        return os.stat(path + ".write").st_ctime_ns
    except FileNotFoundError:
        return None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # what was wanted


def _lock_path(host: Host) -> str:
    """/run/lock and /var/lock are one directory nearly everywhere; where not, it is where open-iscsi has been."""
    paths = [host.at(name) for name in LOCK_DIRECTORIES]
    there = [path for path in paths if os.path.isdir(path)]
    there += [path for path in paths if os.path.isdir(os.path.dirname(path))]
    return os.path.join((there or paths)[0], "lock")


def _link(path: str) -> bool:
    """One attempt to take the lock."""
    try:
        os.makedirs(os.path.dirname(path), 0o770, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.link(path, path + ".write")
    except FileExistsError:
        return False
    except OSError as error:
        raise _unusable(path, error) from error
    return True


def _all_settings(text: bytes) -> Dict[bytes, bytes]:
    matches = [_SETTING.match(line) for line in text.splitlines()]
    return {match.group(1): match.group(2) for match in matches if match}


def _line(name: bytes, value: Optional[bytes]) -> bytes:
    return b"" if value is None else name + b" = " + value + b"\n"


def _value(name: str, value: Optional[str]) -> Optional[bytes]:
    """The value as it stands in a record; open-iscsi strips blanks around it and knows no quotes."""
    if value is None:
        return None
    raw = value.encode("utf-8", "surrogateescape")
    problem = ""
    if not raw:
        problem = "is empty"
    elif len(raw) > MAX_VALUE:
        problem = f"is longer than {MAX_VALUE} bytes"
    elif raw != raw.strip() or re.search(rb"[\x00-\x1f\x7f]", raw):
        problem = "begins or ends with a blank, or has a control character"
    if problem:
        # The value may be a secret, so it is not shown.
        raise UsageError(f"The value for {name} {problem}, which open-iscsi cannot take.", "ISCSILogin")
    return raw


def _unusable(path: str, error: OSError) -> Refused:
    problem = f"{path} of open-iscsi's database cannot be used: {error.strerror}. {remedy(error)}"
    return Refused(problem, "ISCSIQueryDaemon")
