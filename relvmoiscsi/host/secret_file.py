# SPDX-License-Identifier: LGPL-2.1-only
"""Files of passwords that an option names: --password-file, --chap-password-file, --chap-file.

A person may let another user run the command as root. That user must not be able to have the content of root's other
files sent to a target or a pool. So a file of passwords is a regular file of the user of this process, with one name:
another user can give a second name to root's files. No other user has any right to the file, and no other user can
replace the file.

A descriptor that the caller has opened is read as it is: /dev/stdin, and /dev/fd/63 of a shell's `<(command)`. No path
is opened then, and the caller could read the content before.
"""

import os
import stat
from typing import List

from relvmoiscsi.errors import UsageError
from relvmoiscsi.host.own_path import NotOwn, is_this_user, read_named

_MOST_BYTES = 65536  #: of a file: four users and passwords have some hundred
#: no command on the file: the caller may have named any file by mistake
_OWN_FILE = "Put the password into a file of your own with mode 0600, and name that file."


def lines_of(path: str) -> List[str]:
    """Return the lines of a file of passwords. Raises UsageError; the message contains no line of the file."""
    try:
        content = read_named(path, _MOST_BYTES, _verify)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{path} has more than {_MOST_BYTES} bytes.").advising("Give a file of passwords.")
        return content.decode("utf-8").splitlines()
    except NotOwn as problem:
        raise UsageError(f"The file of passwords {path} is not safe: {problem}.").advising(
            "Put it into another directory."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UsageError(f"The file of passwords {path} cannot be read: {reason}.") from None


def first_line(path: str) -> str:
    """Return the password in the only line of a file. Raises UsageError for a file without a password, or with more."""
    lines = lines_of(path)
    if not lines or not lines[0]:
        raise UsageError(f"{path} is to hold a password, and its first line is empty.")
    if any(line.strip() for line in lines[1:]):
        raise UsageError(f"{path} has a second line.").advising(
            "Give a file that holds one password, in its only line."
        )
    return lines[0]


def _verify(path: str, status: os.stat_result, is_given: bool) -> None:
    """Raise UsageError for what another user can write or read. A given pipe or terminal is the caller's."""
    if not stat.S_ISREG(status.st_mode):
        if is_given:
            return
        raise UsageError(f"{path} is no regular file.").advising("Give a file of passwords, or /dev/stdin for a pipe.")
    if status.st_nlink != 1:
        raise UsageError(f"{path} has another name too: it may be any file of yours.").advising("Give a separate file.")
    if not is_this_user(status.st_uid):
        raise UsageError(f"{path} belongs to another user.").advising(_OWN_FILE)
    if status.st_mode & 0o077:
        raise UsageError(f"{path} is accessible to other users.").advising(_OWN_FILE)
