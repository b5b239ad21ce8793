# SPDX-License-Identifier: LGPL-2.1-only
"""A target, or a LUN behind a target, as a URL in the form of libiscsi and QEMU.

    iscsi://[user@]host[:port][/iqn[/lun]]

An IPv6 address is in brackets, %xx means a byte, and the LUN is a number. A URL must not have a secret: every user of a
machine can read the words of a command. No message repeats any part of an invalid URL.
"""

import re
from typing import NamedTuple, Optional
from urllib.parse import unquote

from relvmoiscsi.errors import UsageError
from relvmoiscsi.portal import Portal, parse_address

SCHEME = "iscsi://"
FORM = "iscsi://[user@]host[:port]/iqn/lun"

_IQN = re.compile(r"[!-~]{1,223}\Z")
_MAX_LUN = 0xFFFFFF  # the highest number in extended flat addressing, SAM-5 4.7.7


class Url(NamedTuple):
    """The parts of a URL; an absent part is empty."""

    portal: Portal
    user: str = ""  #: the CHAP user
    iqn: str = ""
    lun: Optional[int] = None


def is_url(word: str) -> bool:
    """Return whether the word is a URL and not a path."""
    return word[: len(SCHEME)].lower() == SCHEME


def parse_url(text: str) -> Url:
    """Parse a URL. Raises UsageError."""
    rest = text[len(SCHEME) :]
    if not is_url(text):
        raise UsageError(f"A URL of a LUN begins with {SCHEME}.")
    account, at, place = rest.rpartition("@")
    if at and re.search("[%:/]", account):
        raise UsageError(
            "The URL holds more than a user before the `@`: a password must not stand in a command. Every user of this "
            "machine can read it in the list of processes, and the shell may have saved it."
        ).advising("Change the password. Give it with LIBISCSI_CHAP_PASSWORD or --chap-file.")
    if "?" in place:
        raise UsageError("The URL has options behind a `?`, which are not taken.").advising("Leave them away.")
    parts = place.split("/")
    if parts[-1] == "" and len(parts) > 1:  # iscsi://host/, iscsi://host/iqn/
        del parts[-1]
    if len(parts) > 3 or (at and not account):
        raise UsageError(f"The URL has parts that mean nothing, expected {FORM}.")
    place, portal = unquote(parts[0]), None
    try:
        if "%" not in place or place.startswith("["):  # else a user and password without the `@`
            portal = parse_address(place)
    except ValueError:
        pass
    if portal is None:
        raise UsageError(
            f"The URL names no portal, expected {FORM}. An IPv6 address stands in brackets, a port is from 1 to 65535."
        )
    iqn = unquote(parts[1]) if len(parts) > 1 else ""
    if len(parts) > 1 and not _IQN.match(iqn):
        raise UsageError(f"The URL names no target, expected {FORM}.")
    lun = parts[2] if len(parts) > 2 else None
    if lun is not None and (not re.match("[0-9]{1,8}\\Z", lun) or int(lun) > _MAX_LUN):
        raise UsageError(f"The URL names no LUN, expected {FORM}: a LUN is its decimal number.")
    return Url(portal, account, iqn, lun if lun is None else int(lun))
