# SPDX-License-Identifier: LGPL-2.1-only
"""The values that callers pass and receive: portals, initiators, credentials, targets, LUNs."""

from typing import NamedTuple, Optional, Tuple

from relvmoiscsi.portal import Portal


class Credentials(NamedTuple):
    """CHAP users and secrets; "" if absent. With incoming user and secret, the target must prove its identity."""

    user: str = ""
    secret: str = ""
    incoming_user: str = ""
    incoming_secret: str = ""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, incoming_user={self.incoming_user!r})"


NO_CREDENTIALS = Credentials()


class Initiator(NamedTuple):
    """The initiator of a login."""

    name: str  #: the initiator's IQN
    host_uuid: str = ""  #: of a host that writes; every other writer of the same LUN has another UUID
    interface: str = ""  #: the network interface, or the source address on this host, for connections


class Target(NamedTuple):
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
