# SPDX-License-Identifier: LGPL-2.1-only
"""A target portal, and its text forms."""

import re
from typing import NamedTuple

DEFAULT_PORT = 3260
_MOST_ADDRESS = 300  #: characters; a name of DNS has at most 253
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>[^\[\]:,\s]+))(?::(?P<port>[0-9]{1,5}))?\Z")


class Portal(NamedTuple):
    """Address of a target. An IPv6 address has no brackets here."""

    host: str  #: name, IPv4 or IPv6 address
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return ("[{}]:{}" if ":" in self.host else "{}:{}").format(self.host, self.port)


def parse_address(text: str) -> Portal:
    """Parse a TargetAddress: "10.0.0.1:3260,1", "[fd00::1]", "san.example". Raises ValueError."""
    address = text.partition(",")[0].strip()
    match = _ADDRESS.match(address) if len(address) <= _MOST_ADDRESS else None
    port = int(match.group("port") or DEFAULT_PORT) if match else 0
    if match is None or not match.group().isprintable() or not 0 < port < 65536:
        raise ValueError(f"{text[:_MOST_ADDRESS]!r} is no address of a target")
    return Portal(match.group("six") or match.group("name"), port)
