# SPDX-License-Identifier: LGPL-2.1-only
"""The place of a volume, for the command: a device of this host, or a LUN behind iSCSI as a URL.

A URL needs no device, no os-brick and no root. The command logs in as the initiator that the back end was told.
"""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import quote

from relvmoiscsi.errors import UsageError
from relvmoiscsi.lun.lun_url import SCHEME, parse_url
from relvmoiscsi.wording import repr_without

_KEYS = ("target_portal", "target_iqn", "target_lun")  #: the keys with an appended "s" hold lists of all paths
_USER, _PASSWORD = "LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"


class Place(NamedTuple):
    """The device and the options for the command, and how the command runs."""

    devices: Tuple[str, ...]  #: paths or URLs of the volume, in the order of the attempts
    options: Tuple[str, ...] = ()
    hidden: Tuple[str, ...] = ()  #: words about the back end that may appear only in the log
    settings: Optional[Mapping[str, str]] = None  #: added to the environment of this process; None: run as root

    def __repr__(self) -> str:
        return repr_without(self, "settings")

    def how(self) -> Dict[str, Any]:
        """Return the arguments for the driver's `_execute`. A password goes into the environment, into no argument."""
        if self.settings is None:
            return {"run_as_root": True}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LIBISCSI_")}
        return {"env_variables": {**inherited, **self.settings}}


def on_this_host(path: str) -> Place:
    """Return the place of a volume that this host has as a block device. The command runs as root, by rootwrap."""
    return Place((path,), ("--block-device",))


def place_of(connection: Mapping[str, Any], initiator: str) -> Optional[Place]:
    """Return the place of a LUN from Cinder's connection information; None without complete iSCSI information."""
    data = connection["data"]
    if connection["driver_volume_type"] != "iscsi" or data.get("auth_method") not in (None, "", "CHAP"):
        return None
    try:
        urls = tuple(dict.fromkeys(_url(*path) for path in _paths(data)))
        portals = [parse_url(url).portal for url in urls]
    except (TypeError, ValueError, UsageError):
        return None
    settings = {}
    if data.get("auth_method"):
        settings = {_USER: data.get("auth_username") or "", _PASSWORD: data.get("auth_password") or ""}
    hidden = (initiator, *(portal.host for portal in portals), *(parse_url(url).iqn for url in urls))
    return Place(urls, ("--initiator-name", initiator), hidden, settings)


def _paths(data: Mapping[str, Any]) -> List[Tuple[Any, ...]]:
    """Return (portal, IQN, LUN) of each path. Raises ValueError."""
    several = [data.get(key + "s") for key in _KEYS]
    if all(several):
        return list(zip(*several, strict=True))
    return [tuple(data.get(key) for key in _KEYS)]


def _url(portal: str, iqn: str, lun: Any) -> str:
    """Return the URL of a path. Raises TypeError, ValueError."""
    return f"{SCHEME}{portal.partition(',')[0]}/{quote(iqn, safe=':')}/{int(lun)}" if portal else ""
