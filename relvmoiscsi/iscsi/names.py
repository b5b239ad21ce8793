# SPDX-License-Identifier: LGPL-2.1-only
"""What callers say and are told: portals, initiators, credentials, targets, LUNs."""

from typing import NamedTuple, Optional, Tuple

from relvmoiscsi.portal import Portal


class Credentials(NamedTuple):
    """CHAP users and secrets; "" where there is none. With the incoming user and secret the target proves itself."""

    user: str = ""
    secret: str = ""
    incoming_user: str = ""
    incoming_secret: str = ""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, incoming_user={self.incoming_user!r})"


NO_CREDENTIALS = Credentials()


class Initiator(NamedTuple):
    """Who logs in."""

    name: str  #: its IQN
    host_uuid: str = ""  #: of a host that writes; what else may write the same LUN has another one
    interface: str = ""  #: a network interface, or an address of this host, that connections leave from


class Target(NamedTuple):
    """A target that a discovery has named."""

    iqn: str
    portals: Tuple[Portal, ...]


class LunInfo(NamedTuple):
    """What a LUN says of itself."""

    lun: bytes  #: the 8 bytes of REPORT LUNS
    scsi_id: Optional[str] = None
    vendor: str = ""
    model: str = ""
    serial: str = ""
    size_bytes: int = 0
    block_size: int = 0
    physical_block_size: int = 0
    problem: str = ""  #: why it cannot be used now; "" when it can

    @property
    def number(self) -> int:
        """The LUN as the array calls it, whatever the addressing. Source: SAM-5 4.7.7."""
        method, first = self.lun[0] >> 6, int.from_bytes(self.lun[:2], "big")
        if self.lun[0] == 0xD2:  # extended flat space addressing, 24 bits
            return int.from_bytes(self.lun[1:4], "big")
        return first & 0x3FFF if method < 2 else first

    @property
    def kernel_number(self) -> int:
        """The LUN as Linux calls it, in sysfs and to a `scan` file."""
        words = [int.from_bytes(self.lun[at : at + 2], "big") for at in range(0, 8, 2)]
        return sum(word << 16 * place for place, word in enumerate(words))
