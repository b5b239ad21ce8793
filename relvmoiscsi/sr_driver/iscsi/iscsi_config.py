# SPDX-License-Identifier: LGPL-2.1-only
"""The device-config of an iSCSI call: checked, with lvmoiscsi's keys and their meaning.

All other keys are ignored: orchestrators send `resign`, `usediscoverynumber` and `LUNid`, and xapi adds keys.

relvmoiscsi adds `chapsecret` and `incoming_chapsecret`: the UUID of a Secret, as in `chappassword_secret`. xapi copies
the Secret of a key that ends in `password_secret` for each host before it calls the driver. SR.create of type
relvmoiscsi would leave these copies behind, with the password. Source: xen-api ocaml/xapi/xapi_secret.ml,
duplicate_passwds.
"""

import re
from contextlib import suppress
from typing import List, Mapping, NamedTuple, Optional

from relvmoiscsi.errors import UsageError
from relvmoiscsi.portal import DEFAULT_PORT, Portal
from relvmoiscsi.sr_driver.transport import CallRequest, scsi_id_in
from relvmoiscsi.wording import repr_without, said

ANY_IQN = "*"
_IQN = re.compile(r"(?:iqn\.|eui\.|naa\.)[!-.0-~]{1,219}\Z")  # printable, no slash: the IQN is a part of paths
_PORT = re.compile(r"[0-9]{1,5}\Z")  # int() accepts more than digits


class Chap(NamedTuple):
    """One direction of a CHAP login, as given: the user or the password may be empty (`Credentials` refuses that)."""

    user: str
    password: str  #: the password itself, or the UUID of a xapi Secret that holds it
    is_secret_uuid: bool = False

    def __repr__(self) -> str:
        return repr_without(self, "password")


class IscsiConfig(CallRequest):
    """The device-config of a call."""

    def __init__(self, device_config: Mapping[str, str]) -> None:
        """Check a device-config.

        Raises UsageError with lvmoiscsi's error keys: ConfigTargetMissing (95), ISCSIPort (142). An invalid value has
        the same key as a missing value.
        """
        self.target = device_config.get("target", "").strip()  #: as in the device-config
        if not self.target:
            raise UsageError("The target (device-config:target) is missing.", "ConfigTargetMissing")
        iqn = device_config.get("targetIQN", "").strip()
        if iqn and iqn != ANY_IQN and not _IQN.match(iqn):
            raise UsageError(f"{said(iqn)} is no IQN (device-config:targetIQN).", "ConfigTargetIQNMissing")
        self.target_iqn = "" if iqn == ANY_IQN else iqn  #: "" if the key is missing
        scsi_id = scsi_id_in(device_config)
        port = device_config.get("port", "").strip() or str(DEFAULT_PORT)
        if not _is_port(port):
            given = device_config["port"]
            raise UsageError(f"{given!r} is no port (device-config:port).", "ISCSIPort")
        # an IPv6 address may be in brackets
        addresses = filter(None, (part.strip().strip("[]") for part in self.target.split(",")))
        portals: List[Portal] = []
        for address in addresses:
            try:
                portals.append(Portal(address, int(port)))
            except ValueError:
                unread = f"{said(address)} is no address of a target (device-config:target)."
                wrong = UsageError(unread, "ConfigTargetMissing")
                raise wrong.advising("Give an IP address, or a name in ASCII.") from None
        if not portals:
            raise UsageError(f"{said(self.target)} names no target (device-config:target).", "ConfigTargetMissing")
        # Portals that SM has found: multihomelist "ip:port,ip:port", multiSession "ip,port,iqn|ip,port,iqn|". An item
        # that is no portal is ignored: `target` alone suffices.
        more = [item.strip().rpartition(":")[::2] for item in device_config.get("multihomelist", "").split(",")]
        for item in device_config.get("multiSession", "").split("|"):
            address, _, rest = item.strip().partition(",")
            its_port, _, name = rest.partition(",")
            if name == iqn:
                more.append((address, its_port))
        for one, at in more:
            with suppress(ValueError):
                portals.append(Portal(one.strip("[]"), int(at) if _is_port(at) else 0))
        self.portals = tuple(dict.fromkeys(portals))  #: in the order to try; the portals of `target` come first
        self.chap, self.incoming_chap = _chap(device_config, "chap"), _chap(device_config, "incoming_chap")
        self.local_iqn = device_config.get("localIQN", "").strip() or None
        if self.local_iqn is not None:
            from relvmoiscsi.iscsi.names import checked_initiator  # noqa: PLC0415 - few calls have this key

            try:
                checked_initiator(self.local_iqn)
            except UsageError as problem:
                problem.message += " The key is device-config:localIQN."
                raise
        super().__init__(scsi_id, device_config)


def _is_port(text: str) -> bool:
    return bool(_PORT.match(text)) and 0 < int(text) < 65536


def _chap(config: Mapping[str, str], name: str) -> Optional[Chap]:
    user, password = config.get(name + "user", ""), config.get(name + "password", "")
    secret = config.get(name + "password_secret", "") or config.get(name + "secret", "")
    if not (user or password or secret):
        return None
    return Chap(user, secret or password, bool(secret))
