# SPDX-License-Identifier: LGPL-2.1-only
"""The values that callers pass and receive: portals, initiators, credentials, targets, LUNs."""

import logging
from typing import NamedTuple, Optional, Tuple

from relvmoiscsi.errors import UsageError
from relvmoiscsi.portal import Portal

log = logging.getLogger(__name__)


class Credentials(NamedTuple):
    """CHAP users and secrets; "" if absent. With incoming user and secret, the target must prove its identity."""

    user: str = ""
    secret: str = ""
    incoming_user: str = ""
    incoming_secret: str = ""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, incoming_user={self.incoming_user!r})"


NO_CREDENTIALS = Credentials()
LEAST_SECRET_BYTES = 12  #: of a CHAP secret (RFC 7143 9.2.1): shorter secrets can be found from one recorded login


def verified(credentials: Credentials) -> Credentials:
    """Return the credentials; log a warning for a short secret. Raises UsageError for equal secrets.

    A target that knows no secret passes a mutual login with equal secrets: in a second login, the target has the
    initiator answer the initiator's own challenge of the first login.
    """
    if credentials.incoming_user and credentials.secret == credentials.incoming_secret:
        raise UsageError(
            "The CHAP passwords of both directions are equal, so the target's answer would prove nothing. Choose a "
            "different password for the target."
        )
    secrets = [secret for secret in (credentials.secret, credentials.incoming_secret) if secret]
    if any(len(secret.encode("utf-8")) < LEAST_SECRET_BYTES for secret in secrets):
        log.warning("a CHAP password has less than %d bytes: choose a longer password", LEAST_SECRET_BYTES)
    return credentials


class Initiator(NamedTuple):
    """The initiator of a login."""

    name: str  #: the initiator's IQN
    host_uuid: str = ""  #: of a host that writes; every other writer of the same LUN has another UUID
    interface: str = ""  #: the network interface, or the source address on this host, for connections


class DiscoveredTarget(NamedTuple):
    """A target from a discovery."""

    iqn: str
    portals: Tuple[Portal, ...]


class LunInfo(NamedTuple):
    """What a LUN reports about itself."""

    lun: bytes  #: the 8 bytes of REPORT LUNS
    scsi_id: Optional[str] = None
    vendor: str = ""
    model: str = ""
    serial: str = ""
    size_bytes: int = 0
    block_size: int = 0
    physical_block_size: int = 0
    problem: str = ""  #: why the LUN cannot be used now; "" if it can

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
