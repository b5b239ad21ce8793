# SPDX-License-Identifier: LGPL-2.1-only
"""A target portal in a device-config. iscsi/names.py has the same, in a package that is slow to import."""

import re
from typing import NamedTuple


class Portal(NamedTuple):
    """Where a target listens. An IPv6 address has no brackets here."""

    host: str  #: name, IPv4 or IPv6 address
    port: int

    def __str__(self) -> str:
        return ("[{}]:{}" if ":" in self.host else "{}:{}").format(self.host, self.port)


def parse_portal(text: str) -> Portal:
    """The portal that "10.0.0.1:3260" or "[fd00::1]:3260" means. Raises ValueError when it means none."""
    address, _, port = text.rpartition(":")
    if not address or not re.match(r"[0-9]{1,5}\Z", port):
        raise ValueError(f"{text!r} is no portal")
    return Portal(address.strip("[]"), int(port))
