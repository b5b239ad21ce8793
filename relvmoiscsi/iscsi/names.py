# SPDX-License-Identifier: LGPL-2.1-only
"""The values that callers pass and receive: portals, initiators, credentials, targets, LUNs."""

import logging
import re
from functools import lru_cache
from typing import NamedTuple, Optional

from relvmoiscsi.errors import UsageError
from relvmoiscsi.scsi import READ_CAPACITY_16, Verdict

log = logging.getLogger(__name__)


MAX_NAME_BYTES = 223  #: of the name of an initiator or a target (RFC 7143 4.2.7.1)
_INITIATOR = re.compile(r"(iqn\.[0-9]{4}-[0-9]{2}\.[!-~]{1,211}|eui\.[0-9A-Fa-f]{16}|naa\.([0-9A-Fa-f]{16}){1,2})\Z")
LEAST_SECRET_BYTES = 12  #: of a CHAP secret (RFC 7143 9.2.1): shorter secrets can be found from one recorded login


class Credentials:
    """CHAP users and secrets; "" if absent. With incoming user and secret, the target must prove its identity.

    Raises UsageError for half a pair, and for secrets with which the proof of the target would be none: a response is
    the hash of identifier, secret and challenge. If one secret begins with the other secret, a target without a secret
    gets its proof from the initiator. In a second login, the target puts the rest and the challenge of the first login.
    """

    def __init__(self, user: str = "", secret: str = "", incoming_user: str = "", incoming_secret: str = "") -> None:
        _verify_pair("CHAP", user, secret)
        _verify_pair("incoming CHAP", incoming_user, incoming_secret)
        if incoming_user and not user:
            raise UsageError("The target proves itself only to a CHAP user.").advising(
                "Give that user and password as well."
            )
        hashed, incoming_hashed = bytes_of(secret), bytes_of(incoming_secret)
        if incoming_user and (incoming_hashed.startswith(hashed) or hashed.startswith(incoming_hashed)):
            raise UsageError(
                "One CHAP password is equal to the other or begins with it, so the target's answer would prove nothing."
            ).advising("Choose a different password for the target.")
        if any(0 < len(each) < LEAST_SECRET_BYTES for each in (hashed, incoming_hashed)):
            _warn_of_short_secret()
        self.user, self.secret = user, secret
        self.incoming_user, self.incoming_secret = incoming_user, incoming_secret

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, incoming_user={self.incoming_user!r})"


@lru_cache(maxsize=None)  # a command makes the credentials anew for each session
def _warn_of_short_secret() -> None:
    log.warning("warning: A CHAP password has less than %d bytes. Choose a longer password.", LEAST_SECRET_BYTES)


def _verify_pair(kind: str, user: str, secret: str) -> None:
    if user and not secret:
        raise UsageError(f"The {kind} user {user!r} has no password, or an empty password.").advising(
            "Give both, or neither."
        )
    if secret and not user:
        raise UsageError(f"The {kind} password has no user.").advising("Give both, or neither.")


def bytes_of(text: str) -> bytes:
    """Return a user or secret as a login sends or hashes the text. The environment may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def checked_initiator(text: str) -> str:
    """Return the name of an initiator, as a caller gives it. Raises UsageError for a malformed name."""
    if len(bytes_of(text)) > MAX_NAME_BYTES:
        raise UsageError(f"{text!r} is not an initiator name: it has more than {MAX_NAME_BYTES} bytes.")
    if not is_initiator(text):
        raise UsageError(
            f"{text!r} is not an initiator name, expected iqn.YYYY-MM.DOMAIN, eui. with 16 hex digits, or naa. with "
            "16 or 32."
        )
    return text


def is_initiator(text: str) -> bool:
    return _INITIATOR.match(text) is not None


NO_CREDENTIALS = Credentials()


class Initiator(NamedTuple):
    """The initiator of a login."""

    name: str  #: the initiator's IQN
    host_uuid: str = ""  #: of a host that writes; every other writer of the same LUN has another UUID
    interface: str = ""  #: the network interface, or the source address on this host, for connections


class LunInfo(NamedTuple):
    """What a LUN reports about itself, and whether a call can use the LUN now."""

    lun: bytes  #: the 8 bytes of REPORT LUNS
    scsi_id: Optional[str] = None
    vendor: str = ""
    model: str = ""
    serial: str = ""
    size_bytes: int = 0
    block_size: int = 0
    physical_block_size: int = 0
    capacity_cdb: bytes = READ_CAPACITY_16  #: the READ CAPACITY that the LUN knows
    problem: str = ""  #: why the LUN cannot be used now; "" if it can
    is_disk: bool = True
    what: str = ""  #: the kind of device, if the LUN is no disk; "" if no device is mapped
    verdict: Verdict = Verdict.DONE  #: on the last command of the look
    is_read_only: bool = False

    @property
    def number(self) -> int:
        """The array's number of the LUN, for every addressing method. Source: SAM-5 4.7.7."""
        method, first = self.lun[0] >> 6, int.from_bytes(self.lun[:2], "big")
        if self.lun[0] == 0xD2:  # extended flat space addressing, 24 bits
            return int.from_bytes(self.lun[1:4], "big")
        return first & 0x3FFF if method < 2 else first

    @property
    def kernel_number(self) -> int:
        """Linux's number of the LUN, in sysfs and for a `scan` file."""
        words = [int.from_bytes(self.lun[at : at + 2], "big") for at in range(0, 8, 2)]
        return sum(word << 16 * place for place, word in enumerate(words))
