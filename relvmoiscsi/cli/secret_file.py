# SPDX-License-Identifier: LGPL-2.1-only
"""Files of passwords that an option names: --password-file, --chap-password-file, --chap-file.

A person may let another user run the command as root. That user must not be able to have the content of root's other
files sent to a target or a pool. So a file of passwords belongs to the user of this process, and no other user has any
right to the file. A pipe or a terminal is read as it is.
"""

import os
import stat
from typing import List

from relvmoiscsi.errors import UsageError


def lines_of(path: str) -> List[str]:
    """Return the lines of a file of passwords. Raises UsageError; the message contains no line of the file."""
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                _verify(path, status)
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UsageError(f"The file of passwords {path} cannot be read: {reason}.") from None


def first_line(path: str) -> str:
    """Return the password in the only line of a file. Raises UsageError for a file without a password, or with more."""
    lines = lines_of(path)
    if not lines or not lines[0]:
        raise UsageError(f"{path} is to hold a password, and its first line is empty.")
    if any(line.strip() for line in lines[1:]):
        raise UsageError(f"{path} has a second line. Give a file that holds one password, in its only line.")
    return lines[0]


def _verify(path: str, status: os.stat_result) -> None:
    if os.path.islink(path):
        raise UsageError(f"{path} is a link: give the file of passwords itself.")
    if status.st_uid != os.geteuid():
        raise UsageError(f"{path} holds passwords and belongs to another user. Give a file of your own.")
    if status.st_mode & 0o077:
        raise UsageError(f"{path} holds passwords and is accessible to other users. Run `chmod 600 {path}`.")
