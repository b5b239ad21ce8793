# SPDX-License-Identifier: LGPL-2.1-only
"""What a target portal is, and how it is written."""

import re
from typing import NamedTuple, Optional


class Portal(NamedTuple):
    """Where a target listens. An IPv6 address has no brackets here."""

    address: str  #: name, IPv4 or IPv6 address
    port: int

    def __str__(self) -> str:
        return ("[{}]:{}" if ":" in self.address else "{}:{}").format(self.address, self.port)


def parse_portal(text: str) -> Portal:
    """The portal that "10.0.0.1:3260" or "[fd00::1]:3260" means. Raises ValueError when it means none."""
    address, _, port = text.rpartition(":")
    if not address or not re.match(r"[0-9]{1,5}\Z", port):
        raise ValueError(f"{text!r} is no portal")
    return Portal(address.strip("[]"), int(port))


def same_portal(one: Portal, other: Portal) -> bool:
    """Are they the same address and port, however the address is written?"""
    return one.port == other.port and _normal(one.address) == _normal(other.address)


def _normal(address: str) -> Optional[str]:
    import ipaddress  # noqa: PLC0415 - slow to import, and a call that is refused for its words compares none

    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address.lower()
