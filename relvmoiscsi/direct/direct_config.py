# SPDX-License-Identifier: LGPL-2.1-only
"""The [direct] section of /etc/relvmoiscsi.conf: the LUNs that VMs use as they are, and the names of their links.

    [direct]
    database-log = 36001405993c87c37fa84d02b7fa62c40

A change of one line keeps all other bytes of the file. An invalid line takes no other LUN from its VM.
"""

import re
from itertools import takewhile
from typing import Dict, List, Mapping, Optional, Tuple

from relvmoiscsi.errors import NotFound, Refused, UsageError
from relvmoiscsi.host.config_file import KEY_VALUE, header, lines_of_section, read_config, said, with_line
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.scsi_id_text import typed_scsi_id
from relvmoiscsi.wording import shell_command

SECTION = "direct"

#: the comment above a section that `with_entry` made; `without_entry` removes a section with this comment
MARK = "# LUNs that are given to VMs as they are; see `relvmoiscsi direct --help`."

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
#: the kernel's names of block devices: sm's 58-xapi.rules puts USB disks into the same directory under these names
_KERNEL_NAME = re.compile(r"(sd|hd|vd|xvd|td)[a-z]+\d*\Z|(dm-|sr|scd|nbd|loop|md|ram|zram|fd|nvme|mmcblk)\d[\dnp]*\Z")
#: the characters that udev keeps in a SCSIid (systemd src/shared/udev-util.c), so that the rule can compare the SCSIid
_SCSI_ID = re.compile(r"[0-9A-Fa-fS][A-Za-z0-9#+.:=@_-]{3,199}\Z")


def check_name(name: str) -> str:
    """Return the name if a link may have this name. Raises UsageError."""
    if not _NAME.match(name):
        raise UsageError(f"{name!r} cannot be the name of a direct LUN.").advising(
            "Use up to 64 letters, digits and . _ - and begin with a letter or digit."
        )
    if _KERNEL_NAME.match(name):
        raise UsageError(f"{name!r} cannot be the name of a direct LUN: the kernel uses such names for disks.")
    return name


def check_scsi_id(scsi_id: str) -> str:
    """Return the SCSIid if it is valid. Raises UsageError."""
    if not _SCSI_ID.match(scsi_id):
        raise UsageError(
            f"{scsi_id!r} is not a SCSIid as `scsi_id -g` or `multipath -l` prints it.", sm_key="ConfigSCSIid"
        )
    return scsi_id


# --- reading


def luns_of(host: Host) -> Dict[str, str]:
    """Return the SCSIids of the direct LUNs of a host, by name. Raises Refused."""
    return read_section(read_config(host.config))[0]


def read_section(text: str) -> Tuple[Dict[str, str], List[str]]:
    """Return the SCSIids of the section by name, in the order of the lines, and a sentence for each invalid line.

    If several lines have one name or one LUN, the first line counts.
    """
    luns: Dict[str, str] = {}
    problems: List[str] = []
    for number, line in lines_of_section(text.split("\n"), SECTION):
        try:
            entry = _entry(line)
            if entry is not None:
                _check_new(luns, *entry)
                luns[entry[0]] = entry[1]
        except UsageError as problem:
            problems.append(f"Line {number + 1}: {problem.told}")
    return luns, problems


def _entry(line: str) -> Optional[Tuple[str, str]]:
    """Return the name and the SCSIid of a line; None for an empty line or a comment. Raises UsageError."""
    text = said(line)
    if not text:
        return None
    match = KEY_VALUE.match(text)
    if line[:1].isspace() or match is None:
        raise UsageError(f"{text!r} is not of the form `name = SCSIid`.")
    written = check_scsi_id(match.group(2))
    if typed_scsi_id(written) != written:  # the udev rule searches the file for the text that udev prints
        raise UsageError(f"The udev rule does not find {written!r}.", "ConfigSCSIid").advising(
            f"Write {typed_scsi_id(written)}."
        )
    return check_name(match.group(1)), written


def _check_new(luns: Mapping[str, str], name: str, scsi_id: str) -> None:
    for other, other_id in luns.items():
        if name == other:
            raise UsageError(f"The name {other} is taken: it is LUN {other_id}.").advising("Choose another name.")
        if scsi_id == other_id:
            raise UsageError(f"LUN {other_id} has a name already: {other}.").advising(
                f"To give the LUN another name, first run `{shell_command('relvmoiscsi direct remove', other)}`."
            )


# --- changing the text


def with_entry(text: str, name: str, scsi_id: str) -> str:
    """Return the text with one more entry. Raises UsageError if the text has the name or the LUN already."""
    luns, _problems = read_section(text)
    _check_new(luns, name, scsi_id)
    return _checked(with_line(text, SECTION, MARK, f"{name} = {scsi_id}", _is_entry), {**luns, name: scsi_id})


def without_entry(text: str, name: str) -> str:
    """Return the text without the entry of that name, and without a section made for it alone. Raises NotFound."""
    luns, _problems = read_section(text)
    lines = text.split("\n")
    found = [number for number, line in lines_of_section(lines, SECTION) if _is_entry(line, name)]
    if not found:
        raise NotFound(f"There is no direct LUN with the name {name}.").advising(
            "`relvmoiscsi direct list` lists the names."
        )
    at = found[0]
    del lines[at]
    rest = takewhile(lambda line: header(line) is None, lines[at:])
    if lines[max(0, at - 2) : at] == [MARK, f"[{SECTION}]"] and not any(rest):
        start = at - 3 if at > 2 and not lines[at - 3] else at - 2
        del lines[start:at]
    return _checked("\n".join(lines), {other: scsi_id for other, scsi_id in luns.items() if other != name})


def _is_entry(line: str, name: Optional[str] = None) -> bool:
    """Is the line an entry, with this name if one is given?"""
    try:
        entry = _entry(line)
    except UsageError:
        return False
    return entry is not None and name in (None, entry[0])


def _checked(text: str, expected: Dict[str, str]) -> str:
    """Return the new text if it has the expected entries. Raises Refused otherwise: a person must edit the file."""
    if read_section(text)[0] != expected:
        raise Refused(f"The section [{SECTION}] cannot be changed safely.").advising("Edit the section by hand.")
    return text
