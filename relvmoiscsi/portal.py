# SPDX-License-Identifier: LGPL-2.1-only
"""A target portal, and its text forms.

A target, and anybody who may write a device-config, chooses the text of an address. Python 3.6 needs hours to encode a
long name in another script, and no deadline ends that. So no portal has a host of any other form than of DNS and IP.
A pattern looks only at a text of bounded length.
"""

import re
from typing import NamedTuple

DEFAULT_PORT = 3260
_MOST_SAID = 60  #: characters of a text that is no address
#: a name of DNS has at most 253 characters; an IPv6 address may name an interface
_HOST = re.compile(r"[0-9A-Za-z._-]{1,253}|[0-9A-Fa-f:.]{2,45}(?:%[0-9A-Za-z._-]{1,15})?")
#: no part can match a text in two ways
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]:]*:[^\[\]]*)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?")
_MOST_ADDRESS = 300  #: characters of the longest name, a port and a group of portals


def is_host(text: str) -> bool:
    """Has the text the form of a name of DNS, or of an IP address without brackets?"""
    return _HOST.fullmatch(text) is not None


class _Portal(NamedTuple):
    host: str  #: name, IPv4 or IPv6 address
    port: int


class Portal(_Portal):
    """Address of a target. An IPv6 address has no brackets here."""

    __slots__ = ()

    def __new__(cls, host: str, port: int = DEFAULT_PORT) -> "Portal":
        """Verify both. Raises ValueError."""
        if not is_host(host) or not 0 < port < 65536:
            raise ValueError(f"{host[:_MOST_SAID]!r} with port {port} is no address of a target")
        return super().__new__(cls, host, port)

    def __str__(self) -> str:
        return ("[{}]:{}" if ":" in self.host else "{}:{}").format(self.host, self.port)


def parse_address(text: str) -> Portal:
    """Parse a TargetAddress: "10.0.0.1:3260,1", "[fd00::1]", "san.example". Raises ValueError."""
    match = _ADDRESS.fullmatch(text.partition(",")[0].strip()) if len(text) <= _MOST_ADDRESS else None
    if match is None:
        raise ValueError(f"{text[:_MOST_SAID]!r} is no address of a target")
    return Portal(match.group("six") or match.group("name"), int(match.group("port") or DEFAULT_PORT))
