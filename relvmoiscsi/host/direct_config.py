# SPDX-License-Identifier: LGPL-2.1-only
"""The [direct] section of /etc/relvmoiscsi.conf: which LUNs are given to VMs as they are, and under which names.

    [direct]
    database-log = 36001405993c87c37fa84d02b7fa62c40

An INI file, read line by line and not by configparser: the file is the administrator's, so whatever is not the line in
question stays as it is, byte for byte, and a line that cannot be meant takes no other LUN from its VM. Where every line
is well-formed, configparser reads the same (a test has it do so).
"""

import logging
import os
import re
import time
from contextlib import contextmanager
from itertools import takewhile
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.host.holders import owners_of_flock
from relvmoiscsi.host.lock import flock_before

log = logging.getLogger(__name__)

CONFIG = "/etc/relvmoiscsi.conf"  #: known to the rules in udev/
SECTION = "direct"
LOCK_SECONDS = 30.0  #: for a command that asks xapi and has a map made

NOT_CHANGED = "Nothing was changed."

#: stands above a section that `with_entry` made, so that `without_entry` may take it away again
MARK = "# LUNs that are given to VMs as they are; see `relvmoiscsi direct --help`."

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
#: what the kernel calls block devices: sm's 58-xapi.rules puts USB disks into the same directory under these names
_KERNEL_NAME = re.compile(r"(sd|hd|vd|xvd|td)[a-z]+\d*\Z|(dm-|sr|scd|nbd|loop|md|ram|zram|fd|nvme|mmcblk)\d[\dnp]*\Z")
#: what udev lets stand of a SCSIid (systemd src/shared/udev-util.c), so that the rule can compare it
_SCSI_ID = re.compile(r"[0-9A-Fa-fS][A-Za-z0-9#+.:=@_-]{3,199}\Z")
_HEADER = re.compile(r"\[([^]]+)\]")
_KEY_VALUE = re.compile(r"(.*?)\s*[=:]\s*(.*)\Z")


class Entry(NamedTuple):
    """A LUN and the name of its link."""

    name: str
    scsi_id: str


class Section(NamedTuple):
    """What the section says, and a sentence for each line of it that says nothing."""

    entries: Tuple[Entry, ...] = ()
    problems: Tuple[str, ...] = ()

    def named(self, name: str) -> Optional[Entry]:
        return next((entry for entry in self.entries if entry.name == name), None)

    def of_lun(self, scsi_id: str) -> Optional[Entry]:
        return next((entry for entry in self.entries if entry.scsi_id == scsi_id), None)


def check_name(name: str) -> str:
    """The name, if a link may have it. Raises UsageError."""
    if not _NAME.match(name):
        raise UsageError(
            "{!r} cannot be the name of a direct LUN: up to 64 letters, digits and . _ - after a letter or digit "
            "can.".format(name)
        )
    if _KERNEL_NAME.match(name):
        raise UsageError("{!r} cannot be the name of a direct LUN: the kernel calls its disks so.".format(name))
    return name


def check_scsi_id(scsi_id: str) -> str:
    """The SCSIid, if it can be one. Raises UsageError."""
    if not _SCSI_ID.match(scsi_id):
        raise UsageError(
            "{!r} is no SCSIid as `scsi_id -g` or `multipath -l` prints it.".format(scsi_id), sm_key="ConfigSCSIid"
        )
    return scsi_id


# --- reading


def read_section(text: str) -> Section:
    """The section of a whole file. Of several lines on one name or LUN, the first counts."""
    entries: List[Entry] = []
    problems: List[str] = []
    for number, line in _lines_of_section(text.split("\n")):
        try:
            entry = _entry(line)
            if entry is not None:
                _check_new(entry, entries)
                entries.append(entry)
        except UsageError as problem:
            problems.append("Line {}: {}".format(number + 1, problem.message))
    return Section(tuple(entries), tuple(problems))


def settings_of(text: str, section: str) -> Dict[str, str]:
    """The settings of another section of the file; of several lines on one name, the last counts."""
    pairs = (_KEY_VALUE.match(_said(line)) for _, line in _lines_of_section(text.split("\n"), section))
    return {pair.group(1): pair.group(2) for pair in pairs if pair}


def _lines_of_section(lines: Sequence[str], section: str = SECTION) -> Iterator[Tuple[int, str]]:
    """Its lines and their numbers, from 0, without the headers: a file may have it more than once."""
    inside = False
    for number, line in enumerate(lines):
        header = _header(line)
        if header is not None:
            inside = header == section
        elif inside:
            yield number, line


def _header(line: str) -> Optional[str]:
    """The name of the section that the line begins; None if it begins none."""
    match = _HEADER.match(line.strip())
    return match.group(1) if match else None


def _entry(line: str) -> Optional[Entry]:
    """What a line says; None for one that says nothing. Raises UsageError."""
    text = _said(line)
    if not text:
        return None
    match = _KEY_VALUE.match(text)
    if line[:1].isspace() or match is None:
        raise UsageError("{!r} is not of the form `name = SCSIid`.".format(text))
    return Entry(check_name(match.group(1)), check_scsi_id(match.group(2)))


def _said(line: str) -> str:
    """What a line says, without comment and blanks."""
    return re.sub(r"(^|\s)[#;].*", "", line).strip()


def _check_new(entry: Entry, entries: Sequence[Entry]) -> None:
    for other in entries:
        if entry.name == other.name:
            raise UsageError("The name {} is taken: it is LUN {}.".format(other.name, other.scsi_id))
        if entry.scsi_id == other.scsi_id:
            raise UsageError("LUN {} has a name already: {}.".format(other.scsi_id, other.name))


# --- changing


def with_entry(text: str, entry: Entry) -> str:
    """The file with one more line. Raises UsageError for a name or a LUN that it has."""
    section = read_section(text)
    _check_new(entry, section.entries)
    lines = text.split("\n")
    line = "{} = {}".format(entry.name, entry.scsi_id)
    headers = [number for number, each in enumerate(lines) if _header(each) == SECTION]
    if headers:
        at = max([headers[0]] + [number for number, each in _lines_of_section(lines) if _is_entry(each)]) + 1
        lines.insert(at, line + ("\r" if lines[headers[0]].endswith("\r") else ""))
    else:
        block = ([""] if text else []) + [MARK, "[{}]".format(SECTION), line]
        end = len(lines) if lines[-1] else len(lines) - 1
        lines[end:end] = block
    return _checked("\n".join(lines), section.entries + (entry,))


def without_entry(text: str, name: str) -> str:
    """The file without the line of that name; what `with_entry` made for it goes as well. Raises NotFound."""
    section = read_section(text)
    lines = text.split("\n")
    found = [number for number, line in _lines_of_section(lines) if _is_entry(line) and _name_of(line) == name]
    if not found:
        raise NotFound("There is no direct LUN of the name {}.".format(name))
    at = found[0]
    del lines[at]
    if lines[max(0, at - 2) : at] == [MARK, "[{}]".format(SECTION)] and not any(_rest_of_section(lines[at:])):
        start = at - 3 if at > 2 and not lines[at - 3] else at - 2
        del lines[start:at]
    left = [entry for entry in section.entries if entry.name != name]
    return _checked("\n".join(lines), left)


def _rest_of_section(lines: Sequence[str]) -> List[str]:
    return list(takewhile(lambda line: _header(line) is None, lines))


def _is_entry(line: str) -> bool:
    try:
        return _entry(line) is not None
    except UsageError:
        return False


def _name_of(line: str) -> str:
    entry = _entry(line)
    return entry.name if entry else ""


def _checked(text: str, expected: Sequence[Entry]) -> str:
    """The new text, if it reads as it should. Raises Refused: then the file is one that a person must edit."""
    if set(read_section(text).entries) != set(expected):
        raise Refused("The section [{}] is not one that can be changed safely; edit it by hand.".format(SECTION))
    return text


# --- the file


def read_config(path: str) -> str:
    """The text of the file, whatever bytes it has; empty if there is none. Raises Refused when it does not read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Refused("{} cannot be read: {}.".format(path, error.strerror)).in_state(NOT_CHANGED) from error


@contextmanager
def only_one(path: str) -> Iterator[None]:
    """No other process of ours changes the file meanwhile. Raises Refused when one does for too long.

    The lock is on the directory: the file itself is replaced.
    """
    directory = os.path.dirname(os.path.realpath(path))
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("{} cannot be opened: {}.".format(directory, error.strerror)).in_state(NOT_CHANGED) from error
    try:
        if not flock_before(descriptor, time.monotonic() + LOCK_SECONDS):
            owners = ", ".join(owners_of_flock(os.fstat(descriptor))) or "another process"
            raise Refused("{} is being changed by {}. Try again.".format(path, owners)).in_state(NOT_CHANGED)
        yield
    finally:
        os.close(descriptor)


def replace_config(path: str, text: str) -> None:
    """Put a new text in the place of the file; a cut at any moment leaves the old one or the new one.

    Owner and mode stay. Raises Refused when it cannot be written; then the old one is there.
    """
    path = os.path.realpath(path)
    directory, name = os.path.split(path)
    new = os.path.join(directory, ".{}.{}".format(name, os.urandom(6).hex()))
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                _take_over_mode(path, file.fileno())
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise Refused("{} cannot be written: {}.".format(path, error.strerror)).in_state(NOT_CHANGED) from error
    _sync_directory(directory)
    log.info("wrote %s", path)


def _take_over_mode(path: str, descriptor: int) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        os.fchmod(descriptor, 0o644)
        return
    os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & 0o7777)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
